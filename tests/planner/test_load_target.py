import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from hydraplan.planner.placement.cost_table import cost_table
from hydraplan.planner.placement.degrees import guard, within_guard
from hydraplan.planner.placement.load_target import (
    TOLERANCE,
    quadratic,
    quadratic_target,
    solve,
    without_overhead,
)
from tests.planner.cases import cost_model, long_tailed

WORK = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40)


@given(WORK, st.integers(1, 64))
def test_without_overhead_the_quadratic_is_the_mean_work(work: list[float], slots: int) -> None:
    w, one = np.array(work), np.ones(len(work), np.int64)
    assert_allclose(
        quadratic(w, np.zeros_like(w), one, slots), without_overhead(w, one, slots), rtol=1e-12
    )


@given(WORK, st.integers(1, 64), st.floats(0.0, 0.5), st.integers(0, 99))
def test_the_quadratic_solves_its_equation_over_the_sequences_beyond_the_target(
    work: list[float], slots: int, share: float, seed: int
) -> None:
    w = np.array(work)
    e = share * w
    n = np.random.default_rng(seed).integers(1, 5, len(w))
    target = quadratic(w, e, n, slots)
    big = w > target * (1 + 1e-9)
    edge = np.isclose(w, target)
    # slots * L = small work + sum of big (w - e + e w / L), the first order of (w-e) L/(L-e)
    right = (w * n)[~big].sum() + ((w - e + e * w / target) * n)[big].sum()
    slack = (e * n)[edge].sum()
    assert abs(slots * target - right) <= 1e-9 * slots * target + slack


def test_a_worked_example_of_the_quadratic() -> None:
    # two slots, one long sequence w = 8, e = 1, one short w = 2:
    # 2 L = 2 + 8 - 1 + 8 / L, so 2 L^2 - 9 L - 8 = 0, L = (9 + sqrt(145)) / 4
    one = np.array([1, 1])
    target = quadratic(np.array([8.0, 2.0]), np.array([1.0, 0.0]), one, 2)
    assert target == pytest.approx((9 + 145**0.5) / 4, rel=1e-12)


def test_a_worked_example_of_the_quantum() -> None:
    # as above with theta = 1/2: 2 L = 9 + 8 / (L / 2), so 2 L^2 - 9 L - 16 = 0
    one = np.array([1, 1])
    target = quadratic(np.array([8.0, 2.0]), np.array([1.0, 0.0]), one, 2, theta=0.5)
    assert target == pytest.approx((9 + 209**0.5) / 4, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(1, 30), st.sampled_from([1.0, 0.5, 0.25]),
    st.sampled_from([0.1, 0.3, 10.0]), st.sampled_from([1, 12, 16, 23]),
)  # fmt: skip
def test_the_target_is_where_work_and_capacity_cross(
    seed: int, microbatches: int, theta: float, eta: float, ranks: int
) -> None:
    table = cost_table(cost_model(ranks=ranks, pp=2), long_tailed(80, seed, 4000 * ranks), 4096)
    within = within_guard(table, eta)
    slots = ranks * microbatches
    found = solve(table, guard(table, eta), slots, theta)

    def levels(target: float) -> list[int]:
        """One bucket after the other, climbing while that helps and the guard lets it."""
        chosen = []
        for load, legal in zip(table.load_s, within, strict=True):
            best = int(np.isfinite(load).argmax())
            for k in range(best + 1, table.num_levels):
                needed = load[best] > theta * target
                pays = load[k] < load[: k + 1][np.isfinite(load[: k + 1])][:-1].min()
                if needed and pays and (legal[k] or load[best] > target):
                    best = k
            chosen.append(best)
        return chosen

    def consumed(target: float) -> float:
        return float(
            sum(
                table.load_s[i, k] * table.degrees[k] * table.count[i]
                for i, k in enumerate(levels(target))
            )
        )

    target = found.load_target_s
    assert found.level.tolist() == levels(target)
    assert found.rank_work_s == pytest.approx(consumed(target))
    assert consumed(target) <= slots * target * (1 + 1e-12)
    just_below = np.linspace(target * (1 - 2 * TOLERANCE), target, 5)[:-1]
    assert any(consumed(t) > slots * t for t in just_below)


def test_more_microbatches_never_raise_the_target_and_never_lower_the_work() -> None:
    table = cost_table(cost_model(ranks=32, pp=4), long_tailed(300, 1), 8192)
    guarded = guard(table, 0.3)
    found = [solve(table, guarded, 32 * m, 0.5) for m in range(1, 40)]
    targets = [f.load_target_s for f in found]
    work = [f.rank_work_s for f in found]
    assert targets == sorted(targets, reverse=True)
    assert work == sorted(work)


def test_the_quadratic_start_is_close_to_the_table_when_overhead_is_small() -> None:
    # nested engine inside a node: communication is a few percent of compute
    cost = cost_model(ranks=8, pp=1)
    length = long_tailed(400, 2, longest=32_000)
    table = cost_table(cost, length, 8192)
    truth = solve(table, guard(table, 10.0), 8 * 12, 1.0).load_target_s
    i = np.arange(len(table.floor))
    base = table.rank_work_s[i, table.floor]
    top = table.rank_work_s[:, 3]
    slope = (top - base) / np.maximum(1, 8 - 2.0**table.floor)
    assert quadratic(base, slope, table.count, 8 * 12) == pytest.approx(truth, rel=0.03)
    assert quadratic_target(table, 8 * 12) == pytest.approx(truth, rel=0.03)
