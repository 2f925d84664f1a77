"""What Megatron-Core has to be told from a plan: options, groups, and what a rank packs.

python examples/megatron_batches.py [PLAN [RANK]]      (without PLAN a small one is made)

Needs neither torch nor Megatron; docs/megatron.md says what to do with each line.
"""

import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pandas as pd

import hydraplan
from hydraplan.cli.app import run

Pack = tuple[tuple[int, int], list[int], list[int], list[int]]


def layout(layers: tuple[tuple[int, ...], ...]) -> str:
    """Value of --pipeline-model-parallel-layout: chunk 0 of all stages, then chunk 1, ..."""
    parts = [f"t*{stage[chunk]}" for chunk in range(len(layers[0])) for stage in layers]
    return "E" + "|".join(parts) + ",L"


def groups(sequences: pd.DataFrame) -> list[tuple[int, int]]:
    """Distinct (first_rank, degree) above degree 1: a process group each, made in this order."""
    wide = sequences[sequences.degree > 1]
    return sorted(set(zip(wide.first_rank.tolist(), wide.degree.tolist(), strict=True)))


def packs(sequences: pd.DataFrame, rank: int, microbatch: int) -> Iterator[Pack]:
    """What a rank runs in a microbatch: (first_rank, degree), ids, cu_seqlens, padded ones.

    One entry a group, in the order in which all lanes must come to them.
    """
    mine = sequences[
        (sequences.microbatch == microbatch)
        & (sequences.first_rank <= rank)
        & (rank < sequences.first_rank + sequences.degree)
    ].sort_values("order")
    for group, held in mine.groupby(["first_rank", "degree"], sort=False):
        first, degree = int(group[0]), int(group[1])
        lengths = held.length_tokens.tolist()
        unit = 2 * degree if degree > 1 else 1  # Transformer Engine cuts into 2 x degree parts
        padded = [-(-length // unit) * unit for length in lengths]
        ids = held.sequence_id.tolist()
        yield (first, degree), ids, [0, *accumulate(lengths)], [0, *accumulate(padded)]


def small_plan(path: Path) -> None:
    """The lengths of the Python standard library on 4 stages of 8 ranks."""
    lengths = Path(hydraplan.__file__).parent / "data" / "lengths_cpython_stdlib.parquet"
    profile = path.with_name("h100.profile.parquet")
    made = ["--device", "analytic", "--cluster", "h100-sxm", "--model", "llama-8b"]
    shape = ["--pp", "4", "--ranks", "8", "--max-tokens-per-rank", "16384"]
    asked = ["--batch-sequences", "48", "--microbatch-multiple", "4", "-o", str(path)]
    assert run(["profile", *made, "-o", str(profile)]) == 0
    assert run(["plan", str(lengths), "--profile", str(profile), *shape, *asked]) == 0


def main(folder: str = "", rank: str = "0") -> None:
    """Print the options, the groups, and batch 0 as one rank runs it."""
    path = Path(folder) if folder else Path(tempfile.mkdtemp()) / "small.plan"
    if not folder:
        small_plan(path)
    plan = hydraplan.load_plan(path)
    batch = plan.sequences[(plan.sequences.batch == 0) & (plan.sequences.microbatch >= 0)]
    count = int(plan.batches.num_microbatches[0])
    print(f"\n--pipeline-model-parallel-layout '{layout(plan.header.layers)}'")
    print(f"num_microbatches {count}, groups {groups(batch)}")
    for microbatch in range(count):
        print(f"microbatch {microbatch} of rank {rank}")
        held = list(packs(batch, int(rank), microbatch))
        for (first, degree), ids, true, padded in held:
            print(f"  ranks {first}..{first + degree - 1}: sequences {ids}, cu_seqlens {true},")
            print(f"    padded {padded}, {padded[-1] // degree} rows here")
        if not held:
            print("  nothing: run one token of loss mask 0")


if __name__ == "__main__":
    main(*sys.argv[1:])
