"""Turns what deltalake, DataFusion and the object stores below them raise into `StageError`s.

Their exceptions are few and general; what happened stands in the text, which these patterns were collected from.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from uc_stage.errors import (
    AccessDenied,
    InvalidRequest,
    NotFound,
    StageError,
    Unavailable,
    Unsupported,
    VerificationFailed,
    from_os_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHER_ENGINE = "run it where a Spark session reads the table: `--engine spark`"

_MISSING_FILE = re.compile(r"Object at location (.+?) not found|File not found: (\S+)")
_FEATURE = re.compile(
    r"Unsupported table features required: \[([^\]]*)\]|Feature '([^']+)' is not supported"
    r"|Unsupported Delta table type: '([^']+)'|(catalog-managed)|([Rr]eader version)"
)
_DENIED = re.compile(
    r"\b40[13]\b|Access ?Denied|Forbidden|Permission ?denied|PermissionDenied|Unauthori[sz]ed|loading credentials"
    r"|InvalidAccessKeyId|SignatureDoesNotMatch",
    re.IGNORECASE,
)
_AWAY = re.compile(
    r"timed? ?out|sending request|connect|dns|unreachable|retries|\b50[0234]\b|Service ?Unavailable|Generic \w+ error",
    re.IGNORECASE,
)


@contextmanager
def translated(table: str) -> Iterator[None]:
    """Lets nothing but `StageError`s out of a call into deltalake; `table` names the table in them."""
    try:
        yield
    except (StageError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # pyo3 derives its PanicException from BaseException, and deltalake raises bare Exceptions too.
        raise _typed(error, table) from error


def _typed(error: BaseException, table: str) -> StageError:
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return from_os_error(error, table)
    if type(error).__name__ == "PanicException":
        return Unsupported(f"the Delta reader gave up on `{table}`: {_line(text)}", hint=_OTHER_ENGINE)
    if "empty schema" in text:
        return Unsupported(f"`{table}` has no columns", hint="export a version that has some")
    if missing := _MISSING_FILE.search(text):
        return NotFound(
            f"`{missing[1] or missing[2]}`, a file of this version of `{table}`, is gone",
            hint="VACUUM or a person removed it: export a newer version with `@vN`, or restore the file",
        )
    if feature := _FEATURE.search(text):
        name = next((group for group in feature.groups() if group), "")
        return Unsupported(f"`{table}` needs `{name}`, which the local engine does not read", hint=_OTHER_ENGINE)
    if "Unknown scheme" in text:
        return InvalidRequest(
            f"`{table}` is a URL of no storage that the local engine knows",
            hint="use a path, `s3://`, `abfss://`, `gs://` or a name of the catalog",
        )
    if type(error).__name__ == "TableNotFoundError":
        return no_table(table)
    if _DENIED.search(text):
        return AccessDenied(
            f"`{table}`: {_line(text)}", hint="check the credentials in the environment, and the grants"
        )
    if _AWAY.search(text):
        return Unavailable(
            f"`{table}`: {_line(text)}", hint="try again; if it stays, check the address and the network"
        )
    return VerificationFailed(
        f"`{table}` cannot be read rightly: {_line(text)}",
        hint="the log or a data file is damaged, or newer than this reader: try another version, or `--engine spark`",
    )


def no_table(table: str) -> NotFound:
    """The error for a place that holds no Delta table."""
    return NotFound(f"`{table}` is no Delta table", hint="check the path; a table's folder holds `_delta_log`")


def _line(text: str) -> str:
    """The first line without colours, the reader's layers of prefixes and its stack of frames."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    first = re.split(r"\n|\s{2,}\d+: ", plain.strip())[0]
    first = re.sub(
        r"^(?:(?:External|Parquet|Kernel|Generic delta kernel|Transaction failed)(?: error)?(?::| ->) ?)+", "", first
    )
    return first.rstrip(". ")[:300] or "no reason given"
