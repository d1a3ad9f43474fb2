from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.shell import clean_environment
from tests.fixtures.shell import uc_stage as command_line
from tests.test_cache_bounded import HOLD, KILLED, rest, start
from uc_stage import caching, holders, inspection, pruning, publish
from uc_stage.errors import AccessDenied, Busy, InvalidRequest, NotFound, StageError
from uc_stage.locks import Lock
from uc_stage.manifest import COPY_PATH
from uc_stage.model import CacheRequest, PruneReport, PruneRequest

if TYPE_CHECKING:
    from collections.abc import Callable

_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture
def copy(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a source and its copy, which nobody holds, was used so long ago, and has 100 kB."""
    monkeypatch.setattr(caching, "caller", lambda: None)

    def make(name: str, idle: float = 0, **options: Any) -> str:
        folder = tmp_path / "sources" / name
        folder.mkdir(parents=True)
        (folder / "data.bin").write_bytes(os.urandom(100_000))
        path = caching.run(CacheRequest(str(folder), **{"cache_dir": root, "holder": "caller", **options})).path
        rest(path, idle)
        return path

    return make


@pytest.fixture
def prune(root: str) -> Callable[..., PruneReport]:
    def run(*paths: str, **options: Any) -> PruneReport:
        return pruning.run(PruneRequest(paths, **{"cache_dir": root, **options}))

    return run


def left(root: str) -> list[str]:
    return [copy.path for copy in publish.list_copies(root)]


def test_copies_that_nobody_used_for_so_long_go(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport]
) -> None:
    old, older, new = copy("a", 7200), copy("b", 9000), copy("c", 60)

    report = prune(older_than=3600.0)

    assert (report.status, report.removed, report.bytes) == ("done", (older, old), 200_000)
    assert left(root) == [new]
    assert prune(older_than=3600.0).status == "unchanged"


def test_the_least_recently_used_go_until_the_rest_fits(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport]
) -> None:
    a, b, c = copy("a", 100), copy("b", 300), copy("c", 200)

    assert prune(max_size=300_000).removed == ()
    assert prune(max_size=150_000).removed == (b, c)
    assert left(root) == [a]


def test_age_and_size_together_are_two_bounds(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport]
) -> None:
    copies = [copy(name, idle) for name, idle in (("a", 9000), ("b", 200), ("c", 100))]

    assert prune(older_than=3600.0, max_size=100_000).removed == (copies[0], copies[1])
    assert left(root) == [copies[2]]


def test_a_source_narrows_what_is_looked_at_and_alone_means_all_of_it(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport], tmp_path: Path
) -> None:
    a, b = copy("a", 50), copy("b", 100)
    again = tmp_path / "sources/a/more.bin"
    again.write_bytes(b"1")
    second = caching.run(CacheRequest(str(tmp_path / "sources/a"), cache_dir=root, holder="caller")).path

    assert prune(source=f"{tmp_path}/sources/a/", max_size=100_001).removed == (a,)
    assert prune(source=str(tmp_path / "sources/c")).removed == ()
    assert prune(source=str(tmp_path / "sources/a")).removed == (second,)
    assert left(root) == [b]


def test_without_a_condition_only_what_dead_runs_left_goes(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport]
) -> None:
    a, b, c = copy("a", 10**6), copy("b"), copy("c")
    dead, live = (path.replace("/copies/", "/partial/") for path in (b, c))
    os.rename(b, dead)
    os.rename(c, live)
    with Lock(publish.lock_path(root, c)) as lock:
        assert lock.try_acquire()
        report = prune()

    assert report.removed == (dead,)
    assert [kept.path for kept in report.kept] == [live]
    assert sorted(left(root)) == sorted([a, live])


def test_a_copy_that_a_live_process_holds_stays_and_is_told_of(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport], tmp_path: Path
) -> None:
    other = copy("other", 100)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"1" * 1000)
    with start(HOLD, str(tmp_path / "a"), root) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        rest(path, 10**6)
        for options in ({"older_than": 0.0}, {"max_size": 0}, {"source": str(tmp_path / "a")}):
            plan = pruning.plan(PruneRequest(cache_dir=root, **options))
            assert [kept.path for kept in plan.kept] == [path]
            assert f"process {process.pid} (`python" in plan.kept[0].reason
        with pytest.raises(Busy, match=f"`{path}` stays: process {process.pid}"):
            prune(other, path)
        assert os.path.isdir(other)
        named = command_line("prune", path, "--cache-dir", root, "--json")
        assert (named.code, named.json["errors"][0]["code"]) == (11, "busy")

        assert prune(older_than=0.0).removed == (other,)
        process.communicate("")

    assert prune(path).removed == (path,)


def test_what_begins_between_plan_and_removal_counts_too(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport]
) -> None:
    path = copy("a", 100)
    aged, named = pruning.plan(PruneRequest(cache_dir=root, older_than=0.0)), pruning.plan(PruneRequest((path,), root))
    with open(f"{path}/data.bin", "rb"):
        assert [kept.path for kept in pruning.execute(aged).kept] == [path]
        with pytest.raises(Busy, match="reads it"):
            pruning.execute(named)
        with Lock(publish.lock_path(root, path)) as lock:
            assert lock.try_acquire()
            with pytest.raises(Busy, match="works on it"):
                pruning.execute(named)
    assert os.path.isdir(path)
    assert prune(path).removed == (path,)


def test_of_a_copy_that_is_named_ones_own_hold_does_not_count(root: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"1")
    path = uc_stage.cache(str(tmp_path / "a"), cache_dir=root)
    assert uc_stage.prune(older_than=0, cache_dir=root).removed == ()

    assert uc_stage.prune(path, cache_dir=root).removed == (path,)

    # The same in a script, whose shell is the one that holds.
    script = 'u="$0 -m uc_stage"; D=$($u cache "$1" --cache-dir "$2") && $u prune --older-than 0s --cache-dir "$2" &&'
    script += ' $u prune "$D" --cache-dir "$2"'
    command = ["sh", "-c", script, sys.executable, str(tmp_path / "a"), root]
    environment = clean_environment(PYTHONPATH=_PROJECT)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, start_new_session=True)
    assert done.stdout == f"{path}\n"
    assert f"kept {path}: process" in done.stderr
    assert left(root) == []


def test_a_copy_at_a_path_of_the_users_goes_where_it_is_named(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport], tmp_path: Path
) -> None:
    dest = copy("a", dest=str(tmp_path / "nvme/data"))
    assert prune(older_than=0.0).removed == ()

    assert prune(dest).removed == (dest,)
    assert os.listdir(tmp_path / "nvme") == []


def test_what_a_killed_removal_left_beside_a_dest_is_finished_by_the_next(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport], tmp_path: Path
) -> None:
    dest = copy("a", dest=str(tmp_path / "nvme/data"))
    killed = start(KILLED, root, dest, "unlink", "1")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path / "nvme")) == 1

    assert prune(dest).removed == ()
    assert os.listdir(tmp_path / "nvme") == []
    with pytest.raises(NotFound):
        prune(dest)


def test_a_copy_in_the_cache_folder_is_known_by_whatever_path_leads_there(
    root: str,
    copy: Callable[..., str],
    prune: Callable[..., PruneReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = copy("a"), copy("b")
    (tmp_path / "way").symlink_to(f"{root}/copies")

    report = prune(f"{tmp_path}/way/{os.path.basename(first)}", f"{root}/locks/../copies/{os.path.basename(second)}")

    assert report.removed == (first, second)
    assert os.listdir(f"{root}/copies") == []


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (lambda path: path.mkdir(), {}, InvalidRequest, "carries no marker"),
        (lambda path: path.write_bytes(b"1"), {}, InvalidRequest, "carries no marker"),
        (lambda path: path.symlink_to("cache"), {}, InvalidRequest, "is a link"),
        (lambda _: None, {}, NotFound, "is not there"),
        (lambda _: None, {"older_than": 1.0}, InvalidRequest, "a path and a condition"),
        (lambda _: None, {"older_than": -1.0, "paths": ()}, InvalidRequest, "less than nothing"),
        (lambda _: None, {"max_size": -1, "paths": ()}, InvalidRequest, "less than nothing"),
        (lambda _: None, {"paths": (" ",)}, InvalidRequest, "COPY is empty"),
    ],
)
def test_what_cannot_be_pruned_says_why_and_nothing_goes(
    root: str,
    copy: Callable[..., str],
    tmp_path: Path,
    make: Callable[[Path], object],
    options: dict[str, Any],
    error: type[StageError],
    words: str,
) -> None:
    path = copy("a", 100)
    make(tmp_path / "x")

    with pytest.raises(error, match=words) as caught:
        pruning.run(PruneRequest(**{"paths": (path, str(tmp_path / "x")), "cache_dir": root, **options}))

    assert caught.value.hint
    assert left(root) == [path]


def test_a_file_that_a_user_put_in_a_copy_keeps_it(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport]
) -> None:
    path = copy("a", 100)
    Path(path, "labels.csv").write_text("precious")

    assert "holds `labels.csv`" in prune(older_than=0.0).kept[0].reason
    with pytest.raises(InvalidRequest, match="labels") as caught:
        prune(path)
    assert "yours" in str(caught.value.hint)
    assert Path(path, "labels.csv").exists()


def test_a_copy_whose_record_is_damaged_is_listed_and_stays(
    root: str, copy: Callable[..., str], prune: Callable[..., PruneReport]
) -> None:
    path = copy("a", 100)
    Path(path, COPY_PATH).write_text("{")

    (listed,) = publish.list_copies(root)
    assert (listed.path, listed.source, listed.bytes > 100_000) == (path, None, True)
    assert "its record is damaged" in prune(older_than=0.0).kept[0].reason
    assert "unknown: its record is damaged" in command_line("inspect", "--cache-dir", root).out


@pytest.mark.parametrize("folder", ["", "copies", "trash"])
def test_a_cache_folder_that_somebody_else_may_have_prepared_is_refused(
    root: str, copy: Callable[..., str], tmp_path: Path, folder: str
) -> None:
    copy("a")
    os.rename(Path(root, folder), tmp_path / "theirs")
    Path(root, folder).symlink_to(tmp_path / "theirs")

    for act in (lambda: pruning.run(PruneRequest(cache_dir=root)), lambda: inspection.list_copies(root)):
        with pytest.raises(AccessDenied, match="is a link"):
            act()


def test_a_node_without_a_cache_folder_has_nothing_to_list_or_prune(
    root: str, prune: Callable[..., PruneReport]
) -> None:
    assert (prune().status, uc_stage.inspect(cache_dir=root).copies) == ("unchanged", ())
    assert not os.path.exists(root)


def test_the_copies_of_a_node_are_listed_with_what_they_are_and_who_uses_them(root: str, tmp_path: Path) -> None:
    make_export(str(tmp_path / "orders"), version=7)
    path = uc_stage.cache(str(tmp_path / "orders"), cache_dir=root)
    rest(path, 3600)

    report = uc_stage.inspect(cache_dir=root)
    (listed,) = report.copies
    size = sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    assert (listed.path, listed.source, listed.generation) == (path, str(tmp_path / "orders"), "v7-000007")
    assert (listed.version, listed.files, listed.bytes, report.bytes) == (7, 3, size, size)
    assert 3600 <= listed.idle_seconds < 3700
    assert [holder.pid for holder in listed.holders] == [os.getpid()]
    assert report.bytes_free > 0

    shown = command_line("inspect", "--cache-dir", root)
    assert (shown.code, shown.err) == (0, "")
    for words in (path, "v7-000007 (version 7)", "3, ", "1 h 0 min ago", f"{os.getpid()} (", ": 1 copy ("):
        assert words in shown.out
    found = command_line("inspect", "--json", UC_STAGE_CACHE_DIR=root).json
    assert found["data"]["copies"][0]["path"] == path
    assert found["command"] == "inspect"
    refused = command_line("inspect", "--verify", "--cache-dir", root)
    assert (refused.code, "need a TARGET" in refused.err) == (2, True)
    holders.let_go(path)


def test_the_command_prints_what_it_removed_and_a_plan_what_it_would(root: str, copy: Callable[..., str]) -> None:
    old, new = copy("a", 10**6), copy("b")
    words = ("prune", "--older-than", "1d", "--cache-dir", root)

    plan = command_line(*words, "-n")
    assert plan.out.splitlines() == [
        f"{old}, 100.0 kB, last used 277 h 46 min ago",
        "would remove 1 copy (100.0 kB)",
    ]
    planned = json.loads(command_line(*words, "-n", "--json").out)
    assert (planned["status"], [one["path"] for one in planned["data"]["copies"]]) == ("planned", [old])
    assert sorted(left(root)) == sorted([old, new])
    # The environment's bounds are not for a run that names a copy.
    done = command_line("prune", old, "--cache-dir", root, UC_STAGE_OLDER_THAN="100d", UC_STAGE_MAX_SIZE="0")
    assert (done.code, done.out, done.err) == (0, f"{old}\n", "removed 1 copy (100.0 kB)\n")
    nothing = command_line(*words)
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "removed no copies\n")
    assert command_line("prune", "--older-than", "7", "--cache-dir", root).code == 2
