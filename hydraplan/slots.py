"""From a placement to seconds: what every slot (lane, microbatch) costs on every stage.

The one function that planner, checker, simulator and views use, so that a plan means the
same to all of them.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT, CostModel
from hydraplan.errors import InputError, many
from hydraplan.layout import MAX_RANKS, expand, rank_tokens
from hydraplan.model import FloatArray, IntArray, Sequences
from hydraplan.route import Route
from hydraplan.traffic import boundary_s, grad_sync_s

MAX_SLOTS = 1 << 24
"""Most slots of a batch over all stages; more would not fit a planner's memory (about 2 GB)."""


MAX_STAGE_MICROBATCHES = 1 << 16
"""Most microbatches of a batch times stages; a schedule has an object for each of their ops, and
one is made for every candidate (about 10 s of planning at this size)."""


def most_microbatches(num_stages: int, num_ranks: int) -> int:
    """The largest number of microbatches that is planned on such a pool; at least 0."""
    return min(MAX_SLOTS // num_ranks, MAX_STAGE_MICROBATCHES) // num_stages


def check_size(num_stages: int, num_ranks: int, num_microbatches: int) -> None:
    """Refuse a batch of too many slots or ops before anything is allocated for them."""
    slots = num_stages * num_ranks * num_microbatches
    if slots > MAX_SLOTS:
        raise InputError(
            f"{many(num_microbatches, 'microbatch')} on {many(num_stages, 'stage')} x"
            f" {many(num_ranks, 'rank')} are"
            f" {slots} slots, beyond {MAX_SLOTS}",
            "take smaller batches, fewer microbatches, or a larger --max-tokens-per-rank",
        )
    if num_stages * num_microbatches > MAX_STAGE_MICROBATCHES:
        raise InputError(
            f"{many(num_microbatches, 'microbatch')} on {many(num_stages, 'stage')}, at most"
            f" {MAX_STAGE_MICROBATCHES // num_stages} are planned",
            "take smaller batches, fewer microbatches, or a larger --max-tokens-per-rank",
        )


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Costs of one batch.

    `op_s`: own seconds at the speed of the lane, waiting excluded, shape (3, stages, chunks,
    lanes, microbatches), first index `cost.FORWARD`, `INPUT_GRADIENT`, `WEIGHT_GRADIENT`.
    `rows`: exact rows of every slot, shape (lanes, microbatches).
    `component`: lanes connected through groups carry the lowest lane of their component,
    shape (lanes, microbatches).
    `boundary_s`: seconds to hand a slot to the next stage, shape (lanes, microbatches).
    `grad_sync_s`: exposed gradient sync, shape (stages,).
    `route`: the way through the chunks; None for chunk by chunk through all stages.
    `joined`: what a forward and a backward that run at the same time take, over their sum.
    `partner`: the lane that each begins its F and B with since one works for the other (itself if
    none does), shape (forms of migration, stages, lanes, microbatches), None without migration.
    """

    op_s: FloatArray
    rows: IntArray
    component: IntArray
    boundary_s: FloatArray
    grad_sync_s: FloatArray
    route: Route | None = None
    joined: float = 1.0
    partner: IntArray | None = None

    @property
    def load_s(self) -> FloatArray:
        """Load of every slot: F + B + W on its costliest stage, (lanes, microbatches)."""
        result: FloatArray = self.op_s.sum(axis=(0, 2)).max(axis=0)
        return result


def slot_rows(placed: Sequences, num_ranks: int, num_microbatches: int) -> IntArray:
    """Exact rows of every slot, shape (lanes, microbatches); `placed` holds only rows on ranks."""
    held = rank_tokens(placed.length_tokens, placed.ulysses_size, placed.ring_size)
    return _spread(placed, held, num_ranks, num_microbatches).astype(np.int64)


def _spread(
    groups: Sequences, per_member: IntArray | FloatArray, num_ranks: int, num_microbatches: int
) -> FloatArray:
    """Sum over every slot of what the members of groups put there, (lanes, microbatches)."""
    group, member = expand(groups.degree)
    slot = groups.microbatch[group] * num_ranks + groups.first_rank[group] + member
    sums = np.bincount(slot, per_member, num_microbatches * num_ranks)
    return sums.astype(float).reshape(num_microbatches, num_ranks).T


def slot_times(cost: CostModel, placed: Sequences, num_microbatches: int) -> SlotTimes:
    """Cost of every slot of a batch; `placed` holds only rows on ranks."""
    check_size(cost.pp, cost.ranks, num_microbatches)
    bucket, lead = buckets(placed)
    shape = placed.ulysses_size, placed.ring_size
    attention_s = cost.attention_s(placed.length_tokens, *shape, bucket)
    size = cost.ranks, num_microbatches
    rows = slot_rows(placed, *size).T
    padded = rows + padding_tokens(rows, cost.tp)
    op_s = cost.call_s[..., None, None] + cost.row_s[..., None, None] * padded
    layers, leads = np.array(cost.layers, float)[:, :, None, None], placed.take(lead)
    for direction in (FORWARD, INPUT_GRADIENT):
        per_member = np.repeat(attention_s[direction], placed.degree[lead])
        op_s[direction] += layers * _spread(leads, per_member, *size).T
    if cost.rank_speed is not None:
        op_s *= cost.slow
    return SlotTimes(  # lanes lie next to each other in memory, since runs walk over them
        op_s=op_s.swapaxes(-1, -2),
        rows=rows.T,
        component=components(placed, cost.ranks, num_microbatches),
        boundary_s=boundary_s(cost, padded.T.astype(float)),
        grad_sync_s=grad_sync_s(cost),
        route=cost.route,
    )


def padding_tokens(rows: IntArray, tp: int) -> IntArray:
    """Rows each slot is padded by: sequence parallelism cuts them evenly over tp devices."""
    return -rows % tp


def buckets(placed: Sequences) -> tuple[IntArray, IntArray]:
    """Bucket of every sequence, and one sequence of every bucket.

    A bucket is what the engine exchanges together: the sequences of a microbatch that share
    (first_rank, ulysses_size, ring_size).
    """
    links = np.stack([placed.ulysses_size, placed.ring_size])
    _, shape = np.unique(links[0] * (MAX_RANKS + 1) + links[1], return_inverse=True)
    block = placed.microbatch * MAX_RANKS + placed.first_rank
    key = block * (int(shape.max()) + 1) + shape
    _, lead, bucket = np.unique(key, return_index=True, return_inverse=True)
    return bucket.reshape(-1), lead


def components(placed: Sequences, num_ranks: int, num_microbatches: int) -> IntArray:
    """Lowest lane of each slot's connected set of groups, shape (lanes, microbatches).

    Groups are runs of lanes, so two neighbours are connected exactly when some group covers
    both; counting the groups that cross each border finds all sets at once.
    """
    wide = placed.degree > 1
    size = num_microbatches * (num_ranks + 1)
    first = placed.microbatch[wide] * (num_ranks + 1) + placed.first_rank[wide] + 1
    end = first + placed.degree[wide] - 1
    crossing = np.bincount(first, minlength=size) - np.bincount(end, minlength=size)
    crossing = crossing.reshape(num_microbatches, num_ranks + 1)[:, :num_ranks]
    starts_here = np.cumsum(crossing, axis=1) == 0
    lane = np.arange(num_ranks, dtype=np.int64)
    return np.maximum.accumulate(np.where(starts_here, lane, 0), axis=1).T
