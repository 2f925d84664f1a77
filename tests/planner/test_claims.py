"""Each claim of a search that cannot be is noticed, and nothing that a strategy does say."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import nan
from typing import NamedTuple

import numpy as np
import pytest

from hydraplan.files.lengths import Lengths
from hydraplan.model import BatchPlan, Search
from hydraplan.planheader import PlanHeader
from hydraplan.planner.claims import order_claims, row_claims, search_claims
from hydraplan.planner.figures import check_figures
from hydraplan.planner.pipeline.order import ORDERS, microbatch_order
from hydraplan.planner.placement import hydra
from hydraplan.planner.placement.hydra import MOST_CANDIDATES
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, options, profile

VALUES = np.concatenate([long_tailed(40, 7), [0, 200_000]])


@cache
def made(one_degree: bool = False, **changes: object) -> tuple[PlanHeader, BatchPlan]:
    """A plan; one with a single degree wins here, unless it is left out."""
    asked = options(**changes)
    header, batches = plan(Lengths("t", "sequences", VALUES), profile(), asked, 1)
    with pytest.MonkeyPatch.context() as patch:
        if not one_degree:
            patch.setattr(hydra, "one_degree_candidate", lambda _: None)
        return header, next(iter(batches))


def one_degree() -> BatchPlan:
    return made(one_degree=True)[1]


def load_driven() -> BatchPlan:
    return made()[1]


def baseline() -> BatchPlan:
    return made(strategy="memory-ffd", microbatch_order="as-built")[1]


def memory() -> BatchPlan:
    batch = load_driven()
    time_s = batch.figures["iteration_s"]
    return replace(
        batch,
        winner="memory",
        search=replace(
            batch.search, load_target_s=nan, theta=nan, eta=nan, slack=nan, memory_s=time_s,
            load_driven_s=2 * time_s, fastest_load_driven_s=1.5 * time_s,
        ),
    )  # fmt: skip


def exact() -> BatchPlan:
    batch = load_driven()
    memory_s = 0.9 * batch.figures["iteration_s"]
    return replace(
        batch,
        strategy="exact",
        search=replace(
            batch.search, load_target_s=nan, theta=nan, eta=nan, slack=nan, memory_s=memory_s
        ),
    )


class Share(NamedTuple):
    """A time, in shares of the plan's own."""

    of_time: float


def said(batch: BatchPlan, shape: str = "even", **changes: float) -> str:
    asked = {"microbatch_shape": shape}
    tampered = replace(batch, search=replace(batch.search, **changes))  # type: ignore[arg-type]
    asked["strategy"] = batch.strategy
    return "; ".join(search_claims(options(**asked), tampered, batch.figures))


@pytest.mark.parametrize("batch", [load_driven, baseline, memory, exact, one_degree])
def test_what_a_strategy_can_say_is_believed(batch: Callable[[], BatchPlan]) -> None:
    assert said(batch()) == ""


def test_a_plan_with_one_degree_has_no_point_and_is_no_slower_than_other_candidates() -> None:
    assert one_degree().winner == "one-degree"
    time_s = one_degree().figures["iteration_s"]
    assert "a one-degree plan was found at eta, theta, not at none" in said(
        one_degree(), theta=0.5, eta=0.1
    )
    assert "faster than this plan's" in said(one_degree(), memory_s=0.99 * time_s)
    faster = {"fastest_load_driven_s": 0.99 * time_s}
    assert "faster than the one-degree plan that won" in said(one_degree(), **faster)
    assert "no slower than the one-degree plan that won" in said(one_degree(), memory_s=time_s)
    unlike = replace(load_driven(), winner="one-degree")
    assert "winner is one-degree, the plan has degrees 1, 2" in said(unlike)
    asked = options(reorder="window:3")
    claims = list(search_claims(asked, one_degree(), one_degree().figures))
    assert "winner is one-degree, which is not tried with --reorder window:3" in claims


def test_the_limit_of_a_tight_filling_is_one_of_lanes_of_mean_speed() -> None:
    """One row on the fast lanes; one that is 20 times as slow doubles the mean slowness."""
    asked = options(ranks=3, max_tokens_per_rank=8192, rank_speed=(0.05, 1.0, 1.0))
    length = Lengths("t", "sequences", np.array([8192], np.int64))
    header, batches = plan(length, profile(), asked.model_copy(update={"batch_sequences": 1}), 1)
    assert check_figures(header, next(iter(batches))) == []


@pytest.mark.parametrize(
    ("batch", "changes", "sentence"),
    [
        (baseline, {"num_candidates": 0}, "num_rejected is 0 of num_candidates 0"),
        (baseline, {"num_candidates": 5}, "num_candidates is 5, memory-ffd tries at most 4"),
        (load_driven, {"num_candidates": 9**9}, f"hydra tries at most {MOST_CANDIDATES}"),
        (load_driven, {"num_rejected": 999}, "num_rejected is 999 of num_candidates"),
        (load_driven, {"num_rejected": -1}, "num_rejected is -1 of num_candidates"),
        (
            baseline,
            {"load_target_s": -1.0},
            "load_target_s is -1, but strategy memory-ffd does not search",
        ),
        (baseline, {"memory_s": 9.0}, "memory_s is 9, but strategy memory-ffd does not search"),
        (baseline, {"eta": 0.03}, "eta is 0.03, but strategy memory-ffd does not search"),
        (load_driven, {"load_target_s": -1.0}, "load_target_s is -1, it lies between"),
        (load_driven, {"load_target_s": np.inf}, "load_target_s is inf, it lies between"),
        (load_driven, {"theta": 0.0, "eta": 0.1, "slack": nan}, "theta is 0, it lies between"),
        (load_driven, {"theta": 1.5, "eta": 0.1, "slack": nan}, "theta is 1.5, it lies between"),
        (load_driven, {"theta": 0.5, "eta": -0.1, "slack": nan}, "eta is -0.1, it lies between"),
        (
            load_driven,
            {"theta": nan, "eta": nan, "slack": -1.5},
            "slack is -1.5, it lies between -1 and",
        ),
        (load_driven, {"load_driven_s": 1e-6}, "load_driven_s is 1e-06, it lies between"),
        (load_driven, {"fastest_load_driven_s": 0.0}, "fastest_load_driven_s is 0, it lies"),
        (load_driven, {"load_driven_s": np.inf}, "load_driven_s is inf, it lies between"),
        (load_driven, {"memory_s": 1e-6}, "memory_s is 1e-06, it lies between"),
        (load_driven, {"load_driven_slot_imbalance": 0.9}, "imbalance is 0.9, it lies between 1"),
        (load_driven, {"theta": 0.5, "eta": 0.1, "slack": 0.1}, "a load-driven plan was found at"),
        (load_driven, {"theta": 0.5, "eta": nan, "slack": nan}, "a load-driven plan was found at"),
        (load_driven, {"load_target_s": nan}, "a load-driven plan was found at"),
        (exact, {"slack": 0.1}, "a load-driven plan was found at slack, not at"),
        (memory, {"load_target_s": 1.0}, "a memory plan was found at load_target_s, not at none"),
        (load_driven, {"load_driven_slot_imbalance": nan}, "without the rest of load_driven_s"),
        (
            load_driven,
            dict.fromkeys(
                ("load_driven_s", "load_driven_slot_imbalance", "fastest_load_driven_s"), nan
            ),
            "a load-driven plan won, but load_driven_s is nan",
        ),
        (memory, {"fastest_load_driven_s": Share(3)}, "slower than load_driven_s"),
        (load_driven, {"memory_s": Share(0.99)}, "faster than this plan's"),
        (load_driven, {"num_candidates": 1}, "num_candidates 1, but a load-driven and"),
        (load_driven, {"memory_s": nan, "num_rejected": 0}, "memory_s is nan, but num_rejected"),
        (
            load_driven,
            {"load_driven_s": Share(3), "fastest_load_driven_s": Share(2)},
            "slower than this load-driven plan",
        ),
        (load_driven, {"load_driven_slot_imbalance": 1.5}, "load_driven_slot_imbalance is 1.5"),
        (memory, {"memory_s": Share(2)}, "the memory plan that won has"),
        (memory, {"memory_s": nan}, "memory_s is nan, the memory plan that won has"),
        (memory, {"fastest_load_driven_s": Share(0.99)}, "faster than the memory plan that won"),
    ],
)
def test_a_claim_that_cannot_be_is_named(
    batch: Callable[[], BatchPlan], changes: dict[str, float | Share], sentence: str
) -> None:
    time_s = load_driven().figures["iteration_s"]
    values = {n: v.of_time * time_s if isinstance(v, Share) else v for n, v in changes.items()}
    assert sentence in said(batch(), **values)


def test_only_tapered_microbatches_have_a_taper() -> None:
    point = {"load_target_s": 1.0, "theta": nan, "eta": nan, "slack": 0.1, "taper": 0.5}
    assert said(load_driven(), "tapered", **point) == ""
    assert "load_target_s, slack, taper, not at" in said(load_driven(), "even", **point)
    assert "taper is 1.5, it lies" in said(load_driven(), "tapered", **(point | {"taper": 1.5}))
    _, batch = made(microbatch_shape="tapered", pp=4)
    assert said(batch, "tapered") == ""


def test_winner_and_order_are_those_of_the_strategy_and_of_the_options() -> None:
    header, batch = made(microbatch_order="long-first")
    assert check_figures(header, batch) == []
    (text,) = check_figures(header, replace(batch, microbatch_order="sandwich"))
    assert "microbatch_order is 'sandwich', these options leave long-first" in text
    assert "plans of memory-ffd are memory-sized" in said(replace(baseline(), winner="load-driven"))


def test_an_order_is_that_of_the_loads_and_one_that_was_open() -> None:
    load_s = np.array([[3.0, 1.0, 2.0, 5.0], [1.0, 4.0, 2.0, 1.0]])
    asked, planned_later = options(), options(pipeline="portfolio")
    for name in ORDERS:
        in_order = load_s[:, microbatch_order(name, load_s)]
        assert list(order_claims(asked, ORDERS, name, in_order)) == []
    (text,) = order_claims(asked, ORDERS, "long-first", load_s)
    assert "the fullest slot of microbatch 0 has 3 s, in that order it has 5 s" in text
    (text,) = order_claims(asked, ("as-built",), "long-first", load_s)
    assert "microbatch_order is 'long-first', these options leave as-built" in text
    (text,) = order_claims(asked, ORDERS, "searched", load_s)
    assert "'searched', these options leave as-built or long-first or sandwich" in text
    assert list(order_claims(planned_later, ORDERS, "searched", load_s)) == []
    assert list(order_claims(planned_later, ("as-built",), "searched", load_s))


def test_a_changed_header_is_held_against_the_plan() -> None:
    """Each option or count that can be told from the rows, changed in the header alone."""
    header, batch = made(pp=4, layers="even")
    assert check_figures(header, batch) == []
    for changes, sentence in (
        ({"layers": tuple(reversed(((7,), (8,), (8,), (9,))))}, "--layers even asks for [[8]"),
        ({"pipeline": "gpipe"}, "pipeline is '1f1b', not gpipe"),
        ({"strategy": "memory-ffd"}, "strategy is 'hydra', not memory-ffd"),
        ({"reorder": "none", "microbatch_order": "sandwich"}, "--reorder none does not allow it"),
        ({"reorder": "none"}, "microbatch_order is 'sandwich', these options leave as-built"),
        ({"microbatch_order": "long-first"}, "'sandwich', these options leave long-first"),
        ({"microbatch_order": "best"}, "microbatch_order is 'best', not as-built"),
        ({"strategy": "bogus", "reorder": "none"}, "strategy is 'bogus', not hydra or memory-ffd"),
        ({"pipeline": "bogus"}, "pipeline is 'bogus', not gpipe or 1f1b"),
        ({"pipeline": "dualpipe"}, "pipeline is 'dualpipe', not gpipe or 1f1b"),
        ({"batch_tokens": 1000}, "exactly one of --batch-sequences and --batch-tokens"),
        ({"microbatches": 99}, "--microbatches asks 99"),
        ({"microbatch_multiple": 1 << 40}, "4 stages x 8 ranks take at most"),
        ({"max_tokens_per_rank": 2048}, "is stored as"),
        ({"min_degree": 2}, "load_target_s is"),
        ({"engine": "ring"}, "is stored as"),
        ({"rank_speed": (0.5, *[1.0] * 7)}, "is stored as"),
    ):
        if "layers" in changes:
            other = header.model_copy(update=changes)
        else:
            asked = header.options.model_copy(update=changes)
            other = header.model_copy(update={"options": asked})
        found = "; ".join(check_figures(other, batch))
        assert sentence in found, (changes, found)


@pytest.mark.parametrize("name", ["zb-v", "interleaved"])
def test_stages_of_another_schedule_end_the_check_in_words(name: str) -> None:
    """Renamed all over: what its stages have is told before anything is run on them."""
    header, batch = made()
    for chunks in (None, 99):
        asked = header.options.model_copy(update={"pipeline": name, "chunks": chunks})
        other = header.model_copy(update={"options": asked})
        found = "; ".join(check_figures(other, replace(batch, pipeline=name)))
        assert "1 chunk on route loop" in found or "2 chunks a stage" in found, found


def test_the_memory_sized_candidate_is_placed_and_run_again() -> None:
    for header, batch in (made(), made(reorder="none")):
        assert check_figures(header, batch) == []
        for memory_s in (batch.search.memory_s * 1.001, 1e9):
            search = replace(batch.search, memory_s=memory_s)
            found = "; ".join(check_figures(header, replace(batch, search=search)))
            assert f"memory_s is stored as {memory_s:.9g}, this batch has" in found


def test_a_load_target_that_does_not_belong_to_its_point_is_named() -> None:
    header, batch = made()
    search = replace(batch.search, load_target_s=2 * batch.search.load_target_s)
    found = check_figures(header, replace(batch, search=search))
    assert any("target_error is stored as" in text for text in found)
    assert any("load_target_s is" in text and ", that of " in text for text in found)


def test_every_number_of_a_search_is_checked_in_some_way() -> None:
    numbers = [n for n, kind in Search.__annotations__.items() if kind in (int, float)]
    assert len(numbers) >= 13
    header, batch = made()
    for name in numbers:
        search = replace(batch.search, **{name: -77})
        assert check_figures(header, replace(batch, search=search)), name


def test_the_check_of_figures_asks_for_rows_and_search() -> None:
    header, batch = made()
    assert check_figures(header, batch) == []
    status = tuple("overlong" if s == "empty" else s for s in batch.sequences.status)
    rows = replace(batch.sequences, status=status)
    found = "; ".join(check_figures(header, replace(batch, sequences=rows)))
    assert "sequence 40 of 0 tokens is overlong, but up to 32768 fit" in found


@pytest.mark.parametrize(
    ("on_overlong", "row", "status", "length", "sentence"),
    [
        ("truncate", 41, "truncated", 32_767, "is truncated to 32767 tokens, the longest that"),
        ("truncate", 3, "truncated", 0, "is truncated to"),
        ("skip", 41, "overlong", 32_768, "sequence 41 of 32768 tokens is overlong, but up to"),
        ("skip", 41, "truncated", 32_768, "sequence 41 is truncated, --on-overlong asks to skip"),
        (
            "truncate",
            41,
            "overlong",
            200_000,
            "sequence 41 is overlong, --on-overlong asks to truncate",
        ),
    ],
)
def test_a_row_is_only_called_too_long_if_it_is(
    on_overlong: str, row: int, status: str, length: int, sentence: str
) -> None:
    header, batch = made(on_overlong=on_overlong)
    cost, rows = header.cost_model(), batch.sequences
    assert list(row_claims(cost, header.options, rows)) == []
    changed = list(rows.status)
    changed[row] = status  # type: ignore[call-overload]
    lengths = rows.length_tokens.copy()
    lengths[row] = length or lengths[row]
    tampered = replace(rows, status=tuple(changed), length_tokens=lengths)
    assert sentence in "; ".join(row_claims(cost, header.options, tampered))
