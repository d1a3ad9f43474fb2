"""The Spark engine against a real server: which session it takes, what it does to it, and how servers fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.spark import SERVER_TIME_ZONE, spark_environment, spark_server
from tests.spark_export import export, leftovers, rows_of
from uc_stage.engines.spark import SparkEngine
from uc_stage.engines.spark import session as spark_session
from uc_stage.engines.spark import writing as spark_writing
from uc_stage.errors import InvalidRequest, Unavailable
from uc_stage.model import ExportRequest, TableRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def texts(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of 40 000 rows that do not compress: more than 2 MB."""
    path = str(tmp_path_factory.mktemp("tables") / "texts")
    spark_session.range(40_000).selectExpr("id", "concat(uuid(), uuid()) AS text").write.format("delta").save(path)
    return path


@pytest.fixture(scope="module")
def numbers(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table whose one file takes a second or two to write."""
    path = str(tmp_path_factory.mktemp("tables") / "numbers")
    spark_session.range(0, 1_000_000, 1, 1).write.format("delta").save(path)
    return path


class AtPhase:
    """A progress that remembers what it is told, and does something when a phase starts."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self.phases: list[tuple[str, int | None, str]] = []
        self.amounts: list[int] = []

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        self.phases.append((name, total, unit))
        self._act()

    def advance(self, amount: int) -> None:
        self.amounts.append(amount)

    def note(self, message: str) -> None:
        """Ignores the message."""


@contextlib.contextmanager
def once_it_writes(dest: Path, act: Callable[[], object]) -> Iterator[None]:
    """Does something in a thread once Spark writes rows into a scratch folder."""

    def wait() -> None:
        while not list(dest.glob(".uc_stage/scratch/*/*/_temporary/**/*.parquet")):
            if ended.wait(0.01):
                return
        act()

    ended = threading.Event()
    waiting = threading.Thread(target=wait)
    try:
        waiting.start()
        yield
    finally:
        ended.set()
        waiting.join()


@contextlib.contextmanager
def signalled_while_writing(dest: Path) -> Iterator[None]:
    """Sends SIGTERM to this process once Spark writes, and asks that the block ends by what its handler raises."""

    class Signalled(BaseException):
        pass

    def handle(*_: object) -> None:
        raise Signalled

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(Signalled), once_it_writes(dest, lambda: os.kill(os.getpid(), signal.SIGTERM)):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Relay:
    """Passes a TCP connection on to the server; counts what comes back, and can be cut."""

    def __init__(self, remote: str) -> None:
        self._server = remote.rpartition(":")[2]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.received = 0
        self.remote = f"sc://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for connection in (self._listener, *self._open):
            # A close alone would not end the call in which another thread waits on it.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", int(self._server)))
            except OSError:
                return
            self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, count: bool) -> None:
        try:
            while data := source.recv(65536):
                self.received += len(data) if count else 0
                sink.sendall(data)
        except OSError:
            return
        finally:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(spark_remote: str) -> Iterator[Relay]:
    relay = Relay(spark_remote)
    yield relay
    relay.cut()


def test_no_row_passes_through_the_client(relay: Relay, texts: str, tmp_path: Path) -> None:
    engine = SparkEngine(relay.remote)
    try:
        done = export(engine, texts, tmp_path / "out", where="id >= 0")
    finally:
        engine.close()
    assert done.rows == sum(footer.rows for footer in done.footers) == 40_000
    assert sum(group.bytes for footer in done.footers for group in footer.row_groups) > 2_000_000
    assert 0 < relay.received < 100_000


def test_a_server_that_goes_away_is_unavailable_and_leaves_nothing(
    relay: Relay, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "_RETRIES", 1)
    engine = SparkEngine(relay.remote)

    try:
        with pytest.raises(Unavailable) as caught:
            export(engine, texts, tmp_path / "out", progress=AtPhase(relay.cut))
    finally:
        engine.close()
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert leftovers(tmp_path / "out") == []


def test_a_session_that_ended_is_unavailable_and_leaves_nothing(
    spark_remote: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SparkEngine(spark_remote)

    def end() -> None:
        engine._connection.session.client.release_session()

    try:
        with pytest.raises(Unavailable) as caught:
            export(engine, texts, tmp_path / "out", progress=AtPhase(end))
        assert "the session ended" in str(caught.value.hint)
        assert leftovers(tmp_path / "out") == []

        monkeypatch.setattr("pyspark.__version__", "3.5.9")
        with pytest.raises(Unavailable, match=r"the server is Spark 4\.\S+, pyspark here is 3\.5\.9") as caught:
            engine.resolve(ExportRequest(TableRef.parse(texts), "out"))
        assert "pyspark[connect]==4." in str(caught.value.hint)
    finally:
        engine.close()


def test_a_signal_ends_the_export_and_leaves_nothing(spark_remote: str, numbers: str, tmp_path: Path) -> None:
    engine = SparkEngine(spark_remote)
    try:
        with signalled_while_writing(tmp_path / "out"):
            export(engine, numbers, tmp_path / "out", files=1)
        assert engine._connection.session.interruptAll() == []
    finally:
        engine.close()
    assert leftovers(tmp_path / "out") == []


def test_a_server_that_is_killed_while_it_writes_is_unavailable_and_leaves_nothing(
    spark_options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "_RETRIES", 1)
    monkeypatch.setattr(spark_writing, "_ABORT_SECONDS", 0.5)
    with spark_server(spark_options, tmp_path / "server") as (remote, kill):
        engine = SparkEngine(remote)
        session = engine._connection.session
        table = str(tmp_path / "table")
        session.range(0, 1_000_000, 1, 1).write.format("delta").save(table)
        try:
            with pytest.raises(Unavailable) as caught, once_it_writes(tmp_path / "out", kill):
                export(engine, table, tmp_path / "out", files=1)
        finally:
            engine.close()
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert leftovers(tmp_path / "out") == []


@pytest.fixture
def older_server() -> Iterator[str]:
    """A server of Spark Connect that speaks of version 3.5.1, and knows nothing of what came later."""
    import grpc
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    class Older(base_pb2_grpc.SparkConnectServiceServicer):
        def AnalyzePlan(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            if request.HasField("spark_version"):
                version = base_pb2.AnalyzePlanResponse.SparkVersion(version="3.5.1")
                return base_pb2.AnalyzePlanResponse(session_id=request.session_id, spark_version=version)
            return context.abort(grpc.StatusCode.INTERNAL, "Unrecognised relation: a message of a later version")

        def Config(self, request: Any, _context: Any) -> Any:  # noqa: N802 - the protocol's name
            return base_pb2.ConfigResponse(session_id=request.session_id)

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        base_pb2_grpc.add_SparkConnectServiceServicer_to_server(Older(), server)  # type: ignore[no-untyped-call] # generated
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"sc://127.0.0.1:{port}"
        server.stop(None).wait()


def test_a_server_of_another_version_is_named_where_it_does_not_understand(
    older_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    monkeypatch.setattr(spark_session, "_RETRIES", 1)
    engine = SparkEngine(older_server)
    try:
        assert engine.version == "Spark 3.5.1"
        with pytest.raises(Unavailable) as caught:
            engine.resolve(ExportRequest(TableRef.parse("trips"), "out"))
    finally:
        engine.close()
    assert f"the server is Spark 3.5.1, pyspark here is {pyspark.__version__}" in caught.value.message
    assert "pyspark[connect]==3.5.1" in str(caught.value.hint)


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    with pytest.raises(Unavailable, match=r"needs pyspark 4, and here is 3\.5\.9"):
        _ = SparkEngine("sc://host:15002").version


def test_no_server_is_unavailable_in_bounded_time_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "_CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"sc://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(Unavailable) as caught:
            _ = SparkEngine(f"{address}/;token=hush;use_ssl=false").version
    assert address in caught.value.message
    assert "--remote" in str(caught.value.hint)
    assert "hush" not in caught.value.message


@pytest.mark.parametrize("remote", ["http://host:15002", "sc://host:15002/path", "sc://"])
def test_a_remote_that_is_no_url_of_spark_connect_is_refused(remote: str) -> None:
    with pytest.raises(InvalidRequest, match="--remote"):
        _ = SparkEngine(remote).version


def test_without_pyspark_the_hint_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)
    for remote in (None, "sc://host:15002"):
        with pytest.raises(Unavailable) as caught:
            _ = SparkEngine(remote).version
        assert "pip install 'uc-stage[spark]'" in str(caught.value.hint)


def test_without_any_session_the_hint_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.connect", None)
    with pytest.raises(Unavailable, match="no Spark session") as caught:
        _ = SparkEngine().version
    assert "--remote" in str(caught.value.hint)
    assert "SPARK_REMOTE" in str(caught.value.hint)


def test_a_users_session_is_taken_and_given_back_as_it_was(
    spark_remote: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session = SparkSession.builder.remote(spark_remote).create()
    try:
        session.conf.set("spark.sql.ansi.enabled", "false")
        session.sql(f"CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT * FROM delta.`{texts}`")
        before = settings_of(session)
        assert before["spark.sql.session.timeZone"] == SERVER_TIME_ZONE

        engine = SparkEngine()
        assert len(rows_of(export(engine, texts, tmp_path / "out", where="id < 9", columns=("id",)))["id"]) == 9
        assert settings_of(session)["spark.sql.session.timeZone"] == "UTC"
        engine.close()

        active: Any = SparkSession.getActiveSession()
        assert active is session
        assert settings_of(session) == before
        assert session.table("mine").count() == 40_000
    finally:
        session.stop()


def test_an_engine_of_its_own_server_is_nobodys_default(spark_remote: str) -> None:
    from pyspark.sql.connect.session import SparkSession

    engine = SparkEngine(spark_remote)
    assert engine.version.startswith("Spark 4.")
    assert SparkSession.getActiveSession() is None
    engine.close()
    engine.close()


def test_the_end_of_a_closed_session_disturbs_no_other(spark_remote: str, spark_session: Any) -> None:
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Results

    engine = SparkEngine(spark_remote)
    assert engine.version
    session = engine._connection.session
    engine.close()
    assert spark_session.range(2).count() == 2
    threads = Results._release_thread_pool_instance
    assert threads is not None
    session.__del__()
    assert Results._release_thread_pool_instance is threads


def test_databricks_connect_is_asked_where_it_is_installed(
    spark_session: Any, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package needs a workspace: its builder stands in here, and the session that it gives is a real one.
    answers: list[Any] = [spark_session, ValueError("cannot configure default credentials\nmore")]

    def get_or_create() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = ModuleType("databricks.connect")
    module.DatabricksSession = SimpleNamespace(builder=SimpleNamespace(getOrCreate=get_or_create))  # type: ignore[attr-defined] # the module is made here
    monkeypatch.setitem(sys.modules, "databricks", ModuleType("databricks"))
    monkeypatch.setitem(sys.modules, "databricks.connect", module)
    engine = SparkEngine()
    assert rows_of(export(engine, texts, tmp_path / "out", where="id = 7", columns=("id",))) == {"id": [7]}
    engine.close()
    with pytest.raises(Unavailable, match=r"Databricks Connect .*cannot configure default credentials$"):
        _ = SparkEngine().version


def test_progress_ends_at_the_rows_of_the_plan(spark_remote: str, texts: str, tmp_path: Path) -> None:
    seen = AtPhase(lambda: None)
    engine = SparkEngine(spark_remote)
    try:
        done = export(engine, texts, tmp_path / "out", progress=seen)
    finally:
        engine.close()
    assert ("write", 40_000, "rows") in seen.phases
    assert sum(seen.amounts) == 40_000 + len(done.names)  # and each footer
    assert all(amount >= 0 for amount in seen.amounts)


def test_a_setting_that_a_server_refuses_is_remembered() -> None:
    class Fixed:
        """The settings of a serverless session: it tells some, and lets none be set."""

        def get(self, key: str) -> str:
            if key.startswith("spark.sql.files"):
                raise ValueError(key)
            return "UTC" if key.endswith("timeZone") else "INT96"

        def set(self, key: str, value: str) -> None:
            raise ValueError(f"{key} = {value}")

    connection = spark_session.Connection.__new__(spark_session.Connection)
    connection.session = SimpleNamespace(conf=Fixed())
    connection.unmet, connection._before = {}, {}
    connection._apply_settings()
    assert connection.unmet["spark.sql.parquet.outputTimestampType"] == "INT96"
    assert not [key for key in connection.unmet if "timeZone" in key or "files" in key or "delta" in key]


CLASSIC = """
import json, sys
from pyspark.sql import SparkSession
from tests.spark_export import export, rows_of
from uc_stage.engines.spark import SparkEngine
from uc_stage.errors import StageError

session = SparkSession.builder.getOrCreate()
engine = SparkEngine()
table, dest = sys.argv[1:]
done = export(engine, table, dest + "/out", where="id < 3", columns=("id",))
errors = []
for text in ("no_table", dest):
    try:
        export(engine, text, dest + "/out")
    except StageError as error:
        errors.append([type(error).__name__, error.message.count("\\n")])
version = engine.version
engine.close()
zone = session.conf.get("spark.sql.session.timeZone")
print(json.dumps([rows_of(done), errors, version.split(".")[0], zone]))
"""


def test_classic_spark_gives_the_same(spark_options: list[str], texts: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLASSIC, texts, str(tmp_path)],
        env={**spark_environment(), "PYSPARK_SUBMIT_ARGS": " ".join(map(quoted, [*spark_options, "pyspark-shell"]))},
        cwd=".", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows, errors, version, zone = json.loads(done.stdout.splitlines()[-1])
    assert rows == {"id": [0, 1, 2]}
    assert errors == [["NotFound", 0], ["NotFound", 0]]
    assert (version, zone) == ("Spark 4", SERVER_TIME_ZONE)


def quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word


def settings_of(session: Any) -> dict[str, str]:
    return {key: session.conf.get(key) for key in {**spark_session._NEEDED, **spark_session._WISHED}}
