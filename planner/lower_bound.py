"""What `metrics.lower_bound_s` asks of a batch: the least each op of each sequence can cost.

Large batches are taken in buckets of like lengths, each as cheap as its shortest sequence, so
that the bound stays one. The cap is asked for in mean rows, since some strategies do not know
exact ones.
"""

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT, CostModel
from hydraplan.layout import legal_degrees
from hydraplan.metrics import lower_bound_s
from hydraplan.model import IntArray
from hydraplan.planner.placement.cost_table import histogram

OCTAVE_BUCKETS = 512
"""Buckets between a length and its double: the bound loses at most 0.2 % in length."""


def bound_s(cost: CostModel, length_tokens: IntArray, cap_tokens: int) -> float:
    """No plan that keeps length over degree within the cap is faster, noise-free; seconds."""
    degrees = legal_degrees(cost.ranks)
    floor = np.searchsorted(degrees, -(-length_tokens // cap_tokens)).astype(np.int64)
    _, shortest, count = histogram(length_tokens, floor, OCTAVE_BUCKETS)
    length, floor = length_tokens[shortest], floor[shortest]
    work_s = np.full((3, cost.pp, len(length)), np.inf)
    alone_s = np.full_like(work_s, np.inf)
    through_s = np.full(len(length), np.inf)
    for level, degree in enumerate(degrees):
        held = np.flatnonzero(floor <= level)
        for u, r in cost.shapes(int(degree)):
            inner, outer = np.full(len(held), u), np.full(len(held), r)
            ops_s = cost.sequence_s(length[held], inner, outer)
            least_s = cost.least.sequence_s(length[held], inner, outer)
            work_s[..., held] = np.minimum(work_s[..., held], least_s * degree)
            first_s = ops_s
            if cost.route.num_chunks > 1:
                first_s = cost.sequence_s(length[held], inner, outer, num_chunks=1)
            alone_s[..., held] = np.minimum(alone_s[..., held], first_s)
            there_and_back = ops_s[FORWARD].sum(axis=0) + ops_s[INPUT_GRADIENT].sum(axis=0)
            through_s[held] = np.minimum(through_s[held], there_and_back)
    return lower_bound_s(cost, work_s * count, alone_s, through_s)
