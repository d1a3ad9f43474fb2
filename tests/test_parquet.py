from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uc_stage import parquet, thrift
from uc_stage.errors import AccessDenied, NotFound, StageError, Unsupported, VerificationFailed
from uc_stage.model import Field
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from pathlib import Path

ODD = os.path.join(os.path.dirname(__file__), "data", "parquet")


def table(rows: int) -> pa.Table:
    return pa.table(
        {"id": range(rows), "text": [f"row {n}" for n in range(rows)], "pair": [[n, n] for n in range(rows)]}
    )


def test_a_footer_tells_rows_row_groups_schema_and_compression(tmp_path: Path) -> None:
    pq.write_table(table(25), tmp_path / "a.parquet", row_group_size=10, compression={"id": "snappy", "text": "none"})

    footer = parquet.read_footer(open_folder(str(tmp_path)), "a.parquet")

    assert footer.rows == 25
    assert [group.rows for group in footer.row_groups] == [10, 10, 5]
    assert [group.bytes for group in footer.row_groups] == [
        pq.read_metadata(tmp_path / "a.parquet").row_group(n).total_byte_size for n in range(3)
    ]
    assert footer.schema[:2] == (Field("id", "int64"), Field("text", "string"))
    assert footer.compression == {"snappy", "none"}


def test_a_footer_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    wide = pa.table({f"a rather long name of column {n}": [n] for n in range(2000)})
    pq.write_table(wide, tmp_path / "wide.parquet")

    footer = parquet.read_footer(open_folder(str(tmp_path)), "wide.parquet")

    assert len(footer.schema) == 2000


def test_a_footer_is_read_through_fsspec(tmp_path: Path) -> None:
    folder = open_folder("memory://parquet-footer")
    pq.write_table(table(3), tmp_path / "a.parquet")
    folder.put("a.parquet", (tmp_path / "a.parquet").read_bytes())

    assert parquet.read_footer(folder, "a.parquet").rows == 3
    assert parquet.decode(folder, "a.parquet") == 3
    assert parquet.has_magic(folder, "a.parquet")


def test_int96_is_shown_as_what_it_is() -> None:
    footer = parquet.read_footer(open_folder(ODD), "int96_from_spark.parquet")

    assert [field.type for field in footer.schema] == ["timestamp[ns] (INT96)"]


def test_a_file_without_columns_has_its_rows() -> None:
    footer = parquet.read_footer(open_folder(ODD), "no_columns.parquet")

    assert (footer.rows, footer.schema, footer.compression) == (2, (), frozenset())


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("encrypted.parquet", Unsupported, "is encrypted"),
        ("incorrect_map_schema.parquet", VerificationFailed, "Map keys"),
        # pyarrow ends the process over some of these.
        ("unknown-codec.parquet", VerificationFailed, "unknown compression codec"),
    ],
)
def test_a_footer_that_cannot_be_read_is_a_typed_error_that_names_the_file(
    name: str, error: type[StageError], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        parquet.read_footer(open_folder(ODD), name)

    assert name in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("keep", [0, 3, 11, 200, -1, -8])
def test_a_file_that_is_cut_off_is_not_whole(tmp_path: Path, keep: int) -> None:
    pq.write_table(table(100), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:keep])

    with pytest.raises(VerificationFailed, match="not whole Parquet"):
        parquet.read_footer(open_folder(str(tmp_path)), "a.parquet")


def test_a_file_whose_front_is_gone_is_shorter_than_its_footer(tmp_path: Path) -> None:
    pq.write_table(table(100), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[-300:])

    with pytest.raises(VerificationFailed, match="shorter than its footer"):
        parquet.read_footer(open_folder(str(tmp_path)), "a.parquet")


def test_no_flipped_byte_of_a_footer_makes_more_than_a_typed_error(tmp_path: Path) -> None:
    pq.write_table(table(30), tmp_path / "a.parquet", row_group_size=10)
    data = (tmp_path / "a.parquet").read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    folder = open_folder(str(tmp_path))
    outcomes: set[type] = set()
    for seed in range(600):
        dice = random.Random(seed)
        changed = bytearray(data)
        changed[dice.randrange(len(data) - length - 8, len(data))] = dice.randrange(256)
        (tmp_path / "b.parquet").write_bytes(changed)
        try:
            outcomes.add(type(parquet.read_footer(folder, "b.parquet")))
        except StageError as error:
            outcomes.add(type(error))

    assert outcomes >= {parquet.Footer, VerificationFailed}


def test_a_missing_file_is_not_found_and_a_closed_one_is_denied(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    with pytest.raises(NotFound):
        parquet.read_footer(folder, "none.parquet")
    if os.geteuid():
        pq.write_table(table(1), tmp_path / "a.parquet")
        (tmp_path / "a.parquet").chmod(0)
        with pytest.raises(AccessDenied):
            parquet.read_footer(folder, "a.parquet")


def test_of_many_footers_those_that_cannot_be_read_have_their_error(tmp_path: Path) -> None:
    for number in range(50):
        pq.write_table(table(number + 1), tmp_path / f"{number:02d}.parquet")
    (tmp_path / "07.parquet").write_bytes(b"")

    found = parquet.read_footers(open_folder(str(tmp_path)), [f"{number:02d}.parquet" for number in range(50)])

    assert list(found) == [f"{number:02d}.parquet" for number in range(50)]
    rows = [footer.rows for footer in found.values() if isinstance(footer, parquet.Footer)]
    assert rows == [number + 1 for number in range(50) if number != 7]
    assert isinstance(found["07.parquet"], VerificationFailed)
    assert "is empty" in found["07.parquet"].message


def test_no_footers_are_asked_of_no_files() -> None:
    assert parquet.read_footers(open_folder(ODD), []) == {}


def test_decoding_gives_the_rows_of_a_whole_file(tmp_path: Path) -> None:
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=100)

    assert parquet.decode(open_folder(str(tmp_path)), "a.parquet") == 1000


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("corrupt-checksum.parquet", VerificationFailed),
        ("invalid_utf8.parquet", VerificationFailed),
        ("encrypted-columns.parquet", Unsupported),
    ],
)
def test_decoding_finds_what_the_footer_does_not_tell(name: str, error: type[StageError]) -> None:
    parquet.read_footer(open_folder(ODD), name)

    with pytest.raises(error):
        parquet.decode(open_folder(ODD), name)


def test_decoding_finds_a_page_that_is_none(tmp_path: Path) -> None:
    pq.write_table(table(5000), tmp_path / "a.parquet", compression="zstd")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:24] = b"\xff" * 20  # the first page's header
    (tmp_path / "a.parquet").write_bytes(data)

    assert parquet.read_footer(open_folder(str(tmp_path)), "a.parquet").rows == 5000
    with pytest.raises(VerificationFailed):
        parquet.decode(open_folder(str(tmp_path)), "a.parquet")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.parquet", True),
        ("A.PARQUET", True),
        ("b.parq", True),
        ("c.pq", True),
        ("d.parquet.crc", False),
        ("pq", False),
    ],
)
def test_parquet_is_known_by_its_name(name: str, said: bool) -> None:
    assert parquet.is_parquet_name(name) is said


def test_parquet_without_a_name_is_known_by_its_end(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    pq.write_table(table(1), tmp_path / "data")
    shutil.copy(os.path.join(ODD, "encrypted.parquet"), tmp_path / "secret")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_text("")

    assert [parquet.has_magic(folder, name) for name in ("data", "secret", "text", "empty")] == [
        True,
        True,
        False,
        False,
    ]


CODECS = {"NONE": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(CODECS)), min_size=1, max_size=40), st.booleans(), st.integers(1, 3))
def test_the_codecs_of_a_footer_are_those_that_each_column_was_written_with(
    codecs: list[str], statistics: bool, rows: int
) -> None:
    columns = {f"c{n}": pa.array([str(n)] * rows, pa.string()) for n in range(len(codecs))}
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns),
        sink,
        compression={f"c{n}": codec for n, codec in enumerate(codecs)},
        write_statistics=statistics,
    )
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-8:-4], "little")

    assert thrift.codecs(data[-8 - length :]) == {CODECS[codec] for codec in codecs}


def test_a_file_without_a_row_group_has_no_codecs(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", table(0).schema):
        pass

    footer = parquet.read_footer(open_folder(str(tmp_path)), "a.parquet")

    assert (footer.rows, footer.row_groups, footer.compression) == (0, (), frozenset())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_footer_give_numbers_or_a_value_error(data: bytes) -> None:
    try:
        found = thrift.codecs(data)
    except ValueError:
        return
    assert all(isinstance(code, int) for code in found)


def test_a_list_longer_than_its_bytes_ends_the_walk() -> None:
    with pytest.raises(ValueError, match="too early"):
        thrift.codecs(b"\x19\xf1" + b"\xff" * 7 + b"\x7f")


def test_bytes_that_nest_without_end_are_refused() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        thrift.codecs(bytes([0x1C]) * 500)
