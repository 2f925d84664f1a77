"""Costs that tests of op orders share, and every op order of a tiny case."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np
from numpy.typing import ArrayLike

from hydraplan.errors import Infeasible
from hydraplan.metrics import shares
from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.route import Route
from hydraplan.slots import SlotTimes


def lane_times(
    op_s: ArrayLike, comm: float | Sequence[float] = 0.0, way: Route | None = None
) -> SlotTimes:
    """One lane; `op_s` (3, stages, microbatches), or with chunks before the microbatches."""
    times = np.asarray(op_s, float)
    if times.ndim == 3:
        times = times[:, :, None]
    _, stages, _, count = times.shape
    return SlotTimes(
        op_s=times[:, :, :, None],
        rows=np.ones((1, count), np.int64),
        component=np.zeros((1, count), np.int64),
        boundary_s=np.broadcast_to(np.asarray(comm, float), (1, count)).copy(),
        grad_sync_s=np.zeros(stages),
        route=way,
    )


def random_lanes(seed: int, stages: int, lanes: int, count: int) -> SlotTimes:
    """Slots of several lanes, some of them connected, times all different."""
    rng = np.random.default_rng(seed)
    lead = np.zeros((lanes, count), np.int64)
    for lane in range(1, lanes):
        together = rng.random(count) < 0.3
        lead[lane] = np.where(together, lead[lane - 1], lane)
    return SlotTimes(
        op_s=rng.lognormal(0, 0.5, (3, stages, 1, lanes, count)),
        rows=rng.integers(1, 100, (lanes, count)),
        component=lead,
        boundary_s=rng.uniform(0, 0.1, (lanes, count)),
        grad_sync_s=rng.uniform(0, 0.5, stages),
    )


def iteration_s(times: SlotTimes, schedule: Schedule) -> float:
    """Seconds of the run on all lanes."""
    return shares(simulate(times, schedule))["iteration_s"]


def stage_orders(num_microbatches: int) -> Iterator[tuple[Op, ...]]:
    """Every order of one stage with F before B before W."""
    ops = [Op(kind, m) for m in range(num_microbatches) for kind in ("F", "B", "W")]  # type: ignore[arg-type]
    for order in permutations(ops):
        at = {op[:2]: i for i, op in enumerate(order)}
        if all(at["F", m] < at["B", m] < at["W", m] for m in range(num_microbatches)):
            yield order


def fastest_of_all(times: SlotTimes, memory: Memory) -> float:
    """The least seconds over every order of every stage that keeps to the limit."""
    _, stages, _, _, count = times.op_s.shape
    kept = [ops for ops in stage_orders(count) if memory.peak(ops, 1) <= memory.limit]
    best = np.inf
    for schedule in product(kept, repeat=stages):
        try:
            best = min(best, iteration_s(times, schedule))
        except Infeasible:
            continue  # stages wait for each other
    return float(best)
