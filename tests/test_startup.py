"""What a command must not import: start-up is felt at every call."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "pyarrow",
    "pyspark",
    "datasets",
    "torch",
    "fsspec",
    "numpy",
    "pandas",
    "deltalake",
    "sqlglot",
    "rich",
    "pydantic",
}
SHOW = """
import json, sys
sys.argv = ["uc-stage", *sys.argv[1:]]
try:
    {action}
except SystemExit:
    pass
print(json.dumps(sorted(m for m in sys.modules if "." not in m)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("import uc_stage", []),
        ("from uc_stage.cli import main; main()", ["--help"]),
        ("from uc_stage.cli import main; main()", ["export", "--help"]),
        ("from uc_stage.cli import main; main()", ["cache", "--help"]),
        ("from uc_stage.cli import main; main()", ["--version"]),
        ("from uc_stage.cli import main; main()", ["cache", "--no-such-flag"]),
    ],
)
def test_no_heavy_library_is_imported(action: str, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(action=action), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert "uc_stage" in loaded
    assert loaded & HEAVY == set()
