"""What a packed copy holds: which files of a folder go into which tar shard, and where in it each lies.

All of it follows from the listing alone, so that a shard's size and each member's place are known before a byte is
read, and a second run plans the same. WebDataset's rules decide what a sample is:
https://github.com/webdataset/webdataset/blob/main/webdataset/tariterators.py
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from uc_stage.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from uc_stage.model import CopyFile

# What a shard holds, where and in which order, follows from the listing and from this.
LAYOUT = 1

# A shard has about so many bytes and samples at most, where nobody asks for another size.
_SHARD_BYTES = 256 * 1000**2
_SHARD_SAMPLES = 10_000
# So many shards, or a multiple, give 8 ranks of 8 workers equally many each; a power of two does for fewer.
_SHARDS = 64
# Fewer samples are not worth a file of their own.
_LEAST_SAMPLES = 8

_BLOCK = 512
_NAME_BYTES = 100
# Two blocks of zeros end an archive, and Python's and GNU's tar fill up to a record.
_END_BYTES = 2 * _BLOCK
_RECORD_BYTES = tarfile.RECORDSIZE

_SAMPLE = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")
SKIPPED = re.compile(r"__[^/]*__($|/)")
# Fields that WebDataset gives each sample itself.
_OWN_FIELDS = ("__key__", "__url__")


@dataclass(frozen=True, slots=True)
class Shard:
    """Where the members of one tar file lie.

    Attributes:
        path: its name in the copy, `shard-000000.tar`.
        files: its members, the files of a sample one after the other.
        offsets: where each member's bytes begin; its header ends there.
        bytes: the whole size.
    """

    path: str
    files: tuple[CopyFile, ...]
    offsets: tuple[int, ...]
    bytes: int

    @property
    def mtime_ns(self) -> int:
        """The time of its newest member."""
        return max(file.mtime_ns or 0 for file in self.files)


def deal(files: Iterable[CopyFile], size: int | None = None) -> dict[str, tuple[CopyFile, ...]]:
    """Deals the files of a folder out to shards of equally many samples, give or take one; gives each shard's members.

    The samples come in an order that a digest of their keys decides: in that of their paths, a shard would hold one
    class folder alone. `size` is about how many bytes each shard is to have; without it there are as many shards as
    256 MB or 10,000 samples each ask for, and 64 where these have 8 samples each; a power of two or a multiple of 64.

    Raises:
        Unsupported: two files that are one field of one sample to WebDataset, which fails on them.
    """
    samples = _samples(files)
    whole = sum(_room(file) for sample in samples for file in sample)
    count = min(_count(whole, len(samples), size), len(samples))
    bounds = [number * len(samples) // count for number in range(count + 1)]
    return {
        f"shard-{number:06d}.tar": tuple(file for sample in samples[begin:end] for file in sample)
        for number, (begin, end) in enumerate(pairwise(bounds))
    }


def lay_out(path: str, files: tuple[CopyFile, ...]) -> Shard:
    """Tells where in a shard each of its members lies."""
    offsets, end = [], 0
    for file in files:
        offsets.append(end + _header_bytes(file))
        end += _room(file)
    size = -(-(end + _END_BYTES) // _RECORD_BYTES) * _RECORD_BYTES
    return Shard(path, files, tuple(offsets), size)


def variant(size: int | None) -> list[str]:
    """The words by which the record of a copy tells of its shards."""
    return [f"pack={LAYOUT}", *([] if size is None else [f"pack-size={size}"])]


def is_packed(variant: str) -> bool:
    """Whether a copy's record tells of shards."""
    return re.search(r"(?:^| )pack=\d+(?: |$)", variant) is not None


def key_of(path: str) -> str:
    """What the files of one sample have in common; the path of a file that WebDataset passes over."""
    found = _SAMPLE.match(path)
    return found[1] if found else path


def sample_of(path: str) -> tuple[str, str] | None:
    """The key and the field of a file as WebDataset tells them; None for one that it passes over."""
    found = _SAMPLE.match(path)
    if found is None or SKIPPED.match(path):
        return None
    return found[1], found[2].lower()


def header(file: CopyFile) -> bytes:
    """A member's header: GNU tar's, which has no bound on names, and no text encoding that could refuse one."""
    info = tarfile.TarInfo(file.path)
    info.size = file.bytes
    info.mtime = (file.mtime_ns or 0) // 10**9
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _samples(files: Iterable[CopyFile]) -> list[list[CopyFile]]:
    """The files of each sample, in the samples' order; a file that WebDataset passes over is one by itself."""
    keyed = []
    for file in files:
        key = key_of(file.path)
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        keyed.append((digest, key, file.path, file))
    # No two have one path, so that files are never compared.
    keyed.sort()
    samples = [[item[3] for item in group] for _, group in groupby(keyed, key=lambda item: item[1])]
    for sample in samples:
        if len(sample) > 1 or sample[0].path.endswith(_OWN_FIELDS):
            _refuse_twins(sample)
    return samples


def _refuse_twins(sample: Sequence[CopyFile]) -> None:
    fields = dict.fromkeys(_OWN_FIELDS, "what WebDataset adds")
    for file in sample:
        if (found := sample_of(file.path)) is None:
            continue
        if found[1] in fields:
            raise Unsupported(
                f"`{file.path}` and {fields[found[1]]} are one field of one sample to WebDataset",
                hint="rename that file, or leave it out with `--exclude`",
            )
        fields[found[1]] = f"`{file.path}`"


def _count(whole: int, samples: int, size: int | None) -> int:
    if size is not None:
        return -(-whole // size)
    count = max(-(-whole // _SHARD_BYTES), -(-samples // _SHARD_SAMPLES))
    if count >= _SHARDS:
        return -(-count // _SHARDS) * _SHARDS
    count = max(count, min(_SHARDS, samples // _LEAST_SAMPLES), 1)
    return 1 << (count - 1).bit_length()


def _room(file: CopyFile) -> int:
    """The bytes of a member with its header, in whole blocks."""
    return _header_bytes(file) + -(-file.bytes // _BLOCK) * _BLOCK


def _header_bytes(file: CopyFile) -> int:
    """The length of `header`: a name beyond its field goes before, as a member with a header of its own."""
    name = file.path if file.path.isascii() else file.path.encode("utf-8", "surrogateescape")
    if len(name) <= _NAME_BYTES:
        return _BLOCK
    return 2 * _BLOCK + -(-(len(name) + 1) // _BLOCK) * _BLOCK
