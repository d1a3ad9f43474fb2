from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.delta import make_numbers, read_export, request
from tests.fixtures.s3 import Bucket
from tests.fixtures.shell import uc_stage
from uc_stage.engines.delta.unity import locate
from uc_stage.engines.local import LocalEngine
from uc_stage.errors import AccessDenied, InvalidRequest, NotFound, StageError, Unavailable, Unsupported
from uc_stage.model import Layout

TABLES = "/api/2.1/unity-catalog/tables/"
# Versions of the SDK differ in the number before it.
CREDENTIALS = "/unity-catalog/temporary-table-credentials"


@dataclass
class Workspace:
    """A server that speaks Unity Catalog's REST API for the tables that a test puts into it.

    https://docs.databricks.com/api/workspace/tables/get and .../temporarytablecredentials
    """

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    credentials: dict[str, Any] = field(default_factory=dict)
    refusal: tuple[int, str, str] | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"DATABRICKS_HOST": self.url, "DATABRICKS_TOKEN": "token", "DATABRICKS_CONFIG_FILE": "/dev/null"}

    def put(self, location: str, **changed: Any) -> None:
        table = {
            "table_id": "id-1",
            "data_source_format": "DELTA",
            "table_type": "MANAGED",
            "storage_location": location,
        }
        self.tables["main.sales.orders"] = {**table, **changed}

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path.startswith(TABLES):
            table = self.tables.get(path.removeprefix(TABLES))
            missing = {"error_code": "TABLE_DOES_NOT_EXIST", "message": f"Table {path} does not exist."}
            return (200, table) if table else (404, missing)
        if not path.endswith(CREDENTIALS):
            return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": path}
        self.asked.append(body)
        if self.refusal is not None:
            status, code, message = self.refusal
            return status, {"error_code": code, "message": message}
        return 200, self.credentials


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    workspace = Workspace()

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, answer = workspace.answer(self.path, json.loads(self.rfile.read(length) or b"{}"))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _reply  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        workspace.url = f"http://127.0.0.1:{server.server_address[1]}"
        for name, value in workspace.environment.items():
            monkeypatch.setenv(name, value)
        yield workspace
        server.shutdown()


def test_a_name_is_read_from_its_bucket_with_the_credentials_that_the_catalog_gives(
    workspace: Workspace, bucket: Bucket, tmp_path: Path
) -> None:
    table = Path(make_numbers(tmp_path / "numbers", 100, commits=2))
    for path in table.rglob("*.*"):
        bucket.put(f"orders/{path.relative_to(table)}", path.read_bytes())
    workspace.put(f"{bucket.url}/orders")
    key = {"access_key_id": "temporary", "secret_access_key": "secret", "session_token": "session"}
    workspace.credentials = {"url": f"{bucket.url}/orders", "aws_temp_credentials": key}
    environment = {**bucket.environment, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}

    done = uc_stage("export", "main.sales.orders@v0", tmp_path / "out", "--json", **environment)

    assert done.code == 0, done.err
    data = done.json["data"]
    assert (data["table"], data["engine"], data["rows"]) == ("main.sales.orders", "local", 50)
    assert "no Spark session" in data["engine_reason"]
    assert workspace.asked[0] == {"table_id": "id-1", "operation": "READ"}
    assert len(read_export(tmp_path / "out")) == 50


def test_a_table_of_local_files_needs_no_credentials(workspace: Workspace, tmp_path: Path) -> None:
    workspace.put(f"file://{make_numbers(tmp_path / 'numbers', 10)}")
    engine = LocalEngine()

    snapshot = engine.resolve(request("`main`.sales.`orders`", tmp_path / "out"))
    engine.close()

    assert (snapshot.source.table, snapshot.rows) == ("`main`.sales.`orders`", 10)
    assert engine.count(snapshot, Layout(1, None, 2**26, "zstd")) == {"train": 10}


def test_a_folder_with_the_form_of_a_name_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_numbers(tmp_path / "main.sales.orders", 10)
    monkeypatch.chdir(tmp_path)

    snapshot = LocalEngine().resolve(request("main.sales.orders", tmp_path / "out"))

    assert snapshot.source.table == str(tmp_path / "main.sales.orders")


def test_azure_gives_a_token_and_an_endpoint_may_be_named(workspace: Workspace) -> None:
    url = "abfss://data@account.dfs.core.windows.net/orders"
    workspace.put(url)
    workspace.credentials = {"azure_user_delegation_sas": {"sas_token": "sig=1"}}
    assert locate("main.sales.orders", {}) == (url, {"azure_storage_sas_token": "sig=1"})

    workspace.put("s3://bucket/orders")
    workspace.credentials = {
        "aws_temp_credentials": {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"}
    }
    _, options = locate("main.sales.orders", {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "https://e"})
    assert (options["aws_region"], options["aws_endpoint"]) == ("eu-west-1", "https://e")
    assert "aws_allow_http" not in options


@pytest.mark.parametrize(
    ("refusal", "kind", "says", "hint"),
    [
        (
            (403, "PERMISSION_DENIED", "User does not have EXTERNAL USE SCHEMA on Schema 'main.sales'."),
            AccessDenied,
            "EXTERNAL USE SCHEMA on `main`.`sales`",
            "GRANT EXTERNAL USE SCHEMA ON SCHEMA `main`.`sales`",
        ),
        ((403, "PERMISSION_DENIED", "no SELECT"), AccessDenied, "no SELECT", "SELECT on the table"),
        ((401, "UNAUTHENTICATED", "bad token"), AccessDenied, "bad token", "databricks auth login"),
        ((400, "INVALID_PARAMETER_VALUE", "has row filters"), Unsupported, "has row filters", "--engine spark"),
        ((501, "NOT_IMPLEMENTED", "not here"), Unavailable, "not here", "try again"),
    ],
)
def test_a_refusal_of_the_catalog_names_what_is_missing(
    workspace: Workspace, refusal: tuple[int, str, str], kind: type[StageError], says: str, hint: str
) -> None:
    workspace.put("s3://bucket/orders")
    workspace.refusal = refusal

    with pytest.raises(kind) as caught:
        locate("main.sales.orders", {})

    assert says in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"table_type": "VIEW"}, "is a view"),
        ({"data_source_format": "ICEBERG"}, "ICEBERG"),
        ({"data_source_format": None}, "not as Delta"),
    ],
)
def test_what_is_no_delta_table_is_refused(workspace: Workspace, changed: dict[str, Any], says: str) -> None:
    workspace.put("s3://bucket/orders", **changed)

    with pytest.raises(Unsupported, match=says):
        locate("main.sales.orders", {})


def test_a_store_whose_tokens_cannot_be_used_is_refused(workspace: Workspace) -> None:
    workspace.put("gs://bucket/orders")
    workspace.credentials = {"gcp_oauth_token": {"oauth_token": "x"}}

    with pytest.raises(Unsupported, match="Google"):
        locate("main.sales.orders", {})


def test_a_name_that_the_catalog_does_not_have_is_not_found(workspace: Workspace) -> None:
    with pytest.raises(NotFound, match=r"main\.sales\.nothing"):
        locate("main.sales.nothing", {})


def test_a_name_of_fewer_parts_is_neither_a_table_nor_a_path(workspace: Workspace) -> None:
    with pytest.raises(InvalidRequest, match=r"catalog\.schema\.table"):
        locate("orders", {})


def test_without_a_workspace_a_name_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CONFIG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(Unavailable) as caught:
        locate("main.sales.orders", {})

    assert caught.value.hint is not None
    assert "DATABRICKS_HOST" in caught.value.hint


def test_without_the_sdk_the_hint_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.sdk", None)

    with pytest.raises(Unavailable) as caught:
        locate("main.sales.orders", {})

    assert caught.value.hint is not None
    assert "uc-stage[databricks]" in caught.value.hint
