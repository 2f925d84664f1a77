import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from hydraplan.config import load_model  # noqa: E402
from hydraplan.files.profilefile import Measurement  # noqa: E402
from hydraplan.profiler.linear_points import linear_points  # noqa: E402
from hydraplan.profiler.measure import (  # noqa: E402
    MAX_REPEATS,
    MIN_REPEATS,
    Call,
    Device,
    Point,
    sweep,
    time_call,
    wants_more,
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


def test_a_call_is_repeated_a_few_times_then_while_its_slice_lasts() -> None:
    assert wants_more(MIN_REPEATS - 1, 99.0, 1.0)
    assert not wants_more(MIN_REPEATS, 1.0, 1.0)
    assert wants_more(MIN_REPEATS, 0.9, 1.0)
    assert not wants_more(MAX_REPEATS, 0.0, 1.0)


def test_warm_up_calls_are_not_samples() -> None:
    assert time_call(list, counted([0.09, 0.08, 1.0, 2.0, 3.0]), 0.0, 60.0) == [1.0, 2.0, 3.0]


def test_a_call_that_takes_all_the_time_left_is_run_once() -> None:
    assert time_call(list, counted([5.0]), 0.0, 4.9) == [5.0]


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
