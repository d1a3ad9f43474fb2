"""Threads that an interrupt does not wait for: SIGTERM must end a run whose reads are slow, or stuck on a mount."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_JOIN_SECONDS = 5.0
# So often it is asked which threads hang.
_WATCH_SECONDS = 0.2
# The first looks are soon after the begin: what reads show there decides on how many there are to be.
_FIRST_WATCH_SECONDS = 0.004


def join(threads: Iterable[threading.Thread], deadline: float | None = None) -> bool:
    """Waits for daemon threads that were told to stop, and says whether all have ended.

    A thread inside a call to a hung mount cannot be ended: it is left behind, and ends with the process. `deadline`, of
    `time.monotonic()`, is when the wait ends; None for some seconds from now.
    """
    begun = [thread for thread in threads if thread.ident is not None]
    deadline = time.monotonic() + _JOIN_SECONDS if deadline is None else deadline
    for thread in begun:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in begun)


def each(function: Callable[[_Item], _Result], items: Sequence[_Item], jobs: int) -> list[_Result]:
    """Applies a function to each item in at most `jobs` threads, and gives the results in the items' order.

    The first error stops all, and is raised.
    """
    crew = Crew()
    queue = deque(enumerate(items))
    results: list[_Result | None] = [None] * len(items)

    def work() -> None:
        while not crew.stopped.is_set():
            try:
                index, item = queue.popleft()
            except IndexError:
                return
            results[index] = function(item)

    crew.run(work, min(jobs, len(items)))
    return cast("list[_Result]", results)


class Crew:
    """Threads that do one work until it is done, or until one fails or the main thread is interrupted."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.ended = False
        self._failure: BaseException | None = None
        self._work: Callable[[], None] = lambda: None
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], None], jobs: int, hung: Callable[[], Sequence[threading.Thread]] = tuple) -> None:
        """Runs `work` in `jobs` threads to its end; the first error of one stops all and is raised here.

        `hung` is asked now and then which threads nobody should wait for any more: others take their places.
        """
        self._work = work
        threads = self._threads
        lost: set[threading.Thread] = set()
        pause = _FIRST_WATCH_SECONDS
        try:
            self.grow(jobs)
            # The list grows meanwhile.
            for thread in threads:
                while thread.is_alive() and thread not in lost and not self.stopped.is_set():
                    thread.join(pause)
                    pause = min(2 * pause, _WATCH_SECONDS)
                    found = hung()
                    lost.update(found)
                    self.grow(len(found))
        finally:
            self.stopped.set()
            self.ended = join([thread for thread in threads if thread not in lost])
        if self._failure is not None:
            raise self._failure

    def grow(self, count: int) -> None:
        """Starts so many more threads; called by one of them, or by the one that runs them."""
        for _ in range(count):
            name = f"uc-stage-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._guarded, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._failure = self._failure or error
            self.stopped.set()
