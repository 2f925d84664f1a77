"""Damaged files of every kind: one line on stderr and exit 2, or lengths; never a traceback."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run
from hydraplan.errors import InputError
from hydraplan.files.lengths import read_lengths

DATA = Path(__file__).parents[1] / "data"
ROWS = [5, 0, 17, 3, 900, 40]
IDS = [list(range(n)) for n in ROWS]
PACKS = {"cu_seqlens": [[0, 5, 9, 12, -1], [0, 3, -1, -1]], "input_ids": [[1] * 12, [1] * 3]}
LARGE = (2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)


def parquet(**columns):
    kept = io.BytesIO()
    pq.write_table(pa.table(columns), kept, row_group_size=2)
    return kept.getvalue()


def arrow(new, **columns):
    kept, table = io.BytesIO(), pa.table(columns)
    with new(kept, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return kept.getvalue()


def npy():
    kept = io.BytesIO()
    np.save(kept, np.array(ROWS))
    return kept.getvalue()


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


SOUND = {
    "a.txt": "\n".join(map(str, ROWS)).encode(),
    "a.csv": pd.DataFrame({"length": ROWS}).to_csv().encode(),
    "a.npy": npy(),
    "a.idx": (DATA / "megatron_tiny.idx").read_bytes(),
    "length.jsonl": lines({"length": n} for n in ROWS),
    "ids.jsonl": lines({"input_ids": ids[:9]} for ids in IDS),
    "length.parquet": parquet(length=ROWS),
    "ids.parquet": parquet(input_ids=IDS),
    "packs.parquet": parquet(**PACKS),
    "ids.arrow": arrow(pa.ipc.new_stream, input_ids=IDS),
    "packs.arrow": arrow(pa.ipc.new_stream, **PACKS),
    "file.arrow": arrow(pa.ipc.new_file, input_ids=IDS),
}


def damaged(raw, rng):
    """The file cut, with a part taken out, with bits turned, or with a huge number in it."""
    kind, at = rng.integers(4), int(rng.integers(len(raw)))
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + raw[at + int(rng.integers(1, 40)) :]
    if kind == 2:
        return raw[:at] + bytes([int(rng.integers(256))]) + raw[at + 1 :]
    return raw[:at] + LARGE[rng.integers(len(LARGE))].to_bytes(8, "little") + raw[at + 8 :]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_file_is_read(tmp_path, name, capsys):
    (tmp_path / name).write_bytes(SOUND[name])
    assert run(["lengths", str(tmp_path / name), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_tokens"] > 0


@pytest.mark.parametrize("name", SOUND)
def test_a_damaged_file_is_one_line_and_exit_2(tmp_path, name, capsys):
    rng, codes = np.random.default_rng(1), []
    for _ in range(8):
        (tmp_path / name).write_bytes(damaged(SOUND[name], rng))
        codes.append(run(["lengths", str(tmp_path / name), "--json"]))
        out, err = capsys.readouterr()
        message = err.split("\n\nhint: ")[0].rstrip("\n")
        assert codes[-1] in (0, 2)
        assert (out == "") == (codes[-1] == 2)
        assert (message == "") == (codes[-1] == 0)
        assert "\n" not in message
        assert codes[-1] == 0 or str(tmp_path / name) in message
    assert 2 in codes


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_five_thousand_damaged_files_are_read_or_refused(tmp_path, name):
    rng, refused = np.random.default_rng(2), 0
    for _ in range(5_000 // len(SOUND) + 1):
        (tmp_path / name).write_bytes(damaged(SOUND[name], rng))
        try:
            assert len(read_lengths(tmp_path / name).length_tokens) > 0
        except InputError:
            refused += 1
    assert refused > 50
