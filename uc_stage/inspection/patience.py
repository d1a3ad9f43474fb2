"""Questions that may never be answered, as those to a mount that hangs, asked side by side for a bounded time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from uc_stage.crew import join

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

_Key = TypeVar("_Key", bound="Hashable")
_Answer = TypeVar("_Answer")


class Asked(Generic[_Key, _Answer]):
    """Answers by their questions: those that came in time."""

    def __init__(self, questions: Mapping[_Key, Callable[[], _Answer]]) -> None:
        """Begins to ask all of them at once."""
        self._began = time.monotonic()
        self._found: dict[_Key, _Answer] = {}
        self._failed: dict[_Key, BaseException] = {}
        # A thread that hangs is left behind: it ends with the process.
        self._threads = {
            key: threading.Thread(target=self._ask, args=(key, ask), name="uc-stage-ask", daemon=True)
            for key, ask in questions.items()
        }
        for thread in self._threads.values():
            thread.start()

    def answers(self, seconds: float) -> dict[_Key, _Answer]:
        """Those that came within so many seconds of the begin; the first error of a question is raised."""
        join(self._threads.values(), self._began + seconds)
        for error in self._failed.values():
            raise error
        return dict(self._found)

    def _ask(self, key: _Key, ask: Callable[[], _Answer]) -> None:
        try:
            self._found[key] = ask()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._failed[key] = error
