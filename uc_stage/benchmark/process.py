"""Starts a reader's process, follows what it tells, and ends it, whatever it does."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING

from uc_stage.benchmark.readers import Job, State
from uc_stage.ipc import is_stream_name
from uc_stage.model import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

    from uc_stage.progress import Progress

# torch and datasets take seconds to import from a warm disk, and far longer from a cold one.
START_SECONDS = 180.0
# How long a step may take beyond the time for the whole, before the reader counts as hung.
GRACE_SECONDS = 60.0
_END_SECONDS = 10.0

# The reader imports what this process would, and nothing else that lies where the command runs.
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from uc_stage.benchmark.readers import main; main()"

# Map-style loading first writes an uncompressed Arrow copy of everything, which no bound of seconds can hold.
_HOW = {"hf": "load_dataset(streaming=True).iter(batch_size)"}
_HOW_MAPPED = {"hf": "Dataset.from_file(FILE).iter(batch_size)"}


def measure(job: Job, size: int, progress: Progress, begun: Callable[[int], None] = lambda _: None) -> Measurement:
    """Runs one reader over one target whose files are `size` bytes; what goes wrong there is the measurement's note.

    `begun` is told the id of its process, which leads a group of its own.
    """
    progress.phase(f"{job.reader} {job.target}", total=size)
    with (
        tempfile.TemporaryDirectory(prefix="uc-stage-bench-", ignore_cleanup_errors=True) as scratch,
        open(os.path.join(scratch, "stderr"), "w+b") as stderr,
        subprocess.Popen(  # noqa: S603 - this interpreter and this package's own words
            [sys.executable, "-c", _COMMAND, *(os.path.abspath(path) for path in sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=_environment(scratch),
            start_new_session=True,  # its workers end with it
        ) as process,
    ):
        try:
            begun(process.pid)
            state, note = _follow(process, replace(job, scratch=scratch), size, progress)
            if not note:
                _let_end(process.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if note == "" and not state.final:
            note = f"the reader's process died ({ending(process.returncode)}){_last_words(stderr)}"
    return _measurement(job, size, state, note)


def _environment(scratch: str) -> dict[str, str]:
    """This process's environment, with `datasets` shut in the scratch folder and offline."""
    return {
        **os.environ,
        "HF_HOME": scratch,
        "HF_HUB_CACHE": os.path.join(scratch, "hub"),
        "HF_DATASETS_CACHE": os.path.join(scratch, "datasets"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def _follow(process: subprocess.Popen[bytes], job: Job, size: int, progress: Progress) -> tuple[State, str]:
    """What the reader told last, and a note where it did not come to an end in time."""
    assert process.stdin
    assert process.stdout
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(asdict(job)).encode())
    state = State()
    shown = 0
    started = False
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            if state.final:
                return state, ""
            doing = f"went on for {GRACE_SECONDS:g} s after its time was over" if started else "did not start"
            return state, f"the reader {doing}, and was stopped"
        if not line:
            return state, ""
        state = State(**json.loads(line))
        passed = state.bytes or _passed(state, job, size)
        progress.advance(max(0, passed - shown))
        shown = max(shown, passed)
        if state.final:
            deadline = time.monotonic() + _END_SECONDS
        elif not started:
            started = True
            deadline = time.monotonic() + job.seconds + GRACE_SECONDS


def _let_end(pid: int) -> None:
    """Gives a process the time to end by itself, and leaves it to be reaped: its id names its group until then."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            return
        time.sleep(0.01)


def _pump(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Passes lines on, and an empty one at the end."""
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _passed(state: State, job: Job, size: int) -> int:
    """The bytes on disk that were passed over: those of all files by the share of the rows that were read."""
    total = sum(rows for _, _, rows in job.files)
    return size * min(state.rows, total) // total


def _measurement(job: Job, size: int, state: State, note: str) -> Measurement:
    rows = None if job.reader == "raw" else state.rows
    total = sum(count for _, _, count in job.files)
    passed = state.bytes if rows is None else _passed(state, job, size)
    # What one rank of several is to read is told by all of them together.
    whole = job.world_size > 1 or (passed == size if rows is None else rows == total)
    notes = [text for text in (note, state.error) if text]
    failed = bool(notes) or (state.ended and not whole)
    if state.ended and not state.error and not whole:
        notes.append(f"an epoch gave {rows} rows of {total}" if rows is not None else f"{passed} bytes of {size}")
    how = _HOW_MAPPED if is_stream_name(job.files[0][0]) else _HOW
    if job.reader in how:
        notes.append(how[job.reader])
    return Measurement(
        target=job.target,
        reader=job.reader,
        rows=rows,
        bytes=passed,
        seconds=state.seconds,
        first_batch_seconds=state.first,
        rows_per_second=rows / state.seconds if rows and state.seconds else None,
        bytes_per_second=passed / state.seconds if state.seconds else 0.0,
        complete=state.ended and not failed,
        failed=failed,
        note="; ".join(notes) or None,
        wait_share=state.wait_share,
        batch_size=job.batch_size,
        workers=job.workers,
    )


def ending(code: int) -> str:
    """How a process ended, by its return code."""
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _last_words(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    lines = [line for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()[:200]}" if lines else ""
