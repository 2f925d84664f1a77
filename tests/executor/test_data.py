import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError, StalePlan
from hydraplan.executor.data import (
    NO_LABEL,
    check_ids,
    count_labels,
    generated_tokens,
    indexed_tokens,
    load_slot,
)
from hydraplan.files.lengths import digest, read_lengths
from hydraplan.kernels.packing import rank_layout
from tests.builders import Place
from tests.plans import batch_rows, plan_header, tiny_model

DATA = Path(__file__).parents[1] / "data"


def counting(sequence_id, length):
    """Ids that tell sequence and position: 1000 x id + position."""
    return 1000 * sequence_id + np.arange(length)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    inner=st.sampled_from([1, 2, 4]),
    rings=st.sampled_from([1, 2, 4]),
)
def test_every_row_is_labelled_with_the_next_token_of_its_own_sequence(lengths, inner, rings):
    placed = batch_rows([Place(n, 0, inner, rings) for n in lengths]).placed()
    seen = {}
    for lane in range(inner * rings):
        slot = load_slot(rank_layout(placed, 0, lane), placed, counting)
        assert slot.rows == len(slot.labels_T) == len(slot.positions_T)
        for token, label, position in zip(
            slot.ids_T.tolist(), slot.labels_T.tolist(), slot.positions_T.tolist(), strict=True
        ):
            assert token % 1000 == position
            assert token not in seen
            seen[token] = label
    expected = {}
    for i, n in enumerate(lengths):
        whole = counting(i, n).tolist()
        expected |= dict(zip(whole, [*whole[1:], NO_LABEL], strict=True))
    assert seen == expected


def test_a_zigzag_shard_takes_labels_from_the_whole_sequence_at_its_borders():
    placed = batch_rows([Place(8, 0, 1, 2)]).placed()
    slot = load_slot(rank_layout(placed, 0, 0), placed, counting)
    assert slot.ids_T.tolist() == [0, 1, 6, 7]
    assert slot.labels_T.tolist() == [1, 2, 7, NO_LABEL]


def test_generated_ids_depend_on_seed_and_sequence_alone():
    tokens = generated_tokens(7, 64)
    assert tokens(3, 5).tolist() == tokens(3, 9)[:5].tolist()
    assert tokens(3, 50).tolist() != tokens(4, 50).tolist()
    assert tokens(3, 50).tolist() != generated_tokens(8, 64)(3, 50).tolist()
    assert set(tokens(0, 4000).tolist()) == set(range(64))


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_ids_come_from_the_indexed_dataset(suffix):
    path = DATA / "megatron_tiny.idx"
    header = plan_header(tiny_model(), 1, 1, 1, digest(read_lengths(path).length_tokens))
    tokens = indexed_tokens(path.with_suffix(suffix), header)
    known = json.loads((DATA / "megatron_tiny.json").read_text())
    raw = np.fromfile(DATA / "megatron_tiny.bin", np.uint16)
    lengths = read_lengths(path).length_tokens.tolist()
    starts = np.cumsum([0, *lengths])
    assert "megatron_tiny" in json.dumps(known)
    for i, length in enumerate(lengths):
        assert tokens(i, length).tolist() == raw[starts[i] : starts[i + 1]].tolist()
    longest = int(np.argmax(lengths))
    assert tokens(longest, 3).tolist() == raw[starts[longest] :][:3].tolist()


def test_a_document_is_its_sequences_one_after_the_other():
    path = DATA / "megatron_tiny.idx"
    lengths = read_lengths(path, "documents").length_tokens
    header = plan_header(tiny_model(), 1, 1, 1, digest(lengths))
    tokens = indexed_tokens(path, header.model_copy(update={"lengths_unit": "documents"}))
    whole = np.concatenate([tokens(i, int(n)) for i, n in enumerate(lengths)])
    assert whole.tolist() == np.fromfile(DATA / "megatron_tiny.bin", np.uint16).tolist()


def test_another_dataset_than_the_plans_is_stale_and_both_digests_are_named():
    header = plan_header(tiny_model(), 1, 1, 1, "ab" * 32)
    with pytest.raises(StalePlan, match="abab") as caught:
        indexed_tokens(DATA / "megatron_tiny.idx", header)
    found = digest(read_lengths(DATA / "megatron_tiny.idx").length_tokens)
    assert found[:16] in str(caught.value)


def test_an_index_without_its_ids_is_refused(tmp_path):
    shutil.copy(DATA / "megatron_tiny.idx", tmp_path)
    path = tmp_path / "megatron_tiny.idx"
    header = plan_header(tiny_model(), 1, 1, 1, digest(read_lengths(path).length_tokens))
    with pytest.raises(InputError, match=r"megatron_tiny\.bin is not a file"):
        indexed_tokens(path, header)
    with pytest.raises(InputError, match=r"other\.idx is not a file"):
        indexed_tokens(tmp_path / "other.idx", header)


@pytest.mark.parametrize("wrong", [64, -1])
def test_an_id_outside_the_vocabulary_is_named_with_its_sequence(wrong):
    def tokens(sequence_id, length):
        ids = np.zeros(length, np.int64)
        if sequence_id == 1:
            ids[4] = wrong
        return ids

    placed = batch_rows([Place(5), Place(6), Place(7)]).placed()
    with pytest.raises(InputError, match=rf"sequence 1 holds id {wrong} at position 4"):
        check_ids(tokens, [placed], 64, Path("x.bin"))


def test_labels_are_counted_and_a_batch_without_any_is_an_error():
    assert count_labels(batch_rows([Place(1), Place(10), Place(0)]).placed(), 0) == 9
    with pytest.raises(InputError, match="batch 3 holds no token with a label"):
        count_labels(batch_rows([Place(1), Place(1)]).placed(), 3)


@pytest.mark.parametrize("path", ["", "/", "..", "lengths.parquet", "d.idx.gz"])
def test_data_that_is_neither_idx_nor_bin_is_refused_by_name(path):
    with pytest.raises(InputError, match=r"neither \.idx nor \.bin"):
        indexed_tokens(Path(path), plan_header(tiny_model(), 1, 1, 1))
