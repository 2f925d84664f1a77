"""From a placement to seconds: what every slot (lane, microbatch) costs on every stage.

The one function that planner, checker, simulator and views use, so that a plan means the
same to all of them.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import InputError
from hydraplan.layout import expand, rank_tokens
from hydraplan.model import FloatArray, IntArray, Sequences
from hydraplan.traffic import boundary_s, grad_sync_s

MAX_SLOTS = 1 << 24
"""Most slots of a batch over all stages; more would not fit a planner's memory (about 2 GB)."""


def check_size(num_stages: int, num_ranks: int, num_microbatches: int) -> None:
    """Refuse a batch of more slots than `MAX_SLOTS` before anything is allocated for them."""
    slots = num_stages * num_ranks * num_microbatches
    if slots > MAX_SLOTS:
        raise InputError(
            f"{num_microbatches} microbatches on {num_stages} stages x {num_ranks} ranks are"
            f" {slots} slots, beyond {MAX_SLOTS}",
            "take smaller batches, fewer microbatches, or a larger --max-tokens-per-rank",
        )


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Costs of one batch.

    `op_s`: own seconds, waiting excluded, shape (3, stages, chunks, lanes, microbatches),
    first index `cost.FORWARD`, `INPUT_GRADIENT`, `WEIGHT_GRADIENT`.
    `rows`: exact rows of every slot, shape (lanes, microbatches).
    `component`: lanes connected through groups carry the lowest lane of their component,
    shape (lanes, microbatches).
    `boundary_s`: seconds to hand a slot to the next stage, shape (lanes, microbatches).
    `grad_sync_s`: exposed gradient sync, shape (stages,).
    """

    op_s: FloatArray
    rows: IntArray
    component: IntArray
    boundary_s: FloatArray
    grad_sync_s: FloatArray

    @property
    def load_s(self) -> FloatArray:
        """Load of every slot: F + B + W on its costliest stage, (lanes, microbatches)."""
        result: FloatArray = self.op_s.sum(axis=(0, 2)).max(axis=0)
        return result


def slot_times(cost: CostModel, placed: Sequences, num_microbatches: int) -> SlotTimes:
    """Cost of every slot of a batch; `placed` holds only rows on ranks."""
    check_size(cost.pp, cost.ranks, num_microbatches)
    shape = (cost.ranks, num_microbatches)
    u, r = placed.ulysses_size, placed.ring_size
    sequence, member = expand(placed.degree)
    slot = (placed.first_rank[sequence] + member) * num_microbatches + placed.microbatch[sequence]
    size = shape[0] * shape[1]
    exact_rows = rank_tokens(placed.length_tokens, u, r)
    rows = np.bincount(slot, exact_rows, size).astype(np.int64).reshape(shape)
    bucket, lead = buckets(placed)
    attention = cost.attention_s(placed.length_tokens, u, r, bucket)
    exchange, member = expand(placed.degree[lead])
    lane = placed.first_rank[lead][exchange] + member
    slot = lane * num_microbatches + placed.microbatch[lead][exchange]
    per_layer = np.stack(
        [np.bincount(slot, part[exchange], size).reshape(shape) for part in attention]
    )
    padded = rows + padding_tokens(rows, cost.tp)
    op_s = cost.call_s[..., None, None] + cost.row_s[..., None, None] * padded
    op_s[:2] += np.array(cost.layers, float)[None, :, :, None, None] * per_layer[:, None, None]
    return SlotTimes(
        op_s=op_s,
        rows=rows,
        component=components(placed, cost.ranks, num_microbatches),
        boundary_s=boundary_s(cost, padded.astype(float)),
        grad_sync_s=grad_sync_s(cost),
    )


def padding_tokens(rows: IntArray, tp: int) -> IntArray:
    """Rows each slot is padded by: sequence parallelism cuts them evenly over tp devices."""
    return -rows % tp


def buckets(placed: Sequences) -> tuple[IntArray, IntArray]:
    """Bucket of every sequence, and one sequence of every bucket.

    A bucket is what the engine exchanges together: the sequences of a microbatch that share
    (first_rank, ulysses_size, ring_size).
    """
    keys = np.stack([placed.microbatch, placed.first_rank, placed.ulysses_size, placed.ring_size])
    _, lead, bucket = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return bucket.reshape(-1), lead


def components(placed: Sequences, num_ranks: int, num_microbatches: int) -> IntArray:
    """Lowest lane of each slot's connected set of groups, shape (lanes, microbatches).

    Groups are runs of lanes, so two neighbours are connected exactly when some group covers
    both; counting the groups that cross each border finds all sets at once.
    """
    crossing = np.zeros((num_ranks + 1, num_microbatches), np.int64)
    wide = placed.degree > 1
    np.add.at(crossing, (placed.first_rank[wide] + 1, placed.microbatch[wide]), 1)
    end = placed.first_rank[wide] + placed.degree[wide]
    np.add.at(crossing, (end, placed.microbatch[wide]), -1)
    starts_here = np.cumsum(crossing, axis=0)[:num_ranks] == 0
    lane = np.arange(num_ranks, dtype=np.int64)[:, None]
    return np.maximum.accumulate(np.where(starts_here, lane, 0), axis=0)
