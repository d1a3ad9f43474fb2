from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import uc_stage
from tests.fixtures.shell import uc_stage as command_line
from uc_stage import storage
from uc_stage.errors import Unavailable
from uc_stage.inspection import machine, node, platform
from uc_stage.inspection.patience import Asked
from uc_stage.model import CopiesReport, NodeFact
from uc_stage.storage import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.volume import Volume

SECRET = "dapi0123456789"
NAMES = [
    "cache_folder", "disk", "locks", "shared_memory", "memory", "cpus", "open_files", "volumes", "mounts",
    "engine_local", "engine_spark", "runtime", "packages", "credentials", "huggingface",
]  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without anybody's configuration."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def facts(root: Path, environment: dict[str, str] | None = None, **places: Any) -> dict[str, NodeFact]:
    report = node.run(str(root), None, environment or {}, **{"seconds": 30, **places})
    assert [fact.name for fact in report.node] == NAMES
    return {fact.name: fact for fact in report.node}


def distribution(folder: Path, name: str, version: str) -> None:
    """A package as a package manager leaves it, for `importlib.metadata` to find."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages are the only ones that are installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr("sys.path", [str(folder)])
    yield folder
    monkeypatch.undo()


# The command


def test_without_a_target_each_fact_about_the_machine_is_a_line(tmp_path: Path) -> None:
    words = ("inspect", "--cache-dir", tmp_path / "nvme")
    shown = command_line(*words, HOME=str(tmp_path / "home"))
    told = command_line(*words, "--json", HOME=str(tmp_path / "home")).json["data"]

    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"{tmp_path}/nvme: no copies, ")
    assert [fact["name"] for fact in told["node"]] == NAMES
    for fact in told["node"]:
        assert f"  {fact['name'].replace('_', ' ')}" in shown.out
        assert (fact["hint"] is not None) == (fact["state"] == "bad")
    assert not (tmp_path / "nvme").exists()


def test_what_is_not_well_comes_with_what_mends_it(tmp_path: Path) -> None:
    (tmp_path / "nvme").mkdir()
    (tmp_path / "nvme").chmod(0o777)

    done = command_line("inspect", "--cache-dir", tmp_path / "nvme", HOME=str(tmp_path / "home"))

    lines = done.out.splitlines()
    (line,) = [at for at, text in enumerate(lines) if "  cache folder " in text]
    assert done.code == 0
    assert lines[line].startswith("  not well  cache folder")
    assert "can be written by other users" in lines[line]
    assert lines[line + 1].strip() == "hint: choose a folder of your own with `--cache-dir`"


def test_a_cache_folder_as_the_target_lists_copies_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"x")
    uc_stage.cache(str(tmp_path / "data"), cache_dir=str(tmp_path / "nvme"))

    listed = command_line("inspect", tmp_path / "nvme", "--json").json["data"]
    report = uc_stage.inspect(cache_dir=str(tmp_path / "nvme"))

    assert (len(listed["copies"]), listed["node"]) == (1, [])
    assert isinstance(report, CopiesReport)
    assert (len(report.copies), [fact.name for fact in report.node]) == (1, NAMES)


# The cache folder and its disk


def test_the_cache_folder_tells_its_owner_and_mode_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    root = tmp_path / "nvme"
    root.mkdir(mode=0o700)

    found = facts(root)

    assert found["cache_folder"].state == found["locks"].state == "ok"
    assert found["cache_folder"].facts == {
        "path": str(root), "exists": True, "owner": os.geteuid(), "mode": "0700", "writable": True,
    }  # fmt: skip
    assert found["disk"].facts["free"] > 0
    assert list(root.iterdir()) == []


def test_a_cache_folder_that_is_a_link_is_told_of_and_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "nvme").symlink_to(tmp_path / "theirs")

    report = node.run(str(tmp_path / "nvme"), None, {}, seconds=30)

    found = {fact.name: fact for fact in report.node}
    assert (report.copies, found["cache_folder"].state, found["locks"].state) == ((), "bad", "unknown")
    assert "is a link" in found["cache_folder"].text


def test_a_folder_that_cannot_be_written_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # To root, every folder can be written.
    monkeypatch.setattr(os, "access", lambda *_: False)
    (tmp_path / "nvme").mkdir(mode=0o700)

    assert "cannot be written" in node.cache_folder(str(tmp_path / "nvme")).text
    missing = node.cache_folder(str(tmp_path / "a" / "b"))
    assert (missing.state, f"cannot be made below `{tmp_path}`" in missing.text) == ("bad", True)
    assert node.locks(str(tmp_path / "nvme")).state == "unknown"
    assert "cannot be written" in platform.huggingface({}).text


def test_a_full_disk_is_not_well(disk: str) -> None:
    found = facts(Path(disk, "nvme"))["disk"]

    assert (found.state, found.facts["kind"]) == ("bad", "tmpfs")
    assert "nearly full" in found.text
    assert "uc-stage prune" in str(found.hint)


def test_a_volume_is_no_place_for_copies_and_its_locks_do_not_work(volume: Volume) -> None:
    found = facts(Path(volume.mount, "nvme"))
    tried = node.locks(volume.mount)

    assert (found["disk"].state, found["disk"].facts["kind"].startswith("fuse")) == ("bad", True)
    assert "no disk of this machine" in found["disk"].text
    assert (tried.state, tried.facts) == ("bad", {"work": False})
    assert "no lock can be taken there" in tried.text
    assert os.listdir(volume.backing) == []


def test_locks_that_keep_nobody_out_are_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a mount that takes each call and does nothing.
    monkeypatch.setattr("fcntl.flock", lambda *_: None)

    found = node.locks(str(tmp_path / "nvme"))

    assert (found.state, found.text) == ("bad", "two at once got the same lock")
    assert not any(path.is_file() for path in tmp_path.iterdir())


# Mounts


def test_a_volume_that_is_mounted_is_listed(volume: Volume, tmp_path: Path) -> None:
    os.mkdir(os.path.join(volume.backing, "main"))

    found = facts(tmp_path / "nvme", volumes=volume.mount)["volumes"]

    assert (found.state, found.facts["entries"]) == ("ok", 1)
    assert found.facts["kind"].startswith("fuse")


def test_a_mount_that_hangs_is_told_of_and_waited_for_no_longer(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_MOUNT_SECONDS", 0.2)
    # Others may be mounted here.
    real = [mount for mount in machine.mounts() if mount.path == volume.mount]
    monkeypatch.setattr(machine, "mounts", lambda: real)
    volume.fault("/", run="sleep 1.5")

    hung = facts(tmp_path / "nvme", seconds=0.5, volumes=volume.mount)["volumes"]
    other = node.mounts("/nowhere")

    assert (hung.state, hung.text) == ("bad", "did not answer in time")
    assert "mount" in str(hung.hint)
    assert (other.state, f"`{volume.mount}` does not answer (it hangs)" in other.text) == ("bad", True)
    assert other.facts == {"mounts": [{"path": volume.mount, "kind": "fuse"}]}


def test_a_mount_that_answers_is_well_and_one_that_fails_is_not(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "mounts", lambda: [machine.Mount(volume.mount, "fuse")])

    found = facts(tmp_path / "nvme", volumes="/nowhere")["mounts"]

    assert (found.state, found.text) == ("ok", f"{volume.mount} (fuse)")
    gone = [machine.Mount(f"{volume.mount}/{name}", "nfs4") for name in ("a", "b")]
    monkeypatch.setattr(machine, "mounts", lambda: gone)
    wrong = facts(tmp_path / "nvme", volumes="/nowhere")["mounts"]
    assert (wrong.state, "does not answer (No such file or directory), and 1 more" in wrong.text) == ("bad", True)


def test_volumes_are_missed_on_a_databricks_runtime_alone(tmp_path: Path) -> None:
    elsewhere = facts(tmp_path, volumes="/nowhere")["volumes"]
    there = facts(tmp_path, {"DATABRICKS_RUNTIME_VERSION": "17.3"}, volumes="/nowhere")["volumes"]

    assert (elsewhere.state, there.state) == ("absent", "bad")
    assert "Unity Catalog" in str(there.hint)


def test_a_folder_that_nobody_may_list_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)

    found = node.volume(str(tmp_path), {})
    assert (found.state, found.text) == ("bad", f"`{tmp_path}` cannot be listed: Permission denied")


# Memory, processors, open files


def test_shared_memory_that_is_small_or_not_there_is_not_well(disk: str, tmp_path: Path) -> None:
    small, missing = facts(tmp_path, shared=disk)["shared_memory"], facts(tmp_path, shared="/nowhere")["shared_memory"]

    assert (small.state, small.facts["size"]) == ("bad", 256 * 1024)
    assert "--shm-size" in str(small.hint)
    assert (missing.state, missing.text) == ("bad", "`/nowhere` is not there")


def group(patch: pytest.MonkeyPatch, folder: Path, line: str, **files: str) -> None:
    """Gives this process a `/proc` and a control group's folder as a container has them."""
    proc, groups = folder / "proc", folder / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  8000 kB\nMemFree: 1 kB\nMemAvailable:  6000 kB\n")
    (proc / "self" / "cgroup").write_text(line)
    for name, text in files.items():
        path = groups / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    patch.setattr(limits, "_PROC", str(proc))
    patch.setattr(limits, "_GROUPS", str(groups))


def test_the_limits_of_control_groups_of_version_2_count_also_those_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(
        monkeypatch, tmp_path, "0::/job/step\n",
        job__memory_DOT_max="4096000\n", job__memory_DOT_current="3000000\n",
        job__memory_DOT_stat="anon 1\ninactive_file 500000\n", job__step__memory_DOT_max="max\n",
        job__cpu_DOT_max="150000 100000\n", job__step__cpu_DOT_max="max 100000\n",
    )  # fmt: skip

    memory, cpus = storage.memory(), storage.cpus()

    assert (memory.machine, memory.limit, memory.available) == (8_192_000, 4_096_000, 1_596_000)
    assert memory.total == 4_096_000
    assert (cpus.limit, cpus.usable) == (1.5, 1)


def test_the_limits_of_control_groups_of_version_1_count_also_where_a_container_sees_its_own_as_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(
        monkeypatch, tmp_path, "7:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n0::/docker/ab\n",
        memory__memory_DOT_limit_in_bytes="2000000\n", memory__memory_DOT_usage_in_bytes="1500000\n",
        memory__memory_DOT_stat="total_inactive_file 100\n",
        cpu__cpu_DOT_cfs_quota_us="50000\n", cpu__cpu_DOT_cfs_period_us="100000\n",
    )  # fmt: skip

    assert storage.memory().available == 500_100
    assert storage.cpus().limit == 0.5
    group(monkeypatch, tmp_path / "other", "5:memory:/\n", memory__memory_DOT_limit_in_bytes=f"{2**63 - 4096}\n")
    assert storage.memory().limit is None
    assert storage.memory().total == 8_192_000


def test_little_memory_is_not_well_and_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "memory", lambda: storage.Memory(64 * 10**9, 2 * 10**9, 5 * 10**8))

    found = node.memory()

    assert (found.state, found.text) == ("bad", "500.0 MB available of 2.0 GB that its control group allows")


def test_fewer_processors_than_ranks_are_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "cpus", lambda: storage.Cpus(16, 16, 4.0))

    assert node.cpus({}).text == "4 to use of 16, control group's limit 4"
    few, enough = (node.cpus({"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": ranks}) for ranks in ("8", "4"))
    assert (few.state, few.text.endswith("for 8 ranks"), enough.state) == ("bad", True, "ok")


@given(soft=st.integers(-1, 2000), more=st.integers(0, 10**6))
def test_few_open_files_are_not_well_and_the_hint_asks_for_no_more_than_is_allowed(soft: int, more: int) -> None:
    hard = -1 if soft < 0 else soft + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "open_files", lambda: (soft, hard))
        found = node.open_files()

    assert (found.state == "bad") == (0 <= soft < 1024)
    if found.hint:
        assert soft <= int(found.hint.removeprefix("ulimit -n ")) <= max(hard, soft)


# Engines and packages


def test_a_server_that_does_not_listen_is_told_of_at_once_without_its_token() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        remote = f"sc://127.0.0.1:{bound.getsockname()[1]}/;token={SECRET}"
        found = platform.spark_engine(remote)

    assert (found.state, "Connection refused" in found.text) == ("bad", True)
    assert SECRET not in json.dumps([found.text, found.hint, found.facts])
    for odd in ("sc://", "sc://[bad", "sc://host:99999"):
        assert platform.spark_engine(odd).state == "bad"


def test_a_server_that_accepts_and_says_nothing_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_SERVER_SECONDS", 0.5)
    monkeypatch.setattr("uc_stage.engines.spark.session._CONNECT_SECONDS", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        report = node.run(str(tmp_path), f"sc://127.0.0.1:{silent.getsockname()[1]}", {})

    found = {fact.name: fact for fact in report.node}["engine_spark"]
    assert (found.state, found.text) == ("bad", "did not answer in time")


def test_a_server_that_answers_tells_its_version(spark_remote: str) -> None:
    found = platform.spark_engine(spark_remote)

    assert (found.state, found.facts["server"]) == ("ok", found.facts["client"])
    assert found.text == f"Spark {found.facts['server']} at `{spark_remote}`"


def test_a_pyspark_of_another_version_than_the_server_is_not_well(
    spark_remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "installed", lambda _: "3.5.1")

    found = platform.spark_engine(spark_remote)

    assert (found.state, "pyspark here is 3.5.1" in found.text) == ("bad", True)
    assert found.hint == f"pip install 'pyspark[connect]=={found.facts['server']}'"


def test_what_spark_says_instead_of_an_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any, remote: str) -> None:
        raise Unavailable(f"no Spark Connect server answers at `{remote}`", hint="check it")

    monkeypatch.setattr("uc_stage.engines.spark.Connection.__init__", fail)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        found = platform.spark_engine(f"sc://127.0.0.1:{listening.getsockname()[1]}")

    assert (found.state, found.hint) == ("bad", "check it")


def test_packages_are_told_with_the_extra_that_brings_them(only: Path) -> None:
    distribution(only, "torch", "2.9.0")

    found = platform.packages()

    assert found.text.startswith("torch 2.9.0; not installed: pyspark (extra `spark`), datasets (extra `hf`)")
    assert found.facts == {"pyspark": None, "datasets": None, "torch": "2.9.0", "databricks-sdk": None}
    assert platform.spark_engine("sc://h").hint == "pip install 'uc-stage[spark]'"
    assert platform.local_engine().state == "bad"
    for name in ("pyarrow", "deltalake"):
        distribution(only, name, "1.0")
    assert platform.local_engine().text == "in this process, pyarrow 1.0, deltalake 1.0"


def test_a_pyspark_that_hides_the_runtimes_own_is_not_well(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_runtime = {"DATABRICKS_RUNTIME_VERSION": "17.3"}

    assert platform.runtime({}).state == "absent"
    assert (platform.runtime(on_runtime).state, platform.runtime(on_runtime).facts["version"]) == ("ok", "17.3")
    distribution(only, "pyspark", "4.1.4")
    hidden = platform.runtime(on_runtime)
    assert (hidden.state, str(hidden.hint).startswith("pip uninstall -y pyspark")) == ("bad", True)
    assert platform.runtime({}).state == "absent"
    monkeypatch.setattr(platform, "_RUNTIME_FOLDER", str(only))
    assert platform.runtime(on_runtime).state == "ok"
    distribution(only, "databricks-connect", "17.3")
    assert "overwrite each other's files" in platform.runtime({}).text


# Credentials and other caches


def test_credentials_are_told_by_name_and_never_by_value(home: Path) -> None:
    config = home / ".databrickscfg"
    config.write_text(f"[DEFAULT]\nhost = https://x\ntoken = {SECRET}\n[prod]\ntoken = {SECRET}\n")
    config.chmod(0o600)
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text(SECRET)
    environment = {"DATABRICKS_HOST": "https://x", "DATABRICKS_TOKEN": SECRET, "AZURE_CLIENT_ID": SECRET}

    found = platform.credentials(environment)

    assert found.state == "ok"
    assert found.facts["databricks"] == ["DATABRICKS_HOST", "DATABRICKS_TOKEN"]
    assert found.facts["profiles"] == ["DEFAULT", "prod"]
    assert (found.facts["aws"], found.facts["azure"]) == (["~/.aws/credentials"], ["AZURE_CLIENT_ID"])
    assert SECRET not in json.dumps([found.text, found.hint, found.facts])
    assert platform.credentials({"DATABRICKS_CONFIG_FILE": "/nowhere"}).facts["profiles"] == []


def test_credentials_that_cannot_work_or_that_others_can_read_are_not_well(home: Path) -> None:
    config = home / ".databrickscfg"

    assert "`DATABRICKS_HOST` is not" in platform.credentials({"DATABRICKS_TOKEN": SECRET}).text
    missing = platform.credentials({"DATABRICKS_CONFIG_PROFILE": "prod"})
    assert (missing.state, missing.hint) == ("bad", "databricks auth login --profile prod")
    config.write_text("[prod]\n")
    config.chmod(0o644)
    assert platform.credentials({}).hint == f"chmod 600 {config}"
    config.write_text(f"token = {SECRET}\n")
    damaged = platform.credentials({})
    assert (damaged.state, "cannot be read (MissingSectionHeaderError)" in damaged.text) == ("bad", True)
    assert SECRET not in json.dumps([damaged.text, damaged.hint])
    config.unlink()
    assert platform.credentials({}).state == "absent"


def test_the_place_of_the_arrow_copies_of_datasets_is_that_of_datasets_itself(
    tmp_path: Path, home: Path, volume: Volume
) -> None:
    assert platform.datasets_cache({}) == (f"{home}/.cache/huggingface/datasets", "")
    assert platform.datasets_cache({"XDG_CACHE_HOME": "/x"}) == ("/x/huggingface/datasets", "")
    assert platform.datasets_cache({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}) == ("/h/datasets", "HF_HOME")
    both = {"HF_HOME": "/h", "HF_DATASETS_CACHE": "~/d"}
    assert platform.datasets_cache(both) == (f"{home}/d", "HF_DATASETS_CACHE")

    remote = platform.huggingface({"HF_HOME": volume.mount})
    assert (remote.state, remote.facts["variable"]) == ("bad", "HF_HOME")
    assert "cannot be mapped well" in remote.text
    assert platform.huggingface({"HF_DATASETS_CACHE": str(tmp_path)}).state == "ok"


def test_a_folder_of_hugging_face_on_a_full_disk_is_not_well(disk: str) -> None:
    full = platform.huggingface({"HF_HOME": disk})

    assert (full.state, full.text.endswith("no room for Arrow files")) == ("bad", True)


# Patience


def test_answers_come_in_time_or_not_at_all_and_errors_are_raised() -> None:
    never = threading.Event()
    asked: Asked[str, int] = Asked({"quick": lambda: 1, "slow": lambda: int(never.wait(20))})
    assert asked.answers(0.2) == {"quick": 1}
    never.set()

    def broken() -> int:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        Asked({"broken": broken}).answers(5)


def test_a_question_that_the_system_refuses_is_unknown() -> None:
    def refused() -> NodeFact:
        raise OSError(5, "Input/output error", "/x")

    def failed() -> NodeFact:
        raise Unavailable("it is gone")

    assert node._told("x", refused) == NodeFact("x", "unknown", "cannot be told: Input/output error")
    assert node._told("x", failed).text == "cannot be told: it is gone"


def test_mounts_with_blanks_in_their_names_are_told_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(
        "1 2 0:3 / / rw - ext4 /dev/a rw\n"
        "4 2 0:5 / /mnt/my\\040share rw shared:1 - nfs4 host:/x rw\n"
        "6 2 0:7 / /mnt/s3 rw - fuse.goofys b rw\n"
        "8 2 0:9 / /over rw - fuse.fuse-overlayfs o rw\n"
    )

    assert machine.mounts(str(tmp_path)) == [
        machine.Mount("/mnt/my share", "nfs4"), machine.Mount("/mnt/s3", "fuse.goofys"),
    ]  # fmt: skip
    assert machine.mounts(str(tmp_path / "nowhere")) == []
