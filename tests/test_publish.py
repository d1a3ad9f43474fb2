from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.delta import left_in
from tests.test_manifest import MANIFEST
from uc_stage import locks
from uc_stage.errors import Busy, InvalidRequest, NotFound, Unavailable
from uc_stage.locks import identity, mark
from uc_stage.manifest import MANIFEST_PATH, Manifest
from uc_stage.model import ExportFile
from uc_stage.publish import Publication, Written, exports, read_manifest, strays, sweep
from uc_stage.storage import Folder, LocalFolder, open_folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return LocalFolder(str(tmp_path / "export"))


def write(publication: Publication, data: bytes = b"PAR1", index: int = 0) -> ExportFile:
    name = publication.name("train", index, index + 1)
    with publication.create(name) as file:
        file.write(data)
    return ExportFile(name, len(data), 1, 1, publication.written[name].xxh3_128)


def manifest_of(publication: Publication, *files: ExportFile) -> Manifest:
    return Manifest.from_json(
        json.dumps(
            {
                **json.loads(MANIFEST.to_json()),
                "generation": publication.generation,
                "source": {"table": "t", "table_id": "i", "version": int(publication.generation[1:].partition("-")[0])},
                "retained": [],
                "splits": {
                    "train": {"files": [{"path": f.path, "bytes": f.bytes, "rows": 1, "row_groups": 1} for f in files]}
                },
            }
        ).encode(),
        "m",
    )


def published(folder: Folder, version: int, keep: int = 0, files: int = 1) -> Manifest:
    with Publication(folder, version, keep) as publication:
        written = [write(publication, index=index) for index in range(files)]
        return publication.commit(manifest_of(publication, *written))


def fail(folder: Folder, version: int, error: BaseException) -> None:
    with Publication(folder, version) as publication:
        write(publication)
        raise error


def overtaken(folder: Folder) -> None:
    with Publication(folder, 2) as late:
        manifest = manifest_of(late, write(late))
        folder.put(".uc_stage/manifest.json", manifest.to_json().replace(late.generation.encode(), b"v3-abcdef"))
        late.commit(manifest)


def claim(folder: Folder, generation: str, **record: Any) -> None:
    starter = {"pid": os.getppid(), "started": locks._started(os.getppid())}
    data = {**identity(), **starter, "generation": generation, "retire": [], "beat": 0.0, **record}
    folder.put(f".uc_stage/claims/{generation}.json", json.dumps(data).encode())


def test_a_generation_replaces_the_one_before_and_its_files(folder: Folder) -> None:
    published(folder, 1)
    second = published(folder, 2)

    assert read_manifest(folder) == second
    assert {entry.path for entry in folder.entries()} == {second.files[0].path, ".uc_stage/manifest.json"}


def test_bytes_are_hashed_as_they_pass(folder: Folder) -> None:
    import xxhash

    with Publication(folder, 1) as publication:
        with publication.create("a.parquet") as file:
            file.write(b"one")
            file.write(memoryview(b"two"))
        assert publication.written == {"a.parquet": Written(6, xxhash.xxh3_128_hexdigest(b"onetwo"))}


def test_leaving_without_a_commit_leaves_nothing(folder: Folder) -> None:
    with pytest.raises(KeyboardInterrupt):
        fail(folder, 1, KeyboardInterrupt())

    assert not folder.exists()


def test_a_failed_run_leaves_the_generation_before_it_and_an_empty_folder_that_was_there(folder: Folder) -> None:
    os.makedirs(folder.url)
    with pytest.raises(ValueError, match="stop"):
        fail(folder, 1, ValueError("stop"))
    assert (folder.exists(), left_in(folder.url)) == (True, [])

    first = published(folder, 1)
    with pytest.raises(ValueError, match="stop"):
        fail(folder, 2, ValueError("stop"))

    assert read_manifest(folder) == first
    assert {entry.path for entry in folder.entries()} == {first.files[0].path, ".uc_stage/manifest.json"}


def test_keep_holds_so_many_earlier_generations(folder: Folder) -> None:
    made = [published(folder, version, keep=2) for version in range(4)]

    there = {entry.path for entry in folder.entries() if entry.path.endswith(".parquet")}
    assert there == {manifest.files[0].path for manifest in made[1:]}
    assert list(made[3].retained) == [made[2].generation, made[1].generation]
    assert published(folder, 5).retained == {}
    assert len([entry for entry in folder.entries() if entry.path.endswith(".parquet")]) == 1


def test_a_run_that_was_overtaken_does_not_commit(folder: Folder) -> None:
    published(folder, 1)
    with pytest.raises(Busy, match="meanwhile"):
        overtaken(folder)


def test_a_run_gives_way_to_one_that_lives_and_writes_there(folder: Folder) -> None:
    claim(folder, "v0-000000")

    with pytest.raises(Busy, match=f"process {os.getppid()}") as raised, Publication(folder, 1):
        pass

    assert raised.value.hint == "wait for it to end, or choose another folder"
    assert [entry.path for entry in folder.entries()] == [".uc_stage/claims/v0-000000.json"]


def test_of_two_runs_that_began_at_once_the_first_by_name_goes_on(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_YIELD_SECONDS", 0.3)
    claim(folder, "v99-ffffff")

    with pytest.raises(Busy), Publication(folder, 1):
        pass

    folder.remove(".uc_stage/claims/v99-ffffff.json")
    with Publication(folder, 1) as publication:
        assert publication.generation.startswith("v1-")


def test_a_claim_of_another_machine_counts_as_alive_while_its_heart_beats(folder: Folder) -> None:
    claim(folder, "v0-000000", machine="elsewhere", host="other", beat=time.time())
    with pytest.raises(Busy, match="`other`") as raised, Publication(folder, 1):
        pass
    assert raised.value.hint in {
        f"wait for it to end; if it was killed, run the export again in {left} s" for left in range(100, 121)
    }

    claim(folder, "v0-000000", machine="elsewhere", host="other", beat=time.time() - 3600)
    with Publication(folder, 1):
        assert folder.stat(".uc_stage/claims/v0-000000.json") is None


def test_a_claim_is_renewed_while_its_run_goes_on(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_HEARTBEAT_SECONDS", 0.01)
    with Publication(folder, 1) as publication:
        first = json.loads(folder.read(publication.claim))["beat"]
        deadline = time.monotonic() + 10
        while json.loads(folder.read(publication.claim))["beat"] == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert json.loads(folder.read(publication.claim))["beat"] > first


def test_what_a_killed_run_wrote_is_swept_and_nothing_else(folder: Folder) -> None:
    kept = published(folder, 1)
    torn = "train-00000-of-00001-v2-dddddd.parquet"
    for path in (torn, ".uc_stage/scratch/v2-dddddd/part.parquet", "notes.txt", "mine-v2-dddddd.parquet"):
        folder.put(path, b"x")
    claim(folder, "v2-dddddd", started="0")
    assert strays([entry.path for entry in folder.entries()], kept) == [torn]

    assert set(sweep(folder)) == {torn, ".uc_stage/scratch/v2-dddddd/part.parquet"}

    assert {entry.path for entry in folder.entries()} == {
        kept.files[0].path, ".uc_stage/manifest.json", "notes.txt", "mine-v2-dddddd.parquet",
    }  # fmt: skip


def test_a_run_killed_after_its_commit_has_the_old_files_swept(folder: Folder) -> None:
    old = "train-00000-of-00001-v1-aaaaaa.parquet"
    new = published(folder, 2)
    folder.put(old, b"x")
    folder.put("theirs.parquet", b"x")
    claim(folder, new.generation, started="0", retire=[old, "theirs.parquet", "../x"])

    assert sweep(folder) == [old]
    assert folder.stat(new.files[0].path) is not None


def test_a_torn_claim_stops_nobody(folder: Folder) -> None:
    folder.put(".uc_stage/claims/v0-000000.json", b'{"generation": "v0')
    folder.put(".uc_stage/claims/x.json", b'{"generation": "../../x"}')

    with Publication(folder, 1):
        pass


def test_parquet_files_that_no_manifest_names_are_refused(folder: Folder) -> None:
    folder.put("theirs.parquet", b"x")

    with pytest.raises(InvalidRequest, match=r"theirs\.parquet"), Publication(folder, 1):
        pass

    assert [entry.path for entry in folder.entries()] == ["theirs.parquet"]


def test_an_engines_file_is_adopted_under_its_final_name(folder: Folder) -> None:
    with Publication(folder, 1) as publication:
        folder.put(f"{publication.scratch}/part", b"x")
        publication.adopt(f"{publication.scratch}/part", "train.parquet")
        assert folder.read("train.parquet") == b"x"

    assert not folder.exists()


def test_a_generation_is_published_behind_a_url_too() -> None:
    folder = open_folder("memory://publish-test/export")
    published(folder, 1)
    second = published(folder, 2)

    assert read_manifest(folder) == second
    assert {entry.path for entry in folder.entries()} == {second.files[0].path, ".uc_stage/manifest.json"}


@pytest.mark.parametrize("failing", ["manifest", "second removal"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), Unavailable("`x`: I/O error")])
def test_what_stops_a_commit_midway_never_leaves_a_manifest_without_its_files(
    failing: str, error: BaseException, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that undid what it published would lose both generations; one that retired nothing leaves rows twice."""
    published(folder, 1, files=3)
    calls = {"remove": 0}
    real_put, real_remove = type(folder).put, type(folder).remove

    def put(self: Any, path: str, data: bytes, mark: str = "") -> None:
        real_put(self, path, data, mark)
        if failing == "manifest" and path.endswith("manifest.json"):
            raise error

    def remove(self: Any, path: str) -> None:
        calls["remove"] += path.endswith(".parquet")
        if failing == "second removal" and calls["remove"] == 2 and path.endswith(".parquet"):
            raise error
        real_remove(self, path)

    monkeypatch.setattr(type(folder), "put", put)
    monkeypatch.setattr(type(folder), "remove", remove)
    with contextlib.suppress(KeyboardInterrupt, Unavailable):
        published(folder, 2)
    monkeypatch.undo()

    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.source.version == 2
    there = {entry.path for entry in folder.entries() if entry.path.endswith(".parquet")}
    assert {file.path for file in manifest.files} <= there
    sweep(folder)
    assert {e.path for e in folder.entries() if e.path.endswith(".parquet")} == {file.path for file in manifest.files}
    published(folder, 3)


def test_a_file_of_the_users_that_a_manifest_names_is_not_removed(folder: Folder) -> None:
    stored = published(folder, 1)
    folder.put("notes.txt", b"mine")
    folder.put(MANIFEST_PATH, dataclasses.replace(stored, retained={"v0-000000": ("notes.txt",)}).to_json())

    published(folder, 2)

    assert folder.read("notes.txt") == b"mine"


def test_a_run_that_was_taken_for_dead_does_not_publish(folder: Folder) -> None:
    with Publication(folder, 1) as publication:
        file = write(publication)
        folder.remove(publication.claim)  # as another machine's sweep does
        with pytest.raises(Busy, match="took this run for a dead one"):
            publication.commit(manifest_of(publication, file))
    assert read_manifest(folder) is None


@pytest.mark.parametrize("claim", [{"beat": "x"}, {"pid": None}, {"generation": 5}, []])
def test_a_claim_in_a_wrong_form_is_nobodys(claim: Any, folder: Folder) -> None:
    whole = {**identity(), "generation": "v1-000000", "beat": time.time()}
    folder.put(".uc_stage/claims/v1-000000.json", json.dumps({**whole, **claim} if claim else claim).encode())
    published(folder, 1)


def test_a_run_that_begins_while_another_sweeps_keeps_its_files(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(folder, 1)
    begun: list[str] = []
    real_entries, real_claims = LocalFolder.entries, exports._claims

    def begin() -> None:
        if not begun:
            begun.append("v2-000000")
            claim(folder, "v2-000000", beat=time.time())
            folder.put("train-00000-of-00001-v2-000000.parquet", b"x")

    def entries(self: LocalFolder, **how: Any) -> Any:
        found = list(real_entries(self, **how))
        begin()
        return iter(found)

    def claims(folder: Folder) -> Any:
        found = real_claims(folder)
        begin()
        return found

    monkeypatch.setattr(LocalFolder, "entries", entries)
    monkeypatch.setattr(exports, "_claims", claims)

    assert sweep(folder) == []
    assert folder.stat("train-00000-of-00001-v2-000000.parquet") is not None


def test_a_folder_that_another_run_removes_as_an_empty_one_is_made_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.makedirs, itertools.count()

    def makedirs(path: str, **how: Any) -> None:
        real(path, **how)
        if next(calls) % 2 == 0:
            with contextlib.suppress(OSError):
                os.rmdir(path)

    monkeypatch.setattr(os, "makedirs", makedirs)

    assert read_manifest(folder) is None
    assert published(folder, 1) == read_manifest(folder)


def test_a_folder_that_cannot_stay_is_told(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "makedirs", lambda *_, **__: None)

    with pytest.raises(NotFound, match="No such file"):
        published(folder, 1)


def test_a_run_that_gives_way_leaves_the_scratch_of_the_one_that_goes_on(folder: Folder) -> None:
    claim(folder, "v0-000000")
    os.makedirs(folder.locate(".uc_stage/scratch/v0-000000/parts"))

    with pytest.raises(Busy), Publication(folder, 1):
        pass

    assert os.path.isdir(folder.locate(".uc_stage/scratch/v0-000000/parts"))


def test_what_a_run_left_that_was_killed_as_it_put_a_file_is_swept_at_once_and_of_a_live_run_later(
    folder: Folder,
) -> None:
    published(folder, 1)
    with subprocess.Popen([sys.executable, "-c", "from uc_stage.locks import mark; print(mark())"], stdout=-1) as ended:
        assert ended.stdout is not None
        of_ended = ended.stdout.read().decode().strip()
    left = {
        f".uc_stage/manifest.json.{of_ended}-aaaaaaaaaaaa.tmp": 0,
        f".uc_stage/manifest.json.{mark()}-bbbbbbbbbbbb.tmp": 0,
        ".uc_stage/manifest.json.0123456789ab-1-1-cccccccccccc.tmp": 0,
        ".uc_stage/manifest.json.dddddddddddd.tmp": 300,
    }
    for path, age in left.items():
        folder.put(path, b"x")
        os.utime(folder.locate(path), (time.time() - age, time.time() - age))

    assert set(sweep(folder)) == {path for path in left if of_ended in path or "dddd" in path}


def test_a_signal_in_the_middle_of_the_clean_up_does_not_cut_it_short(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(folder, 1, files=3)
    real, calls = LocalFolder.remove, itertools.count()

    def remove(self: LocalFolder, path: str) -> None:
        if path.endswith(".parquet") and next(calls) == 1:
            raise KeyboardInterrupt
        real(self, path)

    monkeypatch.setattr(LocalFolder, "remove", remove)
    with pytest.raises(KeyboardInterrupt):
        published(folder, 2)

    manifest = read_manifest(folder)
    assert manifest is not None
    assert {entry.path for entry in folder.entries()} == {manifest.files[0].path, MANIFEST_PATH}
    assert manifest.source.version == 2


def test_what_a_thread_still_writes_as_a_run_fails_gets_no_name_later(folder: Folder) -> None:
    writing = threading.Event()
    ended: list[Exception] = []

    def run_on(publication: Publication) -> None:
        try:
            with publication.create(publication.name("train", 0, 2)) as file:
                while True:
                    file.write(b"x")
                    writing.set()
        except ValueError as error:
            ended.append(error)
        try:
            publication.create(publication.name("train", 1, 2))
        except Busy as error:
            ended.append(error)

    publication = Publication(folder, 1)
    thread = threading.Thread(target=run_on, args=(publication,))
    with publication:
        thread.start()
        writing.wait()
    assert not folder.exists()
    thread.join()
    assert [str(error) for error in ended] == ["write to closed file", f"this run of `{folder.url}` has ended"]
    assert not folder.exists()


def test_what_cannot_be_closed_in_time_is_left_to_the_next_run(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_CLOSE_SECONDS", 0.05)
    with Publication(folder, 1) as publication:
        file: Any = publication.create(publication.name("train", 0, 1))
        file._lock.acquire()  # as a thread does that is in a write to a hung mount
    folder.put(publication.name("train", 0, 1), b"as that write ends")
    assert folder.stat(publication.claim) is not None
    file._lock.release()
    file.close()

    made = published(folder, 2)

    assert {entry.path for entry in folder.entries()} == {made.files[0].path, MANIFEST_PATH}


def test_what_cannot_be_removed_after_a_failure_is_left_to_the_next_run(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(self: LocalFolder, path: str) -> None:
        raise Unavailable(f"`{path}`: Input/output error")

    monkeypatch.setattr(LocalFolder, "remove", remove)
    with pytest.raises(ValueError, match="stop"):
        fail(folder, 1, ValueError("stop"))
    monkeypatch.undo()
    assert len(left_in(folder.url)) == 2

    made = published(folder, 2)

    assert {entry.path for entry in folder.entries()} == {made.files[0].path, MANIFEST_PATH}


def test_a_manifest_that_is_replaced_between_the_look_and_the_open_is_read(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real, calls = published(folder, 1), LocalFolder.read, itertools.count()

    def read(self: LocalFolder, path: str) -> bytes:
        if next(calls) == 0:
            raise NotFound(f"`{path}`: No such file or directory")
        return real(self, path)

    monkeypatch.setattr(LocalFolder, "read", read)
    assert read_manifest(folder) == made

    monkeypatch.setattr(LocalFolder, "read", lambda *_: fail_to_find())
    with pytest.raises(NotFound, match="though it is listed"):
        read_manifest(folder)


def fail_to_find() -> bytes:
    raise NotFound("`x`: No such file or directory")
