"""The command line: parses, calls one function, renders one report, picks one exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

_TRUE = {"1", "true", "yes", "on", "t", "y"}


class Terminated(BaseException):
    """SIGTERM or SIGHUP, raised in the main thread so that `finally` and `with` clean up as they do on Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main() -> NoReturn:
    """Runs the command line of this process and exits with its code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup asks for SIGHUP to be ignored
            signal.signal(number, _raise_terminated)
    # A path that is not UTF-8 goes out as the bytes that it came in as.
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # it is a text file in a process
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Runs one command line and gives its exit code; the only place where an error becomes words."""
    from typer import Abort, Exit, TyperException

    from uc_stage.cli import output
    from uc_stage.cli.app import app
    from uc_stage.errors import InvalidRequest, StageError

    json, debug = _asked("--json", argv), _asked("--debug", argv)
    command = next((word for word in argv if not word.startswith("-")), None)
    try:
        try:
            code = app(argv or ["--help"], prog_name="uc-stage", standalone_mode=False)
            sys.stdout.flush()
        except TyperException as error:
            words = error.format_message().rstrip(".").replace("'", "`").strip()
            known = f"uc-stage {command} --help" if "No such command" not in words else "uc-stage --help"
            raise InvalidRequest(words[:1].lower() + words[1:], hint=known if command else "uc-stage --help") from error
        except Abort:  # Typer's form of KeyboardInterrupt
            raise KeyboardInterrupt from None
    except Exit as stop:
        return stop.exit_code
    except StageError as error:
        if debug:
            raise
        return output.fail(command, error, json=json)
    except BrokenPipeError:
        # Whoever read stdout has gone, as `head` does; what is left in the buffer must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return output.stopped(command, signal.SIGINT, json=json)
    except Terminated as stop:
        return output.stopped(command, stop.number, json=json)
    except Exception as error:
        if debug:
            raise
        return output.bug(command, error, json=json)
    return code if isinstance(code, int) else 0


def _asked(flag: str, argv: list[str]) -> bool:
    """Whether a switch is on: asked before Typer parses, since a parse can fail and must be told in that form too."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return flag in words or os.environ.get(f"UC_STAGE{flag.replace('-', '_').upper()[1:]}", "").lower() in _TRUE


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    # A second signal must not interrupt the clean-up that the first one began.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Terminated(number)
