"""`--pack`: the files of a folder as tar shards that WebDataset reads, with an index for random access.

Each member's place is known before it comes, so that a file goes straight to where it belongs: what lies on the disk
besides the shards are the files that are on their way.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
from typing import TYPE_CHECKING

from uc_stage.errors import VerificationFailed
from uc_stage.forms.shards import deal, header, lay_out, sample_of
from uc_stage.model import CopyFile, Packed
from uc_stage.storage import sync, translated
from uc_stage.transfer import DEFAULT_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from uc_stage.forms import Outputs
    from uc_stage.forms.shards import Shard
    from uc_stage.progress import Progress
    from uc_stage.publish import CopyPublication
    from uc_stage.storage import Folder

INDEX_PATH = "index.feather"

_CHUNK_BYTES = 1024**2
# Rows of one batch of the index: an Arrow string column holds 2 GB.
_BATCH_ROWS = 1 << 20
# What a row of the index takes besides its path, and what the index takes besides its rows, at most.
_ROW_BYTES = 33
_INDEX_BYTES = 16 * 1024


class Pack:
    """Tar shards of about `size` bytes, or of a size that suits most trainings, of files that `jobs` threads fetch."""

    def __init__(self, size: int | None = None, jobs: int = DEFAULT_JOBS) -> None:
        self._size, self._jobs = size, jobs
        self._dealt: tuple[Sequence[CopyFile], Outputs] | None = None

    def outputs(self, files: Sequence[CopyFile]) -> Outputs:
        """The shards and their members; see `deal`."""
        # Asked for more than once of one listing, and not quick for a very long one.
        if self._dealt is None or self._dealt[0] is not files:
            self._dealt = files, deal(files, self._size)
        return self._dealt[1]

    def estimate(self, folder: Folder, outputs: Outputs, progress: Progress) -> dict[str, int]:  # noqa: ARG002 - the protocol's
        """The bytes of each shard, exactly."""
        return {path: lay_out(path, files).bytes for path, files in outputs.items()}

    def scratch(self, outputs: Outputs) -> int:
        """The bytes of those files that can be on their way at once, and those of the index."""
        files = [file for files in outputs.values() for file in files]
        index = _INDEX_BYTES + sum(_ROW_BYTES + len(file.path.encode("utf-8", "backslashreplace")) for file in files)
        return sum(heapq.nlargest(self._jobs, (file.bytes for file in files))) + index

    def sink(
        self,
        publication: CopyPublication,
        outputs: Outputs,
        sizes: Mapping[str, int],  # noqa: ARG002 - the protocol's
        progress: Progress,
    ) -> ShardSink:
        """What takes the members of these shards; says what WebDataset will pass over."""
        passed = [file.path for files in outputs.values() for file in files if sample_of(file.path) is None]
        if passed:
            count = f"{len(passed):,} files" if len(passed) > 1 else "a file"
            progress.note(
                f"WebDataset passes over {count} without an extension, such as `{min(passed)}`: "
                f"give it `rename_files`, or read by `{INDEX_PATH}`"
            )
        return ShardSink(publication, outputs, progress)

    def beside(self, outputs: Outputs) -> Iterator[tuple[str, bytes]]:
        """The index."""
        yield INDEX_PATH, index(outputs)


class _Filling:
    """A shard that is being filled. The lock guards all of it, the file too."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.lock = threading.Lock()
        self.temporary = ""
        self.descriptor = -1
        self.hashes: list[str | None] = [None] * len(shard.files)
        self.missing = len(shard.files)

    def create(self, temporary: str) -> None:
        """Makes the file with room for all of it; what nobody writes to are zeros."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.temporary, self.descriptor = temporary, os.open(temporary, flags, 0o644)
        os.posix_fallocate(self.descriptor, 0, self.shard.bytes)

    def write(self, index: int, source: int) -> None:
        """Writes one member, with its header before it."""
        head = header(self.shard.files[index])
        at = self.shard.offsets[index] - len(head)
        data = memoryview(head + os.read(source, _CHUNK_BYTES))
        while data:
            at += (done := os.pwrite(self.descriptor, data, at))
            data = data[done:] or memoryview(os.read(source, _CHUNK_BYTES))

    def check(self) -> str:
        """The hash of the whole, once each member is found as it came.

        Raises:
            VerificationFailed: one is not.
        """
        import xxhash

        whole, end = xxhash.xxh3_128(), 0
        for file, offset, digest in zip(self.shard.files, self.shard.offsets, self.hashes, strict=True):
            member = xxhash.xxh3_128()
            for data in self._read(end, offset):
                whole.update(data)
            end = offset + file.bytes
            for data in self._read(offset, end):
                whole.update(data)
                member.update(data)
            if member.hexdigest() != digest:
                raise VerificationFailed(
                    f"`{self.temporary}` does not hold the bytes of `{file.path}` that were written to it",
                    hint="check this node's disk and memory, or choose another disk with `--cache-dir`",
                )
        for data in self._read(end, self.shard.bytes):
            whole.update(data)
        return str(whole.hexdigest())

    def _read(self, begin: int, end: int) -> Iterator[bytes]:
        while begin < end and (data := os.pread(self.descriptor, min(end - begin, _CHUNK_BYTES), begin)):
            yield data
            begin += len(data)

    def finish(self) -> CopyFile:
        """Makes the file durable, and gives it as it is now."""
        os.utime(self.descriptor, ns=(self.shard.mtime_ns, self.shard.mtime_ns))
        sync(self.descriptor)
        digest = self.check()
        mtime_ns = os.fstat(self.descriptor).st_mtime_ns
        self.close()
        return CopyFile(self.shard.path, self.shard.bytes, mtime_ns, digest)

    def close(self) -> None:
        """Closes the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class ShardSink:
    """Takes the members of some shards, and names each shard once it is whole, checked and durable."""

    def __init__(self, publication: CopyPublication, outputs: Outputs, progress: Progress) -> None:
        self._publication, self._progress = publication, progress
        self._places = {
            file.path: (filling, index)
            for filling in (_Filling(lay_out(path, files)) for path, files in outputs.items())
            for index, file in enumerate(filling.shard.files)
        }
        self._lock = threading.Lock()
        self._begun: set[_Filling] = set()
        self._closed = False
        self.written: list[CopyFile] = []

    def temporary(self) -> str:
        """A path of this process's own for a file that comes."""
        return self._publication.temporary()

    def takes(self, file: CopyFile) -> bool:  # noqa: ARG002 - the protocol's
        """Whether there is room for the file on its way: no file waits for another one."""
        return True

    def accept(self, temporary: str, file: CopyFile) -> None:
        """Moves a file that came whole to its place, and finishes the shard that lacked this one alone.

        Raises:
            VerificationFailed: a shard that does not hold the bytes that came.
        """
        filling, index = self._places[file.path]
        with translated(temporary), open(temporary, "rb", 0) as source:
            os.unlink(temporary)
            with filling.lock:
                if self._closed:
                    return
                if filling.descriptor < 0:
                    with self._lock:
                        self._begun.add(filling)
                    filling.create(self._publication.temporary())
                filling.write(index, source.fileno())
                filling.hashes[index] = file.xxh3_128
                filling.missing -= 1
                self._progress.advance(file.bytes)
                if filling.missing:
                    return
                shard = filling.finish()
        self._publication.accept(filling.temporary, shard)
        self._progress.advance(shard.bytes - sum(file.bytes for file in filling.shard.files))
        with self._lock:
            self._begun.discard(filling)
            self.written.append(shard)

    def close(self) -> None:
        """Removes what there is of shards that are not whole."""
        self._closed = True
        for filling in list(self._begun):
            with filling.lock, contextlib.suppress(FileNotFoundError):
                filling.close()
                os.unlink(filling.temporary)


def look_into(path: str) -> Packed | None:
    """Tells what the shards of a packed copy hold, by its index; None where that is gone or broken."""
    import pyarrow as pa

    try:
        with pa.memory_map(os.path.join(path, INDEX_PATH)) as file, pa.ipc.open_file(file) as found:
            batches = [found.get_batch(number) for number in range(found.num_record_batches)]
            last = batches[-1]
            shards = len(last["shard"].dictionary)
            return Packed(shards, last["sample"][-1].as_py() + 1, sum(len(batch) for batch in batches))
    except (OSError, pa.ArrowException):
        return None


def members(path: str) -> dict[str, int] | None:
    """The source's files in a packed copy, with their bytes, by its index; None where that is gone or broken."""
    import pyarrow as pa

    held: dict[str, int] = {}
    try:
        with pa.memory_map(os.path.join(path, INDEX_PATH)) as file, pa.ipc.open_file(file) as found:
            for number in range(found.num_record_batches):
                batch = found.get_batch(number)
                held.update(zip(batch["path"].to_pylist(), batch["bytes"].to_pylist(), strict=True))
    except (OSError, pa.ArrowException):
        return None
    return held


def index(outputs: Outputs) -> bytes:
    r"""Where each member of all shards lies, as Feather (an Arrow file), which can be mapped into memory.

    Its columns: `path`, of the source file (a byte of it that is no UTF-8 is written `\udcff`); `sample`, a number that
    the files of one sample share; `shard`; `offset` and `bytes`, of the content in it.
    """
    import pyarrow as pa

    kinds = {"path": pa.string(), "sample": pa.int64(), "shard": pa.dictionary(pa.int32(), pa.string())}
    schema = pa.schema({**kinds, "offset": pa.int64(), "bytes": pa.int64()})
    names = pa.array(list(outputs), pa.string())
    written = pa.BufferOutputStream()
    with pa.ipc.new_file(written, schema) as writer:
        for rows in _batches(outputs):
            paths, samples, numbers, offsets, sizes = zip(*rows, strict=True)
            shard = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), names)
            columns = [pa.array(paths, pa.string()), pa.array(samples), shard, pa.array(offsets), pa.array(sizes)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return bytes(written.getvalue())


def _batches(outputs: Outputs) -> Iterator[list[tuple[str, int, int, int, int]]]:
    rows: list[tuple[str, int, int, int, int]] = []
    sample, last = -1, None
    for number, (name, files) in enumerate(outputs.items()):
        for file, offset in zip(files, lay_out(name, files).offsets, strict=True):
            found = sample_of(file.path)
            if (key := found[0] if found else file.path) != last:
                sample, last = sample + 1, key
            path = file.path.encode("utf-8", "backslashreplace").decode()
            rows.append((path, sample, number, offset, file.bytes))
            if len(rows) == _BATCH_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows
