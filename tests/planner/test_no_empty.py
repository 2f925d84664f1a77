from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.layout import expand, legal_degrees
from hydraplan.model import BatchPlan, FloatArray, IntArray
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.placement.no_empty import Blocks, without_empty
from hydraplan.planner.placement.strategies import LATER
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, options, profile

BASELINES = ["memory-ffd", "static-cp", "token-balance"]


@st.composite
def placements(draw: st.DrawFn) -> tuple[IntArray, Blocks, int]:
    """Sequences on aligned blocks of some of the microbatches; how many microbatches there are."""
    ranks, count = draw(st.sampled_from([1, 2, 6, 8])), draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    degree = rng.choice(legal_degrees(ranks), count)
    first_rank = rng.integers(0, ranks // degree) * degree
    slow = rng.choice([1.0, 1.0, 2.0], ranks)
    load_s = rng.integers(1, 50, count).astype(float)
    num_microbatches = draw(st.integers(1, count + 3))
    used = draw(st.integers(1, num_microbatches))
    microbatch = rng.choice(num_microbatches, used, replace=False)[rng.integers(0, used, count)]
    return microbatch, Blocks(first_rank, degree, load_s, slow), num_microbatches


def slots_s(microbatch: IntArray, blocks: Blocks, num_microbatches: int) -> FloatArray:
    """Seconds of every slot, (microbatches, lanes)."""
    total_s = np.zeros((num_microbatches, len(blocks.slow)))
    sequence, member = expand(blocks.degree)
    lane = blocks.first_rank[sequence] + member
    at = microbatch[sequence], lane
    np.add.at(total_s, at, blocks.load_s[sequence] * blocks.slow[lane])
    return total_s


@given(placements(), st.booleans())
def test_none_is_empty_no_slot_grows_and_microbatches_keep_their_order(
    placed: tuple[IntArray, Blocks, int], order_kept: bool
) -> None:
    microbatch, blocks, count = placed
    found = without_empty(microbatch, blocks, count, order_kept)
    held = np.bincount(found, minlength=count)
    assert np.count_nonzero(held) == min(count, len(microbatch))
    if len(set(microbatch.tolist())) == min(count, len(microbatch)):
        assert found.tolist() == microbatch.tolist(), "nothing to do"
    before_s, after_s = slots_s(microbatch, blocks, count), slots_s(found, blocks, count)
    came_from = np.zeros(count, np.int64)
    came_from[found] = microbatch
    assert came_from[found].tolist() == microbatch.tolist(), "what is together now was so before"
    used = held > 0
    assert (after_s[used] <= before_s[came_from[used]] * (1 + 1e-12)).all()
    assert (np.diff(came_from[used]) >= 0).all()
    if order_kept:
        assert (np.diff(found[np.argsort(microbatch, kind="stable")]) >= 0).all()


@pytest.mark.parametrize(
    ("order_kept", "load", "wanted"),
    [
        (False, [5, 5, 3, 9], [0, 1, 0, 2]),
        (True, [5, 5, 3, 9], [0, 1, 1, 2]),
        (False, [5, 1, 9, 1], [0, 1, 0, 2]),
    ],
)
def test_the_parting_that_adds_least_is_made(
    order_kept: bool, load: list[float], wanted: list[int]
) -> None:
    lanes = np.array([0, 0, 1, 0])
    blocks = Blocks(lanes, np.ones(4, np.int64), np.array(load, float), np.ones(2))
    microbatch = np.array([0, 0, 0, 2])
    assert without_empty(microbatch, blocks, 3, order_kept).tolist() == wanted


def planned(values: IntArray, **changes: object) -> tuple[PlanHeader, BatchPlan]:
    asked = options(batch_sequences=len(values), **changes)
    header, batches = plan(Lengths("t", "sequences", values), profile(), asked, 1)
    return header, next(iter(batches))


@settings(deadline=None, max_examples=25)
@given(
    strategy=st.sampled_from(["hydra", "hydra", "hydra", *BASELINES]),
    reorder=st.sampled_from(["batch", "none", "window:5"]),
    seed=st.integers(0, 999), count=st.integers(1, 30), ranks=st.sampled_from([1, 3, 8]),
    fixed=st.sampled_from([None, 3, 12]), multiple=st.sampled_from([1, 4, 8]),
)  # fmt: skip
def test_every_microbatch_of_a_plan_holds_a_sequence(
    strategy: str, reorder: str, seed: int, count: int, ranks: int, fixed: int | None, multiple: int
) -> None:
    values = long_tailed(count, seed, longest=4096 * ranks)
    asked: dict[str, object] = {"microbatches": fixed} if fixed else {}
    if fixed is None:
        asked["microbatch_multiple"] = multiple
    if strategy == "hydra":
        asked["reorder"] = reorder
    try:
        header, batch = planned(values, strategy=strategy, ranks=ranks, pp=3, **asked)
    except Infeasible:
        assert fixed or multiple > 1
        return
    assert "no-empty-microbatch" in header.invariants
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []
    held = set(batch.sequences.placed().microbatch.tolist())
    assert held == set(range(batch.num_microbatches))


@pytest.mark.parametrize("strategy", ["hydra", *BASELINES])
def test_as_many_microbatches_as_sequences_hold_one_each(strategy: str) -> None:
    _, batch = planned(long_tailed(20, 5), microbatches=20, strategy=strategy)
    assert sorted(batch.sequences.microbatch.tolist()) == list(range(20))


@pytest.mark.parametrize("strategy", ["hydra", *BASELINES, "mcore-v1"])
@pytest.mark.parametrize(
    ("values", "asked", "said", "hint"),
    [
        (
            [500, 0, 300, 200],
            {"microbatches": 7},
            "batch 0, rows 0..3: --microbatches asks for 7 microbatches of at least one sequence"
            " each, it has 3 sequences to train on",
            "use --microbatches 3 or less, or larger batches",
        ),
        (
            [500, 300, 200, 100, 50],
            {"microbatch_multiple": 3, "batch_sequences": 4},
            "batch 1, rows 4..4: --microbatch-multiple asks for 3 microbatches of at least one"
            " sequence each, it has 1 sequence to train on",
            "use --microbatch-multiple 1 or less, or larger batches, or leave the last batch out"
            " with --num-batches 1",
        ),
    ],
)
def test_fewer_sequences_than_microbatches_are_refused_before_anything_is_planned(
    strategy: str, values: list[int], asked: dict[str, object], said: str, hint: str
) -> None:
    lengths = Lengths("t", "sequences", np.array(values))
    with pytest.raises(Infeasible) as raised:
        plan(lengths, profile(), options(strategy=strategy, **asked), None)
    assert (str(raised.value), raised.value.hint) == (said, hint)


@pytest.mark.parametrize("strategy", ["hydra", *BASELINES])
def test_a_multiple_that_the_tokens_push_beyond_the_sequences_is_refused(strategy: str) -> None:
    values = np.full(10, 4096 * 8 - 8)
    with pytest.raises(Infeasible) as raised:
        planned(values, strategy=strategy, microbatch_multiple=8)
    assert "--microbatch-multiple" in str(raised.value.hint)
    _, batch = planned(values, strategy=strategy, microbatch_multiple=5)
    assert batch.num_microbatches == 10


def test_a_plan_of_before_promises_nothing_of_the_kind_and_stays_valid() -> None:
    header, batch = planned(long_tailed(20, 5))
    kept = tuple(name for name in header.invariants if name not in LATER)
    assert len(kept) < len(header.invariants)
    older = header.model_copy(update={"invariants": kept})
    assert check_figures(older, batch) == []
    count = batch.num_microbatches
    emptied = replace(batch, num_microbatches=count + 1)
    said = f"batch 0: microbatch {count} holds no sequence on any lane, it must hold 1"
    assert said in check_plan(header, emptied)
    assert said not in check_plan(older, emptied)
