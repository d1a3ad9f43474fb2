from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.copies import digest, leftovers, tree
from tests.fixtures.exports import make_export
from uc_stage import caching
from uc_stage.errors import InvalidRequest, NoSpace, NotFound, Unavailable, Unsupported, VerificationFailed
from uc_stage.model import CacheReport, CacheRequest
from uc_stage.sources import open_source
from uc_stage.transfer import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.s3 import Bucket
    from tests.fixtures.volume import Volume


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_RETRY_SECONDS", (0.01, 0.01))


@pytest.fixture
def cache(tmp_path: Path) -> Callable[[str], CacheReport]:
    return lambda source: caching.run(CacheRequest(source, cache_dir=str(tmp_path / "cache")))


def test_an_export_in_a_volume_is_copied_with_the_times_that_the_volume_tells(
    volume: Volume, cache: Callable[[str], CacheReport]
) -> None:
    make_export(f"{volume.backing}/orders", rows=200_000)

    report = cache(f"{volume.mount}/orders")

    assert tree(report.path) == tree(f"{volume.mount}/orders")
    assert {mtime % 10**9 for _, mtime in tree(report.path).values()} == {0}
    assert cache(f"{volume.mount}/orders").status == "unchanged"


def test_a_fresh_copy_is_found_without_reading_a_data_file(volume: Volume, cache: Callable[[str], CacheReport]) -> None:
    manifest = make_export(f"{volume.backing}/orders")
    cache(f"{volume.mount}/orders")
    names = [f"orders/{file.path}" for file in manifest.files]
    before = [volume.reads(name) for name in names]
    assert all(before)

    assert cache(f"{volume.mount}/orders").status == "unchanged"
    assert [volume.reads(name) for name in names] == before


def test_a_damaged_byte_is_fetched_again_and_then_refused(
    volume: Volume, cache: Callable[[str], CacheReport], tmp_path: Path
) -> None:
    manifest = make_export(f"{volume.backing}/orders")
    victim = manifest.files[1].path
    volume.fault(f"orders/{victim}", flip=100)
    with pytest.raises(VerificationFailed, match=f"{victim}` came with other bytes .* also when fetched again"):
        cache(f"{volume.mount}/orders")
    assert os.listdir(tmp_path / "cache/copies") == []

    volume.fault(f"orders/{victim}", flip=100, times=1)
    report = cache(f"{volume.mount}/orders")

    assert digest(f"{report.path}/{victim}") == manifest.files[1].xxh3_128
    assert report.bytes_reused > 0


def test_a_damaged_parquet_footer_is_noticed_where_no_hash_is_known(
    volume: Volume, cache: Callable[[str], CacheReport]
) -> None:
    manifest = make_export(f"{volume.backing}/orders", hashes=False)
    victim = manifest.files[0]
    volume.fault(f"orders/{victim.path}", flip=victim.bytes - 1)

    with pytest.raises(VerificationFailed, match=f"{victim.path}` came as no whole Parquet file"):
        cache(f"{volume.mount}/orders")


def test_a_volume_that_fails_for_good_is_worth_another_try(
    volume: Volume, cache: Callable[[str], CacheReport], tmp_path: Path
) -> None:
    manifest = make_export(f"{volume.backing}/orders")
    victim = manifest.files[2].path
    volume.fault(f"orders/{victim}", error=errno.EIO)
    with pytest.raises(Unavailable, match=victim):
        cache(f"{volume.mount}/orders")
    assert os.listdir(tmp_path / "cache/copies") == []
    volume.fault("none")

    assert tree(cache(f"{volume.mount}/orders").path) == tree(f"{volume.mount}/orders")
    assert leftovers(tmp_path / "cache") == []


def test_an_export_that_is_replaced_while_it_is_read_is_copied_in_its_new_generation(
    volume: Volume, cache: Callable[[str], CacheReport]
) -> None:
    export = f"{volume.backing}/orders"
    manifest = make_export(export, rows=300_000)
    program = f"from tests.fixtures.exports import make_export; make_export({export!r}, version=2)"
    project = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # The largest is fetched first; those after it are gone by then.
    first = max(manifest.files, key=lambda file: file.bytes).path
    volume.fault(f"orders/{first}", run=f'cd {project} && {sys.executable} -c "{program}"', times=1)

    report = caching.run(
        dataclasses.replace(CacheRequest(f"{volume.mount}/orders", jobs=1), cache_dir=f"{volume.control}.cache")
    )

    assert report.generation == "v2-000002"
    assert tree(report.path).keys() == tree(export).keys()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
class TestSmallDisk:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[str]:
        path = str(tmp_path / "disk")
        os.mkdir(path)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", path], check=False)
        if mounted.returncode:
            pytest.skip("this machine does not let root mount a tmpfs")
        yield path
        subprocess.run(["umount", "-l", path], check=True)

    def test_a_copy_that_does_not_fit_is_refused_before_its_first_byte(self, disk: str, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir()
        (tmp_path / "s/x").write_bytes(b"1" * 5_000_000)

        with pytest.raises(NoSpace, match=r"in memory and the copy needs 5\.0 MB more"):
            caching.run(CacheRequest(str(tmp_path / "s"), cache_dir=f"{disk}/cache"))

    def test_a_disk_that_fills_up_meanwhile_ends_the_copy_at_once(
        self, disk: str, volume: Volume, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for index in range(3):
            with open(f"{volume.backing}/{index}", "wb") as file:
                file.write(os.urandom(1_000_000 - index))
        volume.fault("0", run=f"head -c 2500000 /dev/zero > {disk}/other", times=1)
        request = CacheRequest(volume.mount, cache_dir=f"{disk}/cache", jobs=1)
        monkeypatch.setattr(reading, "_RETRY_SECONDS", (60.0,))

        with pytest.raises(NoSpace, match="No space left"):
            caching.execute(caching.plan(request))
        os.unlink(f"{disk}/other")

        assert caching.plan(request).state == "partial"
        report = caching.run(request)
        assert (report.status, report.bytes_reused > 0) == ("done", True)


class TestObjectStore:
    def test_a_folder_and_an_export_are_copied(
        self, bucket: Bucket, cache: Callable[[str], CacheReport], tmp_path: Path
    ) -> None:
        make_export(str(tmp_path / "orders"), rows=300_000)
        (tmp_path / "orders/other.txt").write_bytes(b"not named by the manifest")
        for where, _, names in os.walk(tmp_path / "orders"):
            for name in names:
                whole = os.path.join(where, name)
                with open(whole, "rb") as file:
                    data = file.read()
                bucket.put(os.path.relpath(whole, tmp_path), data)
                bucket.put(f"plain/{name}", data)
        bucket.put("plain/sub/_SUCCESS", b"")
        bucket.put("plain/sub/", b"")

        export, plain = cache(f"{bucket.url}/orders"), cache(f"{bucket.url}/plain/")

        expected = {path: data for path, (data, _) in tree(str(tmp_path / "orders")).items()}
        assert {path: data for path, (data, _) in tree(plain.path).items()} == {
            **expected, "manifest.json": (tmp_path / "orders/.uc_stage/manifest.json").read_bytes()
        }  # fmt: skip
        del expected["other.txt"]
        assert {path: data for path, (data, _) in tree(export.path).items()} == expected
        assert export.generation == "v1-000001"
        listed = {file.path: file.mtime_ns for file in open_source(f"{bucket.url}/orders").files}
        assert {path: mtime for path, (_, mtime) in tree(export.path).items()} == listed
        assert cache(f"{bucket.url}/orders").status == "unchanged"
        assert cache(f"{bucket.url}/plain").status == "unchanged"

    def test_an_object_that_is_written_again_makes_the_copy_stale(
        self, bucket: Bucket, cache: Callable[[str], CacheReport], tmp_path: Path
    ) -> None:
        bucket.put("data/x", b"1")
        cache(f"{bucket.url}/data")
        bucket.put("data/x", b"22")

        request = CacheRequest(f"{bucket.url}/data", cache_dir=str(tmp_path / "cache"))
        assert caching.plan(request).state == "stale"

    def test_keys_that_no_folder_can_hold_are_refused(
        self, bucket: Bucket, cache: Callable[[str], CacheReport]
    ) -> None:
        bucket.put("data/a", b"1")
        bucket.put("data/a/b", b"1")

        with pytest.raises(Unsupported, match="`a` both as a file and as a folder"):
            cache(f"{bucket.url}/data")

    def test_what_is_no_folder_is_refused(self, bucket: Bucket, cache: Callable[[str], CacheReport]) -> None:
        bucket.put("data/x", b"1")
        bucket.put("table/_delta_log/0.json", b"{}")

        with pytest.raises(InvalidRequest, match="data/x` is a file"):
            cache(f"{bucket.url}/data/x")
        with pytest.raises(NotFound, match="nothing` is not there"):
            cache(f"{bucket.url}/nothing")
        with pytest.raises(InvalidRequest, match="table` is a Delta table"):
            cache(f"{bucket.url}/table")

    def test_a_file_that_an_exports_manifest_names_and_the_store_lacks_is_named(
        self, bucket: Bucket, cache: Callable[[str], CacheReport], tmp_path: Path
    ) -> None:
        make_export(str(tmp_path / "orders"))
        bucket.put("orders/.uc_stage/manifest.json", (tmp_path / "orders/.uc_stage/manifest.json").read_bytes())

        with pytest.raises(NotFound, match="train-0000"):
            cache(f"{bucket.url}/orders")


def test_what_is_stored_of_a_copy_is_json_for_anybody(volume: Volume, cache: Callable[[str], CacheReport]) -> None:
    make_export(f"{volume.backing}/orders")

    report = cache(f"{volume.mount}/orders")

    with open(f"{report.path}/.uc_stage/copy.json", encoding="ascii") as file:
        stored = json.load(file)
    assert stored["format"] == "uc-stage-copy/1"
    assert stored["source"] == f"{volume.mount}/orders"
    assert [set(entry) for entry in stored["files"]] == [{"path", "bytes", "mtime_ns", "xxh3_128"}] * 3
