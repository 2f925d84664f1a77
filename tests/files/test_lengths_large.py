"""What a million rows, ten million rows, and other people's writers ask of the readers."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.files.lengths import read_lengths

MEASURE = """
import json, resource, sys
from pathlib import Path
from hydraplan.files.lengths import read_lengths

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak_bytes()
found = read_lengths(Path(sys.argv[1])).length_tokens
print(json.dumps([len(found), int(found.sum()), peak_bytes() - before]))
"""


def measured(path):
    """Rows, tokens, and by how many bytes reading raises the peak of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return json.loads(done.stdout)


def lists(path, rows, mean_tokens):
    """One row group of lists of ids, so long on average; returns the tokens in it."""
    lengths = np.random.default_rng(0).integers(0, 2 * mean_tokens, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.arange(offsets[-1], dtype=np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)})
    if path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows // 10)
    else:
        pq.write_table(table, path, row_group_size=rows, use_dictionary=False, compression=None)
    return int(offsets[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_million_rows_of_ids_are_counted_in_flat_memory(tmp_path, name):
    """240 MB of ids, in Parquet in a single row group."""
    tokens = lists(tmp_path / name, 1_000_000, 60)
    rows, found, raised_bytes = measured(tmp_path / name)
    assert (rows, found) == (1_000_000, tokens)
    assert raised_bytes < 110_000_000


@pytest.mark.slow
def test_jsonl_is_streamed(tmp_path):
    """20 MB of text; what remains is 8 bytes a row."""
    line = json.dumps({"text": "x" * 1000, "length": 7}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 20_000)
    rows, found, raised_bytes = measured(tmp_path / "a.jsonl")
    assert (rows, found) == (20_000, 140_000)
    assert raised_bytes < 10_000_000


@pytest.mark.slow
def test_ten_million_sequences_of_an_index_take_little_memory(tmp_path):
    rows = 10_000_000
    with (tmp_path / "a.idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, rows, rows + 1))
        file.write(np.full(rows, 300, np.int32).data)
        file.write((np.arange(rows) * 1200).data)
        file.write(np.arange(rows + 1).data)
    found_rows, tokens, raised_bytes = measured(tmp_path / "a.idx")
    assert (found_rows, tokens) == (rows, 300 * rows)
    assert raised_bytes < 230_000_000  # 80 MB of lengths, 120 MB of mapped file


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_index_of_megatron_core_is_read(tmp_path):
    indexed = pytest.importorskip(
        "megatron.core.datasets.indexed_dataset", reason="needs the extra peers"
    )
    torch = pytest.importorskip("torch")
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=np.int32)
    for document in ([5, 3], [7], [1, 2, 900]):
        for tokens in document:
            builder.add_item(torch.arange(tokens))
        builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))
    assert read_lengths(tmp_path / "a.idx").length_tokens.tolist() == [5, 3, 7, 1, 2, 900]
    by_document = read_lengths(tmp_path / "a.idx", "documents").length_tokens
    assert by_document.tolist() == [8, 7, 903]


def test_sums_past_31_bits_are_kept_whole(tmp_path):
    """20,000 rows of 120,000 tokens, 2.4e9 in all."""
    lengths = np.full(20_000, 120_000, np.int32)
    np.save(tmp_path / "a.npy", lengths)
    pq.write_table(pa.table({"length": lengths}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"length": 120000}\n' * 20_000)
    for name in ("a.npy", "a.parquet", "a.jsonl"):
        assert read_lengths(Path(tmp_path / name)).length_tokens.sum() == 2_400_000_000
