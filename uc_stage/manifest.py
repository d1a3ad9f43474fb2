"""The manifest: the one record that says what an export is. Reads, checks and renders it; never writes a file.

The format is `uc-stage/1`: UTF-8 JSON with sorted keys at `.uc_stage/manifest.json` below the export.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from uc_stage.errors import Unsupported, VerificationFailed
from uc_stage.model import ExportFile, Field, Layout, Source

FORMAT = "uc-stage/1"
FOLDER = ".uc_stage"
MANIFEST_PATH = f"{FOLDER}/manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """An export, whole: where its rows come from, the schema, the files of each split, and how they were laid out.

    Attributes:
        generation: the token in the file names of this published version, `v42-1f3a9c`.
        created_at: ISO 8601 with an offset.
        retained: the files of earlier generations that `--keep` holds, by generation.
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
    retained: dict[str, tuple[str, ...]] = field(default_factory=dict)
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
            "retained": self.retained,
        }
        return _canonical(_merge(self.raw, own)) + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Manifest:
        """Reads a stored manifest; `where` names it in errors.

        Raises:
            VerificationFailed: not JSON, a field missing or of the wrong kind, or a path that could leave the folder.
            Unsupported: written in a newer format.
        """
        try:
            raw = json.loads(data)
        except ValueError as error:
            raise _broken(where, f"is not JSON ({error})") from None
        stored = raw.get("format") if isinstance(raw, dict) else None
        if not isinstance(stored, str) or not stored.startswith("uc-stage/"):
            raise _broken(where, "is not a manifest of uc-stage")
        if stored != FORMAT:
            raise Unsupported(
                f"`{where}` has the format `{stored}`; this version reads `{FORMAT}`",
                hint="upgrade uc-stage: pip install --upgrade uc-stage",
            )
        try:
            manifest = cls(
                id=_typed(raw["id"], str),
                generation=_typed(raw["generation"], str),
                source=_record(Source, {**raw["source"], "columns": _optional_tuple(raw["source"].get("columns"))}),
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
                retained={name: tuple(paths) for name, paths in raw.get("retained", {}).items()},
                raw=raw,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise _broken(where, f"lacks a field or holds one of the wrong kind ({error})") from None
        check_paths([file.path for file in manifest.files], where)
        for paths in manifest.retained.values():
            check_paths(paths, where)
        for file in manifest.files:
            if not all(type(n) is int and n >= 0 for n in (file.bytes, file.rows, file.row_groups)):
                raise _broken(where, f"has sizes of `{file.path}` that are not whole numbers")
        return manifest


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


def check_paths(paths: list[str] | tuple[str, ...], where: str) -> None:
    """Refuses paths that could leave the folder they are relative to, hide in uc-stage's own, or stand twice.

    Raises:
        VerificationFailed: naming `where` and the path.
    """
    seen: set[str] = set()
    for path in paths:
        parts = path.split("/") if isinstance(path, str) else []
        hostile = not parts or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts)
        if hostile or parts[0] == FOLDER:
            raise _broken(where, f"names the unsafe path `{path!s}`")
        if path in seen:
            raise _broken(where, f"names `{path}` twice")
        seen.add(path)


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _without_none(file: ExportFile) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(file).items() if value is not None}


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
    """Builds a dataclass from the keys of `data` that it knows."""
    return kind(**{key: value for key, value in data.items() if key in kind.__dataclass_fields__})


def _typed(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        message = f"{value!r} is not {kind.__name__}"
        raise TypeError(message)
    return value


def _optional_tuple(value: list[str] | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


def _broken(where: str, why: str) -> VerificationFailed:
    return VerificationFailed(f"`{where}` {why}", hint="export the table again; the manifest was changed or damaged")
