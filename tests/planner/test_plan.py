from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible, InputError
from hydraplan.files.lengths import Lengths, read_lengths
from hydraplan.files.planfile import open_plan, read_batch, write_plan
from hydraplan.invariants import check_plan
from hydraplan.metrics import FIGURES
from hydraplan.model import IntArray
from hydraplan.planner.batches import cut_batches
from hydraplan.planner.figures import check_figures
from hydraplan.planner.plan import plan
from tests.planner.cases import cost_model, long_tailed, options, profile


def lengths(values: IntArray | list[int]) -> Lengths:
    return Lengths("test", "sequences", np.array(values, np.int64))


def plan_one(values: IntArray | list[int], **changes: object):  # type: ignore[no-untyped-def]
    return next(iter(plan(lengths(values), profile(), options(**changes), 1)[1]))


def test_the_longest_sequence_that_fits_is_planned_and_one_token_more_is_refused() -> None:
    fits = plan_one([32768, 5, 7], on_overlong="error")
    assert fits.sequences.degree[0] == 8
    assert fits.sequences.rank_tokens_max[0] == 4096
    with pytest.raises(Infeasible) as refused:
        plan(lengths([3, 32769]), profile(), options(on_overlong="error"), 1)
    message = str(refused.value)
    for part in ("sequence 1", "32769", "degree 16", "8 is available", "fits is 4097"):
        assert part in message


def test_the_cap_that_the_refusal_names_really_fits() -> None:
    with pytest.raises(Infeasible, match="smallest cap that fits is 12500"):
        plan(lengths([100_000]), profile(), options(on_overlong="error"), 1)
    plan_one([100_000], on_overlong="error", max_tokens_per_rank=12_500)


def test_overlong_rows_are_skipped_or_truncated_and_stay_in_the_plan() -> None:
    rows = [100_000, 5, 0, 7]
    skipped = plan_one(rows, on_overlong="skip").sequences
    assert skipped.status == ("overlong", "placed", "empty", "placed")
    assert skipped.length_tokens.tolist() == rows
    assert skipped.microbatch[[0, 2]].tolist() == [-1, -1]
    cut = plan_one(rows, on_overlong="truncate").sequences
    assert cut.status == ("truncated", "placed", "empty", "placed")
    assert cut.length_tokens.tolist() == [32768, 5, 0, 7]
    assert cut.valid_tokens.tolist() == [32767, 4, 0, 6]


@pytest.mark.parametrize("cap", [4096, 4095])
def test_equal_sequences_that_fill_the_cap_are_balanced_somewhere_in_the_window(cap: int) -> None:
    search = plan_one([cap] * 128, batch_sequences=128, pp=1, max_tokens_per_rank=cap).search
    assert search.window_min <= 32 <= search.window_max
    assert search.load_driven_slot_imbalance <= 1.10


@pytest.mark.parametrize(
    ("values", "overlong"), [([0, 0, 0], "skip"), ([10**6, 10**7], "skip"), ([0, 10**6], "skip")]
)
def test_a_batch_with_nothing_to_train_on_is_refused(values: list[int], overlong: str) -> None:
    with pytest.raises(InputError, match="nothing to train on"):
        plan(lengths(values), profile(), options(on_overlong=overlong), 1)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 60), st.booleans())
def test_batches_cover_the_file_in_order(values: list[int], size: int, by_tokens: bool) -> None:
    asked = options(
        batch_sequences=None if by_tokens else size, batch_tokens=size if by_tokens else None
    )
    length = np.array(values, np.int64)
    bounds = cut_batches(length, asked, None)
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(len(values)))
    for start, stop in bounds:
        assert stop > start
        if by_tokens and stop - start > 1:
            assert length[start:stop].sum() <= size
        if by_tokens and stop < len(values):
            assert length[start : stop + 1].sum() > size
        if not by_tokens and stop < len(values):
            assert stop - start == size


def test_more_batches_than_the_file_holds_is_an_error_with_the_number() -> None:
    with pytest.raises(InputError, match="fill 2 batches, --num-batches asks 3"):
        plan(lengths([5] * 100), profile(), options(), 3)


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 10_000), st.sampled_from([1, 3, 8, 12]), st.sampled_from([1, 2, 5]),
    st.sampled_from([512, 4095, 4096]), st.sampled_from(["hydra", "memory-ffd"]),
)  # fmt: skip
def test_every_plan_obeys_every_invariant(  # type: ignore[no-untyped-def]
    tmp_path_factory, seed: int, ranks: int, pp: int, cap: int, strategy: str
) -> None:
    values = np.concatenate([long_tailed(60, seed), [0, 1, 2, 3]])
    asked = options(
        ranks=ranks, pp=pp, max_tokens_per_rank=cap, strategy=strategy, batch_sequences=40,
        microbatch_order="auto" if strategy == "hydra" else "as-built",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("plan") / "x.plan"
    header, batches = plan(lengths(values), profile(), asked, None)
    made = list(batches)
    write_plan(folder, header, made)
    opened = open_plan(folder)
    assert opened.header == header
    for index, batch in enumerate(made):
        read = read_batch(opened, index)
        assert check_plan(opened.header, read) == []
        assert check_figures(header, read) == []
        assert read.figures == batch.figures
        assert set(read.figures) == set(FIGURES)
        assert read.schedule == batch.schedule
        used = read.sequences.placed().microbatch
        assert sorted(set(used.tolist())) == list(range(read.num_microbatches))


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([4, 8, 16]), st.sampled_from([1, 4]))
def test_hydra_is_never_slower_than_memory_sized_in_its_best_order(
    seed: int, ranks: int, pp: int
) -> None:
    values = long_tailed(64, seed)
    same = {"ranks": ranks, "pp": pp, "max_tokens_per_rank": 8192}
    ours = plan_one(values, **same).figures["iteration_s"]
    for order in ("as-built", "long-first", "sandwich"):
        other = plan_one(values, strategy="memory-ffd", microbatch_order=order, **same)
        assert ours <= other.figures["iteration_s"] * (1 + 1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([2, 6, 16]), st.sampled_from([1, 4]))
def test_no_plan_beats_the_lower_bound(seed: int, ranks: int, pp: int) -> None:
    figures = plan_one(long_tailed(64, seed), ranks=ranks, pp=pp).figures
    assert 0 < figures["efficiency"] <= 1


def test_a_fixed_number_of_microbatches_is_kept_or_refused() -> None:
    values = long_tailed(64, 5, longest=8000)
    assert plan_one(values, microbatches=9).num_microbatches == 9
    with pytest.raises(Infeasible, match="no plan with 1 microbatch keeps"):
        plan_one(values, microbatches=1)
    with pytest.raises(Infeasible, match="--microbatches allows 1"):
        plan_one(values, microbatches=1, strategy="memory-ffd", microbatch_order="as-built")


def test_a_length_beyond_any_reason_is_refused_before_it_can_overflow() -> None:
    with pytest.raises(InputError, match="row 1 has 2199023255552 tokens"):
        plan(lengths([5, 1 << 41]), profile(), options(), 1)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strategy": "best"}, "unknown strategy 'best'"),
        ({"pipeline": "zb"}, "unknown pipeline 'zb'"),
        ({"microbatch_order": "random"}, "unknown microbatch order 'random'"),
        ({"pp": 33}, "32 layers cannot fill 33 stages"),
        ({"tp": 3}, "tp 3 does not divide num_heads 32"),
    ],
)
def test_wrong_options_are_named(changes: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        plan(lengths([5]), profile(), options(**changes), 1)


def test_schedules_that_no_plan_can_ask_for_are_not_offered() -> None:
    with pytest.raises(InputError) as refused:
        plan(lengths([5]), profile(), options(pipeline="nosuch"), 1)
    offered = "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v"
    assert refused.value.hint == f"known: {offered}, zb-1p, zb-2p, portfolio, exact, policy, auto"


def test_a_pool_that_is_no_power_of_two_uses_blocks_that_fit() -> None:
    placed = plan_one(long_tailed(64, 3), ranks=12).sequences.placed()
    assert (placed.first_rank % placed.degree == 0).all()
    assert set(placed.degree.tolist()) <= {1, 2, 4, 8, 12}
    assert (placed.first_rank + placed.degree).max() <= 12
    assert placed.first_rank.max() >= 8


def test_unequal_stages_are_costed_with_embedding_and_loss() -> None:
    cost = cost_model(ranks=8, pp=4)
    one = np.array([1000]), np.array([1]), np.array([1])
    by_stage = cost.sequence_s(*one).sum(axis=0)[:, 0]
    assert by_stage[0] > by_stage[1] == by_stage[2]
    assert by_stage[3] > 1.2 * by_stage[2]


@pytest.mark.parametrize(("cap", "pp"), [(8192, 4), (16384, 8)])
def test_an_open_window_gives_a_balanced_plan_on_bundled_lengths(cap: int, pp: int) -> None:
    with resources.as_file(
        resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet"
    ) as path:
        found = read_lengths(path)
    asked = options(ranks=128, pp=pp, max_tokens_per_rank=cap, batch_sequences=1024)
    (batch,) = plan(found, profile(), asked, 1)[1]
    assert batch.search.window_min <= batch.search.window_max
    assert batch.winner == "load-driven"
    assert batch.search.load_driven_slot_imbalance <= 1.05
    assert batch.search.load_driven_s <= batch.search.memory_s
    assert batch.search.fastest_load_driven_s <= batch.search.load_driven_s


def test_every_strategy_tells_the_window_of_its_batch() -> None:
    values = long_tailed(64, 3)
    ours = plan_one(values).search
    other = plan_one(values, strategy="memory-ffd", microbatch_order="as-built").search
    assert (ours.window_min, ours.window_max) == (other.window_min, other.window_max)


def test_stages_with_the_loss_get_fewer_layers_and_plans_get_faster() -> None:
    length = long_tailed(200, 3, longest=8000)
    made = {}
    for layers in ("even", "balanced"):
        header, batches = plan(
            lengths(length.tolist()), profile(), options(pp=8, ranks=4, layers=layers), None
        )
        made[layers] = header.layers, next(iter(batches)).figures["iteration_s"]
    assert set(made["even"][0]) == {(4,)}
    assert made["balanced"][0][-1] < (4,) < max(made["balanced"][0])
    assert made["balanced"][1] < 0.9 * made["even"][1]
