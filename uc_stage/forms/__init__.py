"""The forms that a copy can have other than its source's files: what each is made of, weighs, and how it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from uc_stage.model import CopyFile
    from uc_stage.progress import Progress
    from uc_stage.publish import CopyPublication
    from uc_stage.storage import Folder

Outputs = dict[str, tuple["CopyFile", ...]]
"""By the path of each file of a copy, the source's files that it is made from."""


class Form(Protocol):
    """One form, for one generation of one source: it turns verified files of the source into those of a copy."""

    def outputs(self, files: Sequence[CopyFile]) -> Outputs:
        """The files of the copy with those they are made from, in the order in which these are best fetched.

        It follows from the listing alone, so that a run after a kill knows which files of the source are done with.

        Raises:
            Unsupported: files that the form has no place for.
        """

    def estimate(self, folder: Folder, outputs: Outputs, progress: Progress) -> dict[str, int]:
        """The bytes that each output will have at most, or about, from the listing and from footers.

        Raises:
            Unsupported: content that the form cannot hold; what `Folder.open` raises.
        """

    def scratch(self, outputs: Outputs) -> int:
        """The most bytes of the source's files that lie beside the copy at once, while these outputs are made."""

    def sink(
        self, publication: CopyPublication, outputs: Outputs, sizes: Mapping[str, int], progress: Progress
    ) -> FormSink:
        """What takes the source's files of these outputs and names the outputs through the publication.

        By its end it has told the progress of all bytes that `sizes` estimates.
        """

    def beside(self, outputs: Outputs) -> Iterator[tuple[str, bytes]]:
        """The small files of the whole copy that stand beside its outputs: each path with its bytes."""


class FormSink(Protocol):
    """A `uc_stage.transfer.Sink` that writes outputs, and bounds what of the source waits for that."""

    def temporary(self) -> str:
        """A path of this process's own for a file that has no name yet."""

    def accept(self, temporary: str, file: CopyFile) -> None:
        """Takes a file that is whole and checked, writes the output that had all but this one, and removes it."""

    def takes(self, file: CopyFile) -> bool:
        """Whether the file may be fetched now, which is asked before its first byte; True counts it as begun."""

    def close(self) -> None:
        """Removes what waits, and has what is being written end in an error, where a run ends before its end."""

    @property
    def written(self) -> list[CopyFile]:
        """The outputs that have their names, with their hashes."""
