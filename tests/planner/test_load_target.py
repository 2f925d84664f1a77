import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from hydraplan.planner.placement.cost_table import cost_table
from hydraplan.planner.placement.degrees import allowed_levels
from hydraplan.planner.placement.load_target import quadratic, solve, without_overhead
from tests.planner.cases import cost_model, long_tailed

WORK = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40)


@given(WORK, st.integers(1, 64))
def test_without_overhead_the_quadratic_is_the_mean_work(work: list[float], slots: int) -> None:
    w = np.array(work)
    assert_allclose(quadratic(w, np.zeros_like(w), slots), without_overhead(w, slots), rtol=1e-12)


@given(WORK, st.integers(1, 64), st.floats(0.0, 0.5))
def test_the_quadratic_solves_its_equation_over_the_sequences_beyond_the_target(
    work: list[float], slots: int, share: float
) -> None:
    w = np.array(work)
    e = share * w
    target = quadratic(w, e, slots)
    big = w > target * (1 + 1e-9)
    edge = np.isclose(w, target)
    # slots * L = small work + sum of big (w - e + e w / L), the first order of (w-e) L/(L-e)
    right = w[~big].sum() + (w[big] - e[big] + e[big] * w[big] / target).sum()
    slack = e[edge].sum()
    assert abs(slots * target - right) <= 1e-9 * slots * target + slack


def test_a_worked_example_of_the_quadratic() -> None:
    # two slots, one long sequence w = 8, e = 1, one short w = 2:
    # 2 L = 2 + 8 - 1 + 8 / L, so 2 L^2 - 9 L - 8 = 0, L = (9 + sqrt(145)) / 4
    target = quadratic(np.array([8.0, 2.0]), np.array([1.0, 0.0]), 2)
    assert target == pytest.approx((9 + 145**0.5) / 4, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(1, 30), st.sampled_from([1.0, 0.5, 0.25]),
    st.sampled_from([0.1, 0.3, 10.0]),
)  # fmt: skip
def test_the_target_is_where_work_and_capacity_cross(
    seed: int, microbatches: int, theta: float, eta: float
) -> None:
    table = cost_table(cost_model(ranks=16, pp=2), long_tailed(80, seed), 4096)
    allowed = allowed_levels(table, eta)
    slots = 16 * microbatches
    found = solve(table, allowed, slots, theta)

    def levels(target: float) -> list[int]:
        """One sequence after the other: the smallest allowed degree that meets theta * L."""
        chosen = []
        for load, legal in zip(table.load_s, allowed, strict=True):
            meets = [k for k in np.flatnonzero(legal) if load[k] <= theta * target]
            cheapest = min(np.flatnonzero(legal), key=lambda k: load[k])
            chosen.append(int(meets[0] if meets else cheapest))
        return chosen

    def consumed(target: float) -> float:
        return float(sum(table.load_s[i, k] * 2**k for i, k in enumerate(levels(target))))

    target = found.load_target_s
    assert found.level.tolist() == levels(target)
    assert found.rank_work_s == pytest.approx(consumed(target))
    assert consumed(target) <= slots * target * (1 + 1e-12)
    assert consumed(target * (1 - 2e-6)) > slots * target * (1 - 2e-6)


def test_a_worked_example_of_the_quantum() -> None:
    # as above with theta = 1/2: 2 L = 9 + 8 / (L / 2), so 2 L^2 - 9 L - 16 = 0
    target = quadratic(np.array([8.0, 2.0]), np.array([1.0, 0.0]), 2, theta=0.5)
    assert target == pytest.approx((9 + 209**0.5) / 4, rel=1e-12)


def test_more_microbatches_never_raise_the_target_and_never_lower_the_work() -> None:
    table = cost_table(cost_model(ranks=32, pp=4), long_tailed(300, 1), 8192)
    allowed = allowed_levels(table, 0.3)
    found = [solve(table, allowed, 32 * m, 0.5) for m in range(1, 40)]
    targets = [f.load_target_s for f in found]
    work = [f.rank_work_s for f in found]
    assert targets == sorted(targets, reverse=True)
    assert work == sorted(work)


def test_the_quadratic_start_is_close_to_the_table_when_overhead_is_small() -> None:
    # nested engine inside a node: communication is a few percent of compute
    cost = cost_model(ranks=8, pp=1)
    length = long_tailed(400, 2, longest=32_000)
    table = cost_table(cost, length, 8192)
    allowed = allowed_levels(table, 10.0)
    truth = solve(table, allowed, 8 * 12, 1.0).load_target_s
    i = np.arange(len(length))
    base = table.rank_work_s[i, table.floor]
    top = table.rank_work_s[:, 3]
    slope = (top - base) / np.maximum(1, 8 - 2.0**table.floor)
    assert quadratic(base, slope, 8 * 12) == pytest.approx(truth, rel=0.03)
