"""Who is told of progress: a bar on a terminal, a line every ten seconds elsewhere, nobody with `--quiet`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from uc_stage.cli.text import amount, duration, printable
from uc_stage.progress import SILENT, Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVERY_SECONDS = 10.0


@contextlib.contextmanager
def shown(*, quiet: bool) -> Iterator[Progress]:
    """Gives the progress that suits stderr, and ends it cleanly whatever happens inside."""
    if quiet:
        yield SILENT
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        bar = _Bar()
        try:
            yield bar
        finally:
            bar.stop()
    else:
        lines = _Lines()
        try:
            yield lines
        finally:
            lines.stop()


class _Lines:
    """One plain line every ten seconds while a phase lasts: for logs, which want to see that something is alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="uc-stage-progress", daemon=True)
        self._begin("", None, "bytes")

    def _begin(self, name: str, total: int | None, unit: str) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._done, self._started = 0, time.monotonic()

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        with self._lock:
            self._begin(name, total, unit)
        if not self._clock.is_alive():
            self._clock.start()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount

    def note(self, message: str) -> None:
        with contextlib.suppress(OSError):
            _tell(message)

    def stop(self) -> None:
        self._stopped.set()

    def _tick(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            with self._lock:
                line = self._line(time.monotonic() - self._started)
            self.note(line)

    def _line(self, elapsed: float) -> str:
        line = f"{self._name}: {duration(elapsed)}"
        if not self._done:
            return line
        rate = self._done / elapsed
        line += f", {amount(self._done, self._unit)}"
        if self._total:
            line += f" of {amount(self._total, self._unit)} ({self._done / self._total:.0%})"
        line += f", {amount(round(rate), self._unit)}/s"
        if self._total:
            line += f", {duration(max(self._total - self._done, 0) / rate)} left"
        return line


class _Bar:
    """Rich's bar on stderr; Rich is imported when the first phase begins."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self.stop()
        amounts = (
            [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn(), TextColumn(unit)]
        )
        # Where nobody knows how much there is, a bar would count from nothing to nothing.
        known = [BarColumn(), *amounts, TimeRemainingColumn()]
        columns = [TextColumn("{task.description}"), *(known if total is not None else [TimeElapsedColumn()])]
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(name, total=total)
        self._bar.start()

    def advance(self, amount: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, amount)

    def note(self, message: str) -> None:
        if self._bar is None:
            _tell(message)
        else:
            self._bar.console.print(printable(message), markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _tell(message: str) -> None:
    # In one piece: `print` would let another thread's line in before the end of this one.
    sys.stderr.write(f"{printable(message)}\n")
    sys.stderr.flush()
