"""The three schedulers of Megatron-Core: genuine plans, the note's words, and the promises."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.model import IntArray
from hydraplan.planner.placement import (
    mcore_align,
    mcore_buckets,
    mcore_fill,
    mcore_groups,
    mcore_trim,
    mcore_v2,
)
from hydraplan.planner.placement.mcore_main import schedule_main
from hydraplan.planner.placement.mcore_v1 import schedule_v1
from hydraplan.planner.placement.mcore_v2 import schedule_v2
from tests.planner.mcore_oracle import Held, oracle

CASES = [
    json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "data" / "mcore_dcp").glob("case_*.json"))
]
FORMS = {"hybrid_main": "main", "dynamic_cp_v1": "v1", "dynamic_cp_v2": "v2"}
GENUINE = [(case, form) for case in CASES for form in case["genuine"]]
Places = tuple[IntArray, IntArray, IntArray]


def schedule(
    generation: str, lengths: list[int], ranks: int, cap: int, least: int = 1, multiple: int = 1
) -> Places:
    values = np.array(lengths, np.int64)
    if generation == "main":
        return schedule_main(values, ranks, cap)
    return {"v1": schedule_v1, "v2": schedule_v2}[generation](values, ranks, cap, least, multiple)


def by_place(places: Places) -> dict[tuple[int, int], tuple[int, int]]:
    """(microbatch, sequence) -> (first rank, degree)."""
    rows = zip(*(a.tolist() for a in places), strict=True)
    return {(m, i): (first, degree) for i, (m, first, degree) in enumerate(rows)}


def of_ranks(groups: list[Held]) -> dict[tuple[int, int], tuple[int, int]]:
    """The same of what each rank holds."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for m, held in enumerate(groups):
        for rank, inside in enumerate(held):
            for i in inside:
                first, count = found.get((m, i), (rank, 0))
                found[m, i] = first, count + 1
    return found


@pytest.mark.parametrize(
    ("case", "form"), GENUINE, ids=[f"{case['case']}-{form}" for case, form in GENUINE]
)
def test_genuine_plans_are_reproduced(case: dict[str, Any], form: str) -> None:
    ids = [i for i, _ in case["samples"]]
    asked = (
        [length for _, length in case["samples"]],
        case["num_ranks"],
        case["max_seq_len_per_rank"],
        case["min_cp_size"],
        case["microbatch_group_size_per_vp_stage"] or 1,
    )
    genuine = case["genuine"][form]
    if "error" in genuine:
        with pytest.raises(Infeasible, match="fails there with an assertion"):
            schedule(FORMS[form], *asked)
        return
    row = {i: position for position, i in enumerate(ids)}
    theirs = [
        [[row[i] for i in inside] for inside in group["sample_ids_per_rank"]]
        for group in genuine["groups"]
    ]
    ours = by_place(schedule(FORMS[form], *asked))
    assert ours == of_ranks(theirs)
    degrees = [{row[int(i)]: d for i, d in g["cp_degree"].items()} for g in genuine["groups"]]
    assert {key: degree for key, (_, degree) in ours.items()} == {
        (m, i): d for m, group in enumerate(degrees) for i, d in group.items()
    }


def test_all_fifteen_cases_are_here() -> None:
    assert (len(CASES), len(GENUINE)) == (15, 43)


@st.composite
def problems(draw: st.DrawFn, powers: bool = False) -> tuple[list[int], int, int]:
    """Lengths, ranks and cap; every sequence fits at a power of two."""
    sizes = [1, 2, 4, 8, 16, 32] if powers else [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32]
    ranks = draw(st.sampled_from(sizes))
    cap = draw(st.sampled_from([7, 64, 100, 1000]))
    longest = cap << (ranks.bit_length() - 1)
    some = st.one_of(
        st.integers(1, longest), st.integers(1, cap), st.sampled_from([1, cap, cap // 2, longest])
    )
    return draw(st.lists(some, min_size=1, max_size=60)), ranks, cap


@pytest.mark.parametrize("generation", ["main", "v1", "v2"])
@settings(max_examples=150, deadline=None)
@given(problem=problems(), wider=st.integers(0, 2))
def test_plans_follow_the_words_of_the_note(
    generation: str, problem: tuple[list[int], int, int], wider: int
) -> None:
    lengths, ranks, cap = problem
    least = min(1 << wider, ranks) if generation != "main" else 1
    try:
        said = of_ranks(oracle(lengths, ranks, cap, least, generation))
    except IndexError:  # grown out of the pool
        said = None
    if said is None:
        with pytest.raises(Infeasible, match=f"out of the pool of {ranks} ranks"):
            schedule(generation, lengths, ranks, cap, least)
        return
    assert by_place(schedule(generation, lengths, ranks, cap, least)) == said


@pytest.mark.parametrize("generation", ["main", "v1", "v2"])
@settings(max_examples=100, deadline=None)
@given(
    problem=problems(),
    wider=st.integers(0, 3),
    multiple=st.sampled_from([1, 1, 2, 3, 4]),
)
def test_promises_hold_whenever_there_is_a_plan(
    generation: str, problem: tuple[list[int], int, int], wider: int, multiple: int
) -> None:
    lengths, ranks, cap = problem
    least = min(1 << wider, ranks) if generation != "main" else 1
    multiple = multiple if generation != "main" else 1
    try:
        places = schedule(generation, lengths, ranks, cap, least, multiple)
    except Infeasible as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert ("single set" if ranks & (ranks - 1) == 0 else "fails there") in refused
        return
    microbatch, first, degree = places
    count = int(microbatch.max()) + 1
    assert count % multiple == 0
    assert (degree >= least).all()
    assert all(d == ranks or d & (d - 1) == 0 for d in degree.tolist())
    block: dict[tuple[int, int], tuple[int, int]] = {}
    held = np.zeros((count, ranks))
    for m, a, d, n in zip(*(v.tolist() for v in places), lengths, strict=True):
        assert 0 <= a <= ranks - d
        held[m, a : a + d] += n / d
        for rank in range(a, a + d):
            assert block.setdefault((m, rank), (a, d)) == (a, d)
    assert (held > 0).all()
    if generation == "main":
        assert (np.array(lengths) <= cap * degree).all()
    else:
        assert (held <= cap * (1 + 1e-9)).all()
        assert (first % degree == 0).all()


@contextmanager
def interpreted() -> Iterator[None]:
    """Every compiled function of these modules as plain Python."""
    modules: list[ModuleType] = [
        mcore_align,
        mcore_buckets,
        mcore_fill,
        mcore_groups,
        mcore_trim,
        mcore_v2,
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, value in list(vars(module).items()):
                if hasattr(value, "py_func"):
                    patch.setattr(module, name, value.py_func)
        yield


@pytest.mark.parametrize("generation", ["main", "v1", "v2"])
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_compiled_and_interpreted_agree(
    generation: str, problem: tuple[list[int], int, int]
) -> None:
    def outcome() -> object:
        try:
            return by_place(schedule(generation, *problem))
        except Infeasible as error:
            return str(error)

    fast = outcome()
    with interpreted():
        assert outcome() == fast


@pytest.mark.parametrize("generation", ["main", "v1", "v2"])
def test_equal_lengths_keep_their_order(generation: str) -> None:
    microbatch, first, degree = schedule(generation, [50] * 12, 4, 100)
    assert (degree == 1).all()
    assert (np.diff(microbatch) >= 0).all()
    assert first[:4].tolist() == [0, 1, 2, 3]


def test_a_microbatch_of_v1_ends_where_the_next_sequence_finds_no_room() -> None:
    lengths = [100, 90, 60, 60, 10, 10]
    v1, _, _ = schedule("v1", lengths, 2, 100)
    v2, _, _ = schedule("v2", lengths, 2, 100)
    assert v1.tolist() == [0, 0, 1, 1, 1, 1]
    assert v2.tolist() == [0, 0, 1, 1, 0, 1]


def test_generation_main_queues_beyond_the_cap_of_a_rank() -> None:
    microbatch, _, degree = schedule("main", [100] * 8, 2, 100)
    assert (microbatch == 0).all()
    assert (degree == 1).all()


def test_generation_main_can_leave_the_grid_even_on_a_power_of_two() -> None:
    lengths = [350, 350, 50, 250, 200, 150, 200, 200, 200]
    microbatch, first, degree = schedule("main", lengths, 8, 100)
    assert (microbatch[3], first[3], degree[3]) == (2, 2, 4)


@pytest.mark.parametrize("schedule_", [schedule_main, schedule_v1, schedule_v2])
def test_a_sequence_that_needs_more_ranks_is_named(schedule_: Callable[..., Places]) -> None:
    said = (
        r"sequence 70 of 401 tokens needs degree 8 under 100 tokens a rank, the pool has 6 ranks;"
        r" .* assertion"
    )
    with pytest.raises(Infeasible, match=said) as found:
        schedule_(np.array([5, 401, 600]), 6, 100, sequence_id=np.array([7, 70, 71]))
    assert found.value.hint.startswith("use --max-tokens-per-rank 150,")
    schedule_(np.array([5, 401, 600]), 6, 150)


def test_work_pushed_out_of_the_pool_is_refused_with_the_microbatch() -> None:
    said = "microbatch 1: .* out of the pool of 10 ranks, .* IndexError"
    for generation in ("main", "v1", "v2"):
        with pytest.raises(Infeasible, match=said):
            schedule(generation, [800, 400, 400], 10, 100)


def test_v2_takes_the_whole_pool_where_no_set_has_room_to_grow() -> None:
    microbatch, first, degree = schedule("v2", [800, 400, 400], 14, 100)
    assert (microbatch.tolist(), first.tolist()) == ([0, 0, 1], [0, 0, 0])
    assert degree.tolist() == [14, 14, 14]


def test_microbatches_of_one_set_cannot_be_halved() -> None:
    for generation in ("v1", "v2"):
        with pytest.raises(Infeasible, match="3 microbatches cannot become a multiple of 2"):
            schedule(generation, [400, 400, 400], 4, 100, 1, 2)
