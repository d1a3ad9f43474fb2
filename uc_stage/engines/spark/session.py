"""Spark sessions: finds or opens one, bounds the wait for a server, and turns what Spark raises into `StageError`s."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from uc_stage.errors import (
    AccessDenied,
    InvalidRequest,
    NotFound,
    StageError,
    Unavailable,
    Unsupported,
    VerificationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OLDEST = 4
_CONNECT_SECONDS = 20.0
# About 20 seconds in all, where pyspark's own 15 tries wait for 10 minutes.
_RETRIES = 5

TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"
# Whatever a session's own are, these decide which rows and which values are written.
_NEEDED = {
    TIMESTAMP_TYPE: "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Times without a zone, in a predicate and in partition values, are UTC on every engine.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
_WISHED = {
    # Ids of a table's column mapping mean nothing outside of it.
    "spark.sql.parquet.fieldId.write.enabled": "false",
    # Delta 4.4 brings deleted rows back where compacted log files overlap; the commits themselves are always there.
    "spark.databricks.delta.deltaLog.minorCompaction.useForReads": "false",
}
# With these a variant is written as its two binaries, whole and unmarked.
_PLAIN_VARIANTS = {
    "spark.sql.variant.writeShredding.enabled": "false",
    "spark.sql.parquet.variant.annotateLogicalType.enabled": "false",
}

# By Spark's and Delta's error conditions, which are documented as stable; the first prefix that fits counts;
# https://github.com/apache/spark/blob/master/common/utils/src/main/resources/error/error-conditions.json
_CONDITIONS: tuple[tuple[str, type[StageError]], ...] = (
    ("DELTA_TABLE_NOT_FOUND", NotFound),
    ("DELTA_MISSING_DELTA_TABLE", NotFound),
    ("DELTA_PATH_DOES_NOT_EXIST", NotFound),
    ("DELTA_VERSION_NOT_FOUND", NotFound),
    ("DELTA_READ_TABLE_WITHOUT_COLUMNS", Unsupported),
    ("DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED", Unsupported),
    ("DELTA_INVALID_PROTOCOL_VERSION", Unsupported),
    ("DELTA_STATE_RECOVER_ERROR", VerificationFailed),
    ("DELTA_UNSUPPORTED", Unsupported),
    ("EXPECT_TABLE_NOT_VIEW", Unsupported),
    ("FAILED_READ_FILE.FILE_NOT_EXIST", NotFound),
    ("FAILED_READ_FILE", VerificationFailed),
    ("PATH_NOT_FOUND", NotFound),
    ("REQUIRES_SINGLE_PART_NAMESPACE", NotFound),
    ("SCHEMA_NOT_FOUND", NotFound),
    ("TABLE_OR_VIEW_NOT_FOUND", NotFound),
    # What expressions of our own raise.
    ("USER_RAISED_EXCEPTION", InvalidRequest),
)
# By the SQLSTATE of conditions that are not listed above; the first prefix that fits counts.
_STATES: tuple[tuple[str, type[StageError]], ...] = (
    ("42501", AccessDenied),
    ("42", InvalidRequest),
    ("22", InvalidRequest),
    ("0A", Unsupported),
    ("56", Unsupported),
    ("KD", VerificationFailed),
)
_HINTS: dict[type[StageError], str] = {
    NotFound: "check the name or the path, and that the Spark server sees it",
    AccessDenied: "check the grants on the table and the volume",
    InvalidRequest: "check the columns and the predicate against the table",
    Unsupported: "give the server a newer Delta, or export a table or version without that feature",
    VerificationFailed: "the table is damaged: restore its files, or export another version",
    Unavailable: "try again; if it stays, look into the log of the Spark server",
}


class Connection:
    """A Spark session with the settings that exports need; `close` gives a user's session its own settings back.

    Attributes:
        session: a `SparkSession` of Spark Connect, Databricks Connect or classic Spark.
        where: how messages name it.
    """

    def __init__(self, remote: str | None) -> None:
        """Opens a session of its own at `remote` (`sc://host:port`), or takes the one that is there.

        Raises:
            Unavailable: pyspark is missing or too old, no session is there, or no server answers in time.
            InvalidRequest: `remote` is no Spark Connect URL.
        """
        self._before: dict[str, str | None] = {}
        self.unmet: dict[str, str] = {}
        self._owned = remote is not None
        self.where = f"`{_without_token(remote)}`" if remote else "the Spark session"
        try:
            _check_pyspark()
            self.session: Any = _connect(remote) if remote else _existing()
        except ImportError as error:
            raise Unavailable(
                f"the Spark engine needs a package that is not installed ({error})",
                hint="pip install 'uc-stage[spark]'; on a Databricks runtime use its own Python",
            ) from error
        try:
            with self.translated(self.where):
                self.version = str(self.session.version)
                self._apply_settings()
        except StageError:
            self.close()
            raise

    def close(self) -> None:
        """Ends a session that was opened here; gives one that was found its settings back."""
        # pyspark's errors have no common base; what is being left cannot be mended, and close must not hide an error.
        if self._owned:
            client = self.session.client
            client.set_retry_policies([])
            for leave in (client.release_session, client.close):
                try:
                    leave()
                except Exception:  # noqa: BLE001, PERF203, S112 - see above
                    continue
            # The session's finalizer would close it again, and with it the threads that all sessions of the process
            # share; where the garbage collector calls it while one is being started, that never returns.
            client.close = _nothing
            return
        for key, value in self._before.items():
            try:
                if value is None:
                    self.session.conf.unset(key)
                else:
                    self.session.conf.set(key, value)
            except Exception:  # noqa: BLE001, PERF203, S112 - see above
                continue
        self._before.clear()

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Turns what Spark raises into a `StageError` about `what`."""
        with _quiet():
            try:
                yield
            except (StageError, ImportError, NotImplementedError, AssertionError):
                raise
            except Exception as error:
                # Spark Connect, Databricks Connect, classic Spark and gRPC each have errors of their own.
                raise self._translate(error, what) from error

    def _translate(self, error: Exception, what: str) -> StageError:
        condition, state = _told(error, "getCondition", "getErrorClass"), _told(error, "getSqlState")
        listed = [kind for prefix, kind in _CONDITIONS if condition.startswith(prefix)]
        by_state = [kind for prefix, kind in _STATES if state.startswith(prefix)]
        # What Java raised without a condition, a table's log did in all cases that were seen.
        unnamed = [VerificationFailed] if type(error).__name__ == "UnknownException" and not condition else []
        kind = (listed or by_state or unnamed or [Unavailable])[0]
        message, hint = f"{what}: {_line(error)}", _HINTS[kind]
        if condition == "USER_RAISED_EXCEPTION" and _line(error).startswith("`--cast "):
            message, hint = _line(error), "cast it to a wider type"
        if condition.startswith(("INVALID_HANDLE", "NO_ACTIVE_SESSION", "SESSION_CHANGED")):
            hint = "the session ended: run the export again"
        if kind is Unavailable and (note := self._versions_apart()):
            message, hint = f"{message} ({note})", f"pip install 'pyspark[connect]=={self.version}'"
        return kind(message, hint=hint)

    def _versions_apart(self) -> str | None:
        from pyspark import __version__ as client

        server = getattr(self, "version", client)
        if server.split(".")[:2] == client.split(".")[:2]:
            return None
        return f"the server is Spark {server}, pyspark here is {client}"

    def set(self, wanted: Mapping[str, str]) -> dict[str, str | None]:
        """Gives the session these settings until `close`; gives back those that it refuses, as they are."""
        conf, refused = self.session.conf, {}
        for key, value in wanted.items():
            before = _get(conf, key)
            if before is not None and before.casefold() == value.casefold():
                continue
            try:
                conf.set(key, value)
                self._before.setdefault(key, before)
            except Exception:  # noqa: BLE001 - a server may refuse any setting, each with an error of its own
                refused[key] = before
        return refused

    def refuses_plain_variants(self) -> bool:
        """Whether the server does not let a variant be written as its two binaries."""
        return bool(self.set(_PLAIN_VARIANTS))

    def _apply_settings(self) -> None:
        refused = self.set({**_NEEDED, **_WISHED})
        self.unmet.update({key: value for key, value in refused.items() if value is not None and key in _NEEDED})


def _nothing() -> None:
    """Does nothing."""


def _check_pyspark() -> None:
    from pyspark import __version__

    if int(__version__.partition(".")[0]) < _OLDEST:
        raise Unavailable(
            f"the Spark engine needs pyspark {_OLDEST}, and here is {__version__}",
            hint="use a newer runtime or environment, or `--engine local`",
        )


def _connect(remote: str) -> Any:
    """Opens a session that is nobody's default, so that a user's own stays what it was."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    try:
        builder = DefaultChannelBuilder(remote)
    except (PySparkException, ValueError) as error:
        raise InvalidRequest(
            f"`--remote {_without_token(remote)}` is no Spark Connect URL: {_line(error)}",
            hint="write it as `sc://host:15002`",
        ) from None
    channel = builder.toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
    except grpc.FutureTimeoutError:
        raise Unavailable(
            f"no Spark Connect server answers at `{_without_token(remote)}`",
            hint="check `--remote` (or SPARK_REMOTE), and that the server runs and is reachable from here",
        ) from None
    finally:
        channel.close()
    session = SparkSession(connection=builder)
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
    return session


def _existing() -> Any:
    """The session that this process or its platform has."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        return session
    try:
        from databricks.connect import DatabricksSession
    except ImportError:
        raise Unavailable(
            "there is no Spark session here, and no server is named",
            hint="name a Spark Connect server with `--remote sc://host:15002` or SPARK_REMOTE",
        ) from None
    try:
        return DatabricksSession.builder.getOrCreate()
    except Exception as error:
        # Its errors come from the SDK, from gRPC and from Spark, and say alike that there is no session to be had.
        raise Unavailable(
            f"Databricks Connect gives no session: {_line(error)}",
            hint="check its profile: databricks auth login; or name a server with `--remote`",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps pyspark from printing each error as JSON on stderr: its message is in the `StageError`."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _get(conf: Any, key: str) -> str | None:
    try:
        value = conf.get(key)
    except Exception:  # noqa: BLE001 - serverless refuses even to tell some, with an error of its own
        return None
    return None if value is None else str(value)


def _told(error: Exception, *methods: str) -> str:
    """What an error of Spark tells through the first of the methods that it has; empty for any other error."""
    for method in methods:
        if callable(tell := getattr(error, method, None)):
            return str(tell() or "")
    return ""


def _line(error: Exception) -> str:
    """Spark's message in one line: without the condition, the SQLSTATE, the query and the server's stack."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = re.sub(r"^(?:\([\w.$]+\) )?(?:\[[A-Z0-9_.]+\] ?)?", "", lines[0])
    return re.sub(r"\s*SQLSTATE: \w{5}.*$", "", line).rstrip(" .:") or lines[0]


def _without_token(remote: str) -> str:
    """A Spark Connect URL without its parameters, one of which may be a token."""
    return remote.partition(";")[0].rstrip("/")
