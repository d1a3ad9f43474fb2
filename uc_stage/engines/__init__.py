"""The engines: each turns one version of a Delta table into Parquet files. They know nothing of terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from uc_stage.model import ExportPlan, ExportRequest, Snapshot
    from uc_stage.progress import Progress
    from uc_stage.publish import Publication


class Engine(Protocol):
    """Reads exactly the version that `resolve` pinned, writes through a `Publication` alone, raises `StageError` alone.

    It may leave junk behind if it is killed: nothing is trusted until a manifest names it.
    """

    name: ClassVar[str]

    @property
    def version(self) -> str:
        """The name and version of the library that reads, for the manifest: `deltalake 1.6.6`."""

    def resolve(self, request: ExportRequest) -> Snapshot:
        """Pins the table to one version and checks the columns and the predicate against its schema.

        Raises:
            NotFound: no such table or version. Unsupported: a table feature that would not be read rightly.
            InvalidRequest: an unknown column, or a predicate that is not one. AccessDenied, Unavailable.
        """

    def count(self, snapshot: Snapshot) -> int:
        """The rows that the request holds, counted by reading where the log alone does not tell."""

    def write(self, plan: ExportPlan, publication: Publication, progress: Progress) -> tuple[str, ...]:
        """Writes the snapshot as Parquet files of about `plan.rows / plan.files` rows and gives their final names.

        Columns are written nullable, timestamps as INT64 microseconds, partition columns as real columns. No file
        has a zero-row row group; a snapshot of no rows is one file that holds the schema alone.
        """

    def close(self) -> None:
        """Lets go of sessions and connections."""
