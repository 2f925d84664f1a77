"""Megatron indexed datasets: right values, and every damage named with its byte."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.files.megatron_idx import (
    check_bin,
    document_lengths,
    read_index,
    read_lengths_only,
    sequence_tokens,
)

DATA = Path(__file__).parents[1] / "data"
TRUTH = json.loads((DATA / "megatron_tiny.json").read_text())
NAMES = ("megatron_tiny", "megatron_tiny_int32")


def write_index(
    path, lengths=(3, 0, 5), documents=(0, 2, 3), offsets=None, code=8, version=1, tail=b""
):
    item = {1: 1, 4: 4, 7: 4, 8: 2}.get(code, 1)
    if offsets is None:
        offsets = [sum(lengths[:i]) * item for i in range(len(lengths))]
    path.write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", version, code, len(lengths), len(documents))
        + np.array(lengths, "<i4").tobytes()
        + np.array(offsets, "<i8").tobytes()
        + np.array(documents, "<i8").tobytes()
        + tail
    )
    return path


@pytest.mark.parametrize("name", NAMES)
def test_lengths_documents_and_tokens_are_those_megatron_reads(name):
    truth = TRUTH[name]
    index = read_index(DATA / f"{name}.idx")
    assert index.lengths.tolist() == truth["sequence_lengths"]
    assert index.documents.tolist() == truth["document_indices"]
    assert index.dtype == np.dtype(truth["dtype"])
    assert read_lengths_only(DATA / f"{name}.idx").tolist() == truth["sequence_lengths"]
    by_document = read_lengths_only(DATA / f"{name}.idx", "documents")
    assert by_document.tolist() == truth["document_lengths"]
    tokens = check_bin(index, DATA / f"{name}.bin")
    assert len(tokens) == truth["total_tokens"]
    for i, first in enumerate(truth["first_tokens_of_each_sequence"]):
        ids = sequence_tokens(tokens, index, i)
        assert (len(ids), ids[0]) == (truth["sequence_lengths"][i], first)
        assert ids.dtype == np.int64


def test_a_document_is_its_sequences_end_to_end():
    index = read_index(DATA / "megatron_tiny.idx")
    tokens = check_bin(index, DATA / "megatron_tiny.bin")
    parts = [sequence_tokens(tokens, index, i) for i in range(5, 9)]
    whole = sequence_tokens(tokens, index, 3, "documents")
    assert whole.tolist() == np.concatenate(parts).tolist()


def test_empty_sequences_and_empty_documents_have_length_zero(tmp_path):
    path = write_index(tmp_path / "a.idx", (3, 0, 5), (0, 0, 2, 2, 3))
    index = read_index(path)
    assert read_lengths_only(path, "documents").tolist() == [0, 3, 0, 5]
    tokens = np.arange(8, dtype=np.uint16)
    tokens.tofile(tmp_path / "a.bin")
    found = check_bin(index, tmp_path / "a.bin")
    assert sequence_tokens(found, index, 1).tolist() == []
    assert sequence_tokens(found, index, 0, "documents").tolist() == []
    assert sequence_tokens(found, index, 3, "documents").tolist() == [3, 4, 5, 6, 7]


def test_a_multimodal_index_carries_one_more_byte_a_sequence(tmp_path):
    assert read_index(write_index(tmp_path / "a.idx", tail=bytes(3))).lengths.tolist() == [3, 0, 5]


def test_documents_beyond_two_to_the_31_do_not_overflow():
    lengths = np.full(20_000, 120_000, np.int64)
    assert document_lengths(lengths, np.array([0, 20_000])).tolist() == [2_400_000_000]


def test_every_truncation_is_refused_where_the_file_ends(tmp_path):
    whole = (DATA / "megatron_tiny.idx").read_bytes()
    path = tmp_path / "cut.idx"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=f"byte {size}: file ends here"):
            read_lengths_only(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"version": 2}, "byte 9: version is 2"),
        ({"code": 9}, "byte 17: dtype code is 9"),
        ({"code": 0}, "byte 17: dtype code is 0"),
        ({"lengths": ()}, "byte 18: holds 0 sequences"),
        ({"lengths": (3, -2, 5)}, "byte 38: length of sequence 1 is -2"),
        ({"documents": ()}, "byte 26: document index has 0 entries"),
        ({"documents": (1, 3)}, "byte 70: document index starts with 1"),
        ({"documents": (0, 2, 1, 3)}, "byte 86: entry 2 of the document index falls from 2 to 1"),
        ({"documents": (0, 2)}, "byte 78: document index ends at 2, not at the 3"),
        ({"tail": b"xx"}, "byte 94: 2 bytes too many"),
    ],
)
def test_damage_is_named_with_its_byte(tmp_path, damage, message):
    path = write_index(tmp_path / "a.idx", **damage)
    for read in (read_index, read_lengths_only):
        with pytest.raises(InputError, match=message):
            read(path)


def test_wrong_magic_is_named(tmp_path):
    path = tmp_path / "a.idx"
    path.write_bytes(b"TNTIDX\x00\x00" + bytes(80))
    with pytest.raises(InputError, match="byte 0: starts with b'TNTIDX"):
        read_lengths_only(path)


def test_offsets_are_checked_only_when_they_are_read(tmp_path):
    path = write_index(tmp_path / "a.idx", offsets=(0, 6, 7))
    assert read_lengths_only(path).tolist() == [3, 0, 5]
    with pytest.raises(
        InputError, match="byte 62: offset of sequence 2 is 7, the lengths before it give 6"
    ):
        read_index(path)


def test_a_bin_of_another_size_absent_or_not_of_integers_is_refused(tmp_path):
    index = read_index(DATA / "megatron_tiny.idx")
    short = tmp_path / "a.bin"
    short.write_bytes(b"ab")
    with pytest.raises(InputError, match="has 2 bytes, its index says 19896"):
        check_bin(index, short)
    with pytest.raises(InputError, match="is not a file"):
        check_bin(index, tmp_path / "none.bin")
    floats = read_index(write_index(tmp_path / "f.idx", code=7))
    with pytest.raises(InputError, match="float32, token ids are integers"):
        check_bin(floats, short)


def test_a_bin_without_any_token_is_empty(tmp_path):
    index = read_index(write_index(tmp_path / "a.idx", (0, 0), (0, 2)))
    (tmp_path / "a.bin").write_bytes(b"")
    assert len(check_bin(index, tmp_path / "a.bin")) == 0
