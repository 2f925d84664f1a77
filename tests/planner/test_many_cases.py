"""Random requests of every kind: whatever is planned is valid, whole, and planned in time.

All pools from 1 to 64 ranks, caps from one token on, lengths from empty to far too long, and all
options at once. 20,000 cases solve a target and place at a single point of the search; 300 run the
whole search. Seeds are fixed; a failing case is printed as `CASE, options, lengths`.
"""

from collections import Counter
from functools import lru_cache
from time import process_time
from typing import Any

import numpy as np
import pytest

from hydraplan.errors import Infeasible, InputError
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.invariants import check_plan
from hydraplan.layout import expand, legal_degrees, rank_tokens
from hydraplan.metrics import FIGURES
from hydraplan.model import BatchPlan, IntArray
from hydraplan.planheader import PlanHeader, PlanOptions
from hydraplan.planner.figures import check_figures
from hydraplan.planner.open_request import open_request
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.placement.degrees import guard
from hydraplan.planner.placement.draft import Request, build, settled, timed
from hydraplan.planner.placement.search import (
    ETAS,
    SLACKS,
    THETAS,
    filling_point,
    first_counts,
    point_at,
)
from hydraplan.planner.placement.trial import placed_at
from hydraplan.planner.plan import merged, plan_batch, prepare
from tests.planner.cases import options, profile

CPU_LIMIT_S = 20.0
"""More than any case takes, and less than a hang."""

shared_profile = lru_cache(profile)


def random_case(case: int) -> tuple[PlanOptions, IntArray]:
    """Options and lengths; a pool of every size once in 64 cases."""
    rng = np.random.default_rng(case)
    ranks = 1 + case % 64
    count = int(rng.integers(1, 40))
    cap = int(np.exp(rng.uniform(0, np.log(20_000))))
    most = cap * ranks
    length = rng.choice([
        rng.integers(0, 3, count),
        np.exp(rng.uniform(0, np.log(2 * most + 1), count)).astype(np.int64),
        np.minimum(np.exp(rng.normal(np.log(cap), 1.5, count)).astype(np.int64), 2 * most),
        np.full(count, rng.integers(1, most + 1)),
        most - rng.integers(0, min(3, most), count),
    ])  # fmt: skip
    degrees = legal_degrees(ranks)
    multiple = int(rng.choice([1, 1, 2, 3, 4]))
    changes: dict[str, Any] = {
        "ranks": ranks,
        "pp": int(rng.integers(1, 9)),
        "tp": int(rng.choice([1, 2, 4])),
        "max_tokens_per_rank": cap,
        "engine": str(rng.choice(["nested", "ring"])),
        "min_degree": int(rng.choice([1, 1, rng.choice(degrees)])),
        "max_groups": None if rng.random() < 0.7 else int(rng.integers(1, 2 * ranks + 1)),
        "microbatch_multiple": multiple,
        "microbatches": None if rng.random() < 0.7 else multiple * int(rng.integers(1, 12)),
        "reorder": str(rng.choice(["batch", "batch", "none", f"window:{rng.integers(1, 50)}"])),
        "on_overlong": str(rng.choice(["skip", "truncate"])),
    }
    if changes["reorder"] == "batch":
        orders = ["auto", "as-built", "long-first", "sandwich"]
        changes["microbatch_order"] = str(rng.choice(orders))
    if rng.random() < 0.3:
        changes["rank_speed"] = tuple(rng.choice([0.25, 0.9, 1.0, 1.0, 1.3], ranks).tolist())
    return options(batch_sequences=count, **changes), length


def broken(header: PlanHeader, batch: BatchPlan, length: IntArray) -> list[str]:
    """What `validate` says, and what it takes for granted: every row once, groups complete."""
    rows, limit = batch.sequences, header.options.max_groups
    found = check_plan(header, batch)
    placed = rows.placed()
    if rows.sequence_id.tolist() != list(range(len(length))):
        found.append("rows were lost or doubled")
    kept = [s != "truncated" for s in rows.status]
    if (rows.length_tokens != length)[kept].any():
        found.append("lengths changed")
    sequence, member = expand(placed.degree)
    lanes = placed.first_rank[sequence] + member
    exact = rank_tokens(placed.length_tokens, placed.ulysses_size, placed.ring_size)
    if np.bincount(sequence, exact, len(placed)).tolist() != placed.length_tokens.tolist():
        found.append("tokens were lost")
    for i in range(len(placed)):
        here = lanes[sequence == i]
        if len(set(here.tolist())) != placed.degree[i] or here.max() >= header.options.ranks:
            found.append(f"group of {placed.sequence_id[i]} has lanes {here.tolist()}")
    held = Counter[tuple[int, int]]()
    for slot, rows_there in zip(
        zip(placed.microbatch[sequence].tolist(), lanes.tolist(), strict=True), exact, strict=True
    ):
        held[slot] += int(rows_there)
    if max(held.values(), default=0) > header.options.max_tokens_per_rank:
        found.append("a slot holds more than the cap")
    groups = set(zip(placed.first_rank.tolist(), placed.degree.tolist(), strict=True))
    if limit is not None and sum(degree > 1 for _, degree in groups) > limit:
        found.append(f"{len(groups)} groups")
    return found


def at_one_point(request: Request, asked: PlanOptions, rows: Any, rng: Any) -> BatchPlan | None:
    """A point of the search by chance, solved, placed, sized exactly and put in order."""
    counts = first_counts(request)
    if not counts:
        return None
    count = int(rng.choice(counts))
    if rng.random() < 0.3 and request.reorder == "batch":
        point = filling_point(request, count, float(rng.choice(SLACKS)))
    else:
        eta = float(rng.choice(ETAS))
        theta = float(rng.choice(THETAS))
        point = point_at(request, guard(request.table, eta), count, theta, eta)
    placement = placed_at(request, point)
    if placement is None:
        return None
    exact = request.sized(placement.level)
    places = placement.microbatch, placement.first_rank, len(placement.peak_s)
    whole = build(request, exact, *places)
    draft = settled(request, whole, timed(request, whole, request.orders[:1]), "load-driven")
    schedule = one_f_one_b(request.cost.pp, draft.num_microbatches)
    nothing = tuple(np.zeros(len(ops)) for ops in schedule)
    return BatchPlan(
        batch=0,
        sequences=merged(rows, draft.sequences),
        num_microbatches=draft.num_microbatches,
        schedule=schedule,
        strategy="hydra",
        winner="load-driven",
        microbatch_order=draft.microbatch_order,
        pipeline="1f1b",
        predicted_start_s=nothing,
        predicted_end_s=nothing,
        figures=dict.fromkeys(FIGURES, 0.0),
        search=draft.search,
    )


def prepared(asked: PlanOptions, length: IntArray) -> tuple[PlanHeader, Any, Any] | None:
    """Header, cost model and rows; None where no rows can be trained on, or too few."""
    known: Profile = shared_profile()
    try:
        header, batches = prepare(Lengths("t", "sequences", length), known, asked, 1)
    except InputError as error:
        if "nothing to train on" not in str(error):
            raise
        return None
    except Infeasible as error:
        if "of at least one sequence each" not in str(error):
            raise
        return None
    return header, batches.cost, batches[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(4))
def test_20_000_placements_are_valid(part: int) -> None:
    outcomes = Counter[str]()
    for case in range(5000 * part, 5000 * (part + 1)):
        asked, length = random_case(case)
        began = process_time()
        opened = prepared(asked, length)
        if opened is None:
            outcomes["empty"] += 1
            continue
        header, cost, rows = opened
        try:
            plan = at_one_point(
                open_request(cost, asked, rows), asked, rows, np.random.default_rng(case)
            )
        except InputError as error:
            if "slots, beyond" not in str(error):
                raise
            plan = None
        if plan is None:
            outcomes["no place"] += 1
        else:
            outcomes["placed"] += 1
            assert broken(header, plan, length) == [], (case, asked, length.tolist())
        assert process_time() - began < CPU_LIMIT_S, (case, asked, length.tolist())
    assert outcomes["placed"] > 3000, outcomes


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_300_searches_are_valid() -> None:
    outcomes = Counter[str]()
    for case in range(100_000, 100_300):
        asked, length = random_case(case)
        began = process_time()
        opened = prepared(asked, length)
        if opened is None:
            outcomes["empty"] += 1
            continue
        header, cost, rows = opened
        try:
            plan = plan_batch(cost, asked, 0, rows)
        except Infeasible:
            # only a number from outside can be too small, or a multiple too large to fill
            if asked.microbatches is None and asked.microbatch_multiple == 1:
                raise AssertionError((case, asked, length.tolist())) from None
            outcomes["no plan"] += 1
            continue
        outcomes["planned"] += 1
        assert broken(header, plan, length) == [], (case, asked, length.tolist())
        assert check_figures(header, plan) == [], (case, asked, length.tolist())
        assert process_time() - began < CPU_LIMIT_S, (case, asked, length.tolist())
    assert outcomes["planned"] > 200, outcomes
