"""Each rule must notice the damage it is there for, and name the row."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hydraplan.files.lengths import Lengths
from hydraplan.invariants import FOUNDATIONS, RULES, check_plan
from hydraplan.model import BatchPlan, Op
from hydraplan.planner.figures import check_figures
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, options, profile

VALUES = np.concatenate([long_tailed(40, 7), [0, 200_000]])
HEADER, _BATCHES = plan(Lengths("t", "sequences", VALUES), profile(), options(), 1)
BATCH = next(iter(_BATCHES))
WIDEST = int(BATCH.sequences.degree.argmax())
PAIR = int(np.flatnonzero(BATCH.sequences.degree == 2)[0])


def column(name: str, row: int, value: float | str) -> Callable[[BatchPlan], BatchPlan]:
    def change(batch: BatchPlan) -> BatchPlan:
        s = batch.sequences
        if name == "status":
            status = list(s.status)
            status[row] = value  # type: ignore[call-overload]
            return replace(batch, sequences=replace(s, status=tuple(status)))
        values = getattr(s, name).copy()
        values[row] = value
        return replace(batch, sequences=replace(s, **{name: values}))

    return change


def ops(stage: int, change: Callable[[list[Op]], list[Op]]) -> Callable[[BatchPlan], BatchPlan]:
    def apply(batch: BatchPlan) -> BatchPlan:
        schedule = list(batch.schedule)
        schedule[stage] = tuple(change(list(schedule[stage])))
        return replace(batch, schedule=tuple(schedule))

    return apply


@pytest.mark.parametrize("name", sorted(FOUNDATIONS))
def test_a_plan_that_does_not_promise_the_foundations_is_never_valid(name: str) -> None:
    fewer = HEADER.model_copy(update={"invariants": tuple(set(HEADER.invariants) - {name})})
    said = f"the plan does not promise {name}, which everything rests on"
    assert check_plan(fewer, BATCH) == [said]


def test_the_plan_itself_is_valid() -> None:
    assert BATCH.sequences.degree[WIDEST] > 1
    assert check_plan(HEADER, BATCH) == []
    assert set(HEADER.invariants) == set(RULES)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (column("sequence_id", 3, 99), "sequence_id 2 is followed by 99"),
        (column("sequence_id", 0, -1), "followed by 1"),
        (column("length_tokens", 0, 1 << 41), "beyond 1099511627776"),
        (column("status", 0, "lost"), "unknown status 'lost'"),
        (column("status", 0, "empty"), "has status empty"),
        (column("status", 0, "overlong"), "is overlong but holds a place"),
        (column("status", 40, "placed"), "sequence 40 of 0 tokens has status placed"),
        (column("valid_tokens", 0, 0), "valid tokens"),
        (column("predicted_s", 0, float("nan")), "no finite predicted_s"),
        (column("degree", WIDEST, 3), "is not legal"),
        (column("ulysses_size", WIDEST, 64), "is not legal"),
        (column("ring_size", WIDEST, 0), "is not legal"),
        (column("first_rank", PAIR, 1), "not aligned"),
        (column("first_rank", WIDEST, 8), "leave the pool 0..7"),
        (column("first_rank", WIDEST, -8), "leave the pool"),
        (
            column("first_rank", WIDEST, (1 << 63) - 1),
            "ranks 9223372036854775807..9223372036854775",
        ),
        (column("microbatch", WIDEST, 10**6), f"microbatch 1000000 of {BATCH.num_microbatches}"),
        (column("microbatch", WIDEST, -1), "microbatch -1 of"),
        (column("rank_tokens_max", 0, 1), "rank_tokens_max 1, its layout gives"),
        (column("order", 0, 77), "has order 77"),
        (ops(0, lambda o: o[:-1]), "runs only F"),
        (ops(1, lambda o: [*o, o[-1]]), "BW of microbatch"),
        (ops(1, lambda o: [Op("BW", 0), *o]), "follows nothing"),
        (ops(0, lambda o: [*o, Op("F", 10**6)]), "does not exist"),
        (ops(0, lambda o: [*o, Op("F", 0, 5)]), "does not exist"),
    ],
)
def test_damage_is_noticed_and_named(damage: Callable[[BatchPlan], BatchPlan], said: str) -> None:
    broken = check_plan(HEADER, damage(BATCH))
    assert any(said in text for text in broken), broken
    assert all(text.startswith("batch 0: ") for text in broken)


def test_a_slot_over_the_cap_is_named_with_its_rows() -> None:
    s = BATCH.sequences
    everything_in_one = replace(s, microbatch=np.where(s.degree > 0, 0, -1))
    broken = check_plan(HEADER, replace(BATCH, sequences=everything_in_one))
    assert any("microbatch 0, lane 0 holds" in text and "cap is 4096" in text for text in broken)


def test_a_promise_this_version_does_not_know_is_not_passed_over() -> None:
    header = HEADER.model_copy(update={"invariants": (*HEADER.invariants, "deadlock-free")})
    assert "deadlock-free" in check_plan(header, BATCH)[0]


def test_a_plan_that_promises_less_is_still_checked_for_what_it_promises() -> None:
    header = HEADER.model_copy(update={"invariants": tuple(FOUNDATIONS)})
    assert check_plan(header, column("order", 0, 77)(BATCH)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"figures": BATCH.figures | {"iteration_s": 0.001}}, "iteration_s is stored as 0.001"),
        (
            {"figures": BATCH.figures | {"fill_bubble": float("nan")}},
            "fill_bubble is stored as nan",
        ),
        ({"search": replace(BATCH.search, window_min=-77)}, "window_min is stored as -77"),
        ({"strategy": "bogus"}, "strategy is 'bogus', not hydra"),
        ({"winner": "aliens"}, "winner is 'aliens', not load-driven or memory"),
        ({"pipeline": "zb"}, "pipeline is 'zb', not 1f1b"),
        ({"microbatch_order": "best"}, "microbatch_order is 'best'"),
        (
            {"predicted_end_s": tuple(e * 2 for e in BATCH.predicted_end_s)},
            "predicted_end_s of stage 0 is not when its ops end",
        ),
        (
            {"sequences": replace(BATCH.sequences, predicted_s=BATCH.sequences.predicted_s + 1)},
            "predicted_s of some sequence",
        ),
        ({"schedule": (tuple(reversed(BATCH.schedule[0])), BATCH.schedule[1])}, "waits for an op"),
    ],
)
def test_what_a_plan_says_of_itself_is_computed_again(
    changed: dict[str, object], said: str
) -> None:
    found = check_figures(HEADER, replace(BATCH, **changed))
    assert any(said in text for text in found), found


def test_what_the_planner_says_is_what_the_check_computes() -> None:
    assert check_figures(HEADER, BATCH) == []
