"""Which form a copy is asked for in, and what its files weigh."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from uc_stage.caching.places import variant_of
from uc_stage.errors import InvalidRequest
from uc_stage.forms.arrow import ArrowForm
from uc_stage.forms.pack import Pack
from uc_stage.model import CopyForm
from uc_stage.storage import open_folder
from uc_stage.transfer import DEFAULT_JOBS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uc_stage.forms import Form, Outputs
    from uc_stage.manifest import Manifest
    from uc_stage.model import CacheRequest
    from uc_stage.progress import Progress


def form_of(request: CacheRequest, generation: str, manifest: Manifest | None) -> Form | None:
    """The form that is asked for of one generation; None for the source's files as they are.

    Raises:
        InvalidRequest: there is no such form, flags of two forms, or a form that is none for this source.
    """
    if request.form not in get_args(CopyForm):
        raise InvalidRequest(f"there is no form `{request.form}`", hint=f"there are {', '.join(get_args(CopyForm))}")
    if request.pack or request.pack_size is not None:
        return _pack(request, manifest)
    if request.form == "arrow":
        return ArrowForm(manifest, f"{generation} {manifest.id if manifest else ''} {variant_of(request)}")
    return None


def _pack(request: CacheRequest, manifest: Manifest | None) -> Pack:
    if not request.pack:
        raise InvalidRequest("`--pack-size` is for `--pack`", hint="give both, or leave it out")
    if request.pack_size is not None and request.pack_size <= 0:
        raise InvalidRequest(f"`--pack-size {request.pack_size}` is no size", hint="give 1MB or more, or leave it out")
    if request.form != "files":
        raise InvalidRequest(
            f"`--pack` and `--as {request.form}` are two forms of a copy", hint="leave out one of them"
        )
    if manifest is not None:
        raise InvalidRequest(
            f"`--pack` is for folders of small files, and `{request.source}` is an export of Parquet",
            hint="leave it out",
        )
    return Pack(request.pack_size, request.jobs or DEFAULT_JOBS)


def weigh(form: Form, url: str, outputs: Outputs, known: Mapping[str, int], progress: Progress) -> dict[str, int]:
    """The bytes that outputs will have about; only those that are not `known` are asked for."""
    unknown = {path: files for path, files in outputs.items() if path not in known}
    found = form.estimate(open_folder(url), unknown, progress) if unknown else {}
    return {path: known[path] if path in known else found[path] for path in outputs}
