"""Timing one call: warm up until it is steady, repeat, tell what was disturbed.

CPU and CUDA differ in nothing but what a `Device` holds: a clock or a pair of events on the
stream, and what empties the cache before a short call. On a CPU the thread stands on one core,
and the clock is compared with the CPU seconds of the thread: where the core was taken away the
sample is flagged and counts with its CPU seconds, since another process is no cost of ours.

Of a CUDA call the level-2 cache is flushed before each sample if the call is short, since its
inputs would come from there as they never do between the ops of a step. CPU caches stay warm:
`hydraplan profile`'s sum check tells what that is worth.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from hydraplan.files.profilefile import Measurement

Run = Callable[[], object]

MIN_REPEATS = 3
MAX_REPEATS = 50
WARM_UP_S = 0.1
"""Warm-up calls end early once they have taken this long."""

STEADY = 0.05
"""Relative distance of two calls, one after the other, at which warm-up is over."""

TAKEN_AWAY = 0.02
"""Share of a sample's time by the clock without which the core must have worked for others."""

SHORT_S = 1e-3
"""CUDA calls below this are timed from a cold level-2 cache."""


class Timed(NamedTuple):
    """One sample; `is_disturbed` if its core worked for others meanwhile."""

    seconds: float
    is_disturbed: bool = False


Timer = Callable[[Run], Timed]


class Device(NamedTuple):
    """Where to measure: the timer holds all that differs between CPU and CUDA.

    `warm_ups`: least and most calls before the first sample; `flush` empties the cache.
    """

    torch_device: torch.device
    timer: Timer
    warm_ups: tuple[int, int]
    flush: Run | None = None


class Call(NamedTuple):
    """One timed call: its row of the profile with the times still 0, and what to run.

    `before` is run before each sample and not timed, for calls that use up what they work on.
    """

    row: Measurement
    run: Run
    before: Run | None = None


class Point(NamedTuple):
    """Calls that share inputs: `prepare` makes these, `work` orders the points of a component.

    Work is in flops, or in bytes where nothing is computed.
    """

    component: str
    work: float
    prepare: Callable[[], Sequence[Call]]


def cpu_device() -> Device:
    """This process's CPU; set the number of threads before."""
    return Device(torch.device("cpu"), cpu_timer, (2, 10))


def cuda_device() -> Device:
    """The current CUDA device; more warm-ups, for kernel loading and clocks."""
    cache_bytes = torch.cuda.get_device_properties().L2_cache_size
    filler = torch.empty(2 * cache_bytes, dtype=torch.uint8, device="cuda")
    return Device(torch.device("cuda"), cuda_timer, (10, 50), filler.zero_)


@contextmanager
def pinned(core: int = -1) -> Iterator[None]:
    """Keep this thread on one of the cores it may use, where the system can.

    `core` counts these, around; -1 is the last.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[core % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def cpu_timer(run: Run) -> Timed:
    """Seconds of one call by the clock, or of its thread if its core was taken away.

    Where the system counts a thread's seconds in ticks longer than the call, only the clock tells.
    """
    start, used = time.perf_counter(), time.thread_time()
    run()
    used_s = time.thread_time() - used
    clock_s = time.perf_counter() - start
    if used_s < (1 - TAKEN_AWAY) * clock_s:
        return Timed(used_s if used_s > 0 else clock_s, True)
    return Timed(clock_s)


def wall_timer(run: Run) -> Timed:
    """Seconds of one call by the clock, for calls that wait for others by nature."""
    start = time.perf_counter()
    run()
    return Timed(time.perf_counter() - start)


def cuda_timer(run: Run) -> Timed:
    """Seconds of one call between two events on the current stream."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return Timed(float(start.elapsed_time(end)) / 1e3)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch found no memory; on a CPU it says so in the text of a plain error alone."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def with_times(row: Measurement, samples: Sequence[Timed]) -> Measurement:
    """The row with median and deciles of its samples, seconds, and how many were disturbed."""
    p10, median, p90 = np.quantile([sample.seconds for sample in samples], (0.1, 0.5, 0.9))
    return row._replace(
        median_s=float(median),
        p10_s=float(p10),
        p90_s=float(p90),
        num_samples=len(samples),
        num_disturbed=sum(sample.is_disturbed for sample in samples),
    )


def wants_more(num_samples: int, spent_s: float, slice_s: float) -> bool:
    """Whether to repeat a call again: at least a few times, then while its slice lasts."""
    return num_samples < MIN_REPEATS or (num_samples < MAX_REPEATS and spent_s < slice_s)


def time_call(call: Call, device: Device, slice_s: float, left_s: float) -> list[Timed]:
    """Samples of one call; about `slice_s` in total, never long beyond `left_s`.

    A call that alone takes all the time left is run once, and that is its sample.
    """
    began = time.perf_counter()
    warm = [_sample(call, device)]
    if warm[0].seconds > left_s:
        return warm
    least, most = device.warm_ups
    while len(warm) < least or (len(warm) < most and not _is_steady(warm)):
        if sum(sample.seconds for sample in warm) >= WARM_UP_S:
            break
        warm.append(_sample(call, device))
    flush = device.flush if warm[-1].seconds < SHORT_S else None
    samples: list[Timed] = []
    while wants_more(len(samples), time.perf_counter() - began, slice_s):
        if samples and time.perf_counter() - began > left_s:
            break
        samples.append(_sample(call, device, flush))
    return samples


def _sample(call: Call, device: Device, flush: Run | None = None) -> Timed:
    if call.before is not None:
        call.before()
    if flush is not None:
        flush()
    return device.timer(call.run)


def _is_steady(warm: Sequence[Timed]) -> bool:
    if len(warm) < 2:
        return False
    last, now = warm[-2].seconds, warm[-1].seconds
    return abs(now - last) <= STEADY * last
