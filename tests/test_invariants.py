"""Each rule must notice the damage it is there for, and name the row."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hydraplan.files.lengths import Lengths
from hydraplan.invariants import FOUNDATIONS, RULES, check_plan, follows
from hydraplan.model import BatchPlan, Op
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.placement import hydra
from hydraplan.planner.plan import plan
from tests.builders import Place
from tests.planner.cases import long_tailed, options, profile
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model

VALUES = np.concatenate([long_tailed(40, 7), [0, 200_000]])
WIDEST, PAIR = 7, 1  # rows of the plan below: of the largest degree, and of degree 2


@cache
def made() -> tuple[PlanHeader, BatchPlan]:
    header, batches = plan(Lengths("t", "sequences", VALUES), profile(), options(), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydra, "one_degree_candidate", lambda _: None)  # it would win
        return header, next(iter(batches))


@pytest.fixture
def header() -> PlanHeader:
    return made()[0]


@pytest.fixture
def batch() -> BatchPlan:
    return made()[1]


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
def test_a_plan_that_does_not_promise_the_foundations_is_never_valid(
    header: PlanHeader, batch: BatchPlan, name: str
) -> None:
    fewer = header.model_copy(update={"invariants": tuple(set(header.invariants) - {name})})
    said = f"the plan does not promise {name}, which everything rests on"
    assert check_plan(fewer, batch) == [said]


def test_the_plan_itself_is_valid_and_its_figures_are_those_the_check_computes(
    header: PlanHeader, batch: BatchPlan
) -> None:
    degree = batch.sequences.degree
    assert degree[WIDEST] == degree.max() > degree[PAIR] == 2
    assert batch.num_microbatches == 5
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []
    assert set(header.invariants) > FOUNDATIONS


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
        (column("microbatch", WIDEST, 10**6), "microbatch 1000000 of 5"),
        (column("microbatch", WIDEST, -1), "microbatch -1 of"),
        (column("rank_tokens_max", 0, 1), "rank_tokens_max 1, its layout gives"),
        (column("order", 0, 77), "has order 77"),
        (ops(0, lambda o: o[:-1]), "runs only F; it must run F, then B and W or both as BW"),
        (ops(1, lambda o: [*o, o[-1]]), "BW of microbatch"),
        (
            ops(1, lambda o: [Op("BW", 0), *o]),
            "BW of microbatch 0, chunk 0 runs after nothing of these; what may run there is F",
        ),
        (
            ops(1, lambda o: [Op("Q", 0), *o]),  # type: ignore[arg-type]
            "position 0: op 'Q' is unknown; there are F, B, W, BW",
        ),
        (ops(0, lambda o: [*o, o[-1]]), "after F, B, W of these; what may run there is nothing"),
        (
            ops(0, lambda o: [*o, Op("F", 10**6)]),
            "F of microbatch 1000000, chunk 0 does not exist; there are microbatches 0..",
        ),
        (ops(0, lambda o: [*o, Op("F", 0, 5)]), "does not exist"),
    ],
)
def test_damage_is_noticed_and_named(
    header: PlanHeader, batch: BatchPlan, damage: Callable[[BatchPlan], BatchPlan], said: str
) -> None:
    broken = check_plan(header, damage(batch))
    assert any(said in text for text in broken), broken
    assert all(text.startswith("batch 0: ") for text in broken)


def test_a_slot_over_the_cap_is_named_with_its_rows(header: PlanHeader, batch: BatchPlan) -> None:
    s = batch.sequences
    everything_in_one = replace(s, microbatch=np.where(s.degree > 0, 0, -1))
    broken = check_plan(header, replace(batch, sequences=everything_in_one))
    assert any("microbatch 0, lane 0 holds" in text and "cap is 4096" in text for text in broken)


def said_of(
    places: list[Place], promises: tuple[str, ...], ranks: int = 4, **asked: int | str
) -> list[str]:
    """What is broken in a hand-made batch of one or two microbatches."""
    count = 1 + max(place.microbatch for place in places)
    header = plan_header(tiny_model(), 1, ranks, 1)
    changed = {"invariants": (*FOUNDATIONS, *promises)}
    changed["options"] = header.options.model_copy(update=asked)  # type: ignore[assignment]
    return check_plan(
        header.model_copy(update=changed), batch_plan(0, batch_rows(places), count, 1)
    )


PAIRED = [Place(40, 0, 2), Place(24, 0, 2), Place(30, 2), Place(30, 3)]
"""Lanes 0 and 1 hold 32 tokens of two sequences each, lanes 2 and 3 one sequence of 30."""


@pytest.mark.parametrize(
    ("name", "places", "asked", "said"),
    [
        (
            "min-degree",
            PAIRED,
            {"min_degree": 2},
            [f"sequence {i} has degree 1, the smallest allowed is 2" for i in (2, 3)],
        ),
        (
            "microbatch-multiple",
            [*PAIRED, Place(8, 0, 4, 1, 1), Place(8, 0, 4, 1, 2)],
            {"microbatch_multiple": 2},
            ["3 microbatches, no multiple of 2"],
        ),
        (
            "no-empty-microbatch",
            [*PAIRED, Place(8, 0, 4, 1, 2)],
            {},
            ["microbatch 1 holds no sequence on any lane, it must hold 1"],
        ),
        (
            "cap-mean",
            PAIRED,
            {"max_tokens_per_rank": 31},
            [
                f"microbatch 0, lane {r} holds 32 tokens as length over degree, the cap is 31"
                for r in (0, 1)
            ],
        ),
        (
            "cap-per-sequence",
            PAIRED,
            {"max_tokens_per_rank": 29},
            [f"sequence {i} has 30 tokens on each of its 1 ranks, the cap is 29" for i in (2, 3)],
        ),
        (
            "every-rank",
            [*PAIRED, Place(8, 0, 2, 1, 1), Place(8, 3, 1, 1, 1)],
            {},
            ["microbatch 1, lane 2 holds 0 sequences, it must hold 1"],
        ),
        (
            "one-degree",
            [*PAIRED, Place(5, 1), Place(5, 2, 2)],
            {},
            [
                "microbatch 0, lane 2 belongs to two blocks: sequence 5: ranks 2..3;"
                " sequence 2: ranks 2..2",
                "microbatch 0, lane 3 belongs to two blocks: sequence 5: ranks 2..3;"
                " sequence 3: ranks 3..3",
                "microbatch 0, lane 1 belongs to two blocks: sequence 0: ranks 0..1;"
                " sequence 4: ranks 1..1",
            ],
        ),
        (
            "aligned",
            [Place(40, 1, 2), Place(8, 2, 2)],
            {},
            ["sequence 0: ranks 1..2 are not aligned to degree 2"],
        ),
        (
            "reorder",
            [Place(8, 0, 1, 1, m) for m in (0, 2, 1, 2)],
            {"reorder": "none"},
            [
                "sequence 2 is in microbatch 1, sequence 1 of an earlier window only in 2;"
                " windows have 1 rows"
            ],
        ),
        (
            "reorder",
            [Place(length, 0, 1, 1, m) for length, m in ((8, 2), (8, 0), (0, 0), (8, 1), (8, 2))],
            {"reorder": "window:3"},
            [
                "sequence 3 is in microbatch 1, sequence 0 of an earlier window only in 2;"
                " windows have 3 rows"
            ],
        ),
        (
            "reorder",
            [Place(8, 0, 1, 1, m) for m in (1, 1, 0, 2)],
            {"reorder": "window:2"},
            [
                "sequence 2 is in microbatch 0, sequence 0 of an earlier window only in 1;"
                " windows have 2 rows"
            ],
        ),
    ],
)
def test_promises_of_other_schedulers_are_checked_by_name(
    name: str, places: list[Place], asked: dict[str, int | str], said: list[str]
) -> None:
    assert said_of(places, (name,), **asked) == [f"batch 0: {text}" for text in said]
    assert said_of(places, (), **asked) == []


def test_a_plan_that_keeps_every_promise_passes_all_rules() -> None:
    promises = tuple(set(RULES) - {"cap"})
    asked = {"max_tokens_per_rank": 32, "min_degree": 1, "microbatch_multiple": 2}
    assert said_of([*PAIRED, Place(128, 0, 4, 1, 1)], promises, **asked) == []


@pytest.mark.parametrize(
    ("reorder", "microbatches"),
    [
        ("none", (0, 0, 1, 1, 3)),
        ("window:1", (0, 0, 1, 1, 3)),
        ("window:2", (1, 0, 2, 2, 3)),
        ("window:2", (1, 0, 2, 1, 3)),
        ("batch", (4, 3, 2, 1, 0)),
    ],
)
def test_rows_that_stay_inside_their_window_keep_the_order(
    reorder: str, microbatches: tuple[int, ...]
) -> None:
    places = [Place(8, 0, 1, 1, m) for m in microbatches]
    assert said_of(places, ("reorder",), reorder=reorder) == []


def test_the_mean_may_be_at_the_cap_where_exact_rows_are_beyond_it() -> None:
    odd = [Place(31, 0, 1, 2), Place(31, 0, 1, 2), Place(31, 2), Place(31, 3)]
    assert said_of(odd, ("cap-mean",), max_tokens_per_rank=31) == []
    assert said_of(odd, ("cap",), max_tokens_per_rank=31) == [
        "batch 0: microbatch 0, lane 1 holds 32 rows, the cap is 31"
    ]


@pytest.mark.parametrize(("ranks", "degree"), [(6, 6), (12, 12), (12, 8), (7, 7)])
def test_a_whole_pool_is_a_legal_degree_whatever_its_size(ranks: int, degree: int) -> None:
    places = [Place(40, 0, 1, degree)]
    assert said_of(places, ("aligned",), ranks) == []
    assert "degree 3 as ulysses 1 x ring 3 is not legal" in said_of([Place(9, 0, 1, 3)], (), 12)[0]


def test_a_promise_this_version_does_not_know_is_not_passed_over(
    header: PlanHeader, batch: BatchPlan
) -> None:
    header = header.model_copy(update={"invariants": (*header.invariants, "deadlock-free")})
    assert "deadlock-free" in check_plan(header, batch)[0]


def test_a_plan_that_promises_less_is_still_checked_for_what_it_promises(
    header: PlanHeader, batch: BatchPlan
) -> None:
    header = header.model_copy(update={"invariants": tuple(FOUNDATIONS)})
    assert check_plan(header, column("order", 0, 77)(batch)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda b: {"figures": b.figures | {"iteration_s": 0.001}}, "iteration_s is stored as"),
        (
            lambda batch: {"figures": batch.figures | {"fill_bubble": float("nan")}},
            "fill_bubble is stored as nan",
        ),
        (
            lambda batch: {"search": replace(batch.search, window_min=-77)},
            "window_min is stored as -77",
        ),
        (lambda _: {"strategy": "bogus"}, "strategy is 'bogus', not hydra"),
        (lambda _: {"winner": "aliens"}, "winner is 'aliens', not load-driven or memory"),
        (lambda _: {"pipeline": "zb"}, "pipeline is 'zb', not 1f1b"),
        (lambda _: {"microbatch_order": "best"}, "microbatch_order is 'best'"),
        (
            lambda batch: {"predicted_end_s": tuple(e * 2 for e in batch.predicted_end_s)},
            "predicted_end_s of stage 0 is not when its ops end",
        ),
        (
            lambda batch: {
                "sequences": replace(batch.sequences, predicted_s=batch.sequences.predicted_s + 1)
            },
            "predicted_s of some sequence",
        ),
        (
            lambda batch: {"schedule": (tuple(reversed(batch.schedule[0])), batch.schedule[1])},
            "ops wait for each other in a circle",
        ),
    ],
)
def test_what_a_plan_says_of_itself_is_computed_again(
    header: PlanHeader,
    batch: BatchPlan,
    changed: Callable[[BatchPlan], dict[str, object]],
    said: str,
) -> None:
    found = check_figures(header, replace(batch, **changed(batch)))
    assert any(said in text for text in found), found


def test_rows_lost_or_doubled_between_batches_are_noticed(
    header: PlanHeader, batch: BatchPlan
) -> None:
    rows = len(batch.sequences)
    asked = header.options.model_copy(update={"batch_sequences": rows})
    two = header.model_copy(update={"num_batches": 2, "options": asked})
    assert follows(two, batch, 0) == []
    assert follows(two, batch, 5) == ["batch 0 begins with sequence 0, not 5"]
    more = two.model_copy(update={"options": asked.model_copy(update={"batch_sequences": 3})})
    assert follows(more, batch, 0) == [f"batch 0 holds {rows} rows, --batch-sequences asks for 3"]
    fewer = asked.model_copy(update={"batch_sequences": rows + 1})
    assert len(follows(two.model_copy(update={"options": fewer}), batch, 0)) == 1
    last = two.model_copy(update={"options": fewer, "num_batches": 1})
    assert follows(last, batch, 0) == []


def test_a_batch_of_more_tokens_than_were_asked_for_is_noticed(
    header: PlanHeader, batch: BatchPlan
) -> None:
    held = int(batch.sequences.length_tokens.sum())
    for most, found in (
        (held, []),
        (held - 1, [f"batch 0 holds {held} tokens, --batch-tokens asks for at most {held - 1}"]),
    ):
        asked = header.options.model_copy(update={"batch_sequences": None, "batch_tokens": most})
        assert follows(header.model_copy(update={"options": asked}), batch, 0) == found


def test_a_strategy_must_promise_all_it_always_does(header: PlanHeader, batch: BatchPlan) -> None:
    less = tuple(name for name in header.invariants if name != "cap")
    found = check_figures(header.model_copy(update={"invariants": less}), batch)
    assert "the plan does not promise cap" in " ".join(found)


def test_a_number_of_microbatches_that_was_not_asked_for_is_noticed(
    header: PlanHeader, batch: BatchPlan
) -> None:
    asked = header.options.model_copy(update={"microbatches": 99})
    found = check_figures(header.model_copy(update={"options": asked}), batch)
    assert any("--microbatches asks 99" in text for text in found)


def test_a_faster_memory_sized_candidate_is_not_believed(
    header: PlanHeader, batch: BatchPlan
) -> None:
    search = replace(batch.search, memory_s=0.99 * batch.figures["iteration_s"])
    found = check_figures(header, replace(batch, search=search))
    assert any("faster than" in text for text in found)
