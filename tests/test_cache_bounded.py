from __future__ import annotations

import errno
import mmap
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.shell import clean_environment
from tests.fixtures.shell import uc_stage as command_line
from uc_stage import caching, holders, locks, pruning, publish
from uc_stage.errors import NoSpace
from uc_stage.holders import USED_PATH
from uc_stage.locks import Lock, reserved
from uc_stage.manifest import COPY_PATH
from uc_stage.model import CacheReport, CacheRequest, Holder, PruneRequest
from uc_stage.storage import limits, space_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.volume import Volume

_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What ends with a person's own prompt: job control gives each command a process group of its own.
_TYPED: dict[str, Any] = {"start_new_session": True}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., str]:
    def make(name: str, size: int = 100_000) -> str:
        folder = tmp_path / "sources" / name
        folder.mkdir(parents=True)
        (folder / "data.bin").write_bytes(os.urandom(size))
        (folder / "more.bin").write_bytes(b"")
        return str(folder)

    return make


@pytest.fixture
def cache(root: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CacheReport]:
    """Caches as a person does who types the command: nobody holds the copy then."""
    monkeypatch.setattr(caching, "caller", lambda: None)

    def run(source: str, **options: Any) -> CacheReport:
        return caching.run(CacheRequest(source, **{"cache_dir": root, "holder": "caller", **options}))

    return run


def rest(path: str, seconds: float) -> None:
    """Lets a copy's last use be so long ago."""
    moment = time.time() - seconds
    os.utime(f"{path}/{USED_PATH}", (moment, moment))


def start(program: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.Popen(
        command,
        cwd=_PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        **options,
    )


HOLD = "import sys, uc_stage; print(uc_stage.cache(sys.argv[1], cache_dir=sys.argv[2]), flush=True); sys.stdin.read()"


def users(root: str) -> dict[str, tuple[Holder, ...]]:
    return {copy.path: copy.holders for copy in publish.list_copies(root)}


def test_the_least_recently_used_copy_makes_room(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    sources = [source(name) for name in ("a", "b", "c")]
    paths = [cache(each).path for each in sources]
    for path, seconds in zip(paths, (300, 200, 100), strict=True):
        rest(path, seconds)
    # A hit is a use, where the mount keeps no access times too.
    assert cache(sources[0]).status == "unchanged"
    new = source("d", 150_000)
    request = CacheRequest(new, cache_dir=root, max_size=250_000)

    plan = caching.plan(request)
    assert [copy.path for copy in plan.evictions] == [paths[1], paths[2]]
    assert plan.bytes_lacking == 0
    assert all(os.path.isdir(path) for path in paths)
    report = cache(new, max_size=250_000)

    assert report.evicted == (paths[1], paths[2])
    assert sorted(users(root)) == sorted([paths[0], report.path])
    assert os.listdir(f"{root}/trash") == []


def test_no_copy_goes_where_that_would_not_suffice(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    path = cache(source("a")).path
    big = source("b", 500_000)

    plan = caching.plan(CacheRequest(big, cache_dir=root, max_size=400_000))
    assert (plan.evictions, plan.bytes_lacking) == ((), 100_000)
    with pytest.raises(NoSpace, match=r"would hold 600\.0 kB .* and `--max-size` is 400\.0 kB") as caught:
        cache(big, max_size=400_000)

    assert "uc-stage inspect --cache-dir" in str(caught.value.hint)
    assert os.path.isdir(path)


def test_a_copy_that_a_live_process_got_stays_until_that_ends(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    a, b = source("a"), source("b")
    with start(HOLD, a, root) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        (holder,) = users(root)[path]
        assert (holder.pid, str(holder.command).startswith("python")) == (process.pid, True)
        with pytest.raises(NoSpace, match="--max-size"):
            cache(b, max_size=150_000)
        assert os.path.isdir(path)
        process.communicate("")

    assert users(root) == {path: ()}
    assert cache(b, max_size=150_000).evicted == (path,)


def test_a_child_that_outlives_the_process_which_got_the_copy_holds_it_on(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    fork = "import os, sys, uc_stage; p = uc_stage.cache(sys.argv[1], cache_dir=sys.argv[2])\n"
    fork += "if os.fork(): os._exit(0)\nprint(p, flush=True); sys.stdin.read()"
    with start(fork, source("a"), root) as parent:
        assert parent.stdout is not None
        path = parent.stdout.readline().strip()
        parent.wait(30)
        assert users(root) == {path: (Holder(None, None),)}
        with pytest.raises(NoSpace):
            cache(source("b"), max_size=150_000)
        assert publish.evict(root, path) == publish.Stays("a process holds it")
        assert parent.stdin is not None
        parent.stdin.close()
        parent.stdout.read()

    assert users(root) == {path: ()}


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_copy_stays_whose_file_somebody_has_open_or_mapped(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport], how: str
) -> None:
    path = cache(source("a")).path
    with open(f"{path}/data.bin", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        if how == "mapped":
            file.close()
        assert [holder.pid for holder in users(root)[path]] == [os.getpid()]
        with pytest.raises(NoSpace):
            cache(source("b"), max_size=150_000)
        assert "reads it" in str(publish.evict(root, path))
        assert len(mapped) == 100_000

    assert publish.evict(root, path) is None


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_the_script_that_asked_for_a_copy_holds_it_until_it_ends(
    root: str, source: Callable[..., str], shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = f'DATA=$("{sys.executable}" -m uc_stage cache "$1" --cache-dir "$2" -q); echo "$$ $DATA"; read line'
    command = [shell, "-c", script, "script", source("a"), root]
    environment = clean_environment(PYTHONPATH=_PROJECT)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, **_TYPED
    ) as running:
        assert running.stdout is not None
        pid, _, path = running.stdout.readline().strip().partition(" ")
        assert int(pid) == running.pid
        assert users(root) == {path: (Holder(running.pid, shell),)}
        running.communicate("\n")

    assert users(root) == {path: ()}


def test_a_command_that_a_person_typed_holds_nothing(root: str, source: Callable[..., str]) -> None:
    """A real interactive bash on a pseudo-terminal: job control is what tells the two apart."""
    ours, theirs = pty.openpty()
    environment = clean_environment(PYTHONPATH=_PROJECT, TERM="dumb")
    shell = subprocess.Popen(
        ["bash", "--norc", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, **_TYPED
    )
    os.close(theirs)

    def run(line: str) -> None:
        os.write(ours, f"{line}; echo do''ne\n".encode())
        seen = ""
        while "done" not in seen:
            seen += os.read(ours, 4096).decode(errors="replace")

    try:
        run(f"set -m; {sys.executable} -m uc_stage cache {source('a')} --cache-dir {root}")
        assert list(users(root).values()) == [()]
        run(f"DATA=$({sys.executable} -m uc_stage cache {source('b')} --cache-dir {root})")
        assert sorted(users(root).values()) == [(), (Holder(shell.pid, "bash"),)]
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def test_nothing_without_a_marker_and_nothing_of_a_users_makes_room(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    paths = [Path(cache(source(name)).path) for name in ("a", "b", "c")]
    (paths[0] / "labels.csv").write_text("precious")
    (paths[1] / COPY_PATH).unlink()
    (paths[2] / COPY_PATH).write_text("{")

    with pytest.raises(NoSpace):
        cache(source("d"), max_size=150_000)

    assert (paths[0] / "labels.csv").read_text() == "precious"
    assert all((path / "data.bin").exists() for path in paths)


def test_what_a_dead_run_left_makes_room_and_what_a_live_one_works_on_does_not(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    path = cache(source("a")).path
    partial = path.replace("/copies/", "/partial/")
    os.rename(path, partial)
    new = source("b")
    with Lock(publish.lock_path(root, path)) as lock:
        assert lock.try_acquire()
        (listed,) = publish.list_copies(root)
        assert (listed.kind, listed.bytes >= 100_000) == ("partial", True)
        assert [holder.pid for holder in listed.holders] == [os.getpid()]
        with pytest.raises(NoSpace):
            cache(new, max_size=150_000)

    assert cache(new, max_size=150_000).evicted == (partial,)


KILLED = """
import itertools, os, shutil, signal, sys
from uc_stage import publish
name, count = sys.argv[3], int(sys.argv[4])
real, calls = getattr(os, name), itertools.count(1)
def late(*a, **k):
    if next(calls) == count: os.kill(os.getpid(), signal.SIGKILL)
    return real(*a, **k)
setattr(os, name, late)
publish.evict(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize(
    ("name", "count"), [("rename", 1), ("unlink", 1), ("unlink", 2), ("unlink", 3), ("unlink", 4), ("rmdir", 2)]
)
def test_a_killed_eviction_leaves_a_whole_copy_or_none_and_the_next_run_finishes_it(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport], name: str, count: int
) -> None:
    a = source("a")
    path = cache(a).path

    killed = start(KILLED, root, path, name, str(count))
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL

    assert os.path.isdir(path) == (name == "rename")
    assert caching.plan(CacheRequest(a, cache_dir=root)).state == ("fresh" if name == "rename" else "absent")
    cache(source("b"))
    assert os.listdir(f"{root}/trash") == []
    assert cache(a).status == ("unchanged" if name == "rename" else "done")


def test_where_locks_lie_a_copy_that_is_taken_at_the_moment_of_its_eviction_comes_back(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = source("a")
    path = cache(a).path
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    rename = os.rename

    def late(old: str, new: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        assert holders.hold(path, os.getppid(), lasting=False)
        rename(old, new)

    monkeypatch.setattr(os, "rename", late)

    assert f"process {os.getppid()}" in str(publish.evict(root, path))
    assert caching.plan(CacheRequest(a, cache_dir=root)).state == "fresh"


@pytest.mark.parametrize("anew", [False, True])
def test_a_copy_that_is_gone_already_needs_no_eviction(
    root: str,
    source: Callable[..., str],
    cache: Callable[..., CacheReport],
    monkeypatch: pytest.MonkeyPatch,
    anew: bool,
) -> None:
    a = source("a")
    path = cache(a).path
    rename = os.rename

    def late(old: str, new: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        if anew:
            # A user that no lock told of comes at the last moment, and finds nothing in the next.
            assert holders.hold(path, os.getppid(), lasting=False)
            rename(old, new)
            cache(a)
        else:
            shutil.rmtree(path)
            rename(old, new)

    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    monkeypatch.setattr(os, "rename", late)

    assert publish.evict(root, path) is None
    assert publish.evict(root, f"{root}/copies/none") is None
    assert os.path.isdir(path) == anew
    assert os.listdir(f"{root}/trash") == []


def test_a_disk_that_takes_no_writes_keeps_nobody_from_a_copy(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = source("a")
    path = cache(a).path
    real = os.open

    def full(name: str, *arguments: Any, **options: Any) -> int:
        if str(name).endswith(USED_PATH):
            raise OSError(errno.EROFS, "Read-only file system", name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "open", full)

    assert cache(a, holder="process").path == path


def test_a_process_of_another_container_counts_for_a_day(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache(source("a")).path
    boot = str(locks._machine()).partition(":")[0]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(locks, "_machine", lambda: f"{boot}:pid:[1]")
        assert holders.hold(path, os.getpid(), lasting=False)

    assert [holder.pid for holder in users(root)[path]] == [os.getpid()]
    assert publish.evict(root, path) is not None
    (mark,) = Path(path, ".uc_stage/holders").iterdir()
    os.utime(mark, (time.time() - 90_000,) * 2)
    assert publish.evict(root, path) is None


CROWD = """
import os, sys
import uc_stage
from uc_stage.errors import NoSpace
sources, root = sys.argv[3:], sys.argv[1]
done = 0
for turn in range(8):
    name = sources[(turn + int(sys.argv[2])) % len(sources)]
    if (pid := os.fork()) == 0:
        try:
            path = uc_stage.cache(name, cache_dir=root, max_size=250_000)
        except NoSpace:
            os._exit(3)
        with open(f"{path}/data.bin", "rb") as copy, open(f"{name}/data.bin", "rb") as source:
            os._exit(0 if copy.read() == source.read() else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 3), code
    done += code == 0
print(done)
"""


def test_a_crowd_that_wants_more_than_there_is_room_for_gets_whole_copies_or_is_told(
    root: str, source: Callable[..., str]
) -> None:
    sources = [source(name) for name in ("a", "b", "c", "d")]
    crowd = [start(CROWD, root, str(number), *sources) for number in range(4)]

    outcomes = [process.communicate(timeout=120)[0] for process in crowd]

    assert [process.returncode for process in crowd] == [0] * 4
    assert sum(map(int, outcomes)) >= 8
    assert sum(copy.bytes for copy in publish.list_copies(root)) <= 250_000
    assert os.listdir(f"{root}/trash") == []


RACE = """
import os, sys
import fcntl
import uc_stage
from uc_stage import caching
from uc_stage.errors import StageError
if sys.argv[3] == "lying": fcntl.flock = lambda *_: None
print("ready", flush=True)
whole = lost = 0
for _ in range(25):
    pid = os.fork()
    if not pid:
        path = uc_stage.cache(sys.argv[1], cache_dir=sys.argv[2])
        with open(f"{path}/data.bin", "rb") as copy, open(f"{sys.argv[1]}/data.bin", "rb") as source:
            os._exit(0 if copy.read() == source.read() else 1)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("locks", ["true", "lying"])
def test_who_got_a_path_can_read_it_however_often_somebody_prunes(
    root: str, source: Callable[..., str], locks: str
) -> None:
    a, removed = source("a"), 0
    with start(RACE, a, root, locks) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while process.poll() is None:
            removed += len(pruning.run(PruneRequest(cache_dir=root, older_than=0.0)).removed)

    assert process.returncode == 0
    assert removed > 0


def test_a_copy_counts_the_room_that_another_one_has_yet_to_fill(
    root: str, source: Callable[..., str], volume: Volume, cache: Callable[..., CacheReport]
) -> None:
    Path(f"{volume.backing}/slow").mkdir()
    Path(f"{volume.backing}/slow/data.bin").write_bytes(os.urandom(300_000))
    volume.fault("slow/data.bin", run="sleep 5", times=1)
    program = "import sys, uc_stage\nclass P:\n def phase(self, name, **_): print(name, flush=True)\n"
    program += " def advance(self, amount): pass\n def note(self, message): pass\n"
    program += "uc_stage.cache(sys.argv[1], cache_dir=sys.argv[2], max_size=400_000, progress=P())"
    with start(program, f"{volume.mount}/slow", root) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "copy\n":
            assert process.poll() is None
        assert reserved(publish.locks_folder(root), space_at(root).device) >= 300_000
        plan = caching.plan(CacheRequest(source("b", 200_000), cache_dir=root))
        with pytest.raises(NoSpace, match=r", 30\d\.\d kB of it for others that copy now, and"):
            cache(plan.source, reserve=plan.bytes_free - plan.bytes_needed - 100_000)
        with pytest.raises(NoSpace, match="--max-size"):
            cache(plan.source, max_size=400_000)
        process.communicate(timeout=60)

    assert reserved(publish.locks_folder(root), space_at(root).device) == 0
    assert cache(plan.source, max_size=600_000).status == "done"


def test_the_promise_of_a_process_that_was_killed_counts_no_more(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    cache(source("a"))
    program = "import sys, time; from uc_stage.locks import Lock\nl = Lock(sys.argv[1]); l.try_acquire()\n"
    program += "l.reserve(10**15, int(sys.argv[2])); print('held', flush=True); time.sleep(60)"
    device = space_at(root).device
    with start(program, publish.lock_path(root, "/else"), str(device)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert reserved(publish.locks_folder(root), device) == 10**15
        assert reserved(publish.locks_folder(root), device + 1) == 0
        with pytest.raises(NoSpace, match=r"1000\.0 TB of it for others"):
            cache(source("b"))
        process.kill()

    assert cache(source("c")).status == "done"


def test_headroom_is_a_size_or_a_multiple_of_the_copy(root: str, source: Callable[..., str]) -> None:
    a = source("a")
    plain = caching.plan(CacheRequest(a, cache_dir=root))
    assert plain.bytes_needed == -(-100_000 // space_at(root).block) * space_at(root).block

    for options, more in (({"headroom": 7}, 7), ({"headroom_factor": 1.8}, 180_000)):
        plan = caching.plan(replace(plain.request, **options))
        assert plan.bytes_needed == plain.bytes_needed + more
    with pytest.raises(NoSpace, match="more with its headroom with 0 B in reserve"):
        uc_stage.cache(a, cache_dir=root, headroom=f"{plain.bytes_free // 50_000}x")
    assert os.listdir(f"{root}/copies") == []


def test_many_small_files_are_counted_in_whole_blocks(root: str, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for index in range(100):
        (tmp_path / "s" / str(index)).write_bytes(b"1")

    plan = caching.plan(CacheRequest(str(tmp_path / "s"), cache_dir=root))

    assert (plan.bytes, plan.bytes_needed) == (100, 100 * space_at(root).block)


@pytest.fixture
def memory() -> Iterator[str]:
    if not os.path.isdir("/dev/shm") or not space_at("/dev/shm").in_memory:
        pytest.skip("/dev/shm is no tmpfs here")
    path = f"/dev/shm/uc-stage-test-{os.getpid()}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_a_cache_in_memory_is_counted_as_memory_and_says_so(memory: str, source: Callable[..., str]) -> None:
    a = source("a")
    plan = command_line("cache", a, "--cache-dir", memory, "--dry-run")
    assert "of memory" in next(line for line in plan.out.splitlines() if line.startswith("free there"))
    done = command_line("cache", a, "--cache-dir", memory)
    assert done.err.rstrip().endswith(", in memory")
    found = command_line("cache", a, "--cache-dir", memory, "--json").json["data"]
    assert (found["status"], found["in_memory"]) == ("unchanged", True)
    assert "of memory free" in command_line("inspect", "--cache-dir", memory).out


def test_room_in_memory_is_what_is_available_of_it(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir(memory)
    for name, text in (("max", "9000000\n"), ("current", "8500000\n"), ("stat", "anon 1\ninactive_file 400000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert space_at(str(tmp_path)).in_memory is False
    monkeypatch.setattr(limits, "_GROUPS", str(tmp_path))
    assert space_at(memory).free == 900_000
    (tmp_path / "memory.max").write_text("max\n")
    with open("/proc/meminfo", encoding="ascii") as lines:
        total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    assert 900_000 < space_at(memory).free < total


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_is_emptied_of_what_was_used_least_recently(
    source: Callable[..., str], tmp_path: Path, cache: Callable[..., CacheReport]
) -> None:
    disk = str(tmp_path / "disk")
    os.mkdir(disk)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        paths = []
        for name, seconds in (("a", 200), ("b", 300), ("c", 100)):
            paths.append(cache(source(name, 1_000_000), cache_dir=f"{disk}/cache").path)
            rest(paths[-1], seconds)
        report = cache(source("d", 2_000_000), cache_dir=f"{disk}/cache")
        assert report.evicted == (paths[1],)
        big = source("e", 3_000_000)
        with pytest.raises(NoSpace, match="in memory"):
            cache(big, cache_dir=f"{disk}/cache", reserve=2_000_000)
        # A copy elsewhere gains nothing from what is removed here.
        with pytest.raises(NoSpace):
            cache(big, cache_dir=f"{disk}/cache", dest=str(tmp_path / "dest"), headroom=space_at(str(tmp_path)).free)
        assert sorted(os.listdir(f"{disk}/cache/copies")) == sorted(
            os.path.basename(path) for path in (paths[0], paths[2], report.path)
        )
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_the_command_lines_plan_names_what_would_go(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport], tmp_path: Path
) -> None:
    make_export(str(tmp_path / "orders"))
    path = cache(str(tmp_path / "orders")).path
    size = sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    words = ("cache", source("b"), "--cache-dir", root, "--max-size", 100_000)

    plan = command_line(*words, "--dry-run", "--json").json["data"]
    assert [(copy["path"], copy["bytes"], copy["version"]) for copy in plan["evictions"]] == [(path, size, 1)]
    assert f"evict       {path}, " in command_line(*words, "--dry-run").out
    lacking = command_line("cache", source("c", 200_000), "--cache-dir", root, "--max-size", 100_000, "--dry-run").out
    assert "lacking     100.0 kB" in lacking
    done = command_line(*words, "--headroom", "1.5x")
    assert (done.code, os.path.exists(path)) == (0, False)
    assert f"removed the copy `{path}` of `{tmp_path}/orders` to make room" in done.err


def test_who_looks_at_the_users_of_a_copy_keeps_nobody_from_it(
    root: str, source: Callable[..., str], cache: Callable[..., CacheReport]
) -> None:
    a = source("a")
    path = cache(a).path
    with ThreadPoolExecutor(1) as pool:
        with holders.alone(path) as free:
            assert free
            waiting = pool.submit(cache, a)
            time.sleep(0.3)
            assert not waiting.done()
        assert waiting.result(30).status == "unchanged"
