from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from uc_stage.pace import Pace


def play(pace: Pace, rate_at: list[float], now: float, rounds: int) -> float:
    """Reads of 1 MB from a source that gives `rate_at[limit]` of them a second, for some rounds; gives the time."""
    for _ in range(rounds):
        limit = pace.limit
        for _ in range(max(limit, int(rate_at[limit] * 0.2))):
            now += 1 / rate_at[limit]
            pace.done(1_000_000, limit / rate_at[limit], now)
    return now


def source(best: int, most: int = 400) -> list[float]:
    """A source that gives more up to `best` reads at once, and slowly less beyond."""
    return [max(1.0, 10.0 * min(limit, best) - 2.0 * max(0, limit - best)) for limit in range(most + 1)]


def test_more_reads_go_out_while_more_bring_more() -> None:
    pace = Pace(400, 0.0)

    play(pace, source(400), 0.0, 6)

    assert pace.limit == 400


def test_a_raise_that_brings_nothing_is_taken_back() -> None:
    pace = Pace(400, 0.0)

    play(pace, source(64), 0.0, 4)

    assert pace.limit == 64


def test_failures_halve_the_reads_once_a_moment_and_calm_brings_them_back() -> None:
    pace = Pace(64, 0.0)
    now = play(pace, source(64), 0.0, 2)

    for _ in range(10):
        pace.failed(now)
    assert pace.limit == 32

    pace.failed(now + 60)
    assert pace.limit == 16
    play(pace, source(64), now + 120, 40)
    assert pace.limit == 64


def test_reads_that_take_much_longer_for_no_more_bytes_become_fewer() -> None:
    pace = Pace(64, 0.0)
    now = play(pace, source(64), 0.0, 2)
    pace.failed(now)
    now = play(pace, source(64), now, 4)
    before = pace.limit

    play(pace, [max(1.0, rate / 10) for rate in source(64)], now, 6)

    assert pace.limit < before


@given(
    st.integers(1, 100), st.lists(st.tuples(st.booleans(), st.integers(0, 10**7), st.floats(0.001, 10)), max_size=300)
)
def test_at_least_one_read_goes_out_and_never_more_than_allowed(
    most: int, events: list[tuple[bool, int, float]]
) -> None:
    pace, now = Pace(most, 0.0), 0.0
    for good, length, seconds in events:
        now += seconds
        if good:
            pace.done(length, seconds, now)
        else:
            pace.failed(now)
        assert 1 <= pace.limit <= most
