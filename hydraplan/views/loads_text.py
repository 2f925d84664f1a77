"""Loads of lanes and degrees of sequences as bars, and the true work of a batch in a line."""

import math
from collections.abc import Mapping

import numpy as np

from hydraplan.errors import many
from hydraplan.flops import batch_flops
from hydraplan.model import BatchPlan, FloatArray
from hydraplan.planheader import PlanHeader
from hydraplan.views import console

BAR = "#"
SLOWEST = 5
MOST_BARS = 16
"""Lanes, or runs of lanes, that get a bar."""

NAMES_WIDTH = 34
"""Columns beside a bar, at the most."""


def bar(share: float, cells: int) -> str:
    """A bar of so many cells at the most; something is never drawn as nothing."""
    return BAR * (0 if share <= 0 else max(1, round(share * cells)))


def print_loads(load_s: FloatArray) -> None:
    """Load of every lane over all microbatches; the five busiest by name.

    Args:
        load_s: Load of every slot, seconds, shape (lanes, microbatches).
    """
    lanes = load_s.sum(axis=1)
    top, cells = float(lanes.max()), console.cells(NAMES_WIDTH)
    console.emit(
        f"load of {many(len(lanes), 'lane')}, all microbatches: least {lanes.min():.4g} s, median"
        f" {np.median(lanes):.4g} s, most {top:.4g} s"
    )
    parts = np.array_split(np.arange(len(lanes)), min(MOST_BARS, len(lanes)))
    if len(parts[0]) > 1:
        console.emit(f"a bar stands for the busiest of {len(parts[0])} lanes")
    mark = len(str(len(lanes) - 1))
    console.draw(
        f"lane {part[0]:{mark}d} {lanes[part].max():9.4g} s |{bar(lanes[part].max() / top, cells)}"
        for part in parts
    )
    order = np.lexsort((np.arange(len(lanes)), -lanes))[:SLOWEST]
    shown = ", ".join(f"{lane} ({lanes[lane] / lanes.mean():.3f} of the mean)" for lane in order)
    console.emit(f"busiest lanes: {shown}")


def print_degrees(degrees: Mapping[int, int], tokens: Mapping[int, int]) -> None:
    """Sequences and tokens by degree, with a bar by tokens."""
    total, cells = max(1, sum(tokens.values())), console.cells(NAMES_WIDTH)
    console.emit("degree  sequences       tokens  share of tokens")
    console.draw(
        f"{degree:6d} {degrees[degree]:10,d} {tokens[degree]:12,d}  |"
        f"{bar(tokens[degree] / total, cells)}"
        for degree in sorted(degrees)
    )


def tokens_by_degree(batch: BatchPlan) -> dict[int, int]:
    """Tokens of the placed sequences of each degree."""
    placed = batch.sequences.placed()
    degrees, where = np.unique(placed.degree, return_inverse=True)
    sums = np.bincount(where, placed.length_tokens.astype(float), len(degrees))
    return {int(degree): int(count) for degree, count in zip(degrees, sums, strict=True)}


def flops_object(header: PlanHeader, batch: BatchPlan) -> dict[str, object]:
    """True work of a batch for `--json`; no rate if a damaged plan takes no time."""
    options = header.options
    flops = batch_flops(header.model, batch.sequences.placed().length_tokens)
    devices = options.tp * options.pp * options.ranks
    device_s = batch.figures["iteration_s"] * devices
    rate = flops.total / device_s if device_s else math.nan
    return {
        "model_flops": flops.total,
        "attention_share": flops.attention / flops.total,
        "flops_per_s_per_device": rate,
        "share_of_linear_rate": rate / header.fit.linear_forward.flops_per_s,
    }


def flops_text(found: Mapping[str, object]) -> str:
    """The same in a line."""
    total, share, rate, of_linear = (float(str(value)) for value in found.values())
    return (
        f"{total:.3g} model flops ({share:.0%} of them attention, padding not counted):"
        f" {rate / 1e12:,.4g} TFLOP/s a device, {of_linear:.0%} of the profile's rate of linears"
    )
