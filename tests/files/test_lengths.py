"""Lengths: every kind reads alike, everything odd is refused with its row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.files.lengths import digest, read_lengths

DATA = Path(__file__).parents[1] / "data"
ROWS = [5, 17, 0, 4096, 1, 2**31, 900]


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("name", ["length", "length_tokens", "seqlen"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint32(), pa.uint64()])
def test_parquet_is_read_by_each_of_its_names_in_file_order(tmp_path, name, kind):
    path = parquet(tmp_path / "a.parquet", id=list("abcdefg"), **{name: pa.array(ROWS, kind)})
    found = read_lengths(path)
    assert (found.name, found.unit) == ("a.parquet", "sequences")
    assert found.length_tokens.tolist() == ROWS
    assert found.length_tokens.dtype == np.int64


@pytest.mark.parametrize("text", ["5\n17\n0\n", "5\n17\n0", "5\r\n17\r\n 0 \n"])
def test_text_holds_one_integer_a_line(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert read_lengths(path).length_tokens.tolist() == [5, 17, 0]


def test_kind_is_told_by_the_first_bytes_where_the_suffix_is_silent(tmp_path):
    table = parquet(tmp_path / "a.data", length=ROWS)
    assert read_lengths(table).length_tokens.tolist() == ROWS
    index = tmp_path / "b.data"
    index.write_bytes((DATA / "megatron_tiny.idx").read_bytes())
    assert read_lengths(index).length_tokens.sum() == 9948
    assert len(read_lengths(index, "documents").length_tokens) == 18


@pytest.mark.parametrize(
    "text",
    [
        "id,length\na,5\nb,17\nc,0\n",
        "length\n5\n17\n0",
        '\ufeff"seqlen",note\r\n5,"x, y"\r\n 17,\r\n"0",z\r\n',
    ],
)
def test_a_csv_names_the_column_in_its_first_line(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    assert read_lengths(path).length_tokens.tolist() == [5, 17, 0]


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "<u2", "<u8"])
def test_npy_holds_one_dimension_of_integers(tmp_path, dtype):
    rows = [5, 17, 0, 4096]
    np.save(tmp_path / "a.npy", np.array(rows, dtype))
    (tmp_path / "b.data").write_bytes((tmp_path / "a.npy").read_bytes())
    for name in ("a.npy", "b.data"):
        assert read_lengths(tmp_path / name).length_tokens.tolist() == rows


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), np.int64), r"in one dimension: .*'shape': \(2, 3\)"),
        (np.array([1.0, 2.0]), "in one dimension: .*'<f8'"),
        (np.array([1, "a"], object), "in one dimension: .*'.O'"),
        (np.array([1, 2**64 - 1], np.uint64), "row 1 is beyond 9223372036854775807: 18446744"),
        (np.array([3, -1]), "row 1 has length -1, below 0"),
        (np.array([], np.int64), "holds no rows"),
    ],
)
def test_npy_of_anything_else_is_refused(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=message):
        read_lengths(tmp_path / "a.npy")


def test_a_damaged_npy_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(100))
    whole = path.read_bytes()
    for raw, message in (
        (whole[:-3], "promises 100 int64, 797 bytes follow"),
        (whole + b"x", "promises 100 int64, 801 bytes follow"),
        (whole[:40], "is not .npy, or ends in its header"),
        (b"5\n", "is not .npy, or ends in its header"),
        (b"", "is not .npy, or ends in its header"),
        (whole.replace(b"(100,)", b"(10**", 1), "holds no integers in one dimension: "),
    ):
        path.write_bytes(raw)
        with pytest.raises(InputError, match=message):
            read_lengths(path)


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=30))
def test_text_and_parquet_give_the_same_lengths_and_digest(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("same")
    (folder / "a.txt").write_text("\n".join(map(str, rows)))
    one = read_lengths(folder / "a.txt").length_tokens
    two = read_lengths(parquet(folder / "a.parquet", seqlen=rows)).length_tokens
    assert one.tolist() == two.tolist() == rows
    assert digest(one) == digest(two)


def test_digest_is_that_of_the_little_endian_bytes():
    right = "6917f808a5a9d0b1157d8289bc4022c91efadca84b36093fd125a6df4bfd0ad4"
    assert digest(np.array([5, 0, 2**40])) == right
    assert digest(np.array([1, 2])) != digest(np.array([2, 1]))
    assert digest(np.arange(10)[::2]) == digest(np.array([0, 2, 4, 6, 8]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"tokens": [1], "id": [2]},
            "has no column .*, length, length_tokens, seqlen or input_ids; it has tokens, id",
        ),
        ({"length": [1], "seqlen": [2]}, "ambiguous: each of the columns length, seqlen"),
        ({"length": [1.0]}, "column length holds double"),
        ({"length": ["1"]}, "column length holds string"),
        ({"length": [[0, 5]]}, "column length holds list"),
        ({"length": [1, 2, None, None]}, "row 2 of column length is empty"),
        ({"length": [1, -7, -8]}, "row 1 has length -7, below 0"),
        ({"length": pa.array([], pa.int64())}, "holds no rows"),
        ({"length": pa.array([2**64 - 1], pa.uint64())}, "not in range: 0 to 9223372036854775807"),
        ({"length": [2**62, 2**62]}, "sums to 9.22e"),
    ],
)
def test_a_column_that_holds_no_lengths_is_refused(tmp_path, columns, message):
    with pytest.raises(InputError, match=message):
        read_lengths(parquet(tmp_path / "a.parquet", **columns))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n", "line 1 is not an integer: ''"),
        ("id,tokens\n1,2\n", "has no column length, length_tokens or seqlen; it has id, tokens"),
        ("length,seqlen\n1,2\n", "ambiguous: each of the columns length, seqlen"),
        ("id,length\n1,2\n3,x\n", "line 3 is not an integer: 'x'"),
        ("id,length\n1,2\n3,\n", "line 3 is not an integer: ''"),
        ("id,length\n1,2\n\n", "line 3 has 0 cells, the header 2"),
        ("id,length\n1,2,3\n", "line 2 has 3 cells, the header 2"),
        ("length\n4\n-3\n", "row 1 has length -3, below 0"),
        ("length\n", "holds no rows"),
        ("length\n" + "9" * 25, "line 2 is beyond 9223372036854775807"),
        ("12\nabc\n", "line 2 is not an integer: 'abc'"),
        ("12\n\n13\n", "line 2 is not an integer: ''"),
        ("12 13\n", "line 1 is not an integer: '12 13'"),
        ("1_000\n", "line 1 is not an integer: '1_000'"),
        ("1e3\n", "line 1 is not an integer"),
        ("5\n-3\n", "row 1 has length -3, below 0"),
        ("9" * 25, "line 1 is beyond 9223372036854775807"),
        ("\u0661\n", "line 1 is not an integer"),
        ("5\x00\n", "line 1 is not an integer: '5.x00'"),
    ],
)
def test_text_that_is_not_lengths_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_lengths(path)


def test_a_missing_file_a_folder_and_a_damaged_parquet_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_lengths(tmp_path / "none.parquet")
    with pytest.raises(InputError, match="not a regular file"):
        read_lengths(tmp_path)
    damaged = parquet(tmp_path / "a.parquet", length=list(range(1000)))
    damaged.write_bytes(damaged.read_bytes()[:500])
    with pytest.raises(InputError, match="is not Parquet with lengths"):
        read_lengths(damaged)
    for name in ("e.parquet", "e.idx"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match="is empty"):
            read_lengths(tmp_path / name)


def test_documents_are_known_only_to_an_index(tmp_path):
    with pytest.raises(InputError, match="knows no documents"):
        read_lengths(parquet(tmp_path / "a.parquet", length=[1]), "documents")


@pytest.mark.parametrize(
    "text",
    ['length,t\n5,"a\n6,b\n', 'length\n"5\n6\n7\n', 'length\n"5"6\n', 'length\n"5\n6"\n']
    + [f"length\n5{end}6\n" for end in "\x0b\x0c\u2028\x85"],
)
def test_no_row_of_a_csv_is_lost_fused_or_cut_in_two(tmp_path: Path, text: str) -> None:
    path = tmp_path / "l.csv"
    path.write_bytes(text.encode())
    with pytest.raises(InputError):
        read_lengths(path)


def test_line_ends_inside_a_cell_of_a_csv_are_none(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_bytes("t,length\nab\u2028c,5\nd\x85,6\n".encode())
    assert read_lengths(path).length_tokens.tolist() == [5, 6]
