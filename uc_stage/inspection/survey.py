"""What the footers of a target tell, taken in one by one as they come, so that none has to be kept whole."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

from uc_stage.inspection import wholeness
from uc_stage.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uc_stage.model import Field, Footers, Problem
    from uc_stage.parquet import Footer
    from uc_stage.targets import Target


class Survey:
    """The footers so far, of those of `paths`: their sum, and what is wrong with each."""

    def __init__(self, target: Target, paths: Iterable[str]) -> None:
        self._told = {file.path: file for file in target.manifest.files} if target.manifest else {}
        self._split_of = (
            {file.path: split for split, files in target.manifest.splits.items() for file in files}
            if target.manifest
            else {}
        )
        self._lock = threading.Lock()
        self._tally = Tally(target.folder, min(paths, default=None))
        self._schemas: dict[tuple[Field, ...], tuple[Field, ...]] = {}
        self._problems: list[Problem] = []

    def take(self, footer: Footer) -> Footer:
        """Adds a footer, and gives it without its columns; called by many threads."""
        recorded = self._told.get(footer.path)
        found = [wholeness.against_record(footer, recorded) if recorded else None, wholeness.empty_groups(footer)]
        with self._lock:
            self._problems += [problem for problem in found if problem]
            # Most files have the same schema: one of it is enough.
            schema = self._schemas.setdefault(footer.schema, footer.schema)
        bare = self._tally.add(footer, self._split_of.get(footer.path, ""))
        return dataclasses.replace(bare, schema=schema)

    @property
    def problems(self) -> list[Problem]:
        """What is wrong with the files, in their order."""
        return sorted(self._problems, key=lambda problem: problem.path or "")

    @property
    def footers(self) -> Footers:
        """What all footers tell."""
        return self._tally.result()
