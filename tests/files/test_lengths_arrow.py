"""Arrow: what Hugging Face `datasets` saves, and files pyarrow writes."""

import json

import numpy as np
import pyarrow as pa
import pytest

from hydraplan.errors import InputError
from hydraplan.files.lengths import read_lengths
from hydraplan.files.lengths_sources import read_sources

ROWS = [5, 0, 17, 3, 900]


def arrow(path, new=pa.ipc.new_stream, **columns):
    table = pa.table(columns)
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


@pytest.fixture
def saved(tmp_path):
    """A function that saves rows as a folder of `datasets`."""
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    datasets.disable_progress_bars()

    def save(name="made", shards=2, **columns):
        made = datasets.Dataset.from_dict(columns)
        made.save_to_disk(str(tmp_path / name), num_shards=shards)
        return tmp_path / name

    return save


def test_a_saved_dataset_is_read_over_all_its_shards(saved):
    ids = [[7] * n for n in ROWS]
    folder = saved(input_ids=ids, attention_mask=ids, text=["x"] * 5)
    found = read_sources([str(folder)])
    assert (found.name, found.length_tokens.tolist()) == ("made", ROWS)
    assert read_sources([str(saved("lengths", length=ROWS))]).length_tokens.tolist() == ROWS


def test_shards_count_in_the_order_of_the_state_and_others_not_at_all(saved):
    folder = saved(length=ROWS, shards=2)
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "cache-1.arrow").write_bytes(b"not lengths")
    assert read_sources([str(folder)]).length_tokens.tolist() == [*ROWS[3:], *ROWS[:3]]


def test_a_dataset_of_several_splits_asks_for_one(saved, tmp_path):
    saved("both/train", length=ROWS)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(InputError, match="dataset of several splits: train") as caught:
        read_sources([str(tmp_path / "both")])
    assert caught.value.hint.endswith("both/train")


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("name", ["a.arrow", "a.data"])
def test_streams_and_files_are_told_by_their_first_bytes(tmp_path, new, name):
    ids = pa.array([[7] * n for n in ROWS], pa.large_list(pa.int32()))
    path = arrow(tmp_path / name, new, input_ids=ids, text=["x"] * 5)
    assert read_lengths(path).length_tokens.tolist() == ROWS


def test_packs_in_arrow_are_read_as_in_parquet(tmp_path):
    bounds = [[0, 5, 9, 12, -1, -1], [0, 7], [0, 1, 2, -1]]
    path = arrow(tmp_path / "a.arrow", cu_seqlens=bounds)
    assert read_lengths(path).length_tokens.tolist() == [5, 4, 3, 7, 1, 1]
    path = arrow(tmp_path / "a.arrow", cu_seqlens=[*bounds, [0, -1, 4]])
    with pytest.raises(InputError, match="row 3: cu_seqlens has 4 after -1"):
        read_lengths(path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "is not JSON: "),
        ("[1]", "names no _data_files"),
        ('{"_data_files": []}', "names no _data_files"),
        ('{"_data_files": [{"filename": "../a.arrow"}]}', "names no file of the folder"),
        ('{"_data_files": [{"filename": 5}]}', "names no file of the folder"),
        ('{"_data_files": ["a.arrow"]}', "names no file of the folder"),
        ('{"_data_files": [{"filename": "a.arrow"}]}', r"a\.arrow does not exist"),
    ],
)
def test_a_damaged_state_is_refused(tmp_path, state, message):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(InputError, match=message):
        read_sources([str(tmp_path)])


def test_a_stream_cut_anywhere_is_refused(tmp_path):
    path = arrow(tmp_path / "a.arrow", input_ids=[[7] * n for n in (5, 0, 17, 3)])
    whole = path.read_bytes()
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"is empty|ends at byte \d+ without the end mark"):
            read_lengths(path)
    path.write_bytes(whole + whole)
    with pytest.raises(InputError, match=f"stream ends at byte {len(whole)} of {2 * len(whole)}"):
        read_lengths(path)


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_a_file_changed_anywhere_is_read_or_refused_in_one_line(tmp_path, new):
    path = arrow(tmp_path / "a.arrow", new, input_ids=[[7] * n for n in (5, 0, 17, 3)])
    whole = path.read_bytes()
    rng, said = np.random.default_rng(0), []
    for at, value in zip(rng.integers(0, len(whole), 300), rng.integers(0, 256, 300), strict=True):
        path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
        try:
            read_lengths(path)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 20
    assert not any("\n" in text for text in said)
