"""The arithmetic that `bench` tells stages, limits, waits, ranks and break-even by."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.benchmark import shares
from uc_stage.benchmark.paying import break_even, epochs_until
from uc_stage.benchmark.playing import Waits, played
from uc_stage.benchmark.ranks import together
from uc_stage.benchmark.stages import with_limits
from uc_stage.model import Ceiling, Measurement

NUMBERS = st.floats(1e-9, 1e3)
TIMES = st.dictionaries(st.sampled_from(shares.NAMES), NUMBERS, min_size=1)
MADE = Measurement("source", "arrow", 100, 1000, 2.0, 0.1, 50.0, 500.0, complete=True)
CEILING = Ceiling("source", 1000.0, 100.0, 16, 200.0, 2000.0, 2, 100.0, "storage")


@given(TIMES, st.booleans())
def test_the_shares_of_the_stages_on_the_way_add_up_and_the_bottleneck_has_the_largest(
    seconds: dict[str, float], workers: bool
) -> None:
    found = shares.stages(seconds, workers=workers)
    named = {stage.name: stage.share for stage in found}
    longest = shares.bottleneck(seconds, workers=workers)

    assert [stage.name for stage in found] == [name for name in shares.NAMES if name in seconds]
    assert all(stage.seconds_per_million_rows == seconds[stage.name] * 1e6 for stage in found)
    if longest is None:
        assert set(seconds) == {"transfer"}
        assert shares.rate(seconds, workers=workers) == 0
        return
    on_the_way = [share for share in named.values() if share is not None]
    assert sum(on_the_way) == pytest.approx(1)
    assert named[longest] == max(on_the_way)
    assert ("transfer" in seconds and named["transfer"] is None) == ("transfer" in seconds and not workers)
    assert shares.rate(seconds, workers=workers) == pytest.approx(
        1 / sum(took for name, took in seconds.items() if workers or name != "transfer")
    )


@given(NUMBERS, st.none() | NUMBERS, st.integers(1, 512))
def test_the_limit_is_the_smaller_of_the_storage_and_all_processors(
    storage: float, decode: float | None, processors: int
) -> None:
    rate, name = shares.smaller(storage, decode, processors)

    limits = {"storage": storage, **({} if decode is None else {"processor": decode * processors})}
    assert rate == min(limits.values()) == limits[name]


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_copy_has_paid_once_the_epochs_saved_what_it_took_to_make(making: float, source: float, copy: float) -> None:
    epochs = epochs_until(making, source, copy)

    if epochs is None:
        assert copy >= source
    else:
        assert epochs >= 0
        # Without a copy, so many epochs take as long as the copy and as many on it.
        assert epochs * source == pytest.approx(making + epochs * copy, rel=1e-6)


def test_break_even_takes_the_fastest_reader_of_both_and_the_source_rate_at_hand() -> None:
    sizes = {"source": (100, 1000), "copy": (100, 1200), "other": (99, 1000)}
    measured = [
        MADE,
        # What counts is neither what `hf` built of both, nor what was in memory already.
        replace(MADE, reader="hf", rows_per_second=1000.0),
        replace(MADE, rows_per_second=9000.0, warm=True),
        replace(MADE, reader="torch", rows_per_second=900.0, failed=True),
        replace(MADE, target="copy", rows_per_second=100.0),
        replace(MADE, target="copy", reader="torch", rows_per_second=900.0),
        replace(MADE, target="copy", reader="hf", rows_per_second=2000.0),
        replace(MADE, target="other"),
    ]
    [one] = break_even(sizes, measured, [])

    assert (one.source, one.copy, one.reader) == ("source", "copy", "arrow")
    assert (one.source_epoch_seconds, one.copy_epoch_seconds) == (2.0, 1.0)
    assert (one.making_seconds, one.epochs) == (2.0, 2.0)
    assert one.making_by == "1.0 kB at the rate of the reader `arrow` over the source, 500 B/s"

    raw = replace(MADE, reader="raw", rows=None, rows_per_second=None, bytes_per_second=2000.0)
    [one] = break_even(sizes, [*measured, raw], [])
    assert (one.making_seconds, one.epochs) == (0.5, 0.5)

    [one] = break_even(sizes, [*measured, raw], [CEILING])
    assert (one.making_seconds, one.epochs) == (1.0, 1.0)
    assert "limit of the source's storage" in one.making_by


def test_a_copy_that_is_not_faster_does_not_pay_and_nothing_is_told_without_one() -> None:
    slow = replace(MADE, target="copy", rows_per_second=40.0)

    [one] = break_even({"source": (100, 1000), "copy": (100, 1000)}, [MADE, slow], [])
    assert one.epochs is None
    assert break_even({"source": (100, 1000)}, [MADE], []) == ()
    unread = replace(MADE, target="copy", reader="raw", rows_per_second=None)
    assert break_even({"source": (100, 1000), "copy": (100, 1000)}, [MADE, unread], []) == ()


@given(
    st.lists(
        st.builds(
            lambda rows, seconds, ended: replace(
                MADE, rows=rows, bytes=rows * 10, seconds=seconds, first_batch_seconds=seconds / 2, complete=ended
            ),
            st.integers(0, 1000),
            st.floats(0.01, 10),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_ranks_are_as_fast_as_the_slowest_of_them(ranks: list[Measurement]) -> None:
    rows = sum(rank.rows or 0 for rank in ranks)
    whole = together(ranks, rows, rows * 10)

    assert (whole.rows, whole.bytes) == (rows, rows * 10)
    assert whole.seconds == max(rank.seconds for rank in ranks)
    assert whole.first_batch_seconds == max(rank.seconds for rank in ranks) / 2
    assert (whole.rows_per_second or 0.0) == pytest.approx(rows / whole.seconds)
    assert whole.complete == all(rank.complete for rank in ranks)
    assert whole.failed is False


def test_ranks_that_gave_other_rows_than_there_are_failed_and_so_does_one_of_them_for_all() -> None:
    assert together([MADE, MADE], 200, 2000).complete
    short = together([MADE, MADE], 201, 2000)
    assert (short.complete, short.failed, short.note) == (False, True, "an epoch of all ranks gave 200 rows of 201")
    raw = replace(MADE, rows=None, rows_per_second=None)
    assert together([raw, raw], 0, 2001).note == "an epoch of all ranks gave 2000 bytes of 2001"

    dead = replace(MADE, complete=False, failed=True, note="it died", first_batch_seconds=None, wait_share=0.25)
    one = together([replace(MADE, wait_share=0.5), dead], 200, 2000)
    assert (one.failed, one.complete, one.note) == (True, False, "rank 1: it died")
    waits = [replace(MADE, wait_share=share) for share in (0.25, 0.75)]
    assert together(waits, 200, 2000).wait_share == 0.75


def test_ranks_share_their_processors_and_have_the_memory_of_the_largest_worker() -> None:
    told = replace(MADE, cpu_seconds=1.5, worker_bytes=10, distinct_rows=100, cold=True, rates=(50.0, 100.0))
    other = replace(told, seconds=MADE.seconds * 2, worker_bytes=30, distinct_rows=99, rates=(25.0, 50.0))
    other = replace(other, rows_per_second=25.0)
    whole = together([told, other], 200, 2000)

    assert (whole.cpu_seconds, whole.worker_bytes, whole.distinct_rows, whole.cold) == (3.0, 30, None, True)
    # The slowest one's repeats, at the rate of all.
    assert whole.rates == (whole.rows_per_second, 2 * (whole.rows_per_second or 0.0))
    assert together([told, replace(other, cold=None)], 200, 2000).cold is None


def test_a_rate_is_a_part_of_the_limit_but_that_of_a_played_training() -> None:
    raw = replace(MADE, reader="raw", rows_per_second=None)
    built = replace(MADE, reader="hf")
    measured = [MADE, raw, replace(MADE, wait_share=0.1), replace(MADE, target="copy"), built]

    assert [one.limit_share for one in with_limits(measured, [CEILING])] == [0.5, 0.5, None, None, None]
    assert [one.limit_share for one in with_limits(measured, [])] == [None] * 5


def test_a_played_training_waits_for_what_comes_later_than_its_step() -> None:
    def slow() -> object:
        time.sleep(0.05)
        return object()

    late, early = Waits(), Waits()
    assert late.share is None
    assert len(list(played(iter([slow() for _ in range(3)]), 0.02, early))) == 3
    assert len(list(played((slow() for _ in range(3)), 0.02, late))) == 3

    # Two steps and two waits: nobody waits for the first batch again, nor for the end.
    assert early.trained >= 0.04
    assert late.waited >= 0.1
    assert early.share is not None
    assert late.share is not None
    assert early.share < late.share < 1
    assert list(played(iter([]), 0.02, Waits())) == []
