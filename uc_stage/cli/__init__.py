"""The command line: parses, calls one function, renders one report, picks one exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, ClassVar, NoReturn

if TYPE_CHECKING:
    from types import FrameType

_TRUE = {"1", "true", "yes", "on", "t", "y"}


class Terminated(BaseException):
    """A signal, raised in the main thread so that `finally` and `with` clean up.

    SIGINT too: its KeyboardInterrupt ends inside of Typer, without a word. `last` is the last one's number.
    """

    last: ClassVar[int | None] = None

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = Terminated.last = number


def main() -> NoReturn:
    """Runs the command line of this process and exits with its code."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup asks for SIGHUP to be ignored
                signal.signal(number, _raise_terminated)
        # Where a shell closed one of them, what is printed there must not turn up in the other.
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A path goes out as the bytes that it came in as, whatever the locale calls text.
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
        code = run(sys.argv[1:])
        # All is said: a signal that comes while Python closes down changes nothing any more.
        _ignore_signals()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Terminated as stop:
        code = 128 + stop.number
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Runs one command line and gives its exit code; the only place where an error becomes words."""
    from typer import TyperException

    from uc_stage.cli import output
    from uc_stage.cli.app import app
    from uc_stage.errors import InvalidRequest, StageError, from_os_error

    json, debug = _asked("--json", argv), _asked("--debug", argv)
    command = next((word for word in argv if not word.startswith("-")), None)
    try:
        try:
            code = app(argv or ["--help"], prog_name="uc-stage", standalone_mode=False)
        except TyperException as error:
            words = error.format_message().rstrip(".").replace("'", "`").strip()
            known = f"uc-stage {command} --help" if "No such command" not in words else "uc-stage --help"
            raise InvalidRequest(words[:1].lower() + words[1:], hint=known if command else "uc-stage --help") from error
    except Terminated as stop:
        return output.stopped(command, stop.number, json=json)
    except Exception as error:  # noqa: BLE001 - the last stop: what nobody knew is told as a bug, with its code
        if debug:
            traceback.print_exc()
        if Terminated.last is not None:
            # A library made an error of its own of the signal's exception.
            return output.stopped(command, Terminated.last, json=json)
        if isinstance(error, StageError):
            return output.fail(command, error, json=json)
        if isinstance(error, OSError):
            # Of this process's own surroundings, such as a working directory that is gone or a stdout that is full.
            return output.fail(command, from_os_error(error), json=json and error.errno != errno.ENOSPC)
        return output.bug(command, error, json=json)
    return code if isinstance(code, int) else 0


def _asked(flag: str, argv: list[str]) -> bool:
    """Whether a switch is on: asked before Typer parses, since a parse can fail and must be told in that form too."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return flag in words or os.environ.get(f"UC_STAGE{flag.replace('-', '_').upper()[1:]}", "").lower() in _TRUE


def _ignore_signals() -> None:
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    # A second signal must not interrupt the clean-up that the first one began, unless a person insists.
    _ignore_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise Terminated(number)
