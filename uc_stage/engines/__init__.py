"""The engines: each turns one version of a Delta table into Parquet files, or into batches. No terminals here."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator

    import pyarrow as pa

    from uc_stage.model import ExportPlan, ExportRequest, Layout, Snapshot
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication


class Engine(Protocol):
    """Reads exactly the version that `resolve` pinned, writes through a `Publication` alone, raises `StageError` alone.

    It may leave junk behind if it is killed: nothing is trusted until a manifest names it.
    """

    name: ClassVar[str]

    @property
    def version(self) -> str:
        """The name and version of the library that reads, for the manifest: `Spark 4.1.4`."""

    def resolve(self, request: ExportRequest) -> Snapshot:
        """Pins the table to one version and checks the columns and the predicate against its schema.

        Raises:
            NotFound: no such table or version. Unsupported: a table feature that would not be read rightly.
            InvalidRequest: an unknown column, or a predicate that is not one. AccessDenied, Unavailable.
        """

    def count(self, snapshot: Snapshot, layout: Layout) -> dict[str, int]:
        """The rows of each split of the layout, in its order, counted by reading where the log alone does not tell."""

    def write(self, plan: ExportPlan, publication: Publication, progress: Progress) -> dict[str, tuple[str, ...]]:
        """Writes each split of the plan as Parquet files and gives their final names, in the order of the rows.

        Columns are written nullable, timestamps as INT64 microseconds, partition columns as real columns. No file
        has a zero-row row group; a split of no rows is one file that holds the schema alone. Rows are in the order
        that the layout asks for; equal ones in that of their data files' paths and of their positions there.
        """

    def read(self, request: ExportRequest, snapshot: Snapshot, *, few: int | None = None) -> Generator[pa.RecordBatch]:
        """Gives the rows of a request's snapshot as batches of one schema, in their natural order.

        Types are plain, casts are done. Without any row there is one batch of none. The natural order is that of the
        data files' paths and of the rows' positions there.

        Args:
            request: what `resolve` was given; its splits and its order are none of this.
            snapshot: what `resolve` gave for it.
            few: at most so many rows, whichever are at hand, in any order: for a look at what they are.
        """

    def close(self) -> None:
        """Lets go of sessions and connections."""
