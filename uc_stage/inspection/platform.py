"""What a job will meet here: engines, packages, credentials (never their values), the runtime, caches of others."""

from __future__ import annotations

import configparser
import os
import socket
import stat
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from uc_stage.errors import StageError
from uc_stage.inspection import machine
from uc_stage.model import NodeFact
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNTIME = "DATABRICKS_RUNTIME_VERSION"
# Where a Databricks runtime has its own pyspark, without a package manager's record.
_RUNTIME_FOLDER = "/databricks/spark"
_PORT = 15002
_TOUCH_SECONDS = 3.0
# Each with the extra of uc-stage that brings it.
_OPTIONAL = {"pyspark": "spark", "datasets": "hf", "torch": "torch", "databricks-sdk": "databricks"}
# What a Databricks client logs in with, beside a host: https://docs.databricks.com/aws/en/dev-tools/auth/env-vars
_LOGINS = (
    ("DATABRICKS_TOKEN",),
    ("DATABRICKS_CLIENT_ID", "DATABRICKS_CLIENT_SECRET"),
    ("DATABRICKS_USERNAME", "DATABRICKS_PASSWORD"),
)
_CLOUDS = {
    "AWS": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    "Azure": ("AZURE_CLIENT_ID", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_KEY"),
    "Google": ("GOOGLE_APPLICATION_CREDENTIALS",),
}
_CLOUD_FILES = {"AWS": "~/.aws/credentials", "Azure": "~/.azure/msal_token_cache.json"}


def installed(name: str) -> str | None:
    """The version of a package; None where no package manager put it here."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def local_engine() -> NodeFact:
    """The engine that needs nothing but this process."""
    versions = {name: installed(name) for name in ("pyarrow", "deltalake")}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        text = f"`{missing[0]}` is not installed"
        return NodeFact("engine_local", "bad", text, f"pip install {' '.join(missing)}", versions)
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return NodeFact("engine_local", "ok", f"in this process, {text}", facts=versions)


def spark_engine(remote: str | None) -> NodeFact:
    """Whether the Spark Connect server answers that was named, and whether pyspark here is of its version."""
    if not remote:
        text = "neither `--remote` nor `SPARK_REMOTE` names a server"
        return NodeFact("engine_spark", "absent", text, facts={"remote": None})
    # A token is among the parameters.
    shown = remote.partition(";")[0]
    facts = {"remote": shown, "client": installed("pyspark"), "server": None}
    if facts["client"] is None and installed("databricks-connect") is None:
        return NodeFact("engine_spark", "bad", "pyspark is not installed", "pip install 'uc-stage[spark]'", facts)
    try:
        url = urlsplit(remote)
        # Quicker than Spark's own client to tell that nobody is there.
        socket.create_connection((url.hostname or "", url.port or _PORT), _TOUCH_SECONDS).close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "check `--remote` (or SPARK_REMOTE), and that the server runs and is reachable from here"
        return NodeFact("engine_spark", "bad", f"`{shown}`: {why}", hint, facts)
    from uc_stage.engines.spark import SparkEngine

    engine = SparkEngine(remote)
    try:
        server = engine.version.removeprefix("Spark ")
    except StageError as error:
        return NodeFact("engine_spark", "bad", error.message, error.hint, facts)
    finally:
        engine.close()
    facts["server"] = server
    text, client = f"Spark {server} at `{shown}`", facts["client"]
    if client and client.split(".")[:2] != server.split(".")[:2]:
        hint = f"pip install 'pyspark[connect]=={server}'"
        return NodeFact("engine_spark", "bad", f"{text}, and pyspark here is {client}", hint, facts)
    return NodeFact("engine_spark", "ok", text, facts=facts)


def runtime(environment: Mapping[str, str]) -> NodeFact:
    """The Databricks runtime, and whether a package has taken the place of its own pyspark."""
    version = environment.get(RUNTIME) or None
    found = {name: installed(name) for name in ("pyspark", "databricks-connect")}
    facts = {"version": version, **found}
    if found["pyspark"] and found["databricks-connect"]:
        # https://docs.databricks.com/aws/en/dev-tools/databricks-connect/python/troubleshooting
        text = "pyspark and databricks-connect are both installed, and overwrite each other's files"
        hint = "pip uninstall -y pyspark databricks-connect; pip install databricks-connect"
        return NodeFact("runtime", "bad", text, hint, facts)
    if version is None:
        return NodeFact("runtime", "absent", f"no Databricks runtime: `{RUNTIME}` is not set", facts=facts)
    if found["pyspark"] and not _is_runtimes_own():
        text = f"Databricks runtime {version}, and pyspark {found['pyspark']} from a package index hides its own"
        hint = "pip uninstall -y pyspark, then restart Python; install uc-stage without its `spark` extra"
        return NodeFact("runtime", "bad", text, hint, facts)
    return NodeFact("runtime", "ok", f"Databricks runtime {version}", facts=facts)


def _is_runtimes_own() -> bool:
    return str(metadata.distribution("pyspark").locate_file("")).startswith(_RUNTIME_FOLDER)


def packages() -> NodeFact:
    """The optional packages, with their versions."""
    versions = {name: installed(name) for name in _OPTIONAL}
    there = [f"{name} {version}" for name, version in versions.items() if version]
    missing = [f"{name} (extra `{_OPTIONAL[name]}`)" for name, version in versions.items() if not version]
    text = ", ".join(there) or "none"
    if missing:
        text += f"; not installed: {', '.join(missing)}"
    return NodeFact("packages", "ok", text, facts=versions)


def credentials(environment: Mapping[str, str]) -> NodeFact:
    """Which credentials are there, by the names of variables, profiles and files alone."""
    wanted = ("DATABRICKS_HOST", "DATABRICKS_CONFIG_PROFILE", *(name for login in _LOGINS for name in login))
    databricks = [name for name in wanted if environment.get(name)]
    path = environment.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg"
    profiles, why, hint = _profiles(os.path.expanduser(path))
    clouds = {cloud: [name for name in names if environment.get(name)] for cloud, names in _CLOUDS.items()}
    for cloud, file in _CLOUD_FILES.items():
        if os.path.isfile(os.path.expanduser(file)):
            clouds[cloud].append(file)
    facts = {"databricks": databricks, "profiles": profiles, **{c.lower(): names for c, names in clouds.items()}}
    told = [*databricks, *(f"profile `{name}` in `{path}`" for name in profiles)]
    told += [name for names in clouds.values() for name in names]
    text = ", ".join(told) or "none: what needs no login can be read"
    host, login = environment.get("DATABRICKS_HOST"), any(all(environment.get(n) for n in names) for names in _LOGINS)
    profile = environment.get("DATABRICKS_CONFIG_PROFILE")
    if profile and profile not in profiles and why is None:
        why = f"`DATABRICKS_CONFIG_PROFILE` names `{profile}`, which `{path}` does not hold"
        hint = f"databricks auth login --profile {profile}"
    elif login and not host and not profiles:
        why, hint = "a Databricks login is there, and `DATABRICKS_HOST` is not", "set DATABRICKS_HOST=https://..."
    if why:
        return NodeFact("credentials", "bad", f"{text}; {why}", hint, facts)
    return NodeFact("credentials", "ok" if told else "absent", text, facts=facts)


def _profiles(path: str) -> tuple[list[str], str | None, str | None]:
    """The profiles of Databricks' configuration file; what is wrong with it; and what mends that."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            parser.read_file(file)
    except FileNotFoundError:
        return [], None, None
    except (OSError, ValueError, configparser.Error) as error:
        # The parser's own words would quote a line of it.
        return [], f"`{path}` cannot be read ({type(error).__name__})", f"check `{path}`"
    names = [*(["DEFAULT"] if parser.defaults() else []), *parser.sections()]
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return names, f"`{path}` can be read by other users", f"chmod 600 {path}"
    return names, None, None


def datasets_cache(environment: Mapping[str, str]) -> tuple[str, str]:
    """Where `datasets` writes its Arrow copies, and the variable that says so; empty where none does.

    https://huggingface.co/docs/datasets/cache
    """
    for name, below in (("HF_DATASETS_CACHE", ""), ("HF_HOME", "datasets")):
        if told := environment.get(name):
            return os.path.abspath(os.path.join(os.path.expanduser(told), below)), name
    above = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return os.path.abspath(os.path.join(os.path.expanduser(above), "huggingface", "datasets")), ""


def huggingface(environment: Mapping[str, str]) -> NodeFact:
    """Where `datasets` writes its Arrow copies, and whether that is a disk of this machine."""
    path, variable = datasets_cache(environment)
    above = path
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    found = machine.room(above)
    facts = {"path": path, "variable": variable or None, "kind": found.kind, "free": found.free}
    text = f"{path} (by {variable or 'default'}): {found.kind or 'unknown kind'}, {format_size(found.free)} free"
    if machine.is_remote(found.kind):
        hint = "export HF_HOME=/tmp/huggingface, or another folder on a local disk"
        return NodeFact("huggingface", "bad", f"{text}: Arrow files cannot be mapped well from there", hint, facts)
    if not os.access(above, os.W_OK | os.X_OK):
        hint = "export HF_HOME=/tmp/huggingface, or another folder of your own"
        return NodeFact("huggingface", "bad", f"{text}: cannot be written", hint, facts)
    if found.free < machine.LEAST_FREE:
        hint = "export HF_HOME=/tmp/huggingface, or another folder on a disk with room"
        return NodeFact("huggingface", "bad", f"{text}: no room for Arrow files", hint, facts)
    return NodeFact("huggingface", "ok", text, facts=facts)
