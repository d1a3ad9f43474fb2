from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.errors import InvalidRequest
from uc_stage.sizes import Rate, parse_age, parse_headroom, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1024**2),
        ("10B", 10),
        ("512MB", 512_000_000),
        ("1.5GB", 1_500_000_000),
        ("64MiB", 64 * 1024**2),
        ("2 KiB", 2048),
        ("3tb", 3 * 1000**4),
        (" 1PiB ", 1024**5),
        ("0.1KB", 100),
    ],
)
def test_a_size_has_powers_of_1000_or_of_1024_by_its_unit(text: str, size: int) -> None:
    assert parse_size(text, "--file-size") == size


@given(st.integers(0, 10**30 - 1))
def test_a_size_is_exact_however_large(size: int) -> None:
    assert parse_size(f"{size}", "--reserve") == size
    assert parse_size(f"{size}KiB", "--reserve") == size * 1024


@pytest.mark.parametrize(
    "text", ["", "many", "-5MB", "512M", "5 MB/s", "1e9", "1,000", "12XB", ".", "٣MB", "inf", "9" * 400]
)
def test_what_is_no_size_is_refused_with_the_flag_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="`--file-size") as raised:
        parse_size(text, "--file-size")

    assert raised.value.hint


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("500MB/s", Rate(500e6, "bytes/s")),
        ("1.5GiB/s", Rate(1.5 * 1024**3, "bytes/s")),
        ("200krows/s", Rate(200_000.0, "rows/s")),
        ("900 rows/s", Rate(900.0, "rows/s")),
        ("2Mrows / s", Rate(2e6, "rows/s")),
        ("10B/S", Rate(10.0, "bytes/s")),
    ],
)
def test_a_throughput_is_of_bytes_or_of_rows_by_its_unit(text: str, rate: Rate) -> None:
    assert parse_rate(text, "--require") == rate


@pytest.mark.parametrize(
    "text", ["", "500", "500MB", "500/s", "0MB/s", "0rows/s", "/s", "fast/s", "5MB/h", "5%", "9" * 400 + "B/s"]
)
def test_what_is_no_throughput_is_refused_with_the_flag_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="`--require"):
        parse_rate(text, "--require")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30min", 1800), ("30m", 1800), ("1.5h", 5400), ("7d", 604_800), ("2 W", 1_209_600), ("0s", 0)],
)
def test_a_time_span_is_read_by_its_unit(text: str, seconds: float) -> None:
    assert parse_age(text, "--older-than") == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 days", "1mo"])
def test_what_is_no_time_span_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="`--older-than") as raised:
        parse_age(text, "--older-than")
    assert "7d" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("text", "expected"), [("0", (0, 0.0)), ("20GB", (20_000_000_000, 0.0)), ("1.8x", (0, 1.8)), ("2X", (0, 2.0))]
)
def test_headroom_is_a_size_or_a_factor(text: str, expected: tuple[int, float]) -> None:
    assert parse_headroom(text, "--headroom") == expected


def test_what_is_no_headroom_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`--headroom x`"):
        parse_headroom("x", "--headroom")
