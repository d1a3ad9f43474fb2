"""Starts a reader's process, follows what it tells, and ends it, whatever it does."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING

from uc_stage.benchmark import usage
from uc_stage.benchmark.jobs import State
from uc_stage.benchmark.outcome import measurements, passed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from uc_stage.benchmark.jobs import Job
    from uc_stage.model import Measurement
    from uc_stage.progress import Progress

# torch and datasets take seconds to import from a warm disk, and far longer from a cold one.
START_SECONDS = 180.0
# How long a step may take beyond the time for a pass, before the reader counts as hung.
GRACE_SECONDS = 60.0
_END_SECONDS = 10.0
_ANY = re.compile(r".*\S")
# The end of a traceback.
_RAISED = re.compile(r"[\w.]+(Error|Exception)\b")
# What a library's words leave to be guessed.
_MEANS = {"AF_UNIX path too long": "name a shorter folder in `TMPDIR`"}
# So often its memory is looked at, which takes a worker a few milliseconds.
_LOOK_SECONDS = 0.25

# A process imports what this one would, and nothing else that lies where the command runs.
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from {module} import main; main()"
_READER = "uc_stage.benchmark.readers"


@dataclass(slots=True)
class _Followed:
    """What a reader's process told of each pass, the most memory of one of its workers in it, and how it ended."""

    states: dict[int, State] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)
    note: str = ""

    @property
    def final(self) -> bool:
        """Whether it came to its end."""
        return any(state.final for state in self.states.values())


def measure(
    job: Job, size: int, progress: Progress, begun: Callable[[int], None] = lambda _: None
) -> list[Measurement]:
    """Runs one cell over one target whose files are `size` bytes, cold and warm.

    What goes wrong there is the note of a measurement; where the cold passes do, there is no warm one. `begun` is told
    the id of its process, which leads a group of its own.
    """
    # Time bounds a pass, so how much there is tells nothing of how long it takes.
    progress.phase(f"{job.reader} {job.target}")
    with open(os.path.join(job.scratch, f"stderr-{job.rank}"), "w+b") as stderr:
        with running(_READER, subprocess.PIPE, stderr, _environment(job.scratch)) as process:
            begun(process.pid)
            followed = _follow(process, job, size, progress)
            if not followed.note:
                _let_end(process.pid)
        if followed.note:
            # A thread that ends there can be what all others wait for; warnings say nothing of that.
            followed.note += _last_words(stderr, _RAISED)
        elif not followed.final:
            followed.note = f"the reader's process died ({ending(process.returncode)}){_last_words(stderr)}"
    return list(measurements(job, size, followed.states, followed.memory, followed.note))


@contextmanager
def running(
    module: str, stdout: int | IO[bytes], stderr: IO[bytes], environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs the `main` of a module; it and all that it started are gone in the end."""
    with subprocess.Popen(  # noqa: S603 - this interpreter and this package's own words
        [sys.executable, "-c", _COMMAND.format(module=module), *(os.path.abspath(path) for path in sys.path)],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        start_new_session=True,  # its workers end with it
    ) as process:
        try:
            yield process
        finally:
            # One that ended may be reaped, but its group is there as long as a worker of it is.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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


def _follow(process: subprocess.Popen[bytes], job: Job, size: int, progress: Progress) -> _Followed:
    """Listens to a reader until it ends, or until it does not come to an end in time, which the note then says."""
    assert process.stdin
    assert process.stdout
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(asdict(job)).encode())
    followed = _Followed()
    shown = 0
    step: tuple[int, bool, bool] | None = None
    next_look = 0.0
    # What `datasets` builds is made to fit the time of a pass.
    deadline = time.monotonic() + START_SECONDS + (job.seconds if job.reader == "hf" else 0)
    while True:
        left = deadline - time.monotonic()
        if time.monotonic() >= next_look:
            _look(process.pid, step, followed)
            next_look = time.monotonic() + _LOOK_SECONDS
        try:
            line = lines.get(timeout=max(0.0, min(left, _LOOK_SECONDS)))
        except queue.Empty:
            if left > 0:
                continue
            if not followed.final:
                doing = f"went on for {GRACE_SECONDS:g} s after its time was over" if step else "did not start"
                followed.note = f"the reader {doing}, and was stopped"
            return followed
        if not line:
            return followed
        record = json.loads(line)
        state = State(**{**record, "notes": tuple(record["notes"])})
        followed.states[state.number] = state
        over = sum(passed(each, job, size) for each in followed.states.values())
        progress.advance(max(0, over - shown))
        shown = max(shown, over)
        if state.final:
            deadline = time.monotonic() + _END_SECONDS
        elif step != (state.number, state.read, state.done):
            step = state.number, state.read, state.done
            # One of several ranks waits for the others as well.
            deadline = time.monotonic() + job.seconds * min(job.world_size, 2) + GRACE_SECONDS
        elif state.first == state.seconds:
            # A pass that is over at once is looked at once, when its first batch is there.
            _look(process.pid, step, followed)


def _look(pid: int, step: tuple[int, bool, bool] | None, followed: _Followed) -> None:
    """Notes how much memory the largest worker has, while a pass goes on."""
    if step is None or step[1]:
        return
    taken = usage.largest(pid)
    if taken is not None:
        followed.memory[step[0]] = max(taken, followed.memory.get(step[0], 0))


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


def ending(code: int) -> str:
    """How a process ended, by its return code."""
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _last_words(stderr: IO[bytes], kind: re.Pattern[str] = _ANY) -> str:
    """The last line of some kind that it printed, to stand behind what is said of it."""
    stderr.seek(0)
    lines = [line for line in stderr.read().decode(errors="replace").splitlines() if kind.match(line)]
    if not lines:
        return ""
    means = next((f": {what}" for words, what in _MEANS.items() if words in lines[-1]), "")
    return f": {lines[-1].strip()[:200]}{means}"
