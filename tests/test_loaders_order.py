"""How an epoch's rows are shared out, as arithmetic: for any number of files, row groups, ranks and workers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from uc_stage.errors import InvalidRequest
from uc_stage.loaders.arrow import Part
from uc_stage.loaders.order import Group, Share, Window, count, cut, deal, length, overlaps, permutation, windows
from uc_stage.loaders.position import FORMAT, Position, read_state

WORLDS = st.integers(1, 9)
WORKERS = st.integers(1, 5)
BATCHES = st.integers(1, 40)


def dealt(rows: int, world: int, batch_size: int, drop_last: bool = False) -> list[Share]:
    try:
        return [deal(rows, rank, world, batch_size, drop_last=drop_last) for rank in range(world)]
    except InvalidRequest:
        # Where it is impossible, and there alone: all batches have a row, and all ranks as many of them.
        least, most = rows // world, -(-rows // world)
        assert least < -(-most // batch_size)
        assume(False)
        raise


@settings(deadline=None)
@given(st.integers(0, 600), WORLDS, WORKERS, BATCHES, st.booleans())
def test_each_row_is_once_in_the_batches_and_all_ranks_have_as_many(
    rows: int, world: int, workers: int, batch_size: int, drop_last: bool
) -> None:
    shares = dealt(rows, world, batch_size, drop_last)

    seen: list[int] = []
    for share in shares:
        for worker in range(workers):
            start, stop = share.run(worker, workers)
            sizes = [share.size(index) for index in range(worker, share.batches, workers)]
            assert sum(sizes) == stop - start
            assert len(sizes) == count(share.batches, worker, workers)
            assert all(0 < size <= batch_size for size in sizes)
            assert all(
                share.taken(worker, workers, made * workers + worker) == sum(sizes[:made])
                for made in range(len(sizes) + 1)
            )
            seen += range(start, stop)
    assert len({share.batches for share in shares}) == 1
    if drop_last:
        assert seen == list(range(rows // (world * batch_size) * world * batch_size))
        assert all(share.size(index) == batch_size for share in shares for index in range(share.batches))
    else:
        assert seen == list(range(rows))


def test_batches_are_full_but_for_the_last_ones() -> None:
    assert [deal(1001, 0, 1, 256, drop_last=False).size(index) for index in range(4)] == [256, 256, 256, 233]
    assert [deal(1025, 0, 2, 256, drop_last=False).size(index) for index in range(3)] == [256, 128, 128]
    assert [deal(1025, 1, 2, 256, drop_last=False).size(index) for index in range(3)] == [256, 256, 1]


@pytest.mark.parametrize(("rows", "world", "batch_size"), [(7, 8, 4), (9, 8, 1), (1, 2, 256)])
def test_too_few_rows_for_every_rank_are_refused_on_every_rank(rows: int, world: int, batch_size: int) -> None:
    for rank in range(world):
        with pytest.raises(InvalidRequest, match=f"{rows} rows? in batches of {batch_size} give {world} ranks unequal"):
            deal(rows, rank, world, batch_size, drop_last=False)
        assert deal(rows, rank, world, batch_size, drop_last=True).batches == rows // (world * batch_size)


def taken(position: Position, rows: int, made: int) -> list[int]:
    """The rows of the first batches that one worker of all ranks makes from a position on."""
    found: list[int] = []
    for rank in range(position.world_size):
        share = position.share(rows, rank)
        lane, lanes = position.lane
        start, _ = share.run(lane, lanes)
        before = share.taken(lane, lanes, lane + position.taken * lanes)
        after = share.taken(lane, lanes, lane + (position.taken + made) * lanes)
        for first, last in cut(position.whole(rows), start + before, start + after):
            found += range(first, last)
    return found


def started(loaded: Position | None, fresh: Position, rows: int) -> Position:
    return fresh if loaded is None else loaded.go_on(fresh, rows)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 400), st.booleans())
def test_an_epoch_that_goes_on_with_other_ranks_workers_and_batches_has_each_row_once(
    data: st.DataObject, rows: int, drop_last: bool
) -> None:
    seen: list[int] = []
    loaded: Position | None = None
    dropped = 0
    for stop in (False, False, True):
        world, workers, batch_size = data.draw(WORLDS), data.draw(WORKERS), data.draw(BATCHES)
        fresh = Position(3, None, world, batch_size, drop_last, workers)
        position = started(loaded, fresh, rows)
        shares = dealt_at(position, rows)
        made = shares[0].batches - position.taken
        if not stop:
            made = data.draw(st.integers(0, made))
        for worker in range(workers):
            own = started(loaded, dataclasses.replace(fresh, worker=worker), rows)
            seen += taken(own, rows, count(position.taken + made, *own.lane) - own.taken)
        loaded = dataclasses.replace(position, taken=position.taken + made)
        dropped = length(position.whole(rows)) - sum(share.rows for share in shares)
    assert len(seen) == len(set(seen)) == rows - dropped
    if not drop_last:
        assert sorted(seen) == list(range(rows))


def dealt_at(position: Position, rows: int) -> list[Share]:
    try:
        return [position.share(rows, rank) for rank in range(position.world_size)]
    except InvalidRequest:
        assume(False)
        raise


@settings(deadline=None)
@given(st.data(), st.integers(1, 400), WORLDS, WORLDS, WORKERS, BATCHES, st.booleans())
def test_what_each_worker_tells_alone_is_enough_to_go_on_with_other_ranks(
    data: st.DataObject, rows: int, world: int, other: int, workers: int, batch_size: int, drop_last: bool
) -> None:
    batches = dealt(rows, world, batch_size, drop_last)[0].batches
    made = data.draw(st.integers(0, batches))
    seen: list[int] = []
    left = 0
    for worker in range(workers):
        first = Position(0, None, world, batch_size, drop_last, workers, worker)
        of_worker = count(made, worker, workers)
        seen += taken(first, rows, of_worker)
        fresh = Position(0, None, other, batch_size, drop_last, workers, worker)
        second = dataclasses.replace(first, taken=of_worker).go_on(fresh, rows)
        rest = dealt_at(second, rows)[0].batches - second.taken
        # And once more in the middle of that.
        once = data.draw(st.integers(0, rest))
        seen += taken(second, rows, once)
        third = dataclasses.replace(second, taken=second.taken + once).go_on(fresh, rows)
        assert third == dataclasses.replace(second, taken=second.taken + once)
        seen += taken(third, rows, rest - once)
        left += 0 if world == other else length(second.whole(rows))
        left -= 0 if world == other else sum(share.rows for share in dealt_at(second, rows))
    assert len(seen) == len(set(seen))
    if not drop_last:
        assert sorted(seen) == list(range(rows))
    elif world != other:
        assert len(seen) == rows - left


@settings(deadline=None)
@given(st.integers(1, 300), WORLDS, WORKERS, BATCHES, st.data())
def test_the_same_ranks_and_workers_go_on_with_the_batches_that_they_would_have_had(
    rows: int, world: int, workers: int, batch_size: int, data: st.DataObject
) -> None:
    made = data.draw(st.integers(0, dealt(rows, world, batch_size)[0].batches))
    begun = Position(1, None, world, batch_size, False, workers)

    resumed = [
        dataclasses.replace(begun, taken=made).go_on(dataclasses.replace(begun, worker=worker), rows)
        for worker in range(workers)
    ]

    # A `DataLoader` asks worker 0 first, which has the batch that is next.
    nexts = [lane + position.taken * lanes for position in resumed for lane, lanes in [position.lane]]
    assert nexts == list(range(made, made + workers))


def test_a_workers_state_is_refused_by_another_worker() -> None:
    state = Position(0, None, 2, 4, False, 3, 1, 5)
    for fresh in (Position(0, None, 2, 4, False), Position(0, None, 2, 4, False, 3, 2)):
        with pytest.raises(InvalidRequest, match="worker 1 of 3"):
            state.go_on(fresh, 100)


def test_a_state_is_plain_values_and_is_read_as_it_was() -> None:
    position = Position(2, [(0, 5), (9, 12)], 2, 4, True, 3, 1, 5, alone=True)
    identity = {"data": "0f", "seed": 3}
    state = json.loads(json.dumps({"format": FORMAT, **identity, **position.to_dict()}))

    assert read_state(state, identity) == position
    with pytest.raises(InvalidRequest, match="other files"):
        read_state(state, {"data": "1f", "seed": 3})
    with pytest.raises(InvalidRequest, match="saved with `seed=3`, and this has `seed=4`"):
        read_state(state, {"data": "0f", "seed": 4})
    broken: Any
    for broken in ({}, {**state, "format": "x"}, [], None):
        with pytest.raises(InvalidRequest, match="none of `ParquetBatches`"):
            read_state(broken, identity)
    for broken in ({**state, "spans": [[1]]}, {**state, "spans": 3}, {k: v for k, v in state.items() if k != "taken"}):
        with pytest.raises(InvalidRequest, match="lacks something"):
            read_state(broken, identity)


FILES = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=5)


def groups(files: list[list[int]]) -> list[Group]:
    return [
        Group(f"file {number}", sum(held[:index]), rows, rows * 10)
        for number, held in enumerate(files)
        for index, rows in enumerate(held)
    ]


def rows_of(part: Part) -> list[tuple[str, int]]:
    return [(part.path, row) for row in range(part.start, part.stop)]


@settings(deadline=None)
@given(FILES, st.integers(0, 300), st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 9)))
def test_windows_hold_each_row_once_in_whole_row_groups(
    files: list[list[int]], size: int, shuffled: tuple[int, int] | None
) -> None:
    held = [group for group in groups(files) if group.rows]

    found = windows(groups(files), size, shuffled)

    everything = [row for group in held for row in rows_of(Part(group.path, group.start, group.start + group.rows))]
    rows = [row for window in found for part in window.parts for row in rows_of(part)]
    assert (sorted(rows) if shuffled else rows) == everything
    assert [window.first for window in found] == [sum(w.rows for w in found[:i]) for i in range(len(found))]
    assert all(window.rows == sum(part.stop - part.start for part in window.parts) for window in found)
    largest = max((group.bytes for group in held), default=0)
    assert all(window.rows * 10 <= max(size, largest) for window in found)
    if not shuffled:
        assert all(len({part.path for part in window.parts}) == 1 for window in found)


@settings(deadline=None)
@given(FILES, st.integers(0, 300), st.data())
def test_what_spans_overlap_are_their_rows_in_order(files: list[list[int]], size: int, data: st.DataObject) -> None:
    found = windows(groups(files), size)
    rows = sum(window.rows for window in found)
    ends = sorted(data.draw(st.lists(st.integers(0, rows), max_size=6).filter(lambda ends: len(ends) % 2 == 0)))
    spans = [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b]

    read = [window.first + row for window, start, stop in overlaps(found, spans) for row in range(start, stop)]

    assert read == [row for start, stop in spans for row in range(start, stop)]


def test_an_order_is_that_of_its_seed_epoch_and_window_for_all_time() -> None:
    assert permutation(8, 7, 1).tolist() == PINNED[0]
    assert permutation(8, 2**40 + 7, 1, 3).tolist() == PINNED[1]
    orders = [permutation(50, *each).tolist() for each in [(0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (2**32, 0)]]
    assert len({tuple(order) for order in orders}) == len(orders)


PINNED = ([2, 3, 4, 5, 6, 7, 1, 0], [1, 4, 7, 0, 2, 3, 5, 6])


def test_another_epoch_reads_the_row_groups_in_another_order() -> None:
    held = groups([[5] * 20])

    first, again, other = (windows(held, 50, (0, epoch)) for epoch in (0, 0, 1))

    assert first == again
    assert [window.parts for window in first] != [window.parts for window in other]
    assert [window.number for window in first] == list(range(20))


def test_row_groups_that_follow_one_another_are_read_as_one_part() -> None:
    [window] = windows(groups([[2, 3]]), 1000, (0, 0))

    assert window == Window(0, 5, (Part("file 0", 0, 5),), 0)
