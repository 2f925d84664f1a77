import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.cost import FORWARD, INPUT_GRADIENT, CostModel
from hydraplan.errors import Infeasible
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.layout import legal_degrees
from hydraplan.metrics import lower_bound_s
from hydraplan.model import IntArray
from hydraplan.planner.lower_bound import bound_s
from hydraplan.planner.placement import cost_table
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.plan import plan_batch, prepare
from tests.planner.cases import cost_model, long_tailed, options, profile


def one_by_one_s(cost: CostModel, length: IntArray, cap: int) -> float:
    """The bound with every sequence by itself, shape after shape."""
    work_s = np.full((3, cost.pp, len(length)), np.inf)
    alone_s, through_s = np.full_like(work_s, np.inf), np.full(len(length), np.inf)
    for i in range(len(length)):
        one = length[i : i + 1]
        for degree in legal_degrees(cost.ranks):
            if one[0] > cap * degree:
                continue
            for u, r in cost.shapes(int(degree)):
                shape = np.array([u]), np.array([r])
                ops_s = cost.sequence_s(one, *shape)[..., 0]
                least_s = cost.least.sequence_s(one, *shape)[..., 0]
                work_s[..., i] = np.minimum(work_s[..., i], least_s * degree)
                first_s = cost.sequence_s(one, *shape, num_chunks=1)[..., 0]
                alone_s[..., i] = np.minimum(alone_s[..., i], first_s)
                way_s = ops_s[FORWARD].sum() + ops_s[INPUT_GRADIENT].sum()
                through_s[i] = min(through_s[i], way_s)
    return lower_bound_s(cost, work_s, alone_s, through_s)


@settings(max_examples=15)
@given(
    st.integers(1, 60), st.integers(0, 999), st.integers(1, 40), st.integers(1, 4),
    st.sampled_from([1, 2, 4]), st.integers(200, 9000),
)  # fmt: skip
def test_a_small_batch_is_bounded_sequence_by_sequence(
    count: int, seed: int, ranks: int, pp: int, tp: int, cap: int
) -> None:
    cost = cost_model(ranks, pp, tp)
    length = long_tailed(count, seed, longest=cap * ranks)
    assert bound_s(cost, length, cap) == pytest.approx(one_by_one_s(cost, length, cap), rel=1e-12)


def test_a_large_batch_is_bounded_from_below_and_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = cost_model(ranks=64, pp=4)
    length = long_tailed(5000, 8, longest=200_000)
    found = bound_s(cost, length, 8192)
    monkeypatch.setattr(cost_table, "EXACT_UP_TO", len(length))
    exact = bound_s(cost, length, 8192)
    assert 0.997 * exact < found < exact


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_no_simulated_plan_is_faster_than_the_bound(strategy: str) -> None:
    """Pools of any size, caps from a few tokens on, filled to the brim or hardly."""
    planned = 0
    for seed in range(6 if strategy == "exact" else 25):
        rng = np.random.default_rng(seed)
        ranks, cap = int(rng.choice([1, 2, 4, 6, 8, 12])), int(rng.choice([5, 257, 1001, 8193]))
        count = int(rng.integers(2, 9 if strategy == "exact" else 30))
        length = np.maximum(1, (cap * ranks * rng.random(count) ** 3).astype(np.int64))
        asked = options(
            pp=int(rng.integers(1, 4)),
            ranks=ranks,
            tp=int(rng.choice([1, 2])),
            max_tokens_per_rank=cap,
            batch_sequences=count,
            strategy=strategy,
            engine=str(rng.choice(["ring", "nested"])),
        )
        _, batches = prepare(Lengths("t", "sequences", length), profile(), asked, 1)
        try:
            plan = plan_batch(batches.cost, asked, 0, batches[0])
        except Infeasible:  # Megatron-Core's schedulers do not place every batch
            continue
        planned += 1
        assert 0 < plan.figures["lower_bound_s"] <= plan.figures["iteration_s"] * (1 + 1e-12)
        assert plan.figures["efficiency"] <= 1 + 1e-12
    assert planned > 3


@settings(max_examples=12)
@given(
    spill=st.sampled_from([0.5, 3.0, 1000.0]), half_rows=st.sampled_from([0.0, 500.0]),
    block=st.sampled_from([0.0, 512.0]), seed=st.integers(0, 999),
    ranks=st.sampled_from([1, 3, 8]), strategy=st.sampled_from(["hydra", "static-cp"]),
)  # fmt: skip
def test_the_bound_holds_where_long_calls_are_slow_and_splitting_saves_rank_time(
    spill: float, half_rows: float, block: float, seed: int, ranks: int, strategy: str
) -> None:
    fit = profile().header.fit
    shape = {"spill": spill, "half_rows": half_rows, "causal_block_rows": block}
    names = ("attention_forward", "attention_backward")
    changed = {name: getattr(fit, name).model_copy(update=shape) for name in names}
    header = profile().header.model_copy(update={"fit": fit.model_copy(update=changed)})
    length = long_tailed(30, seed, longest=2000 * ranks)
    asked = options(pp=2, ranks=ranks, max_tokens_per_rank=2048, batch_sequences=30,
                    strategy=strategy)  # fmt: skip
    measured = Profile(header, "0" * 64)
    _, batches = prepare(Lengths("t", "sequences", length), measured, asked, 1)
    cost = batches.cost
    try:
        plan = plan_batch(cost, asked, 0, batches[0])
    except Infeasible:
        return
    assert 0 < plan.figures["lower_bound_s"] <= plan.figures["iteration_s"] * (1 + 1e-12)
    one, grown = np.ones(1, np.int64), np.arange(1, 4000, 37)
    load_s = cost.sequence_s(grown, one.repeat(len(grown)), one.repeat(len(grown))).sum((0, 1))
    assert (np.diff(load_s) > 0).all()  # longer is never cheaper


@pytest.mark.parametrize("cap", [1001, 8193, 65_537])
def test_plans_that_keep_the_cap_only_on_average_obey_the_bound(cap: int) -> None:
    """Two sequences of 4 cap - 1 tokens fill eight ranks; zigzag gives some rank cap + 1 rows."""
    length = np.full(2, 4 * cap - 1)
    asked = options(
        pp=1, ranks=8, max_tokens_per_rank=cap, batch_sequences=2, strategy="mcore-main",
        engine="ring",
    )  # fmt: skip
    _, batches = prepare(Lengths("t", "sequences", length), profile(), asked, 1)
    plan = plan_batch(batches.cost, asked, 0, batches[0])
    assert plan.sequences.degree.tolist() == [4, 4]
    assert plan.sequences.rank_tokens_max.tolist() == [cap + 1] * 2
    assert 0.9 < plan.figures["efficiency"] <= 1
