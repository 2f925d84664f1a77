"""Megatron-Core's schedulers as strategies: valid plans, kept numbering, refused requests."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.placement.mcore_main import schedule_main
from hydraplan.planner.placement.mcore_v1 import schedule_v1
from hydraplan.planner.placement.mcore_v2 import schedule_v2
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, options, profile
from tests.planner.test_mcore import FORMS, GENUINE

SCHEDULES = {"mcore-main": schedule_main, "mcore-v1": schedule_v1, "mcore-v2": schedule_v2}


def planned(lengths: list[int], strategy: str, **asked: object) -> tuple[PlanHeader, BatchPlan]:
    values = np.array(lengths, np.int64)
    plain = {"microbatch_order": "as-built", "batch_sequences": len(values), "pp": 1}
    chosen = options(**(plain | {"strategy": strategy} | asked))
    header, batches = plan(Lengths("t", "sequences", values), profile(), chosen, 1)
    return header, next(iter(batches))


@pytest.mark.parametrize(
    ("case", "form"), GENUINE, ids=[f"{case['case']}-{form}" for case, form in GENUINE]
)
def test_plans_of_every_case_are_valid(case: dict[str, object], form: str) -> None:
    make = partial(
        planned,
        [length for _, length in case["samples"]],  # type: ignore[attr-defined]
        f"mcore-{FORMS[form]}",
        ranks=case["num_ranks"],
        max_tokens_per_rank=case["max_seq_len_per_rank"],
        min_degree=case["min_cp_size"],
        microbatch_multiple=case["microbatch_group_size_per_vp_stage"] or 1,
        on_overlong="error",
    )
    if "error" in case["genuine"][form]:  # type: ignore[index]
        with pytest.raises(Infeasible):
            make()
        return
    header, batch = make()
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []


@pytest.mark.parametrize("strategy", SCHEDULES)
@settings(max_examples=25, deadline=None)
@given(
    ranks=st.sampled_from([1, 2, 4, 5, 6, 8, 12, 16, 24]),
    pp=st.sampled_from([1, 2, 4]),
    count=st.integers(1, 60),
    seed=st.integers(0, 1 << 16),
    wider=st.integers(0, 2),
    multiple=st.sampled_from([1, 1, 2, 4]),
)
def test_random_plans_are_valid_and_keep_the_genuine_numbering(
    strategy: str, ranks: int, pp: int, count: int, seed: int, wider: int, multiple: int
) -> None:
    lengths = [0, *long_tailed(count, seed, 4096 << (ranks.bit_length() - 1)).tolist()]
    least = min(1 << wider, ranks) if strategy != "mcore-main" else 1
    asked = (
        {"min_degree": least, "microbatch_multiple": multiple} if strategy != "mcore-main" else {}
    )
    try:
        header, batch = planned(lengths, strategy, ranks=ranks, pp=pp, **asked)
    except Infeasible as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "Megatron-Core fails there" in refused or multiple > count
        return
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []
    known = (least, multiple) if strategy != "mcore-main" else ()
    places = SCHEDULES[strategy](np.array(lengths[1:]), ranks, 4096, *known)
    s = batch.sequences
    for ours, genuine in zip((s.microbatch, s.first_rank, s.degree), places, strict=True):
        assert ours[1:].tolist() == genuine.tolist()


LENGTHS = long_tailed(40, 3, 30_000).tolist()


def test_baselines_keep_their_order_unless_told_otherwise() -> None:
    _, built = planned(LENGTHS, "mcore-v1")
    _, sorted_ = planned(LENGTHS, "mcore-v1", microbatch_order="long-first")
    assert built.microbatch_order == "as-built"
    assert sorted_.microbatch_order == "long-first"
    assert built.winner == "memory"


@pytest.mark.parametrize("strategy", SCHEDULES)
def test_the_number_of_microbatches_is_the_schedulers_own(strategy: str) -> None:
    _, batch = planned(LENGTHS, strategy)
    count = batch.num_microbatches
    assert planned(LENGTHS, strategy, microbatches=count)[1].num_microbatches == count
    said = f"schedules this batch as {count} microbatches, --microbatches asks {count + 1};"
    with pytest.raises(Infeasible, match=said):
        planned(LENGTHS, strategy, microbatches=count + 1)


@pytest.mark.parametrize(
    ("strategy", "asked", "said"),
    [
        ("mcore-main", {"min_degree": 2}, "degree 1, which --min-degree or --max-groups rules out"),
        ("mcore-main", {"microbatch_multiple": 7}, "no multiple of 7, and knows no"),
        ("mcore-v1", {"max_groups": 1}, "which --min-degree or --max-groups rules out"),
        ("mcore-v1", {"reorder": "none"}, "--reorder none cannot be kept"),
        ("mcore-v2", {"reorder": "window:8"}, "--reorder window:8 cannot be kept"),
    ],
)
def test_what_a_scheduler_does_not_know_is_refused(
    strategy: str, asked: dict[str, object], said: str
) -> None:
    with pytest.raises(Infeasible, match=said):
        planned(LENGTHS, strategy, **asked)


def test_a_pool_that_cannot_be_filled_is_refused_with_the_row() -> None:
    lengths = [0, 10, 20_000]
    with pytest.raises(Infeasible, match="sequence 2 of 20000 tokens needs degree 8"):
        planned(lengths, "mcore-v1", ranks=6)


def test_exact_rows_of_v1_may_exceed_the_cap_that_its_mean_keeps() -> None:
    header, batch = planned([31] * 4, "mcore-v1", ranks=2, min_degree=2, max_tokens_per_rank=31)
    assert check_plan(header, batch) == []
    promised = header.model_copy(update={"invariants": (*header.invariants, "cap")})
    broken = check_plan(promised, batch)
    assert [text.endswith("holds 32 rows, the cap is 31") for text in broken] == [True, True]
