"""CPU seconds of a fresh process that reads a large length file, and by how much its peak rises.

`python benchmarks/inputs/large.py FOLDER` writes 0.9 GB there: ids of a million rows, 60 a row
in the mean, by three of pyarrow's settings and as Arrow; an index of 10 million rows.
"""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, MEAN_TOKENS, INDEX_ROWS = 1_000_000, 60, 10_000_000

MEASURE = """
import json, sys, time
from pathlib import Path
from hydraplan.files.lengths import read_lengths

def peak_kib():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

started_s, before = time.process_time(), peak_kib()
found = read_lengths(Path(sys.argv[1])).length_tokens
read_s, peak = time.process_time() - started_s, peak_kib()
print(json.dumps([len(found), int(found.sum()), started_s, read_s, peak, peak - before]))
"""


def write_files(folder: Path) -> list[Path]:
    """The files, in a folder that is there."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(0, 2 * MEAN_TOKENS, ROWS))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    ids = rng.integers(0, 128_256, int(ends[-1])).astype(np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)})
    settings: dict[str, dict[str, object]] = {
        "plain.parquet": {"use_dictionary": False, "compression": None},
        "default.parquet": {},
        "zstd.parquet": {"compression": "zstd"},
    }
    for name, options in settings.items():
        pq.write_table(table, folder / name, **options)
    with pa.ipc.new_stream(folder / "ids.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS // 10)
    with (folder / "ten_million.idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, INDEX_ROWS, INDEX_ROWS + 1))
        file.write(np.full(INDEX_ROWS, 300, np.int32).data)
        file.write((np.arange(INDEX_ROWS) * 1200).data)
        file.write(np.arange(INDEX_ROWS + 1).data)
    return [folder / name for name in (*settings, "ids.arrow", "ten_million.idx")]


def main(folder: Path) -> None:
    """A row a file."""
    print("| file | MB | rows | tokens | start-up s | reading s | peak MB | raised by MB |")
    print("|---|---|---|---|---|---|---|---|")
    for path in write_files(folder):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
        )
        rows, tokens, start_s, read_s, peak, raised = json.loads(done.stdout)
        megabytes = [path.stat().st_size / 1e6, peak * 1024 / 1e6, raised * 1024 / 1e6]
        size, most, more = (f"{each:.0f}" for each in megabytes)
        cells = [path.name, size, f"{rows:,}", f"{tokens:,}", f"{start_s:.2f}", f"{read_s:.2f}"]
        print(f"| {' | '.join([*cells, most, more])} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
