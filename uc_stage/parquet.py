"""Parquet files as their footers tell them: reads and checks footers, many at once, and decodes whole files.

`caching` and `exporting` may use `read_footer`, `read_footers` and `decode` for their checks: each takes a `Folder`
and relative paths, works on any storage, and raises or gives `StageError`s that name the file.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from uc_stage import thrift
from uc_stage.chunks import CODECS, Chunk, Leaf, read_chunks, read_distinct, read_leaves
from uc_stage.crew import each
from uc_stage.errors import StageError, Unsupported, VerificationFailed
from uc_stage.model import Field
from uc_stage.progress import SILENT
from uc_stage.storage import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from uc_stage.progress import Progress
    from uc_stage.storage import Folder

SUFFIXES = (".parquet", ".parq", ".pq")
MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"

# A footer is one or two small reads, and on a volume all of the time is the wait for them.
FOOTER_JOBS = 32
_TAIL_BYTES = 64 * 1024
# More than a dictionary page's header has.
_PAGE_HEADER_BYTES = 64
# The magic at both ends and the footer's length.
_LEAST_BYTES = 12


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: its rows, and the bytes of its columns before compression."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Footer:
    """What one file's footer says.

    Attributes:
        schema: the columns as Arrow reads them, but those that hold a Parquet INT96 have ` (INT96)` after the type.
        compression: the codecs of the first row group, in lower case, `none` for uncompressed pages.
        nulls: the NULLs of each flat column that has statistics in all row groups, where they were asked for.
        leaves, chunks: the leaves, and for each row group a chunk of each, where they were asked for.
    """

    path: str
    rows: int
    row_groups: tuple[RowGroup, ...]
    schema: tuple[Field, ...]
    compression: frozenset[str]
    nulls: dict[str, int] | None = None
    leaves: tuple[Leaf, ...] = ()
    chunks: tuple[tuple[Chunk, ...], ...] = ()


def is_parquet_name(path: str) -> bool:
    """Whether a file is called Parquet: `.parquet`, `.parq` or `.pq`, in any case of letters."""
    return path.lower().endswith(SUFFIXES)


def has_magic(folder: Folder, path: str) -> bool:
    """Whether a file begins or ends as Parquet does, whatever it is called."""
    with translated(folder.locate(path)), folder.open(path) as file:
        head = file.read(len(MAGIC))
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(MAGIC)))
        return not {head, file.read()}.isdisjoint((MAGIC, ENCRYPTED_MAGIC))


def read_footer(folder: Folder, path: str, *, nulls: bool = False, columns: bool = False) -> Footer:
    """Reads one file's footer: in one read, unless it is longer than 64 KiB.

    `nulls` counts those of its columns; `columns` tells all of them, and checks where their pages lie.

    Raises:
        VerificationFailed: the file is not Parquet, is cut off or damaged, or its footer contradicts itself.
        Unsupported: whole as far as one can tell, but encrypted or of a type that pyarrow does not read.
        NotFound, AccessDenied, Unavailable: as the storage says.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = folder.locate(path)
    data, size = _read_tail(folder, path)
    with translated(whole), understood(whole):
        # The magic in front makes a file of the footer alone, which is all that is looked at here.
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + data))
        arrow = metadata.schema.to_arrow_schema()
        leaves = [metadata.schema.column(i) for i in range(len(metadata.schema))]
        int96 = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        # What is unknown must be refused before pyarrow looks at it.
        chunks = read_chunks(data) if columns else []
        codes = {CODECS.index(chunk.codec) for chunk in chunks[0]} if chunks else thrift.codecs(data)
    unknown = sorted(codes - set(range(len(CODECS))))
    if unknown:
        raise _damaged(whole, f"it names the unknown compression codec {unknown[0]}")
    footer = Footer(
        path=path,
        rows=metadata.num_rows,
        row_groups=tuple(RowGroup(group.num_rows, group.total_byte_size) for group in groups),
        schema=tuple(
            Field(field.name, f"{field.type} (INT96)" if field.name in int96 else str(field.type), field.nullable)
            for field in arrow
        ),
        compression=frozenset(CODECS[code] for code in codes),
        nulls=_nulls(metadata) if nulls else None,
        leaves=read_leaves(metadata.schema, arrow.names) if columns else (),
        chunks=tuple(chunks),
    )
    if columns:
        _check_chunks(whole, footer, size)
    if footer.rows != sum(group.rows for group in footer.row_groups):
        raise _damaged(whole, f"the footer tells {footer.rows} rows, its row groups another number")
    return footer


def read_metadata(folder: Folder, path: str) -> Any:
    """Reads one file's footer as a `pyarrow.parquet.FileMetaData`. Raises as `read_footer`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = folder.locate(path)
    data, _ = _read_tail(folder, path)
    with translated(whole), understood(whole):
        return pq.read_metadata(pa.BufferReader(MAGIC + data))


def read_schema(folder: Folder, path: str) -> Any:
    """Reads one file's columns as a `pyarrow.Schema`, its extension types too. Raises as `read_footer`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = folder.locate(path)
    data, _ = _read_tail(folder, path)
    with translated(whole), understood(whole):
        return pq.read_schema(pa.BufferReader(MAGIC + data))


def _check_chunks(whole: str, footer: Footer, size: int) -> None:
    hidden: dict[str, None] = {}
    for group in footer.chunks:
        if len(group) != len(footer.leaves):
            raise _damaged(whole, f"a row group has {len(group)} columns, the schema {len(footer.leaves)}")
        for leaf, chunk in zip(footer.leaves, group, strict=True):
            if chunk.encrypted:
                hidden[leaf.column] = None
            elif chunk.start + chunk.bytes > size:
                raise _damaged(whole, f"its footer tells of pages of `{leaf.path}` where there are none")
    if hidden:
        names = ", ".join(f"`{name}`" for name in hidden)
        raise Unsupported(f"`{whole}`: its columns {names} are encrypted", hint="write it without encryption")


def _nulls(metadata: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for index in range(metadata.num_columns):
        leaf = metadata.schema.column(index)
        if leaf.max_repetition_level or leaf.max_definition_level > 1 or leaf.path != leaf.name:
            continue
        found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if all(statistics is not None and statistics.has_null_count for statistics in found):
            counts[leaf.name] = sum(statistics.null_count for statistics in found)
    return counts


def read_footers(
    folder: Folder,
    paths: Iterable[str],
    progress: Progress = SILENT,
    jobs: int = FOOTER_JOBS,
    *,
    nulls: bool = False,
    take: Callable[[Footer], Footer] | None = None,
) -> dict[str, Footer | StageError]:
    """Reads many footers at once; a file whose footer cannot be read has its error in the footer's place.

    `take` is called in many threads with each footer, its columns told; what it gives is kept in the footer's place.
    """
    paths = list(paths)

    def read(path: str) -> Footer | StageError:
        try:
            footer = read_footer(folder, path, nulls=nulls, columns=take is not None)
            return take(footer) if take else footer
        except StageError as error:
            return error
        finally:
            progress.advance(1)

    progress.phase("footers", total=len(paths), unit="files")
    return dict(zip(paths, each(read, paths, jobs), strict=True))


def count_distinct(folder: Folder, footer: Footer, most: int) -> list[list[int | None]]:
    """What the dictionaries of a file tell: for each row group, of each leaf, its distinct values, or None.

    The footer has its chunks. So many dictionaries at most are looked at, each by one small read, in the file's order.

    Raises:
        NotFound, AccessDenied, Unavailable: as the storage says.
    """
    counts: list[list[int | None]] = [[None] * len(group) for group in footer.chunks]
    wanted = [
        (number, at, chunk.dictionary)
        for number, group in enumerate(footer.chunks)
        for at, chunk in enumerate(group)
        if chunk.dictionary is not None
    ][:most]
    whole = folder.locate(footer.path)
    with translated(whole), folder.open(footer.path) as file:
        for number, at, offset in wanted:
            file.seek(offset)
            # Without the NULL, which no dictionary holds.
            counts[number][at] = read_distinct(file.read(_PAGE_HEADER_BYTES))
    return counts


def decode(folder: Folder, path: str) -> int:
    """Reads every page of every column, with page checksums where the writer left any, and gives the rows.

    Values are checked too: offsets in nested columns, UTF-8 in strings.

    Memory stays about that of a row group.

    Raises:
        VerificationFailed: a page does not decode, or the rows are not as many as the footer tells.
        Unsupported: a codec, an encoding or a type that pyarrow does not read.
        NotFound, AccessDenied, Unavailable: as the storage says.
    """
    import pyarrow.parquet as pq

    whole = folder.locate(path)
    with (
        translated(whole),
        understood(whole),
        folder.open(path) as stream,
        _native(stream) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        told = file.metadata.num_rows
        found = 0
        for batch in file.iter_batches(use_threads=False):
            batch.validate(full=True)
            found += batch.num_rows
    if found != told:
        raise _damaged(whole, f"the footer tells {told} rows, the pages hold {found}")
    return found


def _native(stream: BinaryIO) -> Any:
    """An open file as pyarrow reads it without Python, where it is one of this machine's.

    A thread of pyarrow that lets go of a Python file when the interpreter has ended takes the process with it.
    """
    import pyarrow as pa

    try:
        number = stream.fileno()
    except (OSError, AttributeError):
        return contextlib.nullcontext(stream)
    return pa.OSFile(f"/proc/self/fd/{number}")


def _read_tail(folder: Folder, path: str) -> tuple[bytes, int]:
    """The footer with the length and the magic that end a Parquet file, and the size of the file."""
    whole = folder.locate(path)
    with translated(whole), folder.open(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        if len(tail) < _LEAST_BYTES or tail[-4:] not in (MAGIC, ENCRYPTED_MAGIC):
            raise _damaged(whole, "it does not end as Parquet does" if size else "it is empty")
        if tail[-4:] == ENCRYPTED_MAGIC:
            raise _encrypted(whole)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > size - len(MAGIC):
            raise _damaged(whole, "it is shorter than its footer")
        if length > len(tail):
            file.seek(size - length)
            tail = file.read(length)
        return tail[-length:], size


@contextlib.contextmanager
def understood(whole: str) -> Iterator[None]:
    """Turns what pyarrow raises over a file's content into a `StageError`; what the storage raised passes."""
    import pyarrow as pa

    try:
        yield
    except StageError:
        raise
    except (pa.ArrowNotImplementedError, NotImplementedError) as error:
        raise Unsupported(f"`{whole}` cannot be read: {_line(error)}", hint="write it with another library") from error
    except OSError as error:
        if error.errno is not None:
            raise
        if "crypt" in str(error).lower():
            raise _encrypted(whole) from error
        raise _damaged(whole, _line(error)) from error
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError, MemoryError) as error:
        # What a damaged footer makes pyarrow raise depends on which bytes are wrong: UnicodeDecodeError, too.
        raise _damaged(whole, _line(error)) from error


def _line(error: Any) -> str:
    """The first sentence of an error of pyarrow, which may go on for many lines."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".:")[:200]


def _damaged(whole: str, why: str) -> VerificationFailed:
    return VerificationFailed(f"`{whole}` is not whole Parquet: {why}", hint="copy or write the file again")


def _encrypted(whole: str) -> Unsupported:
    return Unsupported(f"`{whole}` is encrypted", hint="write it without encryption")
