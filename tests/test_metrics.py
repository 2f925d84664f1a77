from itertools import product

import numpy as np
import pytest

from hydraplan.activations import Shares
from hydraplan.cost import CostModel
from hydraplan.costfit import LinkFit, RateFit
from hydraplan.metrics import (
    FIGURES,
    balance,
    displacement,
    live_peaks,
    mean_figures,
    peak_live_tokens,
    shares,
    sizes,
)
from hydraplan.model import Op, Timeline
from hydraplan.planner.lower_bound import bound_s
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from hydraplan.traffic import sent_bytes
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model


def test_balance_figures_of_a_worked_example() -> None:
    load = np.array([[4.0, 2.0], [2.0, 2.0]])  # 2 lanes, 2 microbatches
    found = balance(load, 2.0)
    assert found["slot_imbalance"] == pytest.approx(4 / 2.5)
    assert found["rank_imbalance"] == pytest.approx(6 / 5)
    assert found["microbatch_spread"] == pytest.approx(4 / 2)
    assert found["target_error"] == pytest.approx((2 / 4) / 2)
    assert balance(load, float("nan"))["target_error"] == pytest.approx(0.75 * 4 / 4 / 2.5)


def test_live_tokens_peak_where_the_most_forwards_wait_for_their_backward() -> None:
    rows = np.array([[10, 20, 30, 40], [1, 1, 1, 1]])
    # the first stage of two holds two microbatches: 30 + 40 at the end
    assert peak_live_tokens(one_f_one_b(2, 4), rows, Shares(1.0, 0.5)) == 70
    assert peak_live_tokens(one_f_one_b(1, 4), rows, Shares(1.0, 0.5)) == 40
    assert live_peaks(one_f_one_b(2, 4), rows, Shares(1.0, 0.5)).tolist() == [[70, 2], [40, 1]]


def test_an_input_gradient_alone_frees_its_share() -> None:
    ops = ((Op("F", 0), Op("B", 0), Op("F", 1), Op("W", 0), Op("B", 1), Op("W", 1)),)
    for frees, peak in ((0.0, 200), (0.25, 175), (0.5, 150), (1.0, 100)):
        assert peak_live_tokens(ops, np.array([[100, 100]]), Shares(1.0, 1 - frees)) == peak


def test_what_is_made_again_is_held_from_b_to_w() -> None:
    ops = ((Op("F", 0), Op("F", 1), Op("B", 0), Op("B", 1), Op("W", 0), Op("W", 1)),)
    rows = np.array([[100, 10]])
    assert live_peaks(ops, rows, Shares(0.25, 0.75)).tolist() == [[0.75 * 110]]
    assert live_peaks(one_f_one_b(2, 2), rows, Shares(0.25, 0.75)).tolist() == [[27.5], [25.0]]


def test_a_plans_figures_are_means_but_sizes_that_must_fit_are_maxima() -> None:
    one, two = dict.fromkeys(FIGURES, 1.0), dict.fromkeys(FIGURES, 3.0)
    found = mean_figures([one, two])
    largest = {"max_tokens_per_rank", "peak_live_tokens", "num_groups", "displacement_max_rows"}
    assert {name for name in FIGURES if found[name] == 3.0} == largest
    assert {name for name in FIGURES if found[name] == 2.0} == set(FIGURES) - largest


def test_sizes_count_groups_shapes_and_rows() -> None:
    cost = cost_model(ranks=4, pp=2)
    placed = placed_sequences(
        [Place(100, 0, 2, 1, 0), Place(60, 0, 2, 1, 0), Place(9, 2, 1, 1, 0), Place(40, 0, 2, 2, 1)]
    )
    found = sizes(cost, placed, slot_times(cost, placed, 2), one_f_one_b(2, 2))
    assert found["max_tokens_per_rank"] == 80
    assert found["num_groups"] == 2  # lanes 0-1 twice, lanes 0-3 once
    assert found["num_shapes"] == 2  # lane 0 sees 80 and 10 rows
    assert found["peak_live_tokens"] == 90
    assert found["sent_bytes"] == sent_bytes(cost, placed).sum() > 0


@pytest.mark.parametrize(
    ("microbatch", "mean", "most"),
    [
        ([0, 0, 0, 0], 0, 0),
        ([0, 0, 1, 2], 0, 0),
        ([1, 0, 0, 0], 6 / 4, 3),  # runs as rows 1 2 3 0
        ([2, 1, 0, 1], 6 / 4, 3),  # runs as rows 2 1 3 0
        ([3, 2, 1, 0], 8 / 4, 3),
    ],
)
def test_displacement_counts_rows_between_file_and_execution(
    microbatch: list[int], mean: float, most: float
) -> None:
    places = [Place(10 * i, 0, 1 + i % 2, 1, m) for i, m in enumerate(microbatch, 1)]
    found = displacement(placed_sequences(places))
    assert found == {"displacement_mean_rows": mean, "displacement_max_rows": most}


def slow_cost(layers: tuple[tuple[int, ...], ...], ranks: int) -> CostModel:
    """Unequal stages, slow attention backward and a slow link: what strains the bound."""
    base = cost_model(ranks=ranks, pp=2)
    fit = base.fit.model_copy(
        update={
            "attention_backward": RateFit(call_s=0.0, flops_per_s=1e12),
            "fabric_p2p": LinkFit(bytes_per_s=1e9, latency_s=0.0),
            "node_p2p": LinkFit(bytes_per_s=1e9, latency_s=0.0),
        }
    )
    model = base.model.model_copy(update={"num_layers": sum(map(sum, layers))})
    return CostModel(fit, model, 1, 2, ranks, layers)


@pytest.mark.parametrize("layers", [((1,), (3,)), ((3,), (1,)), ((2,), (2,))])
@pytest.mark.parametrize("lengths", [(8192, 8192), (8192, 100), (500, 400)])
def test_no_placement_at_all_beats_the_lower_bound(
    layers: tuple[tuple[int, ...], ...], lengths: tuple[int, int]
) -> None:
    cost = slow_cost(layers, ranks=2)
    bound = bound_s(cost, np.array(lengths), 10**6)
    fastest = np.inf
    shapes = [(0, 1, 1), (1, 1, 1), (0, 2, 1), (0, 1, 2)]
    for a, b in product(shapes, repeat=2):
        for second in (0, 1):
            places = [Place(lengths[0], *a, 0), Place(lengths[1], *b, second)]
            slots = slot_times(cost, placed_sequences(places), second + 1)
            timeline = simulate(slots, one_f_one_b(2, second + 1))
            fastest = min(fastest, shares(timeline)["iteration_s"])
    assert 0 < bound <= fastest


@pytest.mark.parametrize("target", [0.0, -1.0, float("inf"), float("nan")])
def test_a_target_that_is_no_time_counts_as_none(target: float) -> None:
    load = np.array([[1.0, 2.0], [2.0, 3.0]])
    assert balance(load, target)["target_error"] == 0.25
    assert balance(load, 1.0)["target_error"] == 1.0


def test_two_passes_at_the_same_time_occupy_a_lane_once() -> None:
    """F from 0 to 2; then F and BW together from 3 to 7, of which 1 s each is waiting."""
    ops = (Op("F", 0), Op("F", 1, joined=True), Op("BW", 0))
    start, end, busy = (np.array(v)[:, None] for v in ([0.0, 3, 3], [2.0, 7, 7], [2.0, 1.5, 1.5]))
    found = shares(Timeline((ops,), (start,), (end,), (busy,), np.array([1.0])))
    assert found["iteration_s"] == 8
    assert found["busy"] == 5 / 8
    assert found["group_wait"] == 1 / 8
    assert found["grad_sync"] == 1 / 8
    assert found["pipeline_bubble"] == pytest.approx(1 / 8)
