"""static-cp and token-balance: whole plans, the sweep over degrees, and what they honour."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.layout import legal_degrees
from hydraplan.model import BatchPlan, IntArray
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.placement import one_degree
from hydraplan.planner.placement.draft import draft
from hydraplan.planner.placement.one_degree import (
    Pack,
    degrees_that_hold,
    fastest_degree,
    most_packed,
)
from hydraplan.planner.placement.static_cp import pack_first_fit
from hydraplan.planner.placement.token_balance import pack_balanced
from hydraplan.planner.placement.window import LOOK, counts_from
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, options, profile, request_for

PACKS = {"static-cp": pack_first_fit, "token-balance": pack_balanced}


def planned(values: IntArray, **changes: object) -> tuple[PlanHeader, BatchPlan]:
    asked = options(batch_sequences=len(values), microbatch_order="as-built", **changes)
    header, batches = plan(Lengths("t", "sequences", values), profile(), asked, 1)
    return header, next(iter(batches))


@settings(max_examples=40)
@given(
    st.integers(0, 10_000), st.sampled_from([1, 3, 8, 12]), st.sampled_from([512, 4095, 4096]),
    st.sampled_from(["one", "two", "all"]), st.sampled_from([1, 3, 4]),
    st.sampled_from(sorted(PACKS)),
)  # fmt: skip
def test_every_plan_obeys_every_invariant_and_has_one_degree(
    seed: int, ranks: int, cap: int, least: str, multiple: int, strategy: str
) -> None:
    values = np.concatenate([long_tailed(50, seed), [0, 1, 2, 3]])
    min_degree = {"one": 1, "two": min(2, ranks), "all": ranks}[least]
    header, batch = planned(
        values, ranks=ranks, max_tokens_per_rank=cap, min_degree=min_degree,
        microbatch_multiple=multiple, strategy=strategy,
    )  # fmt: skip
    assert {"cap", "aligned", "min-degree", "microbatch-multiple"} <= set(header.invariants)
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []
    assert len(set(batch.sequences.placed().degree.tolist())) == 1


@pytest.mark.parametrize("ranks", [8, 12])
@pytest.mark.parametrize("name", sorted(PACKS))
def test_the_degree_is_the_fastest_of_all_that_hold_the_longest(
    name: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_degree, "BUDGET", 0)
    values = long_tailed(60, 3, longest=9_000)
    asked, pack = request_for(values, ranks=ranks, pp=4), PACKS[name]
    seconds = {}
    for found, degree in degrees_that_hold(asked):
        packed = pack(asked, found, ranks // degree)
        assert packed is not None
        microbatch, group, count = packed
        made = draft(asked, found, microbatch, group * degree, count, "memory")
        seconds[degree] = made.iteration_s
    assert list(seconds) == [d for d in legal_degrees(ranks).tolist() if d * 4096 >= values.max()]
    made = fastest_degree(asked, name, pack)
    assert len(seconds) >= 2
    assert made.iteration_s == min(seconds.values())
    assert seconds[int(made.sequences.degree[0])] == made.iteration_s
    assert made.search.num_candidates == len(seconds)


@pytest.mark.parametrize("name", sorted(PACKS))
def test_no_number_of_microbatches_that_is_tried_is_faster(name: str) -> None:
    asked, pack = request_for(long_tailed(60, 3, longest=9_000), ranks=8, pp=4), PACKS[name]
    made = fastest_degree(asked, name, pack)
    tried = set()
    for found, degree in degrees_that_hold(asked):
        first = pack(asked, found, 8 // degree)
        assert first is not None
        for count in counts_from(first[2], 4, 60):
            packed = pack(replace(asked, microbatches=count), found, 8 // degree)
            if packed is not None:
                microbatch, group, count = packed
                rival = draft(asked, found, microbatch, group * degree, count, "memory")
                assert made.iteration_s <= rival.iteration_s
                tried.add(count)
    assert len(tried) >= LOOK // 2
    assert made.num_microbatches > min(tried)
    assert made.search.num_candidates <= most_packed(8)


def test_large_batches_are_packed_in_the_fewest_microbatches_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = request_for(long_tailed(60, 3, longest=9_000), ranks=8, pp=4)
    monkeypatch.setattr(one_degree, "BUDGET", 60)
    few = fastest_degree(asked, "static-cp", pack_first_fit)
    assert few.search.num_candidates == len(list(degrees_that_hold(asked)))


@pytest.mark.parametrize("name", sorted(PACKS))
def test_a_fixed_number_of_microbatches_is_used_whole_or_refused(name: str) -> None:
    values = long_tailed(64, 5, longest=8000)
    _, free = planned(values, strategy=name)
    _, more = planned(values, strategy=name, microbatches=free.num_microbatches + 3)
    assert more.num_microbatches == free.num_microbatches + 3
    used = more.sequences.placed().microbatch
    assert set(used.tolist()) == set(range(more.num_microbatches))
    with pytest.raises(Infeasible, match=f"{name}: none of 3 degrees keeps every slot within 4096"):
        planned(values, strategy=name, microbatches=1)


@pytest.mark.parametrize("name", sorted(PACKS))
def test_a_wanted_multiple_of_microbatches_leaves_none_idle(name: str) -> None:
    values = long_tailed(64, 5, longest=8000)
    _, free = planned(values, strategy=name, min_degree=8)
    _, batch = planned(values, strategy=name, min_degree=8, microbatch_multiple=7)
    assert free.num_microbatches % 7
    assert batch.num_microbatches % 7 == 0
    used = batch.sequences.placed().microbatch
    assert set(used.tolist()) == set(range(batch.num_microbatches))


def test_a_degree_at_which_some_shorter_sequence_takes_a_row_more_is_left_out() -> None:
    """In a plain ring of 4, 20 tokens are 5 rows on every rank, 19 tokens are 6 on one of them."""
    values = np.array([20, 19], np.int64)
    asked = request_for(values, ranks=8, max_tokens_per_rank=5, engine="ring")
    assert [degree for _, degree in degrees_that_hold(asked)] == [8]


def test_no_degree_for_all_is_said_so() -> None:
    values = np.array([20, 19], np.int64)
    asked = request_for(values, ranks=8, max_tokens_per_rank=5, engine="ring")
    offered = asked.table.offered.copy()
    offered[3] = False
    fewer = replace(asked, table=replace(asked.table, offered=offered))
    with pytest.raises(Infeasible, match="no single degree holds every sequence within 5 tokens"):
        fastest_degree(fewer, "static-cp", pack_first_fit)


def test_nothing_packs_into_more_microbatches_than_there_are_sequences() -> None:
    values = np.full(64, 4000, np.int64)
    asked = request_for(values, ranks=2, pp=1)

    def far_too_many(*_: object) -> tuple[IntArray, IntArray, int]:
        return np.zeros(64, np.int64), np.zeros(64, np.int64), 1 << 24

    pack: Pack = far_too_many
    with pytest.raises(Infeasible, match="in up to 64 microbatches") as raised:
        fastest_degree(asked, "static-cp", pack)
    assert raised.value.hint == "use a larger --max-tokens-per-rank, or smaller batches"
