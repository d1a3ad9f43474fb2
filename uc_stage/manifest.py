"""The records that say what an export and a copy are. Reads, checks and renders them; never writes a file.

An export's *manifest* has the format `uc-stage/1`: UTF-8 JSON with sorted keys at `.uc_stage/manifest.json`. A copy's
record has the format `uc-stage-copy/1`, at `.uc_stage/copy.json`, beside the manifest of the export that it holds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from uc_stage.errors import Unsupported, VerificationFailed
from uc_stage.model import Column, CopyFile, ExportFile, Field, Footers, Layout, Source, Spread

if TYPE_CHECKING:
    from collections.abc import Collection

FORMAT = "uc-stage/1"
FOLDER = ".uc_stage"
MANIFEST_PATH = f"{FOLDER}/manifest.json"
COPY_FORMAT = "uc-stage-copy/1"
COPY_PATH = f"{FOLDER}/copy.json"

# Beyond it there is no size, count or time in nanoseconds.
_MOST = 2**63 - 1
_EXPORT_AGAIN = "export the table again; the manifest was changed or damaged"
_CACHE_AGAIN = "remove the copy and cache the source again; its record was changed or damaged"


@dataclass(frozen=True, slots=True)
class Manifest:
    """An export, whole: where its rows come from, the schema, the files of each split, and how they were laid out.

    Attributes:
        generation: the token in the file names of this published version, `v42-1f3a9c`.
        created_at: ISO 8601 with an offset.
        dropped: the rows that were left out to make all files equal.
        retained: the files of earlier generations that `--keep` holds, by generation, the newest first.
        footers: what the footers of all files tell together, so that nobody has to read them again; their number does
            not make it longer. None where they were not kept.
        raw: the JSON as it was read, so that fields that this version does not know survive a rewrite.
    """

    id: str
    generation: str
    source: Source
    schema: tuple[Field, ...]
    splits: dict[str, tuple[ExportFile, ...]]
    layout: Layout
    engine: str
    engine_version: str
    uc_stage_version: str
    created_at: str
    dropped: int = 0
    retained: dict[str, tuple[str, ...]] = field(default_factory=dict)
    footers: Footers | None = None
    raw: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def files(self) -> tuple[ExportFile, ...]:
        """The files of all splits."""
        return tuple(file for files in self.splits.values() for file in files)

    @property
    def rows(self) -> int:
        """The rows of all splits."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes for file in self.files)

    def part(self, paths: Collection[str], variant: str) -> Manifest:
        """The manifest of a copy that holds these files alone, with `variant` under `part` in its JSON.

        What else it tells, `dropped` among it, stays what it is: of the whole export; but the footers are not kept.
        """
        kept = {name: tuple(file for file in files if file.path in paths) for name, files in self.splits.items()}
        splits = {name: files for name, files in kept.items() if files}
        known = self.raw.get("splits", {})
        # A pattern from a command line may be no UTF-8.
        told = variant.encode(errors="backslashreplace").decode()
        raw = {**self.raw, "splits": {name: known[name] for name in splits if name in known}, "part": told}
        raw.pop("footers", None)
        return dataclasses.replace(self, splits=splits, retained={}, footers=None, raw=raw)

    def to_json(self) -> bytes:
        """The manifest as it is stored."""
        own: dict[str, Any] = {
            "format": FORMAT,
            "id": self.id,
            "generation": self.generation,
            "source": dataclasses.asdict(self.source),
            "schema": [dataclasses.asdict(column) for column in self.schema],
            "splits": {name: {"files": [_without_none(f) for f in files]} for name, files in self.splits.items()},
            "layout": dataclasses.asdict(self.layout),
            "engine": {"name": self.engine, "version": self.engine_version},
            "uc_stage_version": self.uc_stage_version,
            "created_at": self.created_at,
            "dropped": self.dropped,
            "retained": [{"name": name, "files": paths} for name, paths in self.retained.items()],
        }
        if self.footers is not None:
            own["footers"] = dataclasses.asdict(self.footers)
        return _canonical(_merge(self.raw, own)) + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Manifest:
        """Reads a stored manifest; `where` names it in errors.

        Raises:
            VerificationFailed: not JSON, a field missing or of the wrong kind, or a path that could leave the folder.
            Unsupported: written in a newer format.
        """
        raw = _parsed(data, where, FORMAT, _EXPORT_AGAIN)
        try:
            manifest = cls(
                id=_typed(raw["id"], str),
                generation=_typed(raw["generation"], str),
                source=_record(Source, raw["source"]),
                schema=tuple(_record(Field, column) for column in raw["schema"]),
                splits={
                    name: tuple(_record(ExportFile, file) for file in split["files"])
                    for name, split in raw["splits"].items()
                },
                layout=_record(Layout, raw["layout"]),
                engine=_typed(raw["engine"]["name"], str),
                engine_version=_typed(raw["engine"]["version"], str),
                uc_stage_version=_typed(raw["uc_stage_version"], str),
                created_at=_typed(raw["created_at"], str),
                dropped=_typed(raw.get("dropped", 0), int),
                retained={_typed(old["name"], str): tuple(old["files"]) for old in raw.get("retained", [])},
                footers=_footers(raw["footers"]) if raw.get("footers") is not None else None,
                raw=raw,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise _broken(where, f"lacks a field or holds one of the wrong kind ({error})") from None
        # uc-stage gives these names itself, of plain letters: others could be text for a terminal, or no text at all.
        names = [manifest.generation, manifest.id, *(file.path for file in manifest.files)]
        if odd := next((name for name in names if not name.isprintable()), None):
            raise _broken(where, f"holds the name {odd!a}, which cannot be printed")
        check_paths([file.path for file in manifest.files], where)
        for paths in manifest.retained.values():
            check_paths(paths, where)
        return manifest


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy, whole: which generation of which source it holds, and each file as it was checked.

    It is also the marker of what `cache` made: no folder without one is ever removed.

    Attributes:
        source: the source's absolute path or URL.
        generation: the export's generation, or a digest of a plain folder's listing.
        manifest_id: the id of the export's manifest; None for a plain folder.
        files: `mtime_ns` is that of the file in the copy, which is the source's where the source tells one.
        variant: which part of the source the copy holds, and in which form; empty for all of it, file by file.
    """

    source: str
    generation: str
    manifest_id: str | None
    created_at: str
    files: tuple[CopyFile, ...]
    variant: str = ""

    def to_json(self) -> bytes:
        """The record as it is stored; ASCII, since a file's name may be no UTF-8 (a lone surrogate in `path`)."""
        own = {
            "format": COPY_FORMAT,
            "source": self.source,
            "generation": self.generation,
            "manifest_id": self.manifest_id,
            "created_at": self.created_at,
            "files": [_without_none(file) for file in self.files],
            "variant": self.variant,
        }
        return json.dumps(own, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> CopyRecord:
        """Reads a stored record; `where` names it in errors.

        Raises:
            VerificationFailed: not JSON, a field missing or of the wrong kind, or a path that could leave the folder.
            Unsupported: written in a newer format.
        """
        raw = _parsed(data, where, COPY_FORMAT, _CACHE_AGAIN)
        try:
            record = cls(
                source=_typed(raw["source"], str),
                generation=_typed(raw["generation"], str),
                manifest_id=None if raw["manifest_id"] is None else _typed(raw["manifest_id"], str),
                created_at=_typed(raw["created_at"], str),
                files=tuple(_record(CopyFile, file) for file in raw["files"]),
                variant=_typed(raw.get("variant", ""), str),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise _broken(where, f"lacks a field or holds one of the wrong kind ({error})", _CACHE_AGAIN) from None
        check_paths([file.path for file in record.files], where, _CACHE_AGAIN)
        return record


def content_id(source: Source, schema: tuple[Field, ...], layout: Layout) -> str:
    """The digest of what decides an export's content: 32 hex digits of SHA-256 over canonical JSON.

    It leaves out how the table was named, the times, the engine and the bytes it wrote, so that one table version
    exported with the same options has one id on any engine.
    """
    asked = dataclasses.asdict(source)
    del asked["table"], asked["timestamp"]
    content = {
        "format": FORMAT,
        "source": asked,
        "schema": [dataclasses.asdict(column) for column in schema],
        "layout": dataclasses.asdict(layout),
    }
    return hashlib.sha256(_canonical(content)).hexdigest()[:32]


def check_paths(paths: list[str] | tuple[str, ...], where: str, hint: str = _EXPORT_AGAIN) -> None:
    """Refuses paths that could leave their folder, hide in uc-stage's own, stand twice, or be a file and a folder.

    Raises:
        VerificationFailed: naming `where` and the path.
    """
    seen: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        parts = path.split("/") if isinstance(path, str) else []
        hostile = not parts or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts)
        if hostile or parts[0] == FOLDER:
            raise _broken(where, f"names the unsafe path `{path!s}`", hint)
        if path in seen:
            raise _broken(where, f"names `{path}` twice", hint)
        seen.add(path)
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    if both := seen & folders:
        raise _broken(where, f"names `{min(both)}` both as a file and as a folder", hint)


def _parsed(data: bytes, where: str, form: str, hint: str) -> dict[str, Any]:
    """The JSON object of a stored record, once its format is the one that this version reads."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _broken(where, f"is not JSON ({error})", hint) from None
    stored = raw.get("format") if isinstance(raw, dict) else None
    family = form.rpartition("/")[0]
    if not isinstance(raw, dict) or not isinstance(stored, str) or not stored.startswith(f"{family}/"):
        raise _broken(where, f"is not a `{family}` record", hint)
    if stored != form:
        raise Unsupported(
            f"`{where}` has the format `{stored}`; this version reads `{form}`",
            hint="upgrade uc-stage: pip install --upgrade uc-stage",
        )
    return raw


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _without_none(file: ExportFile | CopyFile) -> dict[str, Any]:
    # As `dataclasses.asdict`, in a tenth of its time: none of the fields holds a record.
    return {name: value for name in file.__slots__ if (value := getattr(file, name)) is not None}


def _merge(raw: Any, own: Any) -> Any:
    """Gives `own` with the keys that only `raw` has, at every depth; records in lists match by `path` or `name`."""
    if isinstance(raw, dict) and isinstance(own, dict):
        return {**raw, **{key: _merge(raw.get(key), value) for key, value in own.items()}}
    if isinstance(raw, list) and isinstance(own, list) and own and isinstance(own[0], dict):
        key = "path" if "path" in own[0] else "name"
        known = {item[key]: item for item in raw if isinstance(item, dict) and key in item}
        return [_merge(known.get(item[key]), item) for item in own]
    return own


def _record(kind: type[Any], data: Any) -> Any:
    """Builds a dataclass from the keys of `data` that it knows, each of the kind that its field has."""
    hints = typing.get_type_hints(kind)
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key in hints}
    for key, value in known.items():
        # Only a time can lie before its epoch.
        whole = type(value) is not int or (-_MOST if key == "mtime_ns" else 0) <= value <= _MOST
        if not _fits(value, hints[key]) or not whole:
            message = f"`{key}` is {value!r}"
            raise TypeError(message)
    return kind(**known)


def _footers(data: Any) -> Footers:
    def read_spread(name: str) -> Spread | None:
        found: Spread | None = None if data[name] is None else _record(Spread, data[name])
        return found

    return Footers(
        uncompressed={_typed(name, str): _typed(count, int) for name, count in data["uncompressed"].items()},
        row_group_rows=read_spread("row_group_rows"),
        row_group_bytes=read_spread("row_group_bytes"),
        columns=tuple(_record(Column, column) for column in data["columns"]),
    )


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from JSON is of a field's kind; numbers are whole there."""
    kinds = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return value in kinds
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, kinds[0]) for item in value)
    if kinds:
        return any(_fits(value, kind) for kind in kinds)
    return type(value) is hint


def _typed(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        message = f"{value!r} is not {kind.__name__}"
        raise TypeError(message)
    return value


def _broken(where: str, why: str, hint: str = _EXPORT_AGAIN) -> VerificationFailed:
    return VerificationFailed(f"`{where}` {why}", hint=hint)
