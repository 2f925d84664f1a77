"""All places a sequence can take, and which of them symmetry spares the exact search.

A place is (level, microbatch, aligned block of lanes). Microbatches are alike, so the i-th
heaviest sequence needs none beyond the i-th. Where all ranks are equally fast, the halves of a
block may trade lanes in all microbatches at once without changing any slot load, so the
heaviest sequence needs only the first block of its kind. Nothing here knows CP-SAT.

Source: both symmetries are standard modelling, ours.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydraplan.layout import expand, legal_degrees
from hydraplan.model import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Places:
    """One row a place: who, at which level, in which microbatch, from which lane on."""

    sequence: IntArray
    level: IntArray
    microbatch: IntArray
    first_rank: IntArray

    def keys(self) -> list[tuple[int, ...]]:
        """Every place as a tuple."""
        columns = (self.sequence, self.level, self.microbatch, self.first_rank)
        return [tuple(row) for row in np.stack(columns, axis=1).tolist()]

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, slots=True)
class Problem:
    """N sequences, R ranks, M microbatches; level k is degree min(2**k, R).

    `load_s`: seconds a sequence adds to each member at nominal speed, `rows`: rows of its fullest
    member, `possible`: levels that may be used, all of shape (N, levels). `fixed_s`: seconds of
    a slot, sequences or not. `rank_speed`: 1.0 nominal, 0.5 half as fast, shape (R,); a block is
    as slow as its slowest rank.
    """

    load_s: FloatArray
    rows: IntArray
    possible: NDArray[np.bool_]
    num_ranks: int
    num_microbatches: int
    cap_tokens: int
    fixed_s: float
    rank_speed: FloatArray

    @property
    def ranks_are_alike(self) -> bool:
        """Whether all ranks are equally fast."""
        return bool((self.rank_speed == self.rank_speed[0]).all())

    def degree(self, places: Places) -> IntArray:
        """Ranks each place takes."""
        return legal_degrees(self.num_ranks)[places.level]

    def slots(self, places: Places) -> tuple[IntArray, IntArray]:
        """Pairs (place, slot it covers); slot = lane * M + microbatch."""
        place, member = expand(self.degree(places))
        lane = places.first_rank[place] + member
        return place, lane * self.num_microbatches + places.microbatch[place]

    def added_s(self, places: Places) -> FloatArray:
        """Seconds each place adds to its slots: the load over the speed of the slowest lane."""
        place, slot = self.slots(places)
        slowest = np.full(len(places), np.inf)
        np.minimum.at(slowest, place, self.rank_speed[slot // self.num_microbatches])
        result: FloatArray = self.load_s[places.sequence, places.level] / slowest
        return result

    def slot_s(self, chosen: Places) -> FloatArray:
        """Summed load of every slot, seconds, fixed cost included, shape (R, M)."""
        shape = self.num_ranks, self.num_microbatches
        place, slot = self.slots(chosen)
        summed = np.bincount(slot, self.added_s(chosen)[place], shape[0] * shape[1])
        result: FloatArray = summed.reshape(shape) + (self.fixed_s / self.rank_speed)[:, None]
        return result

    def slot_rows(self, chosen: Places) -> IntArray:
        """Summed rows of every slot, fullest members, shape (R, M)."""
        shape = self.num_ranks, self.num_microbatches
        place, slot = self.slots(chosen)
        rows = self.rows[chosen.sequence, chosen.level][place]
        return np.bincount(slot, rows, shape[0] * shape[1]).astype(np.int64).reshape(shape)


def heaviest_first(problem: Problem) -> IntArray:
    """Sequences by their least rank-work, descending."""
    work = np.where(problem.possible, problem.load_s, np.inf) * legal_degrees(problem.num_ranks)
    return np.lexsort((np.arange(len(work)), -work.min(axis=1))).astype(np.int64)


def num_places(problem: Problem) -> int:
    """How many places there are before symmetry spares any; counted without listing them."""
    blocks = problem.num_ranks // legal_degrees(problem.num_ranks)
    return int((problem.possible * blocks).sum()) * problem.num_microbatches


def places_of(problem: Problem) -> Places:
    """Every place worth trying: all that are possible, less those that symmetry spares."""
    degrees = legal_degrees(problem.num_ranks).tolist()
    rows = []
    for position, sequence in enumerate(heaviest_first(problem).tolist()):
        microbatches = range(min(problem.num_microbatches, position + 1))
        for level in np.flatnonzero(problem.possible[sequence]).tolist():
            firsts = range(0, problem.num_ranks - degrees[level] + 1, degrees[level])
            kept = list(firsts)
            if position == 0 and problem.ranks_are_alike:
                kept = [s for s in subtree_starts(problem.num_ranks) if s in firsts]
            rows += [(sequence, level, m, first) for m in microbatches for first in kept]
    return Places(*np.array(rows, np.int64).reshape(-1, 4).T)


def canonical(problem: Problem, chosen: Places) -> Places:
    """The same placement (row i: sequence i), moved to places that `places_of` lists.

    Microbatches are numbered by their heaviest sequence. Where ranks are alike, one automorphism
    of the pool brings the heaviest sequence to the start of the largest block around it.
    """
    order = heaviest_first(problem)
    number: dict[int, int] = {}
    for m in chosen.microbatch[order].tolist():
        number.setdefault(m, len(number))
    microbatch = np.array([number[m] for m in chosen.microbatch.tolist()], np.int64)
    first, degree = chosen.first_rank, problem.degree(chosen)
    heaviest = int(order[0])
    if problem.ranks_are_alike and degree[heaviest] < problem.num_ranks:
        bounds = [*subtree_starts(problem.num_ranks), problem.num_ranks]
        tree = int(np.searchsorted(bounds, first[heaviest], side="right")) - 1
        start, stop = bounds[tree], bounds[tree + 1]
        moved = (first - start) ^ int(first[heaviest] - start)
        inside = (first >= start) & (first + degree <= stop)
        first = np.where(inside, start + moved // degree * degree, first)
    return Places(chosen.sequence, chosen.level, microbatch, first)


def subtree_starts(num_ranks: int) -> list[int]:
    """First lanes of the largest aligned powers of two that make up the pool: 7 is 4 + 2 + 1."""
    starts, start = [], 0
    for bit in reversed(range(num_ranks.bit_length())):
        if num_ranks >> bit & 1:
            starts.append(start)
            start += 1 << bit
    return starts
