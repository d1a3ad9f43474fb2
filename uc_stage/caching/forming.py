"""Which form a copy is asked for in, and what its files weigh."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from uc_stage.caching.places import variant_of
from uc_stage.errors import InvalidRequest
from uc_stage.forms.arrow import ArrowForm
from uc_stage.model import CopyForm
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uc_stage.forms import Form, Outputs
    from uc_stage.manifest import Manifest
    from uc_stage.model import CacheRequest
    from uc_stage.progress import Progress


def form_of(request: CacheRequest, generation: str, manifest: Manifest | None) -> Form | None:
    """The form that is asked for of one generation; None for the source's files as they are.

    Raises:
        InvalidRequest: there is no such form.
    """
    if request.form not in get_args(CopyForm):
        raise InvalidRequest(f"there is no form `{request.form}`", hint=f"there are {', '.join(get_args(CopyForm))}")
    if request.form == "arrow":
        return ArrowForm(manifest, f"{generation} {manifest.id if manifest else ''} {variant_of(request)}")
    return None


def weigh(form: Form, url: str, outputs: Outputs, known: Mapping[str, int], progress: Progress) -> dict[str, int]:
    """The bytes that outputs will have about; only those that are not `known` are asked for."""
    unknown = {path: files for path, files in outputs.items() if path not in known}
    found = form.estimate(open_folder(url), unknown, progress) if unknown else {}
    return {path: known[path] if path in known else found[path] for path in outputs}
