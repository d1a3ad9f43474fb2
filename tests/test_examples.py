"""The examples as a user runs them: by bash, torchrun and a launcher that pickles, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.exports import make_export
from tests.fixtures.shell import Done, clean_environment, tree
from uc_stage import caching
from uc_stage.cli.demo import make_table
from uc_stage.locks import Lock
from uc_stage.model import CacheRequest
from uc_stage.publish import lock_path, prepare_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.volume import Volume

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=300)
    return Done(process.returncode, out, err)


def rows_of(folder: str) -> int:
    import pyarrow.parquet as pq

    return sum(int(pq.read_metadata(file).num_rows) for file in Path(folder).glob("*.parquet"))


@contextlib.contextmanager
def being_copied(source: str, root: str) -> Iterator[None]:
    """Holds the lock of a source's copy, as a process does that is at it."""
    prepare_root(root)
    with Lock(lock_path(root, caching.plan(CacheRequest(source, cache_dir=root)).path)) as lock:
        assert lock.try_acquire()
        yield


class Node:
    """A cluster's node as an init script finds it: no HOME, no terminal, and next to nothing in the environment."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "nvme")
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "uc-stage").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m uc_stage "$@"\n')
        (self.bin / "uc-stage").chmod(0o755)

    def start(self, source: object, **variables: str) -> subprocess.Popen[str]:
        usual = {"PATH": f"{self.bin}:/usr/bin:/bin", "UC_STAGE_CACHE_DIR": self.root, "STAGE_PAUSE": "0.1"}
        return start(["bash", str(EXAMPLES / "init_script.sh")], {**usual, "STAGE_SOURCE": str(source), **variables})

    def run(self, source: object, **variables: str) -> Done:
        return finish(self.start(source, **variables))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_init_script_says_one_line_and_a_second_run_changes_nothing(node: Node, exported: str) -> None:
    first = node.run(exported)

    said = re.fullmatch(rf"uc-stage: {exported} is at (\S+), after \d+ s\n", first.err)
    assert (first.code, first.out) == (0, "")
    assert said
    assert tree(said[1]).items() >= tree(exported).items()
    made = os.stat(f"{said[1]}/.uc_stage/copy.json")
    second = node.run(exported, STAGE_SECONDS="10m")  # no number: as if it were not there
    assert (second.code, second.out) == (0, "")
    assert f"is at {said[1]}, " in second.err
    assert os.path.samestat(os.stat(f"{said[1]}/.uc_stage/copy.json"), made)


def test_the_init_script_fails_the_cluster_only_where_asked(node: Node, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    lenient, strict = [node.start(gone, STAGE_STRICT=asked) for asked in ("0", "1")]

    for process, code in ((lenient, 0), (strict, 10)):
        done = finish(process)
        assert (done.code, done.out) == (code, "")
        assert done.err == f"uc-stage: no copy of {gone} yet (exit 10): error: `{gone}` is not there\n"


def test_the_init_script_does_without_the_tool(node: Node, exported: str) -> None:
    (node.bin / "uc-stage").unlink()

    done = node.run(exported)

    assert (done.code, done.out, done.err.count("\n")) == (0, "", 1)
    assert "(exit 127)" in done.err
    assert node.run(exported, STAGE_STRICT="1").code == 127


def test_the_init_script_waits_a_little_for_a_mount_that_comes_up_late(node: Node, tmp_path: Path) -> None:
    make_export(str(tmp_path / "made"))
    with node.start(tmp_path / "orders", STAGE_STRICT="1", STAGE_PAUSE="0.5") as process:
        time.sleep(0.3)
        os.rename(tmp_path / "made", tmp_path / "orders")
        done = finish(process)

    assert (done.code, done.err.count("\n")) == (0, 1)


def test_the_init_script_names_the_process_that_copies_past_its_time(node: Node, exported: str) -> None:
    with being_copied(exported, node.root):
        lenient, strict = [node.start(exported, STAGE_SECONDS="8", STAGE_STRICT=asked) for asked in ("0", "1")]
        done = finish(lenient)
        assert (done.code, done.out) == (0, "")
        assert f"yet (exit 11): error: process {os.getpid()} on " in done.err
        assert done.err.endswith("still works on it after 4 s\n")
        assert finish(strict).code == 11


def test_the_init_script_ends_a_copy_that_takes_too_long_and_the_next_run_makes_it(node: Node, volume: Volume) -> None:
    manifest = make_export(f"{volume.backing}/orders")
    volume.fault(f"orders/{manifest.files[0].path}", run="sleep 7", times=1)

    done = node.run(f"{volume.mount}/orders", STAGE_SECONDS="3")

    assert (done.code, done.out) == (0, "")
    assert done.err == f"uc-stage: no copy of {volume.mount}/orders yet (exit 124): not whole after 3 s\n"
    volume.clear()
    assert node.run(f"{volume.mount}/orders", STAGE_STRICT="1").code == 0


def test_four_init_scripts_at_once_make_one_copy(node: Node, exported: str) -> None:
    runs = [finish(process) for process in [node.start(exported, STAGE_STRICT="1") for _ in range(4)]]

    assert {(run.code, run.out) for run in runs} == {(0, "")}
    assert len({run.err.partition(" is at ")[2].partition(",")[0] for run in runs}) == 1
    assert len(os.listdir(f"{node.root}/copies")) == 1
    assert os.listdir(f"{node.root}/partial") == []


def test_the_init_script_reads_a_mount_that_takes_no_writes_and_survives_a_cache_folder_there(
    node: Node, exported: str, tmp_path: Path
) -> None:
    mount = tmp_path / "Volumes"
    mount.mkdir()
    if os.geteuid() or subprocess.run(["mount", "--bind", "-o", "ro", exported, mount], check=False).returncode:
        pytest.skip("this user may not mount")
    try:
        assert node.run(mount, STAGE_STRICT="1").code == 0
        done = node.run(exported, UC_STAGE_CACHE_DIR=f"{mount}/cache")
    finally:
        subprocess.run(["umount", mount], check=True)

    assert (done.code, done.out) == (0, "")
    assert "(exit 13)" in done.err


class Job:
    """A job's step: a table, the place of its export, of which a test makes what it needs, and a node's disk."""

    def __init__(self, table: str, folder: Path) -> None:
        self.table, self.export, self.root = table, str(folder / "orders"), str(folder / "nvme")

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        # Four files, as `exported` has them.
        usual = {"UC_STAGE_CACHE_DIR": self.root, "UC_STAGE_FILES": "4", "JOB_PAUSE": "0.5"}
        environment = clean_environment(**{**usual, **variables})
        return start([sys.executable, str(EXAMPLES / "job_step.py"), self.table, self.export, *words], environment)

    def run(self, *words: str, **variables: str) -> Done:
        return finish(self.start(*words, **variables))

    def is_fresh(self, path: str) -> bool:
        plan = caching.plan(CacheRequest(self.export, cache_dir=self.root))
        return (plan.state, plan.path) == ("fresh", path)

    def stage(self) -> str:
        """Makes the copy, as an earlier run did."""
        return caching.run(CacheRequest(self.export, cache_dir=self.root)).path


@pytest.fixture
def job(events: str, tmp_path: Path) -> Job:
    return Job(events, tmp_path)


def test_the_job_step_makes_what_is_missing_and_takes_what_is_fresh_as_it_is(job: Job) -> None:
    first = job.run("1rows/s")

    assert (first.code, first.out.count("\n")) == (0, 1)
    assert job.is_fresh(first.out.strip())
    job.table += "-gone"
    second = job.run()
    assert (second.code, second.out) == (0, first.out)


def test_the_job_step_exports_and_copies_again_what_is_stale(job: Job) -> None:
    make_export(job.export)
    before = job.stage()
    make_export(job.export, version=2)

    done = job.run()

    assert done.code == 0
    assert done.out != f"{before}\n"
    assert job.is_fresh(done.out.strip())
    assert caching.plan(CacheRequest(job.export, cache_dir=job.root)).generation.startswith("v4-")


def test_the_job_step_tries_again_where_the_source_does_not_answer(job: Job, exported: str, volume: Volume) -> None:
    shutil.copytree(exported, f"{volume.backing}/orders")
    job.export = f"{volume.mount}/orders"
    (file, *_) = [name for name in tree(exported) if name.endswith(".parquet")]
    volume.fault(f"orders/{file}", error=5, times=2)

    done = job.run(UC_STAGE_RETRIES="0")

    assert done.code == 0, done.err
    assert "job_step: cache ended with 15, once more" in done.err
    assert job.is_fresh(done.out.strip())


def test_the_job_step_waits_for_another_process_that_copies(job: Job, exported: str) -> None:
    job.export = exported
    with being_copied(exported, job.root):
        process = job.start(UC_STAGE_TIMEOUT="0")
        assert process.stderr is not None
        seen = ""
        while "job_step: cache ended with 11, once more" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
    assert finish(process).code == 0


def test_the_job_step_exports_again_what_is_damaged(job: Job, exported: str) -> None:
    shutil.copytree(exported, job.export)
    file = next(Path(job.export).glob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)

    done = job.run()

    assert done.code == 0, done.err
    assert job.is_fresh(done.out.strip())


def test_the_job_step_gives_up_what_the_job_itself_holds_where_there_is_no_room(job: Job, disk: str) -> None:
    job.table, job.root = f"{job.export}-table", f"{disk}/uc-stage"
    make_table(job.table, 2000)
    other = Path(f"{job.export}-other")
    other.mkdir()
    (other / "noise").write_bytes(os.urandom(150_000))
    # The job's shell holds the first copy until it ends, as it does with DATA=$(uc-stage cache …).
    step = f'"{sys.executable}" "{EXAMPLES}/job_step.py" "{job.table}" "{job.export}"'
    script = f'"{sys.executable}" -m uc_stage cache "{other}" -q; {step}; exit $?'

    done = finish(start(["bash", "-c", script], clean_environment(UC_STAGE_CACHE_DIR=job.root)))

    assert done.code == 0, done.err
    assert len(done.out.split()) == 2, done.err
    first, second = done.out.split()
    assert "job_step: cache ended with 14, once more" in done.err
    assert not os.path.exists(first)
    assert job.is_fresh(second)


def test_the_job_step_fails_below_the_rate_that_it_needs_and_on_what_no_further_try_mends(job: Job) -> None:
    make_export(job.export)
    job.stage()
    slow = job.run("100TB/s")
    assert slow.code == 20
    assert "job_step: `--require 100TB/s` is not met: " in slow.err
    job.table, job.export = f"{job.table}-gone", f"{job.export}-gone"
    gone = job.run()
    assert (gone.code, gone.out) == (10, "")
    assert "once more" not in gone.err


def test_four_ranks_under_torchrun_get_one_copy_and_see_each_row_once(exported: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    environment = clean_environment(UC_STAGE_CACHE_DIR=str(tmp_path / "nvme"), OMP_NUM_THREADS="1")

    done = finish(start([*command, str(EXAMPLES / "train_torchrun.py"), exported], environment))

    assert done.code == 0, done.err
    (path,) = [str(found) for found in (tmp_path / "nvme" / "copies").iterdir()]
    steps = dict(re.findall(r"^rank (\d): \d+ steps from (.+), loss", done.out, re.MULTILINE))
    assert steps == dict.fromkeys("0123", path)
    assert len(re.findall(r"^rank \d: copy, \d+ bytes$", done.err, re.MULTILINE)) == 1
    rows = rows_of(exported)
    assert f"4 ranks saw each of {rows} rows once\n" in done.out


@pytest.mark.parametrize(
    ("tells", "ranks"),
    [
        ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT", [0, 1, 2, 3]),
        ("WORLD_SIZE", [0, 0]),
    ],
)
def test_a_function_that_is_pickled_takes_no_data_along_and_makes_one_copy_a_node(
    exported: str, tmp_path: Path, tells: str, ranks: list[int]
) -> None:
    from tests.fixtures.launchers.serverless_gpu import opened

    log = tmp_path / "log"
    log.mkdir()
    environment = clean_environment(
        UC_STAGE_CACHE_DIR=str(tmp_path / "nvme"),
        LAUNCHER_LOG=str(log),
        LAUNCHER_GPUS=str(len(ranks)),
        LAUNCHER_TELLS=tells,
        PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests" / "fixtures" / "launchers")]),
    )

    done = finish(start([sys.executable, str(EXAMPLES / "distributed_function.py"), exported], environment))

    assert done.code == 0, done.err
    assert (log / "call.pickle").stat().st_size < 4000
    results = [pickle.loads((log / f"{rank}.pickle").read_bytes()) for rank in range(len(ranks))]
    assert [result["rank"] for result in results] == ranks
    assert len({result["path"] for result in results}) == 1
    readers = [
        rank for rank in range(len(ranks)) if any(f"{exported}/train-" in path for path in opened(str(log), rank))
    ]
    assert len(readers) == 1
    expected = rows_of(exported) * len(ranks) if tells == "WORLD_SIZE" else rows_of(exported)
    assert sum(result["rows"] for result in results) == expected
