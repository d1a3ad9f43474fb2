"""The room that a copy needs, and how the least recently used ones make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uc_stage.caching.places import root_of
from uc_stage.errors import NoSpace
from uc_stage.locks import Lock, describe, reserved
from uc_stage.publish import empty_trash, evict, list_copies, locks_folder, space_lock_path
from uc_stage.sizes import format_size
from uc_stage.storage import space_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from uc_stage.caching.places import Place
    from uc_stage.model import CachedCopy, CacheRequest
    from uc_stage.progress import Progress
    from uc_stage.storage import Space


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for a copy, in bytes.

    Attributes:
        needed: what has yet to be written.
        free: what the file system has; `promised`: how much of that others are about to write.
        over: how far the cache folder would exceed `--max-size`.
        lacking: what cannot be made; then nothing is evicted.
        evictions: the copies that have to go, in order.
    """

    needed: int
    free: int
    promised: int
    over: int
    lacking: int
    evictions: tuple[CachedCopy, ...]


def needed(request: CacheRequest, total: int, sizes: Iterable[int], space: Space) -> int:
    """The bytes that files take in whole blocks, with what a loader will write beside a copy of `total` bytes."""
    files = sum(-(-size // space.block) * space.block for size in sizes)
    return files + request.headroom + int(request.headroom_factor * total)


def look_for_room(
    request: CacheRequest,
    place: Place,
    total: int,
    need: int,
    *,
    but: Collection[str] = (),
    taken: Callable[[], int] | None = None,
) -> Room:
    """Tells what room there is for a copy of `total` bytes that needs `need`, and who would have to go for it.

    `but` names copies that do not; `taken` tells how many of the bytes are written, while others go on with it.
    """
    root = root_of(request)
    space, around = space_at(place.partial), space_at(root)
    # Afterwards: what is written in between must not count as lacking.
    need -= taken() if taken else 0
    promised = reserved(locks_folder(root), space.device, place.lock)
    lack, over = need + request.reserve + promised - space.free, 0
    inside = place.path.startswith(f"{root}/") and request.max_size is not None
    found: list[CachedCopy] = []
    if inside or (lack > 0 and space.device == around.device):
        found = [copy for copy in list_copies(root) if copy.path not in (place.path, place.partial)]
    if inside:
        assert request.max_size is not None
        over = sum(copy.bytes for copy in found) + promised + total - request.max_size
    most, evictions, gone = (lack, over), [], 0
    for copy in found:
        if max(most) <= gone:
            break
        if not copy.holders and copy.path not in but:
            evictions.append(copy)
            gone += copy.bytes
    lacking = max(*most, 0) - gone
    if lacking > 0:
        return Room(need, space.free, promised, max(over, 0), lacking, ())
    return Room(need, space.free, promised, max(over, 0), 0, tuple(evictions))


def take_room(
    request: CacheRequest, place: Place, total: int, need: int, lock: Lock, done: int, taken: Callable[[], int]
) -> bool:
    """Reserves room as `make_room` does, where nothing has to go for it; says whether it did.

    Raises:
        Busy: the wait for others that make room ran out.
    """
    with Lock(space_lock_path(root_of(request))) as counting:
        counting.acquire(request.timeout, lambda _: None)
        room = look_for_room(request, place, total, need, taken=taken)
        if room.lacking > 0 or room.evictions:
            return False
        lock.reserve(room.needed, space_at(place.partial).device, done)
    return True


def make_room(
    request: CacheRequest,
    place: Place,
    total: int,
    need: int,
    lock: Lock,
    progress: Progress,
    done: int = 0,
    beyond: int = 0,
    taken: Callable[[], int] | None = None,
) -> tuple[str, ...]:
    """Makes room for a copy and reserves it in the name of its lock's holder; gives the paths that had to go.

    `done` bytes of the copy were counted already; `beyond` more will be counted as done than take room; `taken` tells
    how much of `need` is written, while others go on with it.

    One process at a time counts and takes: two copies that fit one by one cannot both count on the same bytes.

    Raises:
        NoSpace: there is not enough, also without the copies that nobody uses; none was removed, unless somebody began
            to use one meanwhile.
        Busy: the wait for others that make room ran out.
    """
    root = root_of(request)
    gone: list[str] = []
    kept: list[str] = []

    def waiting(other: dict[str, Any]) -> None:
        progress.note(f"waiting for {describe(other)}, which makes room")

    with Lock(space_lock_path(root)) as counting:
        counting.acquire(request.timeout, waiting)
        empty_trash(root)
        while True:
            room = look_for_room(request, place, total, need, but=kept, taken=taken)
            if room.lacking > 0:
                raise _full(request, place, total, room)
            if not room.evictions:
                lock.reserve(room.needed + beyond, space_at(place.partial).device, done)
                return tuple(gone)
            oldest = room.evictions[0]
            if why := evict(root, oldest.path):
                progress.note(f"the copy `{oldest.path}` stays: {why.reason}")
                kept.append(oldest.path)
            else:
                progress.note(f"removed the copy `{oldest.path}` of `{oldest.source}` to make room")
                gone.append(oldest.path)


def _full(request: CacheRequest, place: Place, total: int, room: Room) -> NoSpace:
    look = f"`uc-stage inspect --cache-dir {root_of(request)}` shows what is there and who uses it"
    if room.over and request.max_size is not None:
        whole = format_size(request.max_size + room.over)
        return NoSpace(
            f"the cache folder `{root_of(request)}` would hold {whole} with this copy of {format_size(total)}, "
            f"and `--max-size` is {format_size(request.max_size)}",
            hint=f"{look}; `uc-stage prune` removes copies",
        )
    memory = " in memory" if space_at(place.partial).in_memory else ""
    promised = f", {format_size(room.promised)} of it for others that copy now," if room.promised else ""
    headroom = " with its headroom" if request.headroom or request.headroom_factor else ""
    return NoSpace(
        f"`{place.partial}` has room for {format_size(room.free)}{memory}{promised} and the copy needs "
        f"{format_size(room.needed)} more{headroom} with {format_size(request.reserve)} in reserve",
        hint=f"free {format_size(room.lacking)} there, or choose another disk with `--cache-dir`; {look}",
    )
