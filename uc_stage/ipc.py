"""Arrow IPC streams on a local disk, as `cache --as arrow` writes them and `datasets` maps them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from uc_stage.crew import each
from uc_stage.errors import StageError, VerificationFailed
from uc_stage.model import Field
from uc_stage.parquet import Footer, RowGroup
from uc_stage.storage import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUFFIX = ".arrow"
# Each looks at the heads of a file's record batches alone.
_JOBS = 8


def is_stream_name(path: str) -> bool:
    """Whether a file is called Arrow."""
    return path.endswith(SUFFIX)


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Maps a file and gives its `pyarrow.ipc.RecordBatchStreamReader`.

    Raises:
        VerificationFailed: it is no whole stream, at any time while it is read. NotFound, AccessDenied: as told.
    """
    import pyarrow as pa

    try:
        with translated(path), pa.memory_map(path) as mapped, pa.ipc.open_stream(mapped) as reader:
            yield reader
    except pa.ArrowException as error:
        why = str(error).splitlines()[0]
        raise VerificationFailed(f"`{path}` is not whole Arrow IPC: {why}", hint="cache the source again") from error


def describe(paths: Iterable[str]) -> dict[str, Footer | StageError]:
    """What a footer would tell of each file, with record batches for row groups; an error in its place."""

    def look(path: str) -> Footer | StageError:
        try:
            with opened(path) as reader:
                schema = tuple(Field(field.name, str(field.type), field.nullable) for field in reader.schema)
                groups = tuple(RowGroup(batch.num_rows, batch.nbytes) for batch in reader)
        except StageError as error:
            return error
        return Footer(path, sum(group.rows for group in groups), groups, schema, frozenset({"none"}))

    paths = list(paths)
    return dict(zip(paths, each(look, paths, _JOBS), strict=True))
