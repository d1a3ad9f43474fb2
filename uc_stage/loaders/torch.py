"""Parquet files as PyTorch tensors, batch by batch, straight from Arrow."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import weakref
from contextlib import closing, suppress
from multiprocessing import util
from typing import TYPE_CHECKING, Any

# A dataset must be a class of a module, so that a worker which is spawned can unpickle it.
import torch.distributed  # noqa: TID253 - nothing imports this module but who wants torch
import torch.utils.data  # noqa: TID253 - as above

from uc_stage.engines.local.ahead import ahead
from uc_stage.errors import InvalidRequest, StageError
from uc_stage.ipc import is_stream_name
from uc_stage.loaders import order
from uc_stage.loaders.arrow import in_batches, read_window
from uc_stage.loaders.columns import Batch, Nulls, split, tensors
from uc_stage.loaders.files import open_files
from uc_stage.loaders.passing import as_is
from uc_stage.loaders.position import FORMAT, Position, read_state
from uc_stage.loaders.sizes import AHEAD_BYTES, DEFAULT_BUFFER, THREADS, WINDOW_BYTES, mixed_bytes
from uc_stage.loaders.window import RollingWindow, refuse_small
from uc_stage.model import DEFAULT_CACHE_DIR
from uc_stage.publish.windows import sweep
from uc_stage.ranks import ranks_here, reader_of
from uc_stage.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from uc_stage.loaders.order import Spans, Window

__all__ = ["Batch", "Nulls", "ParquetBatches", "as_is", "tensors"]

# What is converted at once.
_CHUNK_BYTES, _CHUNK_ROWS = 4 * 1024**2, 64 * 1024


# An iterator that a script still holds at its end has threads to stop, while there are modules to do it with.
_open: weakref.WeakSet[Generator[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for batches in list(_open):
        with suppress(ValueError):  # another thread is within it
            batches.close()


@functools.cache
def _sweep_at_end(root: str, _: int) -> None:
    """Lets this process remove at its end what its workers left, which torch kills where a script still holds some.

    They have ended by then: finalizers of a negative priority run once `multiprocessing` has joined its daemons.
    """
    util.Finalize(None, _sweep, (root,), exitpriority=-1)


def _sweep(root: str) -> None:
    with suppress(StageError):
        sweep(root)


class ParquetBatches(torch.utils.data.IterableDataset[Batch]):
    """The rows of an export, a copy, a folder or a file in batches of tensors, decoded ahead in threads.

    Give it to a `DataLoader` with `batch_size=None, collate_fn=as_is`, and call `set_epoch` before each epoch. It holds
    paths and row counts, no data and no open file, so it can be pickled, and is safe in workers that are forked or
    spawned.

    An epoch's order depends on the files, `shuffle`, `seed`, `buffer` and the epoch alone. Ranks take runs of it, and
    which rows a rank sees does not depend on the number of its workers; 0 workers and 1 give the same batches, more
    give these rows in another order. Without `drop_last` each row is in one batch of one rank, and the last batches
    of a rank are shorter; with it all batches are full, and fewer than `world_size * batch_size` rows, others in each
    epoch where it shuffles, are left out. Either way all ranks have the same number of batches, `len()` of it, so that
    none waits for another in DDP.

    The copy of a node's shard (`cache --shard`) is shared out over the ranks of that node alone: over `LOCAL_RANK` and
    `LOCAL_WORLD_SIZE`. The nodes have the same number of batches where their shards have the same number of rows, as
    those of an export with `--drop-remainder` have.

    Args:
        source: an export, a copy, a folder of Parquet or a file: a path or URL.
        batch_size: rows of a batch.
        columns: these columns only.
        shuffle: take the row groups in a random order, and shuffle the rows of as many as `buffer` holds.
        seed: one seed and epoch give one order.
        rank: which of `world_size` ranks reads with it; without both, what the process group says, else the launcher
            (`RANK` and `WORLD_SIZE`), else it is alone.
        world_size: see `rank`.
        drop_last: leave out what makes no full batch on every rank.
        transform: called with each batch, in the worker; what it returns is the batch.
        nulls: what NULL among numbers is, as `tensors` has it.
        buffer: uncompressed bytes that are shuffled together, or a sixteenth of all where that is less, but 16 MiB;
            one row group at least is.
        split: of an export with several splits, the one to read; `all` for all.
        window: read through the local disk: files are fetched ahead, checked, and removed once they are read, never
            more of them than so many bytes on this node, such as `200GB`. Each process that reads has a part of its
            own, of equal size, for two files at least or it waits for each. Where it shuffles, files come in a random
            order, and row groups of as many whole files as `buffer` holds are shuffled.
        cache_dir: the cache folder that the window is in; without it, `UC_STAGE_CACHE_DIR`, else `/tmp/uc-stage`.

    Raises:
        StageError: nothing there, nothing Parquet there, a footer that cannot be read, files with different columns,
            an unknown column or split, no such rank, or too few rows for all ranks.
    """

    def __init__(
        self,
        source: str,
        batch_size: int,
        columns: Sequence[str] | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        transform: Callable[[Batch], Any] | None = None,
        nulls: Nulls = "nan",
        buffer: int = DEFAULT_BUFFER,
        split: str | None = None,
        window: int | str | None = None,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise InvalidRequest(f"`batch_size={batch_size}` is no number of rows", hint="give 1 or more")
        if seed < 0:
            raise InvalidRequest(f"`seed={seed}` is negative", hint="give 0 or more")
        if isinstance(nulls, str) and nulls not in ("nan", "error", "list"):
            raise InvalidRequest(
                f"`nulls={nulls!r}` is no way with NULL", hint="give `nan`, `error`, `list` or a mapping of fill values"
            )
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.columns = None if columns is None else list(columns)
        self.transform, self.nulls, self.buffer = transform, nulls, buffer
        self._files = open_files(source, split, [*(columns or ()), *(() if isinstance(nulls, str) else nulls)])
        self.rank, self.world_size = reader_of(rank, world_size, _process_group(), self._files.shard)
        self._window = None if window is None else parse_size(str(window), "window")
        if self._window is not None:
            if any(is_stream_name(file.path) for file in self._files.listed):
                raise InvalidRequest(f"`{source}` is a copy as Arrow, which is mapped", hint="leave `window` out")
            refuse_small(self._window, ranks_here(self.world_size), self._files.listed)
        root = cache_dir or os.environ.get("UC_STAGE_CACHE_DIR") or DEFAULT_CACHE_DIR
        self._root = os.path.abspath(os.path.expanduser(root))
        if self._window is not None:
            _sweep_at_end(self._root, os.getpid())
        # In shared memory: workers that live on see what `set_epoch` does here, and this process how many they are.
        self._shared = _shared(torch.zeros(2, dtype=torch.int64))
        self._loaded: Position | None = None
        self._position = self._fresh()
        self._position.share(self.rows, self.rank)

    @property
    def rows(self) -> int:
        """The rows of an epoch, of all ranks together."""
        return self._files.rows

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return int(self._shared[0])

    def __len__(self) -> int:
        """The batches of a whole epoch on this rank, and on any other."""
        return self._fresh().share(self.rows, self.rank).batches

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration read this epoch, in workers too; from its start, unless a state of it was loaded.

        Raises:
            InvalidRequest: it is negative.
        """
        if not 0 <= epoch < 2**32:
            raise InvalidRequest(f"there is no epoch {epoch}", hint="epochs are counted from 0")
        self._shared[0] = epoch

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where the epoch is, in plain values, for `load_state_dict` of any rank: all of them are at the same batch.

        Args:
            batches: how many the training loop took since it began to iterate. It must be given where the workers of a
                plain `DataLoader` read, which have made more than were taken; `StatefulDataLoader` needs none.

        Raises:
            InvalidRequest: workers read, and `batches` was not given.
        """
        position = self._position
        if torch.utils.data.get_worker_info() is None:
            workers = int(self._shared[1])
            if workers and batches is None:
                raise InvalidRequest(
                    "workers read, and how far the loop is that takes their batches is not known here",
                    hint="give the number that it took, `state_dict(batches=...)`, or use StatefulDataLoader",
                )
            if batches is not None:
                begun = self._begin(max(1, workers))
                position = dataclasses.replace(begun, taken=begun.taken + batches)
            elif self._loaded is not None or position.epoch != self.epoch:
                position = self._begin(1) if self._loaded is None else self._loaded
        return {"format": FORMAT, **self._identity(), **position.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on where `state_dict` was called.

        With the world size, workers and batch size of then, each rank gets the batches that it would have got. With
        others, the rows that no rank had are shared out anew. In a loop over epochs, `set_epoch` as ever: another
        epoch than that of the state begins at its start.

        Raises:
            InvalidRequest: it is of other data, another seed or another order, or no state; or too few rows are left
                for all ranks.
        """
        loaded = read_state(state, self._identity())
        if torch.utils.data.get_worker_info() is None:
            fresh = dataclasses.replace(self._fresh(), epoch=loaded.epoch, workers=loaded.workers, worker=loaded.worker)
            loaded.go_on(fresh, self.rows).share(self.rows, self.rank)
            self._shared[1] = 0
        self._loaded = loaded
        self._shared[0] = loaded.epoch

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of this rank's worker: dicts, as `tensors` gives them, or what `transform` returns."""
        info = torch.utils.data.get_worker_info()
        self._shared[1] = info.num_workers if info else 0
        self._position = self._begin(info.num_workers, info.id) if info else self._begin(1)
        self._loaded = None
        batches = self._batches(self._position, 1 if info else THREADS)
        _open.add(batches)
        return batches

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what was pickled; only a process that torch starts sees what `set_epoch` does in this one."""
        self.__dict__.update(state)
        self._shared = _shared(self._shared)

    def _fresh(self, workers: int = 1, worker: int | None = None) -> Position:
        return Position(self.epoch, None, self.world_size, self.batch_size, self.drop_last, workers, worker)

    def _begin(self, workers: int, worker: int | None = None) -> Position:
        """Where an iteration by so many workers begins: at what was loaded for this epoch, or at the epoch's start."""
        fresh = self._fresh(workers, worker)
        if self._loaded is None or self._loaded.epoch != fresh.epoch:
            return fresh
        return self._loaded.go_on(fresh, self.rows)

    def _identity(self) -> dict[str, Any]:
        shuffle = "by files, for a window" if self.shuffle and self._window is not None else self.shuffle
        return {"data": self._files.digest, "shuffle": shuffle, "seed": self.seed, "buffer": self.buffer}

    def _batches(self, position: Position, threads: int) -> Generator[Any]:
        share = position.share(self.rows, self.rank)
        lane, lanes = position.lane
        start, stop = share.run(lane, lanes)
        start += share.taken(lane, lanes, lane + position.taken * lanes)
        spans = order.cut(position.whole(self.rows), start, stop)
        sizes = (share.size(index) for index in range(lane + position.taken * lanes, share.batches, lanes))
        with closing(self._read(spans, position.epoch, threads)) as chunks:
            for chunk, fitting in in_batches(chunks, sizes):
                for batch in split(chunk, fitting, self.nulls):
                    # Whoever asks for the state has this batch already.
                    self._position = dataclasses.replace(self._position, taken=self._position.taken + 1)
                    yield batch if self.transform is None else self.transform(batch)

    def _read(self, spans: Spans, epoch: int, threads: int) -> Generator[Any]:
        """The rows of spans as record batches, read and decoded ahead in threads."""
        shuffled = (self.seed, epoch) if self.shuffle else None
        size = mixed_bytes(self._files.row_bytes * self.rows, self.buffer) if self.shuffle else WINDOW_BYTES
        found = order.windows(self._files.groups(), size, shuffled, whole_files=self._window is not None)
        rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // self._files.row_bytes))
        tasks = list(order.overlaps(found, spans))
        rolling = None if self._window is None else self._rolling(self._window, [window for window, _, _ in tasks])

        def read(number: int, window: Window, start: int, stop: int) -> Iterator[Any]:
            mixed = functools.partial(order.permutation, window.rows, *shuffled, window.number) if shuffled else None
            if rolling is None:
                yield from read_window(window.parts, start, stop, mixed, rows, self.columns, threads=threads > 1)
                return
            with rolling.at(number) as here:
                parts = [dataclasses.replace(part, path=here[part.path], source=part.path) for part in window.parts]
                yield from read_window(parts, start, stop, mixed, rows, self.columns, threads=threads > 1)

        def opener(number: int, task: tuple[Window, int, int]) -> Callable[[], list[Callable[[], Iterator[Any]]]]:
            return lambda: [functools.partial(read, number, *task)]

        openers = (opener(number, task) for number, task in enumerate(tasks))
        try:
            with closing(ahead(openers, lambda chunk: int(chunk.nbytes), threads, max(size, AHEAD_BYTES))) as chunks:
                try:
                    # `yield from` would close `chunks` first, which waits for threads that may wait for files.
                    for chunk in chunks:  # noqa: UP028 - see above
                        yield chunk
                finally:
                    if rolling is not None:
                        rolling.stop()
        finally:
            if rolling is not None:
                rolling.close()

    def _rolling(self, size: int, found: Sequence[Window]) -> RollingWindow:
        info = torch.utils.data.get_worker_info()
        readers = ranks_here(self.world_size) * (info.num_workers if info else 1)
        return RollingWindow(self._files, found, size, readers, self._root)


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().share_memory_()
    return tensor


def _process_group() -> tuple[int, int] | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None
