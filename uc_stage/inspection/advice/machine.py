"""Rules about what `datasets` keeps on this machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from uc_stage.inspection.facts import Finding
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uc_stage.inspection.facts import Facts

_SHARED = ("/Volumes/", "/dbfs/")


def no_room(facts: Facts) -> Iterator[Finding]:
    """An Arrow copy that has no room where `datasets` would write it."""
    machine, report = facts.machine, facts.report
    if report.kind == "table" or facts.is_mapped:
        return
    need = facts.memory_bytes
    if not need or not machine.installed("datasets"):
        return
    cache, _ = machine.datasets_cache
    free = machine.free(cache)
    if free is not None and need > free:
        yield Finding(
            f"`load_dataset` writes the rows again as Arrow, {format_size(need)} or more, below `{cache}`, which has "
            f"{format_size(free)} free",
            {"need": need, "free": free, "cache": cache},
            f"uc-stage cache {shlex.quote(facts.origin or report.target)} --as arrow  # is mapped as it is; or "
            "HF_DATASETS_CACHE on a larger disk, or load_dataset(…, streaming=True)",
        )


def shared_cache(facts: Facts) -> Iterator[Finding]:
    """A cache of Hugging Face on a file system without locks."""
    cache, variable = facts.machine.datasets_cache
    if variable and f"{cache}/".startswith(_SHARED):
        yield Finding(
            f"`{variable}` puts the cache of `datasets` at `{cache}`, where file locks fail or hang, and memory maps "
            "read over the network",
            {"cache": cache, "variable": variable},
            f"export {variable}=/tmp/huggingface  # or another folder of a local disk",
        )
