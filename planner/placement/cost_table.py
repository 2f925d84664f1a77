"""A batch as the load target sees it: buckets of like lengths, and what each degree costs them.

Planning needs the cost of every sequence at every degree only to choose degrees. That is done
on a histogram, with 64 buckets an octave and the mean length of each, so that solving a target
does not depend on the number of sequences. The longest lengths, which decide most of the work,
have buckets of their own, as has every length of a batch of few sequences. Costs and rows of the
chosen degrees are exact again (`sizing`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.layout import MAX_LENGTH_TOKENS, legal_degrees
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.sizing import (
    load_of,
    memory_floor,
    shape_table,
)

OCTAVE_BUCKETS = 64
"""Buckets between a length and its double: lengths of one differ by at most 1.6 %."""
MAX_LEVELS = 64
"""More than any pool has."""
EXACT_UP_TO = 2048
"""Batches of at most this many sequences get a bucket for every distinct length."""
LONGEST_EXACT = 512
"""So many of the longest distinct lengths get a bucket each in any batch."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of a batch; rows are buckets of like lengths, columns are levels.

    `bucket`: bucket of every sequence, shape (num_sequences,). `count`: sequences in each
    bucket. `load_s`: seconds F + B + W of a sequence on each member on its costliest stage,
    infinite below the memory floor and where a level is not offered, shape (num_buckets,
    num_levels). `ulysses_size`: the inner size that costs least, same shape.
    `floor`: lowest possible level of each bucket. `degrees`: ranks of each level.
    `offered`: which levels may be used at all.
    `fixed_s`: seconds a microbatch costs a stage, rows or not.
    `short_token_s`: seconds a token of a very short sequence costs the costliest stage.
    `floor_s`: the least load a rank can have of the costliest sequence, at any degree.
    """

    bucket: IntArray
    count: IntArray
    load_s: FloatArray
    ulysses_size: IntArray
    floor: IntArray
    degrees: IntArray
    offered: NDArray[np.bool_]
    fixed_s: float
    short_token_s: float
    floor_s: float

    @property
    def num_levels(self) -> int:
        """How many degrees the pool offers."""
        return len(self.degrees)

    @property
    def rank_work_s(self) -> FloatArray:
        """Rank time a sequence consumes at each level, degree x load, seconds."""
        result: FloatArray = self.load_s * self.degrees
        return result


def all_levels(num_ranks: int) -> NDArray[np.bool_]:
    """Every level of the pool is offered."""
    return np.ones(len(legal_degrees(num_ranks)), bool)


def cost_table(
    cost: CostModel,
    length_tokens: IntArray,
    cap_tokens: int,
    offered: NDArray[np.bool_] | None = None,
) -> CostTable:
    """Tabulate a batch.

    Args:
        offered: Which levels may be used, shape (num_levels,); None for all.

    Raises:
        Infeasible: No degree holds some sequence; callers sort those out before.
    """
    offered = all_levels(cost.ranks) if offered is None else offered
    degrees, shapes = legal_degrees(cost.ranks), shape_table(cost)
    floor = memory_floor(cost, length_tokens, cap_tokens, offered)
    if floor.max() == len(degrees):
        worst = int(length_tokens[floor == len(degrees)].max())
        raise Infeasible(f"no degree up to {cost.ranks} holds {worst} tokens in {cap_tokens}")
    bucket, shortest, count = histogram(length_tokens, floor)
    mean = np.rint(np.bincount(bucket, length_tokens) / count).astype(np.int64)
    priced = np.append(mean, length_tokens.max())  # the costliest by itself, for floor_s
    lowest = np.append(floor[shortest], floor.max())
    legal = (shapes > 0) & offered[:, None]
    row, level, choice = np.nonzero((lowest[:, None] <= np.arange(len(degrees)))[..., None] & legal)
    u = shapes[level, choice]
    each_s = np.full((len(priced), *shapes.shape), np.inf)
    each_s[row, level, choice] = load_of(cost, priced[row], u, degrees[level] // u)
    cheapest, load_s = each_s.argmin(axis=2), each_s.min(axis=2)
    return CostTable(
        bucket=bucket,
        count=count,
        load_s=load_s[:-1],
        ulysses_size=shapes[np.arange(len(degrees)), cheapest][:-1],
        floor=lowest[:-1],
        degrees=degrees,
        offered=offered,
        fixed_s=float(cost.call_s.sum(axis=(0, 2)).max()),
        short_token_s=float(cost.row_s.sum(axis=(0, 2)).max()),
        floor_s=float(load_s[-1].min()),
    )


def histogram(
    length_tokens: IntArray, floor: IntArray, octave_buckets: int = OCTAVE_BUCKETS
) -> tuple[IntArray, IntArray, IntArray]:
    """Buckets of lengths that share a memory floor, shortest first.

    Returns:
        Bucket of every sequence; the shortest sequence of each bucket, and its count.
    """
    if len(length_tokens) <= EXACT_UP_TO:
        key = length_tokens
    else:
        octave = np.frexp(length_tokens.astype(float))[1].astype(np.int64) - 1
        step = (length_tokens - (np.int64(1) << octave)) * octave_buckets >> octave
        key = (octave * octave_buckets + step) * MAX_LEVELS + floor
        is_long = length_tokens >= np.unique(length_tokens)[-LONGEST_EXACT:][0]
        key = np.where(is_long, length_tokens + MAX_LENGTH_TOKENS, key)
    found = np.unique(key, return_inverse=True, return_counts=True)
    _, bucket, count = found
    by_length = np.argsort(-length_tokens, kind="stable")
    shortest = np.empty(len(count), np.int64)
    shortest[bucket[by_length]] = by_length
    return bucket.astype(np.int64), shortest, count.astype(np.int64)
