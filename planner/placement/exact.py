"""The exact reference: the least possible maximum slot load, or a bound and the gap to it.

What is exact is the maximum over slots of summed loads: the sequences of a slot, each priced as
if it shared its exchanges with no other, its degree in the cheapest shape, and the fixed cost of
a microbatch. Sequences that do share a block pay calls and latencies once, so what the simulator
charges a slot is at most this sum (give or take a row where lengths do not divide). Pipeline,
microbatch order and the number of microbatches are not part of the problem.

For small batches: optimality is proven up to about 16 sequences on 8 ranks x 2 microbatches,
beyond that a placement within a percent or two of its bound. A heuristic plan stands by, so that
there is always a result and it is never worse.

Source: our planner study; the model is in `exact_model`, its places in `exact_places`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import Infeasible, many
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.exact_model import minimise
from hydraplan.planner.placement.exact_places import (
    Places,
    Problem,
    canonical,
    num_places,
    places_of,
)

ExactStatus = Literal["optimal", "feasible"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the search goes: the work it may do, and the largest model that is built at all.

    `deterministic_s`: CP-SAT's measure of work, one to two CPU seconds each; unlike seconds it
    ends every run at the same point. `places`: Booleans; `slots`: ranks x microbatches.
    """

    deterministic_s: float = 10.0
    places: int = 50_000
    slots: int = 4_096
    sequences: int = 2_048


@dataclass(frozen=True, slots=True)
class ExactPlacement:
    """Where every sequence goes, and what is known of better placements.

    `status`: "optimal" if no placement is better by more than N * 1e-7 of the mean slot load.
    `best_s`: the largest slot load of this one, from float loads. `bound_s`: no placement has a
    smaller one. `num_booleans`: places the model chose from.
    """

    level: IntArray
    microbatch: IntArray
    first_rank: IntArray
    status: ExactStatus
    best_s: float
    bound_s: float
    num_booleans: int

    @property
    def gap(self) -> float:
        """How far the best is above the bound, relative."""
        return self.best_s / self.bound_s - 1


def solve_exact(
    load_s: FloatArray,
    rows: IntArray,
    possible: NDArray[np.bool_],
    num_ranks: int,
    num_microbatches: int,
    cap_tokens: int,
    fixed_s: float,
    hint: tuple[IntArray, IntArray, IntArray] | None = None,
    limits: Limits | None = None,
    rank_speed: FloatArray | None = None,
) -> ExactPlacement:
    """Place N sequences so that the largest summed slot load is least.

    Args:
        load_s: Seconds a sequence adds to each member at each level, shape (N, levels).
        rows: Rows of its fullest member, same shape.
        possible: Levels that may be used, same shape; what exceeds the cap is left out anyway.
        fixed_s: Seconds of a slot, sequences or not.
        hint: Level, microbatch and first rank of a placement within the cap, each shape (N,).
        rank_speed: 1.0 nominal, 0.5 half as fast, shape (num_ranks,); None where all are nominal.

    Raises:
        Infeasible: The model would be too large; or, without a hint, there is no placement or
            none was found within the limit.
        MissingDependency: ortools is not installed.

    Source: our own; see `exact_model`.
    """
    limits = limits or Limits()
    problem = Problem(
        load_s=np.where(possible, load_s, 0.0),
        rows=rows,
        possible=possible & (rows <= cap_tokens),
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        cap_tokens=cap_tokens,
        fixed_s=fixed_s,
        rank_speed=np.ones(num_ranks) if rank_speed is None else rank_speed,
    )
    _check_size(problem, limits)
    homeless = np.flatnonzero(~problem.possible.any(axis=1))
    if len(homeless):
        raise Infeasible(f"no possible degree holds sequence {homeless[0]} in {cap_tokens} tokens")
    start = None
    if hint is not None:
        start = canonical(problem, Places(np.arange(len(rows)), *hint))
        assert problem.possible[start.sequence, start.level].all()
        assert problem.slot_rows(start).max() <= cap_tokens
    places = places_of(problem)
    found = minimise(problem, places, start, limits.deterministic_s)
    drafts = [start] if start is not None else []
    if found.chosen is not None:
        taken = found.chosen[np.argsort(places.sequence[found.chosen])]
        drafts.append(
            Places(
                places.sequence[taken],
                places.level[taken],
                places.microbatch[taken],
                places.first_rank[taken],
            )
        )
    if not drafts:
        raise _nothing_found(problem, limits, found.bound_s)
    best = min(drafts, key=lambda d: float(problem.slot_s(d).max()))
    best_s = float(problem.slot_s(best).max())
    return ExactPlacement(
        level=best.level,
        microbatch=best.microbatch,
        first_rank=best.first_rank,
        status="optimal" if found.is_optimal else "feasible",
        best_s=best_s,
        bound_s=min(found.bound_s, best_s),
        num_booleans=len(places),
    )


def _check_size(problem: Problem, limits: Limits) -> None:
    """Refuse a model that would not fit or get anywhere, before anything is listed."""
    slots = problem.num_ranks * problem.num_microbatches
    for what, size, limit in (
        ("sequences", len(problem.rows), limits.sequences),
        ("slots", slots, limits.slots),
        ("Booleans", num_places(problem), limits.places),
    ):
        if size > limit:
            raise Infeasible(
                f"strategy exact takes at most {limit} {what}: "
                f"{many(len(problem.rows), 'sequence')} on {many(problem.num_ranks, 'rank')} x"
                f" {many(problem.num_microbatches, 'microbatch')} make {size}",
                "use --strategy hydra, or smaller batches on a smaller pool",
            )


def _nothing_found(problem: Problem, limits: Limits, bound_s: float) -> Infeasible:
    where = (
        f"{many(problem.num_microbatches, 'microbatch')} on {many(problem.num_ranks, 'rank')} of"
        f" at most {problem.cap_tokens} tokens"
    )
    if np.isinf(bound_s):
        return Infeasible(f"no placement exists in {where}", "use more microbatches")
    return Infeasible(
        f"no placement found in {where} within {limits.deterministic_s:g} deterministic seconds",
        "start from a plan (hint), or raise the limit",
    )
