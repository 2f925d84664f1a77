"""Orders by a policy behind its guard, and the search that goes on from them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, Op, Schedule
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.ops_claims import ops_claims
from hydraplan.planner.pipeline.portfolio import finalists
from hydraplan.planner.pipeline.scenarios import scorer
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.plan import plan_batch, prepare
from hydraplan.planner.policy.path_search import Lane, score_s, search
from hydraplan.planner.policy.policy_order import lane_of, played, policy_order, shipped
from hydraplan.slots import SlotTimes, slot_times
from tests.planner.cases import long_tailed, options, profile
from tests.planner.lanes import lane_times, random_lanes
from tests.planner.test_policy_rollout import random_policy


def one(seed: int, stages: int, count: int, limit: float) -> tuple[SlotTimes, Memory]:
    """A lane whose ops, rows and messages all differ."""
    rng = np.random.default_rng(seed)
    op_s, live = rng.lognormal(0, 0.4, (3, stages, count)), rng.uniform(0.6, 1.0, count)
    times = replace(
        lane_times(op_s, rng.uniform(0, 0.3, count).tolist()),
        grad_sync_s=rng.uniform(0, 1, stages),
    )
    return times, Memory(limit, live, 0.4)


def calm(times: SlotTimes, memory: Memory) -> Lane:
    """The lane as it is planned, alone."""
    lane = lane_of(times, memory)
    return lane._replace(op_s=lane.op_s[..., :1].copy(), weight=np.ones(1))


lanes = st.builds(one, st.integers(0, 2**16), st.integers(1, 4), st.integers(1, 7), st.just(5.0))


@settings(max_examples=40, deadline=None)
@given(lanes, st.sampled_from(["zb-h1", "zb-h2"]))
def test_the_score_of_the_search_is_the_simulators(case, name):
    times, memory = case
    stages, count = times.op_s.shape[1], times.op_s.shape[4]
    schedule = SCHEDULES[name].make(stages, count, 1)
    assert (
        score_s(calm(times, memory), schedule) == shares(simulate(times, schedule))["iteration_s"]
    )
    assert score_s(lane_of(times, memory), schedule) == pytest.approx(
        scorer(times)(schedule), rel=1e-6
    )


def test_orders_whose_stages_wait_for_each_other_have_no_score():
    times, memory = one(0, 2, 2, 9.0)
    forward, backward, weight = ([Op(k, m) for m in range(2)] for k in ("F", "B", "W"))
    crossed: Schedule = (
        (forward[0], backward[0], forward[1], backward[1], *weight),
        (forward[1], backward[1], forward[0], backward[0], *weight),
    )
    assert score_s(lane_of(times, memory), crossed) == np.inf


@settings(max_examples=15, deadline=None)
@given(lanes, st.integers(0, 3))
def test_a_search_keeps_to_the_limit_runs_everything_once_and_loses_nothing(case, seed):
    times, memory = case
    lane, found = lane_of(times, memory), finalists(times, memory)[0]
    searched = search(lane, found, 300, seed)
    assert score_s(lane, searched) <= score_s(lane, found)
    assert [sorted(ops) for ops in searched] == [sorted(ops) for ops in found]
    assert memory.most(searched, 1) <= memory.limit * (1 + 1e-9)
    for ops in searched:
        at = {op[:2]: i for i, op in enumerate(ops)}
        for kind, m in at:
            assert kind == "F" or at["FB"["BW".index(kind)], m] < at[kind, m]
    simulate(times, searched)
    assert search(lane, found, 300, seed) == searched


def test_a_search_finds_what_a_bad_order_leaves():
    """1F1B's on even ops: B and W apart it takes 28, ZB-H1 26."""
    times, memory = lane_times(np.ones((3, 3, 8))), Memory(3.0, np.ones(8))
    lane = calm(times, memory)
    first = SCHEDULES["1f1b"].make(3, 8, 1)
    searched = search(lane, first, 4000)
    assert {op.kind for op in searched[0]} == {"F", "B", "W"}
    assert (score_s(lane, first), score_s(lane, SCHEDULES["zb-h1"].make(3, 8, 1))) == (28, 26)
    assert score_s(lane, searched) <= 27
    simulate(times, searched)


@pytest.mark.parametrize("seed", range(3))
def test_an_order_is_never_worse_than_its_guard_whatever_the_policy(seed):
    times, memory = random_lanes(seed, 3, 3, 6), Memory(4.0, np.ones(6))
    policy = random_policy(seed)
    found = policy_order(times, memory, policy, turns=200)
    score = scorer(times)
    assert score(found.schedule) == found.score_s
    known = [SCHEDULES[name].make(3, 6, 1) for name in ("1f1b", "zb-h1")]
    guarded_s = min(map(score, [*known, *finalists(times, memory)]))
    assert found.guard_s <= guarded_s
    assert found.score_s <= min(found.guard_s, found.policy_s)
    assert found.policy_s == min(map(score, played(policy, times, memory)))
    assert memory.most(found.schedule, 1) <= memory.limit * (1 + 1e-9)
    assert policy_order(times, memory, policy, turns=200) == found
    source = policy_order(times, memory, policy, turns=0).source
    assert found.source in (source, f"{source}+search")


def test_several_chunks_are_refused():
    times = lane_times(np.ones((3, 2, 2, 4)))
    with pytest.raises(InputError, match="one chunk a stage, not 2 chunks"):
        policy_order(times, Memory(4.0, np.ones(4)), shipped())


@cache
def planned() -> tuple[PlanHeader, BatchPlan]:
    asked = options(batch_sequences=24, ranks=4, pp=3, pipeline="policy", microbatches=4)
    lengths = Lengths("t", "sequences", long_tailed(24, 5, longest=4000))
    header, batches = prepare(lengths, profile(), asked, 1)
    return header, plan_batch(batches.cost, asked, 0, batches[0])


def test_a_plan_tells_whose_order_it_has_and_its_claims_hold():
    header, made = planned()
    assert made.search.ops_from.partition("+")[0] in ("policy", "portfolio", "zb-h1", "zb-h2")
    assert check_figures(header, made) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ops_from": "best"}, "ops_from is 'best', no policy"),
        ({"ops_from": "policy+luck"}, "no policy, portfolio or static"),
        ({"ops_guard_s": float("nan")}, "is no time"),
        ({"ops_policy_s": 1e-9}, "over the noise scenarios, its guard 1e-09"),
    ],
)
def test_a_claim_that_cannot_be_is_named(changes, message):
    header, made = planned()
    slots = slot_times(header.cost_model(), made.sequences.placed(), made.num_microbatches)
    search = replace(made.search, **changes)
    (found,) = ops_claims("policy", search, slots, made.schedule)
    assert message in found
    (other,) = ops_claims("1f1b", made.search, slots, made.schedule)
    assert "belong to schedule policy alone" in other
