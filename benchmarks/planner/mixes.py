"""Lengths of the evaluation: the three mixes of our research note, and resampled length files.

A mix is log-normal: 32K is LN(2K, 1.4); 128K and 256K are 90% LN(2K, 1.4) and 10% LN(32K, 1.2);
all clipped to [128, longest]. A file gives its own rows, drawn with replacement, since most files
hold too few tokens for a large pool; rows that are empty or beyond the context are left out, and
counted. Both fill a batch of a wanted number of tokens under a seed.

    python benchmarks/planner/mixes.py [LENGTHS_FOLDER] [--json FILE]

prints what each source looks like. Lengths only; nothing is planned here.

Source: the mixes and 80% over 4 x pp microbatches are ours; the papers' lengths are not public.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tables import Table, reported

from hydraplan.files.lengths import read_lengths
from hydraplan.model import IntArray

CONTEXT_TOKENS = 262_144
"""Longest sequence of the evaluation; rows of a file beyond it are left out."""
SHORTEST_TOKENS = 128
FILL = 0.8
"""Share of the cap that a batch fills over `MICROBATCHES_A_STAGE` x pp microbatches."""
MICROBATCHES_A_STAGE = 4


@dataclass(frozen=True, slots=True)
class Source:
    """Where lengths come from. `left_out` says how many rows of a file are not drawn."""

    name: str
    draw: Callable[[np.random.Generator, int], IntArray]
    left_out: int = 0


def _mix(longest: int, share_of_long: float) -> Callable[[np.random.Generator, int], IntArray]:
    def draw(rng: np.random.Generator, count: int) -> IntArray:
        length = np.exp(rng.normal(np.log(2_000), 1.4, count))
        long = rng.random(count) < share_of_long
        length[long] = np.exp(rng.normal(np.log(32_768), 1.2, int(long.sum())))
        return np.clip(length, SHORTEST_TOKENS, longest).astype(np.int64)

    return draw


MIXES = {
    "32K": Source("32K", _mix(32_768, 0.0)),
    "128K": Source("128K", _mix(131_072, 0.1)),
    "256K": Source("256K", _mix(262_144, 0.1)),
}


def file_source(path: Path, context_tokens: int = CONTEXT_TOKENS) -> Source:
    """The rows of a length file that can be trained on, drawn with replacement."""
    whole = read_lengths(path).length_tokens
    rows = whole[(whole > 0) & (whole <= context_tokens)]

    def draw(rng: np.random.Generator, count: int) -> IntArray:
        return rows[rng.integers(0, len(rows), count)]

    return Source(path.stem.removeprefix("lengths_"), draw, len(whole) - len(rows))


def file_sources(folder: Path) -> list[Source]:
    """All length files of a folder, by name."""
    return [file_source(path) for path in sorted(folder.glob("lengths_*.parquet"))]


def sequences(source: Source, count: int, seed: int) -> IntArray:
    """So many lengths."""
    return source.draw(np.random.default_rng(seed), count)


def batch(source: Source, tokens: int, seed: int) -> IntArray:
    """Lengths that add up to at most `tokens`, and to more with one sequence more."""
    rng = np.random.default_rng(seed)
    drawn = source.draw(rng, 4_096)
    while int(drawn.sum()) <= tokens:
        drawn = np.concatenate([drawn, source.draw(rng, len(drawn))])
    return drawn[: int(np.searchsorted(np.cumsum(drawn), tokens, side="right"))]


def filling_tokens(
    pp: int, ranks: int, cap_tokens: int, microbatches_a_stage: int = MICROBATCHES_A_STAGE
) -> int:
    """Tokens of a batch that fills `FILL` of the cap over 4 x pp microbatches, or more."""
    return int(FILL * cap_tokens * ranks * microbatches_a_stage * pp)


def scaled(source: Source, count: int, tokens: int, seed: int) -> IntArray:
    """So many lengths, stretched or shrunk alike until they add up to `tokens` (within 1%)."""
    base, factor = sequences(source, count, seed), 1.0
    longest = int(base.max())
    length = base
    for _ in range(20):
        length = np.clip((base * factor).astype(np.int64), SHORTEST_TOKENS, longest)
        factor *= tokens / int(length.sum())
    return length


def main() -> None:
    """Print count, percentiles and tails of every source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cells = []
    for source in [*MIXES.values(), *(file_sources(args.folder) if args.folder else [])]:
        length = np.sort(sequences(source, 100_000, 0))
        p50, p90, p99 = (int(length[int(q * len(length))]) for q in (0.5, 0.9, 0.99))
        cells.append({
            "source": source.name, "mean": float(length.mean()), "p50": p50, "p90": p90,
            "p99": p99, "max": int(length[-1]), "rows_left_out": source.left_out,
            "tokens_beyond_8192": float(length[length > 8_192].sum() / length.sum()),
        })  # fmt: skip
    table = Table("100,000 draws of each source, seed 0", list(cells[0]))
    reported(args.json, {"cells": cells}, [table.of(cells)])


if __name__ == "__main__":
    main()
