"""Parquet with lists of ids and with packs, written by pyarrow and pandas."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.files import lengths_parquet
from hydraplan.files.lengths import read_lengths

ROWS = [5, 17, 0, 4096, 1, 900]


def parquet(path, groups=2, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=groups)
    return path


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64())])
def test_lists_of_ids_are_counted(tmp_path, kind):
    ids = pa.array([list(range(n)) for n in ROWS], kind)
    path = parquet(tmp_path / "a.parquet", text=["x"] * 6, input_ids=ids, labels=ids)
    assert read_lengths(path).length_tokens.tolist() == ROWS


def test_ids_of_pandas_are_counted(tmp_path):
    frame = pd.DataFrame({"input_ids": [np.arange(n) for n in ROWS]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_lengths(tmp_path / "a.parquet").length_tokens.tolist() == ROWS


def test_lists_of_one_size_are_counted(tmp_path):
    ids = pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int32(), 3))
    assert read_lengths(parquet(tmp_path / "a.parquet", input_ids=ids)).length_tokens.tolist() == [
        3,
        3,
    ]


def test_a_length_is_taken_before_ids(tmp_path):
    path = parquet(tmp_path / "a.parquet", input_ids=[[1], [2]], length=[7, 8])
    assert read_lengths(path).length_tokens.tolist() == [7, 8]


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_both_forms_of_packs_give_their_sequences(tmp_path_factory, packs, groups, padding, held):
    folder = tmp_path_factory.mktemp("packs")
    ids = [[1] * sum(pack) for pack in packs]
    ends = [np.cumsum([0, *pack]).tolist() for pack in packs]
    starts = [row[:-1] for row in ends]
    padded = [row + [-1] * padding for row in ends]
    right = [length for pack in packs for length in pack]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths_parquet, "LISTS_AT_A_TIME", held)
        for columns in (
            {"input_ids": ids, "seq_start_id": starts},
            {"input_ids": ids, "cu_seqlens": padded},
            {"cu_seqlens": padded},
        ):
            path = parquet(folder / "a.parquet", groups, **columns)
            assert read_lengths(path).length_tokens.tolist() == right


def test_the_packs_of_the_bug_log_hold_5_4_and_3_tokens(tmp_path):
    ids = [list(range(12))]
    for columns in (
        {"input_ids": ids, "loss_mask": [[0] * 12], "seq_start_id": [[0, 5, 9]]},
        {"input_ids": ids, "cu_seqlens": [[0, 5, 9, 12, -1, -1]]},
    ):
        path = parquet(tmp_path / "a.idx.parquet", **columns)
        assert read_lengths(path).length_tokens.tolist() == [5, 4, 3]


SOUND = {"input_ids": [1] * 12, "cu_seqlens": [0, 12]}


@pytest.mark.parametrize(
    ("name", "bounds", "message"),
    [
        ("cu_seqlens", [0, 5, -1, 9, 12], "cu_seqlens has 9 after -1"),
        ("cu_seqlens", [0, 5, 9, 12, -2], "cu_seqlens does not rise: -2 after 12"),
        ("cu_seqlens", [0, 9, 5, 12], "cu_seqlens does not rise: 5 after 9"),
        ("cu_seqlens", [0, 5, 12, 12], "cu_seqlens does not rise: 12 after 12"),
        ("cu_seqlens", [0, 5, 9], "cu_seqlens ends at 9, the row has 12 input_ids"),
        ("cu_seqlens", [0, 5, 13], "cu_seqlens ends at 13, the row has 12 input_ids"),
        ("cu_seqlens", [5, 12], "cu_seqlens starts with 5, not with 0"),
        ("cu_seqlens", [0], "cu_seqlens bounds no sequence"),
        ("cu_seqlens", [-1, -1], "cu_seqlens bounds no sequence"),
        ("seq_start_id", [], "seq_start_id bounds no sequence"),
        ("seq_start_id", [0, 5, -1], "seq_start_id does not rise: -1 after 5"),
        ("seq_start_id", [0, 5, 12], "seq_start_id does not rise: 12 after 12"),
        ("seq_start_id", [0, 14], "seq_start_id does not rise: 12 after 14"),
        ("seq_start_id", [1, 5], "seq_start_id starts with 1, not with 0"),
    ],
)
def test_boundaries_that_bound_nothing_are_named_by_their_row(tmp_path, name, bounds, message):
    sound = [0, 12] if name == "cu_seqlens" else [0]
    path = parquet(
        tmp_path / "a.parquet", **{name: [sound] * 3 + [bounds], "input_ids": [[1] * 12] * 4}
    )
    with pytest.raises(InputError, match=f"row 3: {message}"):
        read_lengths(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": [[1], [2, 3], None]}, "row 2 of column input_ids is empty"),
        ({"input_ids": [[1], [], [2, None]]}, "row 2 of column input_ids has an empty entry"),
        ({"input_ids": [[1.0]]}, "column input_ids holds list<element: double>, ids are lists of"),
        ({"input_ids": [1]}, "column input_ids holds int64, ids are lists of integers"),
        ({"seq_start_id": [[0]]}, "has seq_start_id and no input_ids"),
        ({"cu_seqlens": [[0, 1]], "seq_start_id": [[0]]}, "ambiguous"),
        ({"cu_seqlens": [[0.0]]}, "column cu_seqlens holds .* boundaries are lists of integers"),
        ({"input_ids": pa.array([], pa.list_(pa.int32()))}, "holds no rows"),
    ],
)
def test_a_column_of_other_things_is_refused(tmp_path, columns, message):
    with pytest.raises(InputError, match=message):
        read_lengths(parquet(tmp_path / "a.parquet", **columns))


def test_a_file_cut_or_changed_anywhere_is_read_or_refused_in_one_line(tmp_path):
    path = parquet(tmp_path / "a.parquet", input_ids=[list(range(n)) for n in (3, 40, 0, 7)])
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    cuts = [whole[: int(size)] for size in rng.integers(0, len(whole), 100)]
    for at, value in zip(rng.integers(0, len(whole), 300), rng.integers(0, 256, 300), strict=True):
        cuts.append(whole[:at] + bytes([value]) + whole[at + 1 :])
    said = [refusal(path, raw) for raw in cuts]
    assert all("\n" not in text for text in said)
    assert all(said[:100])
    assert any(said[100:])


def refusal(path, raw):
    """What is said of the file if it holds `raw`; nothing if it can be read."""
    path.write_bytes(raw)
    try:
        read_lengths(path)
    except InputError as error:
        return str(error)
    return ""
