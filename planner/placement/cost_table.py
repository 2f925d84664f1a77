"""Cost of every sequence at every degree: what the planner knows of a batch.

Degrees are the powers of two up to the pool. For each the cheapest legal (ulysses_size,
ring_size) is taken. A degree is possible if its fullest member fits the cap.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydraplan.cost import FORWARD, INPUT_GRADIENT, CostModel
from hydraplan.errors import Infeasible
from hydraplan.layout import rank_tokens_max
from hydraplan.model import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of a batch, columns are levels: level k is degree 2**k.

    `load_s`: seconds F + B + W that a sequence adds to each member on the planning stage if it
    shares its exchanges with no other (an upper bound of what it adds), infinite where the cap
    forbids the degree, shape (num_sequences, num_levels).
    `rows`: rows of the fullest member, same shape. `ulysses_size`: the chosen inner size.
    `floor`: lowest possible level of each sequence, its memory floor.
    `fixed_s`: seconds a microbatch costs the planning stage, rows or not.
    `short_token_s`: seconds a token of a very short sequence costs that stage.
    `work_s`, `alone_s`, `through_s`: what `metrics.lower_bound_s` asks for.
    """

    load_s: FloatArray
    rows: IntArray
    ulysses_size: IntArray
    floor: IntArray
    fixed_s: float
    short_token_s: float
    work_s: FloatArray
    alone_s: FloatArray
    through_s: FloatArray

    @property
    def num_levels(self) -> int:
        """How many degrees the pool offers."""
        return int(self.load_s.shape[1])

    @property
    def rank_work_s(self) -> FloatArray:
        """Rank time a sequence consumes at each level, degree x load, seconds."""
        result: FloatArray = self.load_s * 2.0 ** np.arange(self.num_levels)
        return result

    def at(self, level: IntArray) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
        """Load (s), fullest rows, ulysses_size and ring_size of each sequence at its level."""
        i = np.arange(len(level))
        u = self.ulysses_size[i, level]
        return self.load_s[i, level], self.rows[i, level], u, (1 << level) // u


def num_levels(num_ranks: int) -> int:
    """Number of powers of two up to the pool: degrees 1, 2, 4, ..."""
    return num_ranks.bit_length()


def fits(cost: CostModel, length_tokens: IntArray, cap_tokens: int) -> NDArray[np.bool_]:
    """Which sequences some degree can hold, shape (num_sequences,)."""
    result = np.zeros(len(length_tokens), bool)
    for level in range(num_levels(cost.ranks)):
        for u, r in cost.shapes(1 << level):
            result |= _fullest(length_tokens, u, r) <= cap_tokens
    return result


def cost_table(cost: CostModel, length_tokens: IntArray, cap_tokens: int) -> CostTable:
    """Tabulate a batch; lengths that repeat are computed once.

    Raises:
        Infeasible: No degree holds some sequence; callers sort those out before.
    """
    length, inverse = np.unique(length_tokens, return_inverse=True)
    levels = num_levels(cost.ranks)
    stage = planning_stage(cost, length_tokens)
    load = np.full((len(length), levels), np.inf)
    rows = np.zeros((len(length), levels), np.int64)
    ulysses = np.ones((len(length), levels), np.int64)
    work = np.full((3, cost.pp, len(length)), np.inf)
    alone = np.full((3, cost.pp, len(length)), np.inf)
    through = np.full(len(length), np.inf)
    for level in range(levels):
        for u, r in cost.shapes(1 << level):
            fullest = _fullest(length, u, r)
            ops = cost.sequence_s(length, np.full_like(length, u), np.full_like(length, r))
            least = cost.least.sequence_s(length, np.full_like(length, u), np.full_like(length, r))
            ops[:, :, fullest > cap_tokens] = np.inf
            least[:, :, fullest > cap_tokens] = np.inf
            total = ops[:, stage].sum(axis=0)
            better = total < load[:, level]
            load[better, level] = total[better]
            rows[better, level] = fullest[better]
            ulysses[better, level] = u
            work = np.minimum(work, least * (1 << level))
            alone = np.minimum(alone, ops)
            forward_and_back = ops[FORWARD].sum(axis=0) + ops[INPUT_GRADIENT].sum(axis=0)
            through = np.minimum(through, forward_and_back)
    if not np.isfinite(load).any(axis=1).all():
        worst = int(length[~np.isfinite(load).any(axis=1)].max())
        raise Infeasible(f"no degree up to {cost.ranks} holds {worst} tokens in {cap_tokens}")
    return CostTable(
        load_s=load[inverse],
        rows=rows[inverse],
        ulysses_size=ulysses[inverse],
        floor=np.isfinite(load).argmax(axis=1)[inverse].astype(np.int64),
        fixed_s=float(cost.call_s.sum(axis=(0, 2))[stage]),
        short_token_s=float(cost.row_s.sum(axis=(0, 2))[stage]),
        work_s=work[:, :, inverse],
        alone_s=alone[:, :, inverse],
        through_s=through[inverse],
    )


def _fullest(length_tokens: IntArray, u: int, r: int) -> IntArray:
    return rank_tokens_max(
        length_tokens, np.full_like(length_tokens, u), np.full_like(length_tokens, r)
    )


def planning_stage(cost: CostModel, length_tokens: IntArray) -> int:
    """The stage that costs most over the batch; slot loads are balanced on it."""
    ones = np.ones_like(length_tokens)
    return int(cost.sequence_s(length_tokens, ones, ones).sum(axis=(0, 2)).argmax())
