"""Does work ahead of whoever consumes it: in threads, in bounded memory, and in the order of the work."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from uc_stage.crew import join

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

_Item = TypeVar("_Item")


def ahead(
    openers: Iterable[Callable[[], Sequence[Callable[[], Iterator[_Item]]]]],
    size: Callable[[_Item], int],
    jobs: int,
    budget: int,
) -> Generator[_Item]:
    """Gives the items of all parts of all openers, in their order, while `jobs` threads make those to come.

    At most `budget` of `size` wait to be consumed, and one item more of each thread. An error in a thread is raised
    here as soon as it is seen; it, and the end of this generator, end the threads.

    Args:
        openers: each is called in a thread and gives its parts, which are run in threads as well.
        size: of an item, such as its bytes.
        jobs: the number of threads.
        budget: the sum of sizes that may wait.
    """
    line = _Line(iter(openers), size, budget)
    threads = [threading.Thread(target=line.work, name=f"uc-stage-read-{job}", daemon=True) for job in range(jobs)]
    try:
        for thread in threads:
            thread.start()
        yield from line.items()
    finally:
        line.stop()
        join(threads)


class _Part(Generic[_Item]):
    """One part's items that wait; `done` says that no more will come."""

    def __init__(self, run: Callable[[], Iterator[_Item]]) -> None:
        self.run, self.done = run, False
        self.items: deque[_Item] = deque()


class _Line(Generic[_Item]):
    """The parts between the threads that run them and the one that consumes their items."""

    def __init__(
        self,
        openers: Iterator[Callable[[], Sequence[Callable[[], Iterator[_Item]]]]],
        size: Callable[[_Item], int],
        budget: int,
    ) -> None:
        self._openers, self._size, self._budget = openers, size, budget
        self._changed = threading.Condition()
        self._opened: dict[int, list[_Part[_Item]]] = {}
        self._todo: list[tuple[int, int, _Part[_Item]]] = []
        self._taken = self._opening = self._held = 0
        self._head: _Part[_Item] | None = None
        self._stopped = self._exhausted = False
        self._failure: BaseException | None = None

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def items(self) -> Iterator[_Item]:
        """The items in order."""
        for number in itertools.count():
            with self._changed:
                self._wait(lambda: number in self._opened or (self._exhausted and number >= self._taken))  # noqa: B023 - is called here
                parts = self._opened.pop(number, None)
            if parts is None:
                return
            for part in parts:
                yield from self._items_of(part)

    def _items_of(self, part: _Part[_Item]) -> Iterator[_Item]:
        while True:
            with self._changed:
                self._head = part
                self._changed.notify_all()
                self._wait(lambda: part.items or part.done)
                if not part.items:
                    return
                item = part.items.popleft()
                self._held -= self._size(item)
                self._changed.notify_all()
            yield item

    def _wait(self, ready: Callable[[], object]) -> None:
        """Waits in the consumer; a failure of a thread is raised."""
        self._changed.wait_for(lambda: self._failure is not None or ready())
        if self._failure is not None:
            raise self._failure

    def work(self) -> None:
        """Runs parts and opens what has them, the first in order first, until there is nothing to do."""
        try:
            while (todo := self._next()) is not None:
                number, opener, part = todo
                if part is not None:
                    self._run(part)
                elif opener is not None:
                    self._open(number, opener)
        except BaseException as error:  # noqa: BLE001 - it is raised where the items are consumed
            with self._changed:
                self._failure = self._failure or error
                self._stopped = True
                self._changed.notify_all()

    def _next(
        self,
    ) -> tuple[int, Callable[[], Sequence[Callable[[], Iterator[_Item]]]] | None, _Part[_Item] | None] | None:
        """What to do now: the first part that waits, else an opener; None where nothing is left."""
        with self._changed:
            while not self._stopped:
                if self._todo:
                    number, _, part = heapq.heappop(self._todo)
                    return number, None, part
                if self._exhausted and not self._opening:
                    break
                if not self._exhausted and self._held < self._budget:
                    opener = next(self._openers, None)
                    if opener is not None:
                        self._taken, self._opening = self._taken + 1, self._opening + 1
                        return self._taken - 1, opener, None
                    self._exhausted = True
                    self._changed.notify_all()
                    continue
                self._changed.wait()
        return None

    def _open(self, number: int, opener: Callable[[], Sequence[Callable[[], Iterator[_Item]]]]) -> None:
        parts = [_Part(run) for run in opener()]
        with self._changed:
            self._opened[number] = parts
            for index, part in enumerate(parts):
                heapq.heappush(self._todo, (number, index, part))
            self._opening -= 1
            self._changed.notify_all()

    def _run(self, part: _Part[_Item]) -> None:
        for item in part.run():
            with self._changed:
                part.items.append(item)
                self._held += self._size(item)
                self._changed.notify_all()
                # Whoever is waited for goes on, however much waits behind it.
                self._changed.wait_for(
                    lambda: self._stopped or self._held < self._budget or (part is self._head and not part.items)
                )
                if self._stopped:
                    return
        with self._changed:
            part.done = True
            self._changed.notify_all()
