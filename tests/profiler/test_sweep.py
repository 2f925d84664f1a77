from collections.abc import Sequence

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hydraplan.files.profilefile import Measurement  # noqa: E402
from hydraplan.model import FloatArray  # noqa: E402
from hydraplan.profiler import sweep as module  # noqa: E402
from hydraplan.profiler.measure import Call, Device, Point, Run, Timed  # noqa: E402
from hydraplan.profiler.sweep import sweep  # noqa: E402


class Clock:
    """A clock that only timed calls move: each takes its work times `scale` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scale: float = 1e-3) -> None:
        self.now_s, self.scale = 0.0, scale
        self.visits: list[float] = []
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now_s)

    def device(self) -> Device:
        def timer(run: Run) -> Timed:
            seconds = float(str(run())) * self.scale
            self.now_s += seconds
            return Timed(seconds)

        return Device(torch.device("cpu"), timer, (1, 1))

    def point(self, work: float, component: str = "memory") -> Point:
        def prepare() -> Sequence[Call]:
            self.visits.append(work)
            row = Measurement("memory", "send", bytes=work)
            return (Call(row, lambda: work),)

        return Point(component, work, prepare)


def certain(rows: Sequence[Measurement]) -> FloatArray:
    return np.zeros(len(rows))


def test_first_every_second_size_is_measured_from_small_to_large(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    points = [clock.point(float(work)) for work in (5, 1, 3, 2, 4)]
    rows = sweep(points, clock.device(), 60.0, {}, certain)
    assert clock.visits == [1, 3, 5]
    assert [row.bytes for row in rows] == [1, 3, 5]
    assert all(row.num_samples >= 3 for row in rows)


def test_a_visit_beyond_its_share_of_the_budget_is_left_out_and_required_ones_are_not(
    monkeypatch,
) -> None:
    clock = Clock(monkeypatch, scale=1.0)
    points = [clock.point(float(2**power)) for power in range(8)]
    rows = sweep(points, clock.device(), 1.0, {"memory": 2}, certain)
    assert [row.bytes for row in rows] == [1, 2]


def test_then_it_goes_where_a_fit_to_the_others_is_furthest_off(monkeypatch) -> None:
    clock = Clock(monkeypatch)

    def off_at_five(rows: Sequence[Measurement]) -> FloatArray:
        return np.array([0.5 if row.bytes == 5 else 0.001 for row in rows])

    points = [clock.point(float(work)) for work in range(1, 10)]
    sweep(points, clock.device(), 1.0, {}, off_at_five)
    assert clock.visits[:5] == [1, 3, 5, 7, 9]
    assert 5 in clock.visits[5:8]
    assert clock.visits.count(5) == max(clock.visits.count(work) for work in range(1, 10))
    assert clock.now_s < 2.0  # it ends


def no_gpu_memory() -> Sequence[Call]:
    raise torch.OutOfMemoryError("no")


def no_cpu_memory() -> Sequence[Call]:
    torch.empty(1 << 55, dtype=torch.uint8)  # torch's own words
    return ()


@pytest.mark.parametrize("prepare", [no_gpu_memory, no_cpu_memory])
def test_a_point_too_large_for_memory_is_named_no_measurement(monkeypatch, prepare) -> None:
    clock = Clock(monkeypatch)
    points = [clock.point(1.0), Point("memory", 2.0, list), Point("memory", 3.0, prepare)]
    rows = sweep(points, clock.device(), 60.0, {}, certain)
    assert [row.bytes for row in rows] == [1.0]


def test_what_else_goes_wrong_at_a_point_is_not_taken_for_memory(monkeypatch) -> None:
    def prepare() -> Sequence[Call]:
        raise RuntimeError("a kernel is broken")

    with pytest.raises(RuntimeError, match="broken"):
        sweep([Point("memory", 1.0, prepare)], Clock(monkeypatch).device(), 1.0, {}, certain)


def test_components_are_measured_each_by_itself(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    points = [clock.point(1.0), clock.point(100.0, "linear"), clock.point(300.0, "linear")]
    rows = sweep(points, clock.device(), 60.0, {"linear": 2}, certain)
    assert sorted(row.bytes for row in rows) == [1.0, 100.0, 300.0]
