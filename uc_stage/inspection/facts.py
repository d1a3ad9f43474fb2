"""What the rules look at: the report so far, the files with their rows, the table's log, and this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from uc_stage.errors import StageError
from uc_stage.extras import installed
from uc_stage.inspection import again
from uc_stage.inspection.platform import datasets_cache
from uc_stage.inspection.settings import MOST_LOCAL_RANKS
from uc_stage.ipc import is_stream_name
from uc_stage.model import variant_flags
from uc_stage.parquet import Footer, read_schema
from uc_stage.ranks import ranks_here, read_world_size
from uc_stage.storage import space_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    import pyarrow as pa

    from uc_stage.engines.delta.schema import Column
    from uc_stage.engines.local import LocalEngine
    from uc_stage.manifest import Manifest
    from uc_stage.model import InspectReport, InspectRequest, Snapshot
    from uc_stage.storage import Entry
    from uc_stage.targets import Target

# Of `bench`, too.
DEFAULT_BATCH_SIZE = 256
# In the variant of a copy that is one node's share.
_SHARD = re.compile(r"(?:^| )shard=\d+/(\d+)(?: |$)")
_LOG = "_delta_log"
# So many folders of partitions are looked into.
_MOST_FOLDERS = 256
# The bytes of a value in Arrow, by Parquet's types.
_WIDTHS = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_NARROW = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found, in words, in numbers and names, and the command or change that mends it."""

    message: str
    evidence: dict[str, Any]
    fix: str


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: its environment, the bytes free where a path is or will be, and the packages that are here."""

    environment: Mapping[str, str]
    free: Callable[[str], int | None]
    installed: Callable[[str], bool]

    @classmethod
    def here(cls) -> Machine:
        """The one that this process runs on."""
        return cls(os.environ, _free, installed)

    @property
    def datasets_cache(self) -> tuple[str, str]:
        """Where `datasets` keeps what it builds, and the variable that says so; empty where none does."""
        return datasets_cache(self.environment)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the log of a table tells of its data files.

    Attributes:
        deleted: the rows that deletion vectors hide, in so many files.
        renamed: the name in the data files of each column that has another one there.
        partitions: the columns whose values are in the log and in folders' names alone.
        sizes: the bytes of each data file of this version.
        others: the Parquet files in the table's folder that are no part of this version.
    """

    deleted: int
    vectors: int
    renamed: dict[str, str]
    partitions: tuple[str, ...]
    sizes: tuple[int, ...]
    others: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a target and of the training that is to read it.

    Attributes:
        report: all but the advice.
        rows: of each split, the rows of each file that can be read, in the order in which loaders take the files.
        entries: the files below the target, by their paths.
        schema: gives the Arrow schema; None where it cannot be had.
        url: the whole path or URL of the target's folder.
        origin: the source of a copy.
        manifest: of an export, or of the export that was copied.
        nodes: over how many nodes the files of the source are shared out, where this copy is the share of one.
    """

    request: InspectRequest
    report: InspectReport
    machine: Machine
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    schema: Callable[[], pa.Schema | None] = lambda: None
    url: str = ""
    origin: str | None = None
    manifest: Manifest | None = None
    nodes: int = 1
    table: TableFacts | None = None

    def export(self, *flags: str, without: Collection[str] = ()) -> str:
        """The command that writes the rows anew, with these flags and without these columns."""
        report = self.report
        if self.manifest is not None:
            told = again.command(self.manifest, self.origin or report.target, flags, without)
            return told if self.origin is None else f"{told} && {self.cache()}"
        excluded = ("--exclude-columns", again.listed(without)) if without else ()
        words = shlex.join((*flags, *excluded))
        table = shlex.quote(report.target) if report.kind == "table" else "TABLE"
        return f"uc-stage export {table} DEST {words}".rstrip()

    def cache(self) -> str:
        """The command that copies the source again: the same part of it, in the same form."""
        return f"uc-stage cache {shlex.quote(self.origin or self.report.target)}{variant_flags(self.report.variant)}"

    @property
    def is_mapped(self) -> bool:
        """Whether it is a copy as Arrow, which loaders map and share out by rows."""
        return any(is_stream_name(path) for path in self.entries)

    @property
    def ranks(self) -> int | None:
        """The ranks that share these files, where the request or the launcher tells; a node's share is its own."""
        told = self.request.world_size or read_world_size(self.machine.environment)
        return None if told is None else max(1, told // self.nodes)

    @property
    def local_ranks(self) -> int:
        """The ranks of one node."""
        return ranks_here(self.ranks or 1, self.machine.environment, MOST_LOCAL_RANKS)

    @property
    def readers(self) -> int | None:
        """The workers of all ranks, or the ranks where these read by themselves; None where nothing tells of any."""
        if self.ranks is None and not self.request.workers:
            return None
        return (self.ranks or 1) * max(1, self.request.workers or 0)

    @property
    def batch_size(self) -> int:
        """The rows of a batch."""
        return self.request.batch_size or DEFAULT_BATCH_SIZE

    @property
    def is_trained(self) -> bool:
        """Whether anything tells of a training."""
        told = self.ranks, self.request.workers, self.request.batch_size
        return any(one is not None for one in told)

    @property
    def memory_bytes(self) -> int:
        """About how many bytes the rows have in memory, at the least; 0 where no footer tells."""
        total = 0.0
        for column in self.report.columns:
            width = _NARROW.get(column.logical or "") or _WIDTHS.get(column.physical)
            # Text has an offset for each value, and its bytes may be in a dictionary once.
            total += column.values * width if width else max(column.uncompressed, 4 * column.values)
        return int(total)


def counted(count: int, unit: str) -> str:
    """A number of things: `1,234 rows`, `1 row`, `1 batch`."""
    return f"{count:,} {unit}" if count != 1 else f"1 {unit.removesuffix('es' if unit.endswith('ches') else 's')}"


def of_files(
    found: Target, request: InspectRequest, report: InspectReport, footers: Mapping[str, Footer | StageError]
) -> Facts:
    """What is known of files: of a folder, an export, a copy or a file."""
    manifest, record = found.manifest, found.record
    told = {path: footer.rows for path, footer in footers.items() if isinstance(footer, Footer)}
    rows: dict[str, list[int]] = {}
    if manifest is not None:
        rows = {name: [file.rows for file in files] for name, files in manifest.splits.items()}
    else:
        for path in sorted(told):
            # A copy as Arrow has a folder for each split.
            split = path.partition("/")[0] if is_stream_name(path) else ""
            rows.setdefault(split, []).append(told[path])
    files = sorted(file.path for file in manifest.files) if manifest else sorted(told)
    readable = [path for path in files if path in found.entries and not is_stream_name(path)]

    def schema() -> pa.Schema | None:
        if not readable:
            return None
        try:
            return cast("pa.Schema", read_schema(found.folder, readable[0]))
        except StageError:
            return None

    shard = _SHARD.search(record.variant) if record else None
    return Facts(
        request=request,
        report=report,
        machine=Machine.here(),
        rows={name: tuple(counts) for name, counts in rows.items()},
        entries=found.entries,
        schema=schema,
        url=found.folder.url,
        origin=record.source if record else None,
        manifest=manifest,
        nodes=int(shard[1]) if shard else 1,
    )


def of_table(engine: LocalEngine, snapshot: Snapshot) -> TableFacts:
    """What the log of a resolved table tells, and what lies beside its files."""
    table = engine.opened(snapshot)
    vectors = [file.deletion_vector.cardinality for file in table.files if file.deletion_vector is not None]
    return TableFacts(
        deleted=sum(vectors),
        vectors=len(vectors),
        renamed=dict(_renamed(table.columns)),
        partitions=table.partition_columns,
        sizes=tuple(file.size for file in table.files),
        others=_others(snapshot.source.table, {file.path for file in table.files}),
    )


def _renamed(columns: Iterable[Column], above: str = "") -> Iterator[tuple[str, str]]:
    """The columns, and the fields within them, that the data files name otherwise."""
    for column in columns:
        # What lists and maps hold has no name.
        path = f"{above}.{column.name}".strip(".") if column.name else above
        if column.name and column.physical != column.name:
            yield path, column.physical
        yield from _renamed(column.parts, path)


def _others(location: str, live: Container[str]) -> int:
    """The Parquet files of a table's folder that this version does not have, as far as a look at names tells.

    On a volume each file's size would be a round trip. Of a catalog's name or a URL nothing is told.
    """
    count, looks, todo = 0, 0, [""]
    while todo and looks < _MOST_FOLDERS and os.path.isabs(location):
        below = todo.pop()
        looks += 1
        with contextlib.suppress(OSError), os.scandir(f"{location}/{below}") as found:
            for item in found:
                path = f"{below}{item.name}"
                if item.name.endswith(".parquet"):
                    count += path not in live
                elif not item.name.startswith((".", _LOG)) and item.is_dir(follow_symlinks=False):
                    todo.append(f"{path}/")
    return count


def _free(path: str) -> int | None:
    try:
        return space_at(path).free
    except StageError:
        return None
