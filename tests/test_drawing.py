"""Rows drawn by hash: Spark's own values, shares of the right size, and one answer whatever the batches."""

from __future__ import annotations

import datetime as dt
import struct

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from uc_stage.engines.drawing import check_group, row_hashes, shares, thresholds, value_hashes
from uc_stage.errors import InvalidRequest


def chained(*values: bytes) -> int:
    digest = 42
    for value in values:
        digest = xxhash.xxh64_intdigest(value, digest)
    return digest - 2**64 if digest >= 2**63 else digest


@given(st.lists(st.integers(0, 2**62), max_size=20), st.integers(-(2**63), 2**63 - 1), st.text())
def test_a_rows_hash_is_the_chain_of_its_purpose_seed_path_and_position(
    positions: list[int], seed: int, path: str
) -> None:
    found = row_hashes("shuffle", seed, path, np.array(positions, dtype=np.int64))
    parts = (b"shuffle", struct.pack("<q", seed), path.encode())
    assert found.tolist() == [chained(*parts, struct.pack("<q", position)) for position in positions]


def test_the_hashes_are_those_of_spark() -> None:
    # SELECT xxhash64('shuffle', 7L, 'part-0.parquet', 2L), and xxhash64('split', 0L, x) for the values below.
    assert row_hashes("shuffle", 7, "part-0.parquet", np.array([2])).tolist() == [8685481999594776418]
    assert value_hashes("split", 0, pa.array(["a", None, "b"])).tolist() == [
        -1385962078309814875,
        7347621596880047741,
        -2665087020566512261,
    ]


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        (pa.array([1, -2], pa.int8()), [struct.pack("<i", 1), struct.pack("<i", -2)]),
        (pa.array([1, -2], pa.int64()), [struct.pack("<q", 1), struct.pack("<q", -2)]),
        (pa.array([dt.date(1970, 1, 3)]), [struct.pack("<i", 2)]),
        (pa.array([1_000_000]).cast(pa.timestamp("us")), [struct.pack("<q", 1_000_000)]),
        (pa.array([b"\x00\xff"]), [b"\x00\xff"]),
        (pa.array(["é", "", "x" * 100]), ["é".encode(), b"", b"x" * 100]),
    ],
)
def test_a_value_hashes_as_spark_lays_it_out(values: pa.Array, packed: list[bytes]) -> None:
    found = value_hashes("split", 5, values)
    assert found.tolist() == [chained(b"split", struct.pack("<q", 5), value) for value in packed]


def test_a_sliced_column_hashes_as_the_whole_one() -> None:
    values = pa.array(["a", "b", None, "a", "c"])
    assert value_hashes("split", 1, values.slice(2)).tolist() == value_hashes("split", 1, values).tolist()[2:]


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(10, 2), pa.list_(pa.int64()), pa.bool_()])
def test_values_without_one_form_group_no_rows(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequest, match=r"`--split-by x`: values of type"):
        check_group("x", kind)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_shares_that_add_up_to_one_take_every_hash(parts: list[float]) -> None:
    fractions = [part / sum(parts) for part in parts]
    assert thresholds(fractions)[-1] == 2**63
    edges = np.array([-(2**63), -1, 0, 2**63 - 1], dtype=np.int64)
    assert set(shares(edges, fractions)) <= set(range(len(fractions)))


def test_shares_are_about_as_large_as_asked_and_independent_of_each_other() -> None:
    positions = np.arange(100_000)
    split = shares(row_hashes("split", 1, "f", positions), [0.8, 0.2])
    drawn = shares(row_hashes("sample", 1, "f", positions), [0.1])
    assert np.mean(split == 1) == pytest.approx(0.2, abs=0.01)
    assert np.mean(drawn == 0) == pytest.approx(0.1, abs=0.01)
    assert np.mean(split[drawn == 0] == 1) == pytest.approx(0.2, abs=0.02)
