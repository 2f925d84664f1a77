import os
import time

import pytest

torch = pytest.importorskip("torch")

from hydraplan.files.profilefile import Measurement  # noqa: E402
from hydraplan.profiler.measure import (  # noqa: E402
    MAX_REPEATS,
    MIN_REPEATS,
    Call,
    Device,
    Run,
    Timed,
    cpu_timer,
    pinned,
    time_call,
    wants_more,
    with_times,
)

ROW = Measurement("memory", "send", bytes=1.0)


def counted(seconds: list[float]) -> Device:
    """A device whose timer runs the call and says the next of the given seconds."""
    given = iter(seconds)

    def timer(run: object) -> Timed:
        run()  # type: ignore[operator]
        return Timed(next(given))

    return Device(torch.device("cpu"), timer, (2, 4))


def test_a_row_gets_median_and_deciles_of_its_samples_and_how_many_were_disturbed() -> None:
    row = with_times(ROW, [Timed(float(x), x > 8) for x in range(11)])
    assert (row.p10_s, row.median_s, row.p90_s) == (1.0, 5.0, 9.0)
    assert (row.num_samples, row.num_disturbed) == (11, 2)


def test_a_call_is_repeated_a_few_times_then_while_its_slice_lasts() -> None:
    assert wants_more(MIN_REPEATS - 1, 99.0, 1.0)
    assert not wants_more(MIN_REPEATS, 1.0, 1.0)
    assert wants_more(MIN_REPEATS, 0.9, 1.0)
    assert not wants_more(MAX_REPEATS, 0.0, 1.0)


def times(device: Device, left_s: float = 60.0, before: Run | None = None) -> list[float]:
    samples = time_call(Call(ROW, list, before), device, 0.0, left_s)
    return [sample.seconds for sample in samples]


def test_warm_up_calls_are_not_samples() -> None:
    assert times(counted([0.09, 0.089, 1.0, 2.0, 3.0])) == [1.0, 2.0, 3.0]


def test_it_warms_up_until_two_calls_take_as_long_or_it_has_tried_often_enough() -> None:
    falling = [0.020, 0.015, 0.010, 0.010, 1.0, 2.0, 3.0]
    assert times(counted(falling)) == [1.0, 2.0, 3.0]
    never = [0.020, 0.015, 0.010, 0.005, 1.0, 2.0, 3.0]
    assert times(counted(never)) == [1.0, 2.0, 3.0]


def test_a_call_that_takes_all_the_time_left_is_run_once() -> None:
    assert times(counted([5.0]), left_s=4.9) == [5.0]


def test_what_comes_before_a_call_is_run_before_every_sample_and_not_timed() -> None:
    ran: list[str] = []
    seconds = [0.01, 0.01, 1.0, 2.0, 3.0]
    assert times(counted(seconds), before=lambda: ran.append("before")) == [1.0, 2.0, 3.0]
    assert len(ran) == 5


def test_the_cache_is_flushed_before_short_calls_alone() -> None:
    flushed: list[int] = []
    short = counted([1e-4] * 5)._replace(flush=lambda: flushed.append(1))
    times(short)
    assert len(flushed) == 3  # its samples, no warm-up
    times(counted([1e-2] * 5)._replace(flush=lambda: flushed.append(1)))
    assert len(flushed) == 3


def test_a_sample_whose_core_worked_for_others_counts_with_its_own_cpu_seconds() -> None:
    slept = cpu_timer(lambda: time.sleep(0.05))
    assert slept.is_disturbed
    assert slept.seconds < 0.04


def test_where_a_threads_seconds_come_in_long_ticks_the_clock_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "thread_time", lambda: 1.0)
    slept = cpu_timer(lambda: time.sleep(0.01))
    assert slept.is_disturbed
    assert slept.seconds >= 0.01


def test_the_thread_stands_on_one_core_and_is_free_again() -> None:
    allowed = os.sched_getaffinity(0)
    with pinned():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == allowed
