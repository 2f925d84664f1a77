import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from hydraplan.config import load_model  # noqa: E402
from hydraplan.files.profilefile import Measurement  # noqa: E402
from hydraplan.profiler.linear_points import linear_points  # noqa: E402
from hydraplan.profiler.measure import (  # noqa: E402
    MIN_REPEATS,
    Call,
    Device,
    Point,
    repeats_within,
    sweep,
    time_call,
    with_times,
)

ROW = Measurement("memory", "send", 0, 0, 0, 0, False, "uint8", "none", 0, 0, 0, 0, 1)


def counted(seconds: list[float]) -> Device:
    """A device whose timer runs the call and says the next of the given seconds."""
    given = iter(seconds)

    def timer(run: object) -> float:
        run()  # type: ignore[operator]
        return next(given)

    return Device(torch.device("cpu"), timer, 2)


def point(flops: float, ran: list[float]) -> Point:
    return Point(flops, lambda: [Call(ROW, lambda: ran.append(flops))])


def test_a_row_gets_median_and_deciles_of_its_samples() -> None:
    row = with_times(ROW, [float(x) for x in range(11)])
    assert (row.p10_s, row.median_s, row.p90_s) == (1.0, 5.0, 9.0)


def test_repeats_stay_between_their_limits() -> None:
    assert repeats_within(1.0, 10.0) == MIN_REPEATS
    assert repeats_within(1.0, 0.1) == 10
    assert repeats_within(1.0, 1e-9) == 50


def test_warm_up_calls_are_not_samples() -> None:
    assert time_call(list, counted([0.09, 0.08, 1.0, 2.0, 3.0]), 0.0, 60.0) == [1.0, 2.0, 3.0]


def test_a_slow_call_is_warmed_up_once_and_sampled_once_when_no_time_is_left() -> None:
    assert time_call(list, counted([5.0, 4.0]), 0.0, 0.0) == [4.0]


def test_a_sweep_measures_in_order_of_work_and_stops_before_what_does_not_fit() -> None:
    ran: list[float] = []
    device = counted([1.0] * 100)
    rows = sweep([point(100.0, ran), point(1.0, ran), point(2.0, ran)], device, 20.0, 1)
    assert len(rows) == 2
    assert sorted(set(ran)) == [1.0, 2.0]
    assert ran == sorted(ran)


def test_a_sweep_without_a_budget_still_measures_what_the_fit_needs() -> None:
    ran: list[float] = []
    rows = sweep([point(float(x), ran) for x in range(1, 9)], counted([1.0] * 100), 1e-9, 4)
    assert len(rows) == 4


def test_each_linear_pass_computes_the_flops_it_is_charged() -> None:
    model = load_model("tiny")
    chosen = linear_points(model, torch.device("cpu"))[2]
    calls = chosen.prepare()
    assert [call.row.direction for call in calls] == ["forward", "input", "weight"]
    for call in calls:
        with FlopCounterMode(display=False) as counter:
            call.run()
        assert counter.get_total_flops() == call.row.flops == 2 * 16 * model.layer_parameters
