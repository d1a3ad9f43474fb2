"""How long `uc-stage --help` takes beside `python -c "import typer"`: at most 2.5 times as long.

python benchmarks/startup.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c 'import typer'": ["-c", "import typer"],
    "uc-stage --help": ["-m", "uc_stage", "--help"],
    "uc-stage cache --help": ["-m", "uc_stage", "cache", "--help"],
    "uc-stage export --help": ["-m", "uc_stage", "export", "--help"],
}
LIMIT = 2.5


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, words in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - started)
    base = statistics.median(times["python -c 'import typer'"])
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:<26} {median * 1000:6.0f} ms   {median / base:4.2f} x")
    return int(max(statistics.median(measured) for measured in times.values()) > LIMIT * base)


if __name__ == "__main__":
    raise SystemExit(main())
