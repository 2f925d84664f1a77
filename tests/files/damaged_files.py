"""Sound files of every kind that is read, and how they are damaged.

`python -m tests.files.damaged_files 5000` damages so many of each kind and reads them, as the
commands do: what is neither read nor refused in one line within `LONGEST_S` is an error.
"""

import io
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.errors import InputError
from hydraplan.files.lengths_sources import read_sources
from hydraplan.files.profilefile import read_profile, write_profile
from tests.planner.cases import profile

LONGEST_S = 60
"""A file of a few kilobytes that takes longer counts as a hang. One in 75,000 takes 5 s: a page of
Parquet that claims 2 GiB, which pyarrow makes room for."""

DATA = Path(__file__).parents[1] / "data"
ROWS = [5, 0, 17, 3, 900, 40]
IDS = [list(range(n)) for n in ROWS]
PACKS = {"cu_seqlens": [[0, 5, 9, 12, -1], [0, 3, -1, -1]], "input_ids": [[1] * 12, [1] * 3]}
PLAIN = {"use_dictionary": False, "compression": "zstd", "data_page_version": "2.0"}
LARGE = (2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)


def parquet(options=None, **columns):
    kept = io.BytesIO()
    pq.write_table(pa.table(columns), kept, row_group_size=2, **(options or {}))
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


def profile_file():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.profile.parquet"
        write_profile(path, profile().header, [])
        return path.read_bytes()


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
    "plain.parquet": parquet(PLAIN, input_ids=IDS),
    "packs.parquet": parquet(**PACKS),
    "ids.arrow": arrow(pa.ipc.new_stream, input_ids=IDS),
    "packs.arrow": arrow(pa.ipc.new_stream, **PACKS),
    "file.arrow": arrow(pa.ipc.new_file, input_ids=IDS),
    "a.profile.parquet": profile_file(),
    "stdin": lines({"input_ids": ids[:9]} for ids in IDS),
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


def refusal(name: str, path: Path) -> str | None:
    """The line by which a damaged file is refused; None where it is read.

    Raises:
        AssertionError: It is refused without its name, in several lines, or read as nothing.
    """
    try:
        if name == "a.profile.parquet":
            assert read_profile(path).digest
        elif name == "stdin":
            with path.open() as sys.stdin:
                assert len(read_sources(["-"]).length_tokens) > 0
        else:
            assert len(read_sources([str(path)]).length_tokens) > 0
    except InputError as error:
        text = str(error)
        assert "\n" not in text, text
        assert (name if name == "stdin" else str(path)) in text, text
        return text
    return None


def main(count: int) -> None:
    """A row a kind: how many were read, how many refused, and what places those name."""

    def hang(*_: object) -> None:
        raise AssertionError(f"takes longer than {LONGEST_S} s")

    signal.signal(signal.SIGALRM, hang)
    for name, raw in SOUND.items():
        rng, told, longest_s = np.random.default_rng(2), Counter[str](), 0.0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            for number in range(count):
                bad = damaged(raw, rng)
                path.write_bytes(bad)
                began_s = time.monotonic()
                signal.alarm(LONGEST_S)
                try:
                    line = refusal(name, path)
                except BaseException:
                    Path(f"damaged-{number}-{name}").write_bytes(bad)
                    print(f"{name}: file {number} is kept as damaged-{number}-{name}")
                    raise
                signal.alarm(0)
                longest_s = max(longest_s, time.monotonic() - began_s)
                places = ("row", "byte", "line") if line else ()
                told[next((p for p in places if f"{p} " in line), "file") if line else "read"] += 1
        print(name, dict(sorted(told.items())), f"longest {longest_s:.3f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
