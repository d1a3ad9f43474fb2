"""What a target holds that can be measured: Parquet or Arrow files with their rows, or images, audio and text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.errors import NotFound, StageError
from uc_stage.loaders import samples
from uc_stage.model import MeasuredTarget
from uc_stage.targets import is_data_name, look

if TYPE_CHECKING:
    from uc_stage.loaders.samples import Kind
    from uc_stage.progress import Progress
    from uc_stage.targets import Target


@dataclass(frozen=True, slots=True)
class Dataset:
    """One target with its data files, as paths or URLs with their bytes and rows.

    Attributes:
        kind: of images, audio and text, whose rows are the samples; None for Parquet and Arrow.
        target_kind, generation: as a `MeasuredTarget` has them.
        source: what a copy was made of; the target itself where it is none.
        row_bytes: the uncompressed bytes of a row, on average; 1 at least.
    """

    target: str
    source: str
    files: tuple[tuple[str, int, int], ...]
    target_kind: str
    generation: str | None
    kind: Kind | None = None
    row_bytes: int = 1

    @property
    def bytes(self) -> int:
        """Those of all files, on disk."""
        return sum(size for _, size, _ in self.files)

    @property
    def rows(self) -> int:
        """Those of all files."""
        return sum(rows for _, _, rows in self.files)

    def is_copy_of(self, other: Dataset) -> bool:
        """Whether it holds what another one does: by its record, or as far as rows and bytes tell."""
        recorded = self.source == (other.source if "://" in other.source else os.path.abspath(other.source))
        return self.rows == other.rows and (recorded or self.bytes == other.bytes)

    def facts(self) -> MeasuredTarget:
        """What a report keeps of it."""
        files, rows = len(self.files), self.rows
        return MeasuredTarget(self.target, self.target_kind, self.generation, files, rows, self.bytes)


def open_dataset(text: str, progress: Progress) -> Dataset:
    """Looks at a target, and reads the footers of Parquet.

    Raises:
        NotFound: nothing there, nothing that can be measured, no rows. InvalidRequest: a Delta table.
        VerificationFailed, Unsupported: a footer or an index that is not whole.
    """
    target = look(text)
    try:
        files = target.data_files()
    except NotFound as error:
        # Where there is Parquet, one of its files is missing.
        media = None if any(map(is_data_name, samples.plain(target))) else _media(target)
        if media is None:
            raise error from None
        return media
    found = []
    size = 0
    for path, footer in target.footers(files, progress).items():
        if isinstance(footer, StageError):
            raise footer
        found.append((target.folder.locate(path), files[path], footer.rows))
        size += sum(group.bytes for group in footer.row_groups)
    rows = sum(count for _, _, count in found)
    if not rows:
        raise NotFound(f"`{text}` holds no rows: there is nothing to measure", hint=f"uc-stage inspect {text}")
    return Dataset(
        text, _source(target), tuple(found), target.kind, _generation(target), row_bytes=max(1, size // rows)
    )


def _source(target: Target) -> str:
    return target.record.source if target.record else target.text


def _generation(target: Target) -> str | None:
    if target.manifest:
        return target.manifest.generation
    return target.record.generation if target.record else None


def _media(target: Target) -> Dataset | None:
    """The files of the kind that most are of, or the shards that they are packed in; None where there are none."""
    places = samples.packed(target)
    paths = list(places or samples.plain(target))
    kinds = {
        kind: [path for path in paths if samples.extension(path) in known] for kind, known in samples.EXTENSIONS.items()
    }
    kind = max(kinds, key=lambda name: len(kinds[name]))
    if not kinds[kind]:
        return None
    counts: dict[str, int] = {}
    for path in kinds[kind]:
        name = places[path][0] if places else path
        counts[name] = counts.get(name, 0) + 1
    files = []
    for name, rows in sorted(counts.items()):
        if name not in target.entries:
            raise NotFound(f"`{target.folder.locate(name)}` is not there", hint=f"uc-stage inspect {target.text}")
        files.append((target.folder.locate(name), target.entries[name].bytes, rows))
    return Dataset(target.text, _source(target), tuple(files), target.kind, _generation(target), kind)
