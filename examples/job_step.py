"""A step of a job or a workflow: brings a table to this node, and acts on what `uc-stage` says by exit code and JSON.

DATA=$(python job_step.py main.sales.orders /Volumes/main/sales/train/orders 200krows/s)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

PAUSE = float(os.environ.get("JOB_PAUSE", "10"))  # seconds before the second try

NOT_FOUND, BUSY, DAMAGED, NO_SPACE, UNAVAILABLE, NOT_FRESH, TOO_SLOW = 10, 11, 12, 14, 15, 17, 20


def main(table: str, export: str, rate: str | None = None) -> int:
    """Prints the path of the copy; gives the exit code of the step."""
    # Takes a moment and reads no data. The copy is compared with the export, not with the table.
    code, _ = run("cache", export, "--check", expect=(NOT_FRESH, NOT_FOUND))
    if code:
        run("export", table, export)  # which is done already where the table has not changed since
    code, answer = run("cache", export, expect=(DAMAGED,))
    if code:  # not by the way here, since each file was fetched again: the export itself is
        run("export", table, export, "--force")
        _, answer = run("cache", export)
    path = answer["data"]["path"]
    print(path)
    if rate:
        code, answer = run("bench", path, "--readers", "arrow", "--require", rate, expect=(TOO_SLOW,))
        if code:
            say(answer["errors"][0]["message"])
            return code
    return 0


def run(*words: str, expect: tuple[int, ...] = ()) -> tuple[int, Any]:
    """Runs a command until it is done, or ends as expected; mends what can be mended, and else ends the step."""
    for pause in (PAUSE, 2 * PAUSE, 4 * PAUSE, None):
        code, answer = uc_stage(*words)
        if code in (0, *expect):
            break
        if pause is None or code not in (BUSY, NO_SPACE, UNAVAILABLE):
            raise SystemExit(code)  # a wrong flag, no access, an unsupported type: the next try would end the same
        if code == NO_SPACE:
            make_room()
        else:
            time.sleep(pause)
        say(f"{words[0]} ended with {code}, once more")
    return code, answer


def make_room() -> None:
    """Removes the copies that only this job still holds: those that nobody holds `cache` has removed by itself."""
    for copy in uc_stage("inspect")[1]["data"]["copies"]:
        if copy["kind"] == "copy":
            uc_stage("prune", copy["path"])  # 11: another process uses it, and it stays


def uc_stage(*words: str) -> tuple[int, Any]:
    """Runs a command; its exit code says what to do, its JSON why. Progress and errors go to the log by stderr."""
    done = subprocess.run([sys.executable, "-m", "uc_stage", *words, "--json"], stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout or "null")  # nothing where it was killed


def say(message: str) -> None:
    """Writes a line to the log of the step."""
    print(f"job_step: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
