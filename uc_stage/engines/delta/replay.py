"""Replays a Delta log: from a checkpoint and the commits after it to the protocol, the metadata and the live files.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#action-reconciliation
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from uc_stage.engines.delta.log import FOLDER
from uc_stage.engines.delta.partition_values import text_of
from uc_stage.engines.delta.table_files import OTHER_ENGINE, damaged
from uc_stage.errors import NotFound, Unsupported, VerificationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from uc_stage.engines.delta.log import Checkpoint, DeltaLog

# What a reader must know of; each is read rightly here, or asks nothing of a reader.
READ = frozenset(
    {
        "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
        "vacuumProtocolCheck", "variantShredding", "variantShredding-preview", "variantType", "variantType-preview",
    }
)  # fmt: skip
_NOT_SPACE = re.compile(r"\S")
_FEATURES_VERSION = 3
_MAPPING_VERSION = 2
_WANTED = {"add": ("path", "partitionValues", "partitionValues_parsed", "size", "stats", "deletionVector")}
_WHOLE = ("protocol", "metaData", "sidecar")


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where the deleted rows of one data file are listed, as the log has it."""

    storage: str
    path_or_inline: str
    offset: int | None
    size: int
    cardinality: int

    @property
    def id(self) -> str:
        """What tells the deletion vectors of one file apart."""
        return f"{self.storage}{self.path_or_inline}" + ("" if self.offset is None else f"@{self.offset}")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file of a version.

    Attributes:
        path: decoded, below the table or an absolute URL.
        size: in bytes.
        partition_values: by physical names, as text.
        num_records: the file's rows, those that are deleted too, where the log tells.
        null_counts: the NULLs of the columns, by physical names and nested as those are; None where unknown.
    """

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    num_records: int | None
    null_counts: Mapping[str, Any] | None
    deletion_vector: DeletionVector | None


@dataclass(frozen=True, slots=True)
class State:
    """One version of a table: `files` are sorted by their paths."""

    version: int
    table_id: str
    schema: Mapping[str, Any]
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str | None]
    features: frozenset[str]
    files: tuple[DataFile, ...]


def replay(log: DeltaLog, version: int) -> State:
    """Gives the state of a version.

    Raises:
        Unsupported: a feature that a reader must know of, and this one does not.
        VerificationFailed: the log has a gap, contradicts itself or is damaged.
    """
    replayed = _restored(log, version)
    protocol, metadata, table = replayed.protocol, replayed.metadata, log.files.table
    if protocol is None:
        raise damaged(table, f"version {version} has no protocol")
    features = _features(protocol, table)
    if metadata is None or not metadata.get("schemaString"):
        raise damaged(table, f"version {version} has no schema")
    stored = (metadata.get("format") or {}).get("provider") or "parquet"
    if stored.lower() != "parquet":
        raise Unsupported(f"`{table}` keeps its rows as `{stored}`, not as Parquet", hint=OTHER_ENGINE)
    files = tuple(sorted(replayed.files.values(), key=lambda file: file.path))
    for one, two in itertools.pairwise(files):
        if one.path == two.path:
            raise damaged(table, f"its log has `{one.path}` twice in version {version}, with other deleted rows")
    return State(
        version=version,
        table_id=str(metadata.get("id")),
        schema=_json(metadata["schemaString"], table, "the schema"),
        partition_columns=tuple(metadata.get("partitionColumns") or ()),
        configuration=dict(metadata.get("configuration") or {}),
        features=features,
        files=files,
    )


def _features(protocol: Mapping[str, Any], table: str) -> frozenset[str]:
    reader = protocol.get("minReaderVersion")
    if type(reader) is not int or reader < 1:
        raise damaged(table, "its protocol has no reader version")
    if reader > _FEATURES_VERSION:
        raise Unsupported(
            f"`{table}` needs `reader version {reader}`, which the local engine does not read", hint=OTHER_ENGINE
        )
    features = frozenset({"columnMapping"} if reader == _MAPPING_VERSION else ())
    if reader == _FEATURES_VERSION:
        features = frozenset(protocol.get("readerFeatures") or ())
    if unknown := sorted(features - READ):
        raise Unsupported(
            f"`{table}` needs `{'`, `'.join(unknown)}`, which the local engine does not read", hint=OTHER_ENGINE
        )
    return features


def _restored(log: DeltaLog, version: int) -> _Replayed:
    """The newest checkpoint that can be read, with the commits after it; else all commits."""
    failure: VerificationFailed | NotFound | None = None
    for checkpoint in log.checkpoints(version):
        replayed = _Replayed(log)
        try:
            for action in _checkpoint_actions(log, checkpoint):
                replayed.apply(action)
            if replayed.protocol is None or replayed.metadata is None:
                raise damaged(
                    log.files.table, f"the checkpoint of version {checkpoint.version} has no protocol or metadata"
                )
            commits = log.commits(checkpoint.version + 1, version)
        except (VerificationFailed, NotFound) as error:
            # An earlier one with more commits gives the same state.
            failure = failure or error
            continue
        replayed.apply_commits(commits)
        return replayed
    try:
        commits = log.commits(0, version)
    except VerificationFailed as error:
        raise failure or error from None
    replayed = _Replayed(log)
    replayed.apply_commits(commits)
    return replayed


@dataclass(slots=True)
class _Replayed:
    """The state as the actions so far have made it."""

    log: DeltaLog
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    files: dict[tuple[str, str], DataFile] = field(default_factory=dict)

    def apply_commits(self, paths: Iterable[str]) -> None:
        for path in paths:
            for action in _json_actions(self.log, path):
                self.apply(action)

    def apply(self, action: Mapping[str, Any]) -> None:
        try:
            self._apply(action)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(self.log.files.table, f"its log has an action that is none: {error}") from error

    def _apply(self, action: Mapping[str, Any]) -> None:
        if (add := action.get("add")) is not None:
            file = self._file(add)
            self.files[file.path, file.deletion_vector.id if file.deletion_vector else ""] = file
        elif (remove := action.get("remove")) is not None:
            vector = _vector(remove.get("deletionVector"))
            self.files.pop((self.log.files.decoded(remove["path"]), vector.id if vector else ""), None)
        elif (metadata := action.get("metaData")) is not None:
            self.metadata = metadata
        elif (protocol := action.get("protocol")) is not None:
            self.protocol = protocol

    def _file(self, add: Mapping[str, Any]) -> DataFile:
        path = self.log.files.decoded(add["path"])
        told = _statistics(add)
        values = add.get("partitionValues")
        if values is None:
            values = {name: text_of(value) for name, value in (add.get("partitionValues_parsed") or {}).items()}
        return DataFile(
            path=path,
            size=int(add.get("size") or 0),
            partition_values=dict(values),
            num_records=rows if type(rows := told.get("numRecords")) is int else None,
            null_counts=nulls if isinstance(nulls := told.get("nullCount"), dict) else None,
            deletion_vector=_vector(add.get("deletionVector")),
        )


def _statistics(add: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the log tells of a file's rows; statistics that are damaged tell nothing."""
    try:
        told = json.loads(add.get("stats") or "null")
    except ValueError:
        told = None
    return told if isinstance(told, dict) else add.get("stats_parsed") or {}


def _vector(told: Mapping[str, Any] | None) -> DeletionVector | None:
    if not told or told.get("storageType") is None:
        return None
    return DeletionVector(
        told["storageType"], told["pathOrInlineDv"], told.get("offset"), told["sizeInBytes"], told["cardinality"]
    )


def _json(text: str, table: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise damaged(table, f"{what} is no JSON") from None


def _json_actions(log: DeltaLog, path: str) -> Iterator[Mapping[str, Any]]:
    content = log.files.read(path)
    if not content:
        raise damaged(log.files.table, f"`{path}` is empty")
    try:
        actions = [json.loads(line) for line in content.split(b"\n") if line.strip()]
    except (ValueError, RecursionError):
        actions = _spread_actions(content, log.files.table, path)
    for action in actions:
        if not isinstance(action, dict):
            raise damaged(log.files.table, f"`{path}` holds `{str(action)[:40]}`, which is no action")
        yield action


def _spread_actions(content: bytes, table: str, path: str) -> list[Any]:
    """The actions of a file that somebody has laid out for reading, each over several lines."""
    try:
        text = content.decode("utf-8-sig").rstrip()
        decoder, actions, at = json.JSONDecoder(), [], 0
        while at < len(text):
            start = _NOT_SPACE.search(text, at)
            assert start is not None
            action, at = decoder.raw_decode(text, start.start())
            actions.append(action)
    except (ValueError, RecursionError):
        raise damaged(table, f"`{path}` is no sequence of JSON objects") from None
    return actions


def _checkpoint_actions(log: DeltaLog, checkpoint: Checkpoint) -> Iterator[Mapping[str, Any]]:
    """The actions of a checkpoint that make the state: it holds no file that was removed."""
    for path in checkpoint.paths:
        actions = _json_actions(log, path) if path.endswith(".json") else _parquet_actions(log, path)
        for action in actions:
            if (sidecar := action.get("sidecar")) is not None:
                name = log.files.decoded(sidecar["path"])
                below = name if ":" in name else f"{FOLDER}/_sidecars/{name}"
                yield from _parquet_actions(log, below)
            elif action.get("remove") is None:
                yield action


def _parquet_actions(log: DeltaLog, path: str) -> Iterator[Mapping[str, Any]]:
    """The actions that count in a Parquet file, read row group by row group and without what nobody asks."""
    import pyarrow.parquet as pq

    with log.files.named(path), log.files.open(path) as source:
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        columns = _columns(file.schema_arrow)
        for batch in file.iter_batches(batch_size=4096, columns=columns, use_threads=False):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                yield from ({name: action} for action in _plain(column.drop_null()))


def _plain(array: Any) -> list[Any]:
    """The values of an array as Python's own: what `to_pylist` gives, with maps as dictionaries, and much sooner."""
    import pyarrow.types as is_a

    kind, missing = array.type, array.is_null().to_pylist() if array.null_count else None
    values: list[Any]
    if is_a.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        rows = zip(*map(_plain, array.flatten()), strict=True)
        values = [dict(zip(names, row, strict=True)) for row in rows]
    elif is_a.is_map(kind):
        keys, items, ends = _plain(array.keys), _plain(array.items), array.offsets.to_pylist()
        values = [dict(zip(keys[start:end], items[start:end], strict=True)) for start, end in itertools.pairwise(ends)]
    else:
        return list(array.to_pylist())
    return values if missing is None else [None if gone else value for gone, value in zip(missing, values, strict=True)]


def _columns(schema: Any) -> list[str]:
    """The dotted paths of the columns to read: of an `add`, the statistics only where they are not there as text."""
    columns = [name for name in _WHOLE if name in schema.names]
    if "add" not in schema.names:
        return columns
    add = schema.field("add").type
    fields = {add.field(i).name: add.field(i).type for i in range(add.num_fields)}
    columns += [f"add.{name}" for name in _WANTED["add"] if name in fields]
    if "stats_parsed" in fields:
        parsed = fields["stats_parsed"]
        names = {parsed.field(i).name for i in range(parsed.num_fields)}
        columns += [f"add.stats_parsed.{name}" for name in ("numRecords", "nullCount") if name in names]
    return columns
