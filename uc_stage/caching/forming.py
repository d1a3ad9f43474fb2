"""Which form a copy is asked for in, and what its files weigh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.caching.places import variant_of
from uc_stage.errors import InvalidRequest
from uc_stage.forms.arrow import ArrowForm
from uc_stage.forms.pack import Pack
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uc_stage.forms import Form, Outputs
    from uc_stage.manifest import Manifest
    from uc_stage.model import CacheRequest
    from uc_stage.progress import Progress


def form_of(request: CacheRequest, generation: str, manifest: Manifest | None) -> Form | None:
    """The form that is asked for of one generation; None for the source's files as they are."""
    if request.form == "arrow":
        return ArrowForm(manifest, f"{generation} {manifest.id if manifest else ''} {variant_of(request)}")
    if request.form == "pack":
        if manifest is not None:
            raise InvalidRequest(
                f"`--pack` is for folders of small files, and `{request.source}` is an export",
                hint="leave it out, or write it with fewer files: uc-stage export --files",
            )
        return Pack(request.pack_size)
    return None


def weigh(form: Form, url: str, outputs: Outputs, known: Mapping[str, int], progress: Progress) -> dict[str, int]:
    """The bytes that outputs will have about; only those that are not `known` are asked for."""
    unknown = {path: files for path, files in outputs.items() if path not in known}
    found = form.estimate(open_folder(url), unknown, progress) if unknown else {}
    return {path: known[path] if path in known else found[path] for path in outputs}
