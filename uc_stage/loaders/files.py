"""The files of a dataset with their row groups, as footers tell them, for a loader that holds no open file."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest, NotFound, StageError
from uc_stage.ipc import is_stream_name
from uc_stage.loaders.order import Group
from uc_stage.model import CopyFile
from uc_stage.targets import look

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from uc_stage.parquet import Footer
    from uc_stage.targets import Target

ALL = "all"
_SHARD = re.compile(r"(?:^| )shard=(\d+)/(\d+)(?: |$)")


@dataclass(frozen=True, slots=True)
class Files:
    """The files by path or URL, in order, each with the rows and the uncompressed bytes of its row groups.

    Attributes:
        digest: of the files' names and row groups; the same for an export and its copies.
        shard: which node of how many has these files alone, where they are a node's shard.
        folder: the path or URL of the folder that they lie in.
        listed: the same files, as they are fetched from it: by relative path, with size, time and hash where known.
    """

    source: str
    held: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    digest: str
    shard: tuple[int, int] | None
    folder: str
    listed: tuple[CopyFile, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(rows for _, groups in self.held for rows, _ in groups)

    @property
    def row_bytes(self) -> int:
        """The uncompressed bytes of a row, on average; 1 at least."""
        size = sum(size for _, groups in self.held for _, size in groups)
        return max(1, size // max(1, self.rows))

    def groups(self) -> Iterator[Group]:
        """The row groups of all files, in order."""
        for path, groups in self.held:
            start = 0
            for rows, size in groups:
                yield Group(path, start, rows, size)
                start += rows


def open_files(source: str, split: str | None, columns: Sequence[str]) -> Files:
    """Looks at a dataset and reads its footers; `columns` must all be there.

    Raises:
        StageError: nothing there, nothing Parquet there, a footer that cannot be read, files with different columns,
            an unknown column or split.
    """
    target = look(source)
    paths = files_of(target, split)
    held, described = [], []
    first: Footer | None = None
    for path, footer in target.footers(paths).items():
        if isinstance(footer, StageError):
            raise footer
        first = first or footer
        _require_alike(target, first, footer, columns)
        groups = tuple((group.rows, group.bytes) for group in footer.row_groups)
        held.append((target.folder.locate(path), groups))
        described.append((path, groups))
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]
    found = _SHARD.search(target.record.variant) if target.record else None
    shard = (int(found[1]), int(found[2])) if found else None
    return Files(source, tuple(held), digest, shard, target.folder.url, tuple(_listed(target, paths)))


def files_of(target: Target, split: str | None) -> list[str]:
    """The data files of one split, of all with `all`, or of the only one there is, as relative paths in order.

    Raises:
        InvalidRequest: there are several splits, and none was named. NotFound: no such split, or no data file.
    """
    files = list(target.data_files())
    splits = _splits(target, files)
    names = ", ".join(f"`{name}`" for name in splits)
    if split is None and len(splits) > 1:
        raise InvalidRequest(
            f"`{target.text}` holds the splits {names}",
            hint=f"give one, `split='{'train' if 'train' in splits else min(splits)}'`, or `split='all'`",
        )
    if split in (None, ALL):
        return files
    if split not in splits:
        held = f"it holds {names}" if splits else "only an export has splits, and this has no manifest"
        raise NotFound(f"`{target.text}` holds no split `{split}`", hint=held)
    return [path for path in files if path in splits[split]]


def _listed(target: Target, paths: Sequence[str]) -> Iterator[CopyFile]:
    """The files with what is recorded of them, else with what the listing told."""
    recorded = {file.path: file.xxh3_128 for file in target.manifest.files} if target.manifest else {}
    recorded.update({file.path: file.xxh3_128 for file in target.record.files} if target.record else {})
    sizes = target.data_files()
    for path in paths:
        digest = recorded.get(path)
        # A hash says more than a time does.
        yield CopyFile(path, sizes[path], None if digest else target.entries[path].mtime_ns, digest)


def _splits(target: Target, files: Sequence[str]) -> dict[str, set[str]]:
    """The files of each split: as the manifest tells, or by the folders of a copy as Arrow."""
    if target.manifest:
        return {name: {file.path for file in held} for name, held in target.manifest.splits.items()}
    found: dict[str, set[str]] = {}
    for path in files:
        if target.record and is_stream_name(path):
            found.setdefault(path.partition("/")[0], set()).add(path)
    return found


def _require_alike(target: Target, first: Footer, footer: Footer, columns: Sequence[str]) -> None:
    there = {field.name: field.type for field in footer.schema}
    for column in columns:
        if column not in there:
            near = difflib.get_close_matches(column, there, 1)
            raise NotFound(
                f"`{target.folder.locate(footer.path)}` has no column `{column}`",
                hint=f"did you mean `{near[0]}`?" if near else f"it has {', '.join(f'`{name}`' for name in there)}",
            )
    if [(field.name, field.type) for field in first.schema] != list(there.items()) and not columns:
        ours, other = (target.folder.locate(each.path) for each in (first, footer))
        raise InvalidRequest(
            f"`{other}` has other columns than `{ours}`", hint="name those that all files have, in `columns`"
        )
