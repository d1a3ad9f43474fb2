"""How many bytes Parquet files will have as Arrow IPC, told from their footers.

Fixed widths and the lengths of lists are in a footer, and so are the bytes of text that is stored as it is. Of text
that is stored as numbers of a dictionary, a few files tell how long it is: their first rows are decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uc_stage.crew import each
from uc_stage.errors import Unsupported
from uc_stage.forms.arrow_schema import loadable
from uc_stage.parquet import FOOTER_JOBS, read_metadata, understood
from uc_stage.storage import translated

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from uc_stage.progress import Progress
    from uc_stage.storage import Folder

# So many files tell how long text is, by so many rows each, and it may be so much longer in the others.
_SAMPLES = 8
_SAMPLE_ROWS = 64 * 1024
_LONGER = 1.05
# Measured with `datasets` 5.2: opening a file costs 0.1 ms a batch; single rows, slices and gathers cost the same from
# batches of 1,000 rows to 131,072.
_BATCH_ROWS = 32 * 1024
_BATCH_BYTES = 32 * 1024**2
# What a record batch has before its values, for itself and for each buffer: the format's tables, and padding.
_HEAD_BYTES = 256
_BUFFER_BYTES = 32
# What text is stored in as it is, with its levels.
_AS_IT_IS = {"PLAIN", "RLE", "BIT_PACKED"}


def batch_rows(metadata: Any) -> int:
    """The rows of a record batch: many, since each costs time when the file is opened, but of no more bytes."""
    size = sum(int(metadata.row_group(index).total_byte_size) for index in range(metadata.num_row_groups))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * int(metadata.num_rows) // max(size, 1)))


def estimated(folder: Folder, outputs: Mapping[str, str], progress: Progress) -> dict[str, int]:
    """The bytes of each output, a little above what they will be; `outputs` names the Parquet file of each.

    Raises:
        Unsupported: a column that `datasets` cannot take, or files of one folder of outputs with different columns.
        VerificationFailed, NotFound, AccessDenied, Unavailable: as `read_metadata`.
    """
    progress.phase("footers", total=len(outputs), unit="files")

    def read(path: str) -> tuple[Any, pa.Schema]:
        metadata = read_metadata(folder, path)
        progress.advance(1)
        with understood(folder.locate(path)):
            return metadata, loadable(metadata.schema.to_arrow_schema(), folder.locate(path))

    paths = list(outputs.values())
    footers = dict(zip(paths, each(read, paths, FOOTER_JOBS), strict=True))
    _refuse_differences(folder, outputs, {path: schema for path, (_, schema) in footers.items()})
    # In the order of the paths, so that the samples are spread.
    ordered = sorted(path for path, (metadata, _) in footers.items() if metadata.num_rows)
    sampled = [ordered[at * len(ordered) // _SAMPLES] for at in range(_SAMPLES)] if ordered else []
    told = {path: _Columns(*footers[path]) for path in paths}
    guessed = {name for path in sampled for name in told[path].guessed}
    found = each(lambda path: _widths(folder, path, guessed), list(dict.fromkeys(sampled)), FOOTER_JOBS)
    rows = sum(count for count, _ in found)
    widths = {name: sum(sizes[name] for _, sizes in found) / rows * _LONGER for name in guessed} if rows else {}
    return {output: told[path].size(widths) for output, path in outputs.items()}


def _refuse_differences(folder: Folder, outputs: Mapping[str, str], schemas: Mapping[str, pa.Schema]) -> None:
    first: dict[str, str] = {}
    for output, path in sorted(outputs.items()):
        one = first.setdefault(output.partition("/")[0], path)
        if schemas[path] != schemas[one]:
            wanted = set(zip(schemas[one].names, schemas[one].types, strict=True))
            has = set(zip(schemas[path].names, schemas[path].types, strict=True))
            odd = sorted({name for name, _ in wanted ^ has})
            raise Unsupported(
                f"`{folder.locate(path)}` has other columns than `{one}`: "
                + (", ".join(f"`{name}`" for name in odd[:3]) or "in another order"),
                hint="`datasets` takes one schema for all files of a split: export the table again",
            )


class _Columns:
    """What one footer tells of the columns: the bits of each, and the names of those whose size is to be guessed."""

    def __init__(self, metadata: Any, schema: pa.Schema) -> None:
        self.rows: int = metadata.num_rows
        self._batch_rows = batch_rows(metadata)
        self.guessed: set[str] = set()
        self._groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        self._schema_bytes = int(schema.serialize().size)
        self._bits: dict[str, int] = {}
        self._buffers = self._leaf = 0
        for field in schema:
            self._name = field.name
            self._bits[field.name] = self._of(field.type, self.rows)

    def size(self, widths: Mapping[str, float]) -> int:
        """The bytes of the file, with those of a row of each column whose size was guessed."""
        bits = sum(
            int(widths[name] * 8) * self.rows if name in self.guessed and name in widths else size
            for name, size in self._bits.items()
        )
        batches = sum(-(-int(group.num_rows) // self._batch_rows) for group in self._groups)
        return bits // 8 + batches * (_HEAD_BYTES + self._buffers * _BUFFER_BYTES) + self._schema_bytes + _HEAD_BYTES

    def _of(self, kind: pa.DataType, slots: int) -> int:
        """The bits of so many values of a type, whose leaves are the next ones of the footer."""
        import pyarrow as pa

        t = pa.types
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        self._buffers += 3
        if t.is_struct(kind):
            return slots + sum(self._of(field.type, slots) for field in kind)
        if t.is_fixed_size_list(kind):
            return slots + self._of(kind.value_type, slots * kind.list_size)
        if t.is_list(kind) or t.is_large_list(kind):
            # As many as its leaves have, and their empty lists count, too.
            inner: int = sum(group.column(self._leaf).num_values for group in self._groups)
            return slots + slots * _offset_bits(kind) + self._of(kind.value_type, inner)
        chunks = [group.column(self._leaf) for group in self._groups]
        self._leaf += 1
        if t.is_null(kind):
            return 0
        if not _is_text(kind):
            return slots * (1 + int(kind.bit_width))
        if all(set(chunk.encodings) <= _AS_IT_IS for chunk in chunks):
            text = sum(int(chunk.total_uncompressed_size) - _lengths(chunk) for chunk in chunks)
        else:
            text = 0
            self.guessed.add(self._name)
        return slots * (1 + _offset_bits(kind)) + text * 8


def _lengths(chunk: Any) -> int:
    """The bytes of the lengths in front of the values of a chunk, as far as it is told how many values there are."""
    found = chunk.statistics
    return 4 * (int(chunk.num_values) - int(found.null_count)) if found is not None and found.has_null_count else 0


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    t = pa.types
    return bool(t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind))


def _offset_bits(kind: pa.DataType) -> int:
    import pyarrow as pa

    t = pa.types
    return 64 if t.is_large_list(kind) or t.is_large_string(kind) or t.is_large_binary(kind) else 32


def _widths(folder: Folder, path: str, names: Collection[str]) -> tuple[int, dict[str, int]]:
    """The first rows of a file: how many were decoded, and the bytes that these columns of them have as Arrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = folder.locate(path)
    if not names:
        return 0, {}
    with (
        translated(whole),
        understood(whole),
        folder.open(path) as stream,
        pq.ParquetFile(stream, pre_buffer=False) as file,
    ):
        batch = next(file.iter_batches(_SAMPLE_ROWS, columns=sorted(names), use_threads=False))
        table = pa.Table.from_batches([batch])
        table = table.cast(loadable(table.schema, whole))
    return table.num_rows, {name: table.column(name).nbytes for name in names}
