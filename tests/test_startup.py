"""What a command must not import: start-up is felt at every call, and the base install has no extras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.shell import clean_environment

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


# Whatever else is installed is not there for it: what the base install brings is told by the packages' own metadata.
BASE = """
import re, sys
from importlib import metadata
wanted, todo = set(), ["uc-stage"]
def normal(name): return re.sub("[-_.]+", "-", name).lower()
while todo:
    name = normal(todo.pop())
    try:
        needs = [] if name in wanted else metadata.requires(name)
    except metadata.PackageNotFoundError:
        continue  # for another platform
    wanted.add(name)
    todo += [re.match(r"[\\w.-]+", need)[0] for need in needs or () if not re.search(r"\\bextra\\b", need)]
found = metadata.packages_distributions().items()
absent = {module for module, owners in found if not wanted & {normal(owner) for owner in owners}} - {"coverage"}
finders = sys.meta_path[:]
class Base:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in absent:
            return None
        return next((spec for one in finders if (spec := one.find_spec(name, path, target))), None)
    find_distributions = staticmethod(metadata.MetadataPathFinder.find_distributions)
sys.meta_path[:] = [Base]
from uc_stage.cli import main
main()
"""


def test_the_base_install_alone_does_the_four_steps(events: str, tmp_path: Path) -> None:
    def base(*words: object) -> str:
        command = [sys.executable, "-c", BASE, *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env=clean_environment()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    dest, root = tmp_path / "x", tmp_path / "nvme"
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_bytes(b"an image")
    splits = "--split", "train=0.9", "--split", "test=0.1"
    base("export", events, dest, "--shuffle", *splits, "--where", "country IS NOT NULL")
    base("inspect", events)
    base("inspect", dest, "--verify", "--world-size", 2, "--workers", 2)
    copy = base("cache", dest, "--cache-dir", root).strip()
    base("cache", dest, "--as", "arrow", "--cache-dir", root)
    base("cache", tmp_path / "images", "--pack", "--cache-dir", root)
    base("bench", copy, "--seconds", 0.1, "--readers", "raw,arrow")
    base("inspect", "--cache-dir", root)
    base("prune", "--cache-dir", root)
