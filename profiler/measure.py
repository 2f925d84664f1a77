"""Timing: warm up, repeat, report median and deciles, and keep to a budget of seconds.

A sweep measures its points in order of work. Before each one it extrapolates from the last
and stops when the point would not fit into what is left, so a slow machine measures fewer
points and never hangs; the first few, which a fit cannot do without, are always measured.
CPU and CUDA differ in nothing but the timer: a clock, or a pair of events on the stream.

Caches are not flushed between repeats: a layer's inputs come warm from the layer before.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from hydraplan.files.profilefile import Measurement

Run = Callable[[], object]
Timer = Callable[[Run], float]

MIN_REPEATS = 3
MAX_REPEATS = 50
WARM_UP_S = 0.1
"""Warm-up calls end early once they have taken this long."""


class Device(NamedTuple):
    """Where to measure: the timer holds all that differs between CPU and CUDA."""

    torch_device: torch.device
    timer: Timer
    warm_ups: int


class Call(NamedTuple):
    """One timed call: its row of the profile with the times still 0, and what to run."""

    row: Measurement
    run: Run


class Point(NamedTuple):
    """Calls that share inputs. `prepare` makes the inputs, `flops` orders the points."""

    flops: float
    prepare: Callable[[], Sequence[Call]]


def cpu_device() -> Device:
    """This process's CPU; set the number of threads before."""
    return Device(torch.device("cpu"), cpu_timer, 2)


def cuda_device() -> Device:
    """The current CUDA device; more warm-ups, for kernel loading and clocks."""
    return Device(torch.device("cuda"), cuda_timer, 10)


def cpu_timer(run: Run) -> float:
    """Seconds of one call by the clock."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def cuda_timer(run: Run) -> float:
    """Seconds of one call between two events on the current stream."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def with_times(row: Measurement, samples_s: Sequence[float]) -> Measurement:
    """The row with median and deciles of its samples, seconds."""
    p10, median, p90 = np.quantile(np.asarray(samples_s, float), (0.1, 0.5, 0.9))
    return row._replace(median_s=float(median), p10_s=float(p10), p90_s=float(p90))


def wants_more(num_samples: int, spent_s: float, slice_s: float) -> bool:
    """Whether to repeat a call again: at least a few times, then while its slice lasts."""
    return num_samples < MIN_REPEATS or (num_samples < MAX_REPEATS and spent_s < slice_s)


def time_call(run: Run, device: Device, slice_s: float, left_s: float) -> list[float]:
    """Samples of one call, seconds; about `slice_s` in total, never long beyond `left_s`.

    A call that alone takes all the time left is run once, and that is its sample.
    """
    began = time.perf_counter()
    warm = [device.timer(run)]
    if warm[0] > left_s:
        return warm
    while len(warm) < device.warm_ups and sum(warm) < WARM_UP_S:
        warm.append(device.timer(run))
    samples = [device.timer(run)]
    while wants_more(len(samples), sum(samples), slice_s):
        if time.perf_counter() - began > left_s:
            break
        samples.append(device.timer(run))
    return samples


def sweep(
    points: Sequence[Point], device: Device, budget_s: float, num_required: int
) -> list[Measurement]:
    """Measure points in order of work until the budget is spent; the first few always."""
    began = time.perf_counter()
    rows: list[Measurement] = []
    least_s, flops = 0.0, 1.0
    for index, point in enumerate(sorted(points, key=lambda p: p.flops)):
        start = time.perf_counter()
        left_s = budget_s - (start - began)
        if index >= num_required and least_s * point.flops / flops > left_s:
            break
        calls = point.prepare()
        prepare_s = time.perf_counter() - start
        slice_s = left_s / (len(points) - index) / len(calls)
        measured = [
            with_times(call.row, time_call(call.run, device, slice_s, left_s / len(calls)))
            for call in calls
        ]
        call_s = sum(row.median_s for row in measured)
        least_s, flops = prepare_s + (MIN_REPEATS + 1) * call_s, point.flops
        rows += measured
    return rows
