"""Microbatches of a batch, one a row: what each holds, weighs in the loss, and takes."""

from collections.abc import Mapping

import numpy as np

from hydraplan.model import BatchPlan, FloatArray, IntArray
from hydraplan.views import console

SHOWN = 20


def microbatch_rows(batch: BatchPlan, load_s: FloatArray) -> list[dict[str, float]]:
    """Figures of every microbatch in execution order.

    Args:
        batch: A placed batch.
        load_s: Load of every slot, seconds, shape (lanes, microbatches).
    """
    placed, count = batch.sequences.placed(), batch.num_microbatches

    def total(values: FloatArray | IntArray | None = None) -> list[float]:
        weights = None if values is None else values.astype(float)
        sums: list[float] = np.bincount(placed.microbatch, weights, count).tolist()
        return sums

    valid, tokens, sequences = total(placed.valid_tokens), total(placed.length_tokens), total()
    longest = np.zeros(count)
    np.maximum.at(longest, placed.microbatch, placed.length_tokens)
    busiest = load_s.max(axis=0)
    return [
        {
            "microbatch": m,
            "sequences": int(sequences[m]),
            "tokens": int(tokens[m]),
            "loss_weight": valid[m] / max(1.0, sum(valid)),
            "longest_tokens": int(longest[m]),
            "busiest_slot_s": float(busiest[m]),
            "over_mean": float(busiest[m] / busiest.mean()),
        }
        for m in range(count)
    ]


def print_microbatches(batch: int, rows: list[dict[str, float]]) -> None:
    """A row a microbatch, the first so many."""
    console.print_table(
        [
            "microbatch",
            "sequences",
            "tokens",
            "loss weight",
            "longest",
            "busiest slot ms",
            "x mean",
        ],
        [_cells(row) for row in rows[:SHOWN]],
        title=f"microbatches of batch {batch}, as they run; loss weight: share of labels",
        caption="" if len(rows) <= SHOWN else f"and {len(rows) - SHOWN} more: --json has all",
    )


def _cells(row: Mapping[str, float]) -> list[object]:
    return [
        int(row["microbatch"]),
        int(row["sequences"]),
        int(row["tokens"]),
        f"{row['loss_weight']:.1%}",
        int(row["longest_tokens"]),
        1e3 * row["busiest_slot_s"],
        f"{row['over_mean']:.2f}",
    ]
