"""The distinct slots of a plan for many GPUs, replayed one by one, against what was predicted.

The plan is made here by the command, on the profile of this device, from the length file of the
repository: rows drawn with replacement until they fill 80% of the cap over some microbatches a
stage. Predicted are the ops of one layer without links; measured is the rank's own compute
(`replay`). What a rank waits on the wire, for members of its groups or for other stages is in
neither, so this judges the cost of compute alone.
"""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from budget import Left, Row
from command import told
from mixes import batch, file_source, filling_tokens
from predict import Ops
from predict import row as errors_of
from rank_work import SlotWork, attention_pairs, chosen, distinct_slots, whole_pairs
from replay import OPS, SAMPLES, Replayed, answering_lanes, make_layer, replay
from scale import Scale

from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.packing import rank_layout
from hydraplan.model import BatchPlan, FloatArray, Sequences
from hydraplan.planheader import PlanHeader

PART = "slots of a plan"
LENGTHS = "lengths_cpython_stdlib.parquet"
STRATEGIES = ("hydra", "memory-ffd")
"""Slots of the first are alike in time by design; those of the second spread widely."""

SEED = 0


class Made(NamedTuple):
    """A plan that was made here, and its only batch."""

    header: PlanHeader
    batch: BatchPlan
    placed: Sequences


def slot_rows(scale: Scale, profile: Path, folder: Path, left: Left) -> Iterator[Row]:
    """The same batch planned in each way; of each plan what was chosen, then errors by op."""
    lengths = drawn_lengths(scale)
    note = f"{len(lengths):,} rows of {LENGTHS}, drawn with replacement"
    yield Row(PART, "batch", int(lengths.sum()), "tokens", note=note)
    for i, strategy in enumerate(STRATEGIES):
        share = left.share(left.seconds() / (len(STRATEGIES) - i))
        made = make_plan(scale, profile, folder, lengths, strategy)
        for row in plan_rows(scale, made, share):
            yield row._replace(what=f"{strategy}: {row.what}")


def plan_rows(scale: Scale, made: Made, left: Left) -> Iterator[Row]:
    """Of one plan: its slots, those chosen, and how far their predicted times are off."""
    pool, cost, count = scale.pool, made.header.cost_model(), made.batch.num_microbatches
    degrees = ", ".join(f"{n} of {d}" for d, n in made.batch.summary().degrees.items())
    note = (
        f"pp {pool.pp} x ranks {pool.ranks}, cap {pool.cap_tokens:,}, {count} microbatches;"
        f" sequences by degree: {degrees}"
    )
    slots = distinct_slots(cost, made.placed, count)
    taken = chosen(slots, scale.slots)
    what = f"distinct slots of a stage on {pool.gpus:,} GPUs"
    yield Row(PART, what, len(slots), f"of {count * pool.ranks:,}", note=note)
    yield work_row(made, taken)
    done = list(replayed(scale, made, taken, left))
    yield measured_row(scale, done, len(taken), cost.fit.memory_bytes_per_s)
    if len(done) < len(taken):
        note = f"{len(taken) - len(done)} of {len(taken)} chosen slots: no time"
        yield Row(PART, "slots not replayed", verdict="left out", note=note)
    yield from error_rows(done)


def drawn_lengths(scale: Scale) -> np.ndarray:
    """Rows of the length file of the repository, so many that they fill the batch."""
    with resources.as_file(resources.files("hydraplan") / "data" / LENGTHS) as path:
        source = file_source(path, scale.pool.longest_tokens)
    pool = scale.pool
    tokens = filling_tokens(pool.pp, pool.ranks, pool.cap_tokens, pool.microbatches_a_stage)
    return batch(source, tokens, SEED)


def make_plan(
    scale: Scale, profile: Path, folder: Path, lengths: np.ndarray, strategy: str
) -> Made:
    """One batch of all these lengths, planned by the command."""
    pool, plan = scale.pool, folder / f"{strategy}.plan"
    np.savetxt(folder / "slots.txt", lengths, "%d")
    told("plan", folder / "slots.txt", "--profile", profile, "--pp", pool.pp, "--ranks",
         pool.ranks, "--max-tokens-per-rank", pool.cap_tokens, "--batch-sequences", len(lengths),
         "--strategy", strategy, "--workers", 1, "-o", plan)  # fmt: skip
    opened = open_plan(plan)
    found = read_batch(opened, 0)
    return Made(opened.header, found, found.sequences.placed())


def work_row(made: Made, taken: Sequence[SlotWork]) -> Row:
    """Whether the pairs of all members of the groups in one microbatch are those of its rows.

    The microbatch of the slot with the most predicted time; in integers, so to the last pair.
    """
    cost, microbatch = made.header.cost_model(), taken[-1].microbatch
    here = made.placed.take(np.flatnonzero(made.placed.microbatch == microbatch))
    heads = cost.num_heads, cost.num_kv_heads
    found = sum(
        attention_pairs(rank_layout(here, microbatch, lane), *heads) for lane in range(cost.ranks)
    )
    wanted = whole_pairs(here, cost.num_heads)
    note = f"query x key x head pairs of microbatch {microbatch}, all {cost.ranks} ranks: {found:,}"
    verdict = "ok" if found == wanted else "no"
    return Row(PART, "work replayed / planned", found / wanted, "", verdict, note)


Done = tuple[SlotWork, Replayed]


def replayed(scale: Scale, made: Made, taken: Sequence[SlotWork], left: Left) -> Iterator[Done]:
    """Replay slots while there is time; spread over the range of times, wherever it ends."""
    torch.manual_seed(SEED)
    model = made.header.model
    kernel = choose_kernel(scale.target, getattr(torch, model.dtype))
    layer = make_layer(model, kernel, scale.target, scale.device.timer)
    slowest_s = 0.0
    with answering_lanes(made.header.options.ranks) as lanes:
        for slot in scattered(taken):
            before_s = left.seconds()
            if before_s <= 1.5 * slowest_s:
                return
            layout = rank_layout(made.placed, slot.microbatch, slot.lane)
            yield slot, replay(layer, layout, lanes)
            slowest_s = max(slowest_s, before_s - left.seconds())


def scattered(taken: Sequence[SlotWork]) -> list[SlotWork]:
    """Ends first, then the middles between: any number from the front spans the whole range."""
    order: list[int] = []
    steps = max(1, len(taken) - 1)
    stride = 1 << max(0, (steps - 1).bit_length())
    while stride:
        order += [i for i in range(0, steps + 1, stride) if i < len(taken)]
        stride //= 2
    return [taken[i] for i in dict.fromkeys([0, len(taken) - 1, *order])]


def measured_row(scale: Scale, done: Sequence[Done], wanted: int, memory_bytes_per_s: float) -> Row:
    """How many slots were replayed, and the share of what stands for the wire."""
    total_s = sum(sum(times.op_s[:3]) for _, times in done)
    copies_s = sum(2 * times.arrived_bytes for _, times in done) / memory_bytes_per_s
    clock = "CUDA events" if scale.is_cuda else "CPU seconds"
    share = copies_s / total_s if total_s else 0.0
    predicted_ms = [1e3 * sum(slot.predicted_s) for slot, _ in done] or [0.0]
    note = (
        f"of {wanted} chosen, predicted {min(predicted_ms):.3g} - {max(predicted_ms):.3g} ms; one"
        f" layer each, medians of {SAMPLES} by {clock}, no cache flushed; waiting for the wire is"
        f" in neither side, copies that stand for it are about {share:.1%} of the measured time"
    )
    more = {
        "lane_microbatch_count": [(slot.lane, slot.microbatch, slot.count) for slot, _ in done],
        "predicted_s": [(*slot.predicted_s, *slot.attention_s) for slot, _ in done],
        "measured_s": [times.op_s for _, times in done],
        "ops": OPS,
    }
    return Row(PART, "slots replayed", len(done), "slots", note=note, more=more)


def error_rows(done: Sequence[Done]) -> Iterator[Row]:
    """Predicted against measured: whole slots, then op by op."""
    if not done:
        return
    predicted = np.array([(*slot.predicted_s, *slot.attention_s) for slot, _ in done])
    measured = np.array([times.op_s for _, times in done])
    cases = [("a slot, F + B + W", predicted[:, :3].sum(axis=1), measured[:, :3].sum(axis=1))]
    cases += [(name, predicted[:, i], measured[:, i]) for i, name in enumerate(OPS)]
    for name, predicted_s, measured_s in cases:
        none = np.ones(len(done))  # nothing else runs there: the machine counts as equally fast
        ops = Ops([name] * len(done), [False] * len(done), measured_s, predicted_s, none)
        row = errors_of(name, ops)
        note = (
            f"p90 {row['p90 error']:.1%}, predicted / measured"
            f" {row['predicted / measured']:.3f}, rank correlation"
            f" {rank_correlation(predicted_s, measured_s):.3f}, median {row['median ms']:.3g} ms"
        )
        yield Row(PART, name, 100 * row["median error"], "% median error", note=note, more=row)


def rank_correlation(a: FloatArray, b: FloatArray) -> float:
    """Spearman's, of values without ties; NaN of fewer than three."""
    if len(a) < 3:
        return float("nan")
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])
