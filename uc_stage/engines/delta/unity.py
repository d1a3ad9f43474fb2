"""Finds the files of a Unity Catalog table and the short-lived credentials that read them.

https://docs.databricks.com/api/workspace/temporarytablecredentials: the caller needs SELECT on the table and
EXTERNAL USE SCHEMA on its schema, and the metastore must allow external access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uc_stage.errors import AccessDenied, InvalidRequest, NotFound, StageError, Unavailable, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTS = 3
# The SDK's own is five minutes, for a workspace that does not answer.
_PATIENCE_SECONDS = 30
# Row filters and column masks are applied by Databricks' own compute, never by who reads the files.
_SPARK = "read it where Databricks does: `--engine spark`"


def locate(name: str, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Gives the URL of a table's files and the storage options for deltalake.

    Args:
        name: `catalog.schema.table`; each part may stand in backticks.
        environment: where the region and endpoint of an object store stand, as its own tools read them.

    Raises:
        InvalidRequest: not a name of three parts. NotFound: no such table. AccessDenied: a grant is missing.
        Unsupported: a view, or a table of another format. Unavailable: no SDK, no workspace, or no answer.
    """
    parts = [part.strip("`") for part in name.split(".")]
    if len(parts) != _PARTS:
        raise InvalidRequest(
            f"`{name}` is neither a folder here nor a name of the form `catalog.schema.table`",
            hint="write the name in full, or check the path for a typing error",
        )
    full_name = ".".join(parts)
    try:
        from databricks.sdk import WorkspaceClient
        from databricks.sdk.config import Config
        from databricks.sdk.errors.base import DatabricksError
        from databricks.sdk.service.catalog import TableOperation
    except ImportError:
        raise Unavailable(
            f"reading `{full_name}` by name needs a package that is not installed",
            hint="pip install 'uc-stage[databricks]', or use `--engine spark`",
        ) from None
    try:
        client = WorkspaceClient(config=Config(retry_timeout_seconds=_PATIENCE_SECONDS))
        table = client.tables.get(full_name)
        _require_delta(full_name, table)
        granted = client.temporary_table_credentials.generate_temporary_table_credentials(
            table_id=table.table_id, operation=TableOperation.READ
        )
    except DatabricksError as error:
        raise _typed(error, full_name, parts) from error
    except (ValueError, OSError, TimeoutError) as error:
        # The SDK's way to say that no workspace is configured, or that none answers.
        raise Unavailable(
            f"`{full_name}`: {str(error).splitlines()[0]}",
            hint="name the workspace in DATABRICKS_HOST and log in: databricks auth login",
        ) from error
    return granted.url or table.storage_location or "", _storage_options(granted, full_name, environment)


def _require_delta(name: str, table: Any) -> None:
    kind = getattr(table.table_type, "value", None)
    if kind is not None and "VIEW" in kind:
        raise Unsupported(f"`{name}` is a view", hint=f"export the table behind it, or {_SPARK}")
    stored = getattr(table.data_source_format, "value", None)
    if stored != "DELTA":
        raise Unsupported(f"`{name}` is stored as {stored}, not as Delta", hint=_SPARK)


def _storage_options(granted: Any, name: str, environment: Mapping[str, str]) -> dict[str, str]:
    if (aws := granted.aws_temp_credentials or granted.r2_temp_credentials) is not None:
        options = {
            "aws_access_key_id": aws.access_key_id,
            "aws_secret_access_key": aws.secret_access_key,
            "aws_session_token": aws.session_token,
        }
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        if endpoint:
            options["aws_endpoint"] = endpoint
        if endpoint.startswith("http://"):
            options["aws_allow_http"] = "true"
        return {**options, **({"aws_region": region} if region else {})}
    if granted.azure_user_delegation_sas is not None:
        return {"azure_storage_sas_token": granted.azure_user_delegation_sas.sas_token}
    if granted.gcp_oauth_token is not None:
        raise Unsupported(
            f"`{name}` lies in Google's storage, whose tokens the local reader does not take", hint=_SPARK
        )
    # A table of local files, as the open-source catalog has them, needs none.
    return {}


def _typed(error: Any, name: str, parts: list[str]) -> StageError:
    from databricks.sdk import errors

    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    schema = ".".join(f"`{part}`" for part in parts[:2])
    if isinstance(error, errors.NotFound):
        return NotFound(f"`{name}`: {text}", hint="check the name, and that you may see it in the catalog")
    if isinstance(error, errors.Unauthenticated):
        return AccessDenied(f"`{name}`: {text}", hint="log in again: databricks auth login")
    if isinstance(error, errors.PermissionDenied):
        if "EXTERNAL USE SCHEMA" in text.upper().replace("_", " "):
            return AccessDenied(
                f"`{name}`: you lack the privilege EXTERNAL USE SCHEMA on {schema}",
                hint=f"its owner can GRANT EXTERNAL USE SCHEMA ON SCHEMA {schema} TO you; or use `--engine spark`",
            )
        return AccessDenied(
            f"`{name}`: {text}", hint="you need SELECT on the table and EXTERNAL USE SCHEMA on its schema"
        )
    if isinstance(error, errors.BadRequest):
        return Unsupported(f"`{name}`: the catalog gives no credentials for it: {text}", hint=_SPARK)
    return Unavailable(f"`{name}`: {text}", hint="try again; if it stays, check the workspace")
