"""Which part of a source a copy holds: the files that patterns choose, and of those the share of one node."""

from __future__ import annotations

import fnmatch
import re
import shlex
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest, NotFound
from uc_stage.forms.arrow import named_splits
from uc_stage.forms.shards import key_of
from uc_stage.ranks import parse_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from uc_stage.model import CacheRequest, CopyFile
    from uc_stage.sources import CopySource

_SHOWN = 3


def words_of(request: CacheRequest) -> list[str]:
    """The part that a request asks for, the same for the same part; none where it is all files."""
    asked = [f"include={shlex.quote(pattern)}" for pattern in _normal(request.include)]
    asked += [f"exclude={shlex.quote(pattern)}" for pattern in _normal(request.exclude)]
    if request.shard is not None and request.shard[1] != 1:
        asked.append("shard={}/{}".format(*request.shard))
    return asked


def part_of(request: CacheRequest, source: CopySource) -> tuple[CopyFile, ...]:
    """The files of a source that a request asks for, in their order: first by patterns, then by the node.

    Raises:
        InvalidRequest: an empty pattern, a node that cannot be, or fewer files than nodes.
        NotFound: a pattern to include matches no file, or none is left.
    """
    files = _chosen(request, source)
    if (shard := parse_shard(request.shard, "--shard")) is None:
        return files
    rank, count = shard
    rows = {file.path: file.rows for file in source.manifest.files} if source.manifest else None
    splits = {file.path: name for name, of in source.manifest.splits.items() for file in of} if source.manifest else {}
    if request.form == "arrow" and not splits:
        # Each node's copy has all splits, or a rank would wait for one that another does not have.
        splits = named_splits([file.path for file in files])
    # What goes to one node: a file, or with `--pack` the files of one sample.
    wholes = {file.path: key_of(file.path) if request.pack else file.path for file in files}
    groups: dict[str, dict[str, int]] = {}
    for file in files:
        group = groups.setdefault(splits.get(file.path, ""), {})
        weight = file.bytes if rows is None else rows[file.path]
        group[wholes[file.path]] = group.get(wholes[file.path], 0) + weight
    for name, group in groups.items():
        if len(group) < count:
            raise _too_few(source, name, len(group), count)
    mine = shares(groups, count)[rank]
    return tuple(file for file in files if wholes[file.path] in mine)


def shares(splits: Mapping[str, Mapping[str, int]], count: int) -> list[set[str]]:
    """The files of each of `count` nodes, from the weight of each file by its path, by split.

    In each split, the largest file goes first, and each one to the node that has the least: two nodes differ by the
    largest file at most. What order the files come in does not matter.
    """
    found: list[set[str]] = [set() for _ in range(count)]
    total = [0] * count
    for name in sorted(splits):
        load = [(0, 0)] * count
        for path, weight in sorted(splits[name].items(), key=lambda item: (-item[1], item[0])):
            node = min(range(count), key=lambda node: (load[node], total[node], node))
            load[node] = load[node][0] + weight, load[node][1] + 1
            total[node] += weight
            found[node].add(path)
    return found


def _chosen(request: CacheRequest, source: CopySource) -> tuple[CopyFile, ...]:
    paths = [file.path for file in source.files]
    kept = set(paths)
    if request.include:
        kept = set()
        for pattern in _normal(request.include):
            matches = _matcher(pattern, "--include")
            matched = {path for path in paths if matches(path)}
            if not matched:
                raise NotFound(
                    f"`--include {pattern}` matches no file of `{source.url}`", hint=f"it holds {_some(paths)}"
                )
            kept |= matched
    for pattern in _normal(request.exclude):
        matches = _matcher(pattern, "--exclude")
        kept = {path for path in kept if not matches(path)}
    if not kept:
        raise NotFound(f"`--include` and `--exclude` leave no file of `{source.url}`", hint=f"it holds {_some(paths)}")
    return tuple(file for file in source.files if file.path in kept)


def _normal(patterns: Iterable[str]) -> list[str]:
    """Patterns as `huggingface_hub` takes them: one that ends in `/` means all below that folder."""
    return sorted({f"{pattern}*" if pattern.endswith("/") else pattern for pattern in patterns})


def _matcher(pattern: str, flag: str) -> Callable[[str], bool]:
    if not pattern.strip():
        raise InvalidRequest(f"`{flag}` is empty", hint=f"such as {flag} '*.parquet', or leave it out")
    form = re.compile(fnmatch.translate(pattern))
    return lambda path: form.match(path) is not None


def _some(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(f"`{path}`" for path in paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _too_few(source: CopySource, split: str, files: int, count: int) -> InvalidRequest:
    counted = f"{files} {'file' if files == 1 else 'files'}"
    if source.manifest is None:
        what, hint = f"`{source.url}` has {counted}", "write it as more files, or copy it whole to every node"
    else:
        what = f"the split `{split}` of `{source.url}` has {counted}"
        hint = (
            f"export it with more files, `--world-size` with the number of ranks; or leave the split out, "
            f"`--exclude '{split}-*'`, and copy it whole to every node"
        )
    return InvalidRequest(f"{what} to share out over {count} nodes", hint=hint)
