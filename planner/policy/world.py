"""What an episode is about: batches to order, side by side as padded arrays.

An instance is one lane of one batch, as it is expected to run: costs of the slots, a factor a
stage for its device, and announced windows in which a stage is slower. All of it is known before
the first op runs; drawn durations are no part of it, so nothing that is computed from a world can
show them. How an order does on drawn durations is scored afterwards (`pipeline.scenarios`).

Not covered: several lanes (see `pipeline.one_lane`), several chunks a stage.

Source: ours; Conductor's abstract names jitter and preemption, not what the agent is told of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hydraplan.errors import InputError, many
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.pipeline.memory import ROUNDING, Memory
from hydraplan.planner.pipeline.spells import NONE, Spells
from hydraplan.slots import SlotTimes


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One batch to order.

    `lane`: one lane with one chunk a stage, rows in every microbatch. `slow`: how many times as
    long the device of each stage takes, (stages,), None for alike. `windows`: announced spells;
    their rank is the stage.

    Raises:
        InputError: The lane is of another form, a time or factor is not above zero or is none,
            or the memory or the windows are those of another batch.
        Infeasible: Some microbatch alone is beyond the memory limit.
    """

    lane: SlotTimes
    memory: Memory
    slow: FloatArray | None = None
    windows: Spells = field(default=NONE)

    def __post_init__(self) -> None:
        _, stages, chunks, lanes, count = self.lane.op_s.shape
        if (chunks, lanes) != (1, 1):
            raise InputError(
                f"a policy orders one lane with one chunk a stage, not {many(lanes, 'lane')} with"
                f" {many(chunks, 'chunk')}",
                "join the lanes with pipeline.one_lane, and plan several chunks with auto",
            )
        if not (self.lane.rows > 0).all():
            raise InputError(
                f"microbatch {int(self.lane.rows[0].argmin())} has no rows on the lane",
                "join the lanes with pipeline.one_lane",
            )
        times = [self.lane.op_s, np.ones(stages) if self.slow is None else self.slow]
        if not all(np.isfinite(t).all() and (t > 0).all() for t in times):
            raise InputError(
                "the time of an op or the factor of a device is not above zero",
                "give seconds and factors that are finite and above zero",
            )
        sizes = len(times[1]), len(self.memory.live), len(self.windows.first) or stages + 1
        if sizes != (stages, count, stages + 1):
            raise InputError(
                f"{many(sizes[0], 'factor')}, activations of {sizes[1]} and windows of"
                f" {sizes[2] - 1} for {many(stages, 'stage')} and"
                f" {many(count, 'microbatch')}",
                "make them for this batch",
            )
        self.memory.check()

    def expected(self) -> SlotTimes:
        """The lane at the speeds of its devices, as the simulator takes it."""
        if self.slow is None:
            return self.lane
        return replace(self.lane, op_s=self.lane.op_s * self.slow[:, None, None, None])


class World(NamedTuple):
    """Instances side by side; n is the instance, stages and microbatches are padded.

    `op_s` (n, 3, stages, microbatches), expected; `travel_s`, `live`, `load_s` (n, microbatches);
    `by_load`: microbatches from the lightest on; `slow`, `sync_s` (n, stages); `most`: what a
    stage may hold, rounding included; `whole`: how many microbatches of mean size that is, P at
    most; `unit_s`: mean time of an op; `mean`: that of `live`,
    `travel_s` and `load_s`, (n, 3). `windows`: rank n * most stages + stage.
    """

    stages: IntArray
    microbatches: IntArray
    op_s: FloatArray
    travel_s: FloatArray
    sync_s: FloatArray
    live: FloatArray
    most: FloatArray
    frees: FloatArray
    whole: IntArray
    load_s: FloatArray
    by_load: IntArray
    slow: FloatArray
    unit_s: FloatArray
    mean: FloatArray
    windows: Spells


def world_of(instances: Sequence[Instance]) -> World:
    """Any instances, of any sizes, as one world."""
    n = len(instances)
    stages = np.array([i.lane.op_s.shape[1] for i in instances], np.int64)
    count = np.array([i.lane.op_s.shape[4] for i in instances], np.int64)
    p, m = int(stages.max()), int(count.max())
    world = World(
        stages, count, np.zeros((n, 3, p, m)), np.zeros((n, m)), np.zeros((n, p)),
        np.zeros((n, m)), np.zeros(n), np.zeros(n), np.zeros(n, np.int64), np.zeros((n, m)),
        np.zeros((n, m), np.int64), np.ones((n, p)), np.zeros(n), np.zeros((n, 3)),
        _windows(instances, p),
    )  # fmt: skip
    for i, instance in enumerate(instances):
        lane, memory, of = instance.expected(), instance.memory, slice(0, count[i])
        op_s, load_s = lane.op_s[:, :, 0, 0], lane.load_s[0]
        world.op_s[i, :, : stages[i], of] = op_s
        world.travel_s[i, of] = lane.boundary_s[0]
        world.sync_s[i, : stages[i]] = lane.grad_sync_s
        world.live[i, of] = memory.live
        world.most[i] = memory.limit * (1 + ROUNDING)
        world.frees[i] = memory.frees
        world.whole[i] = max(1, min(stages[i], int(world.most[i] / memory.live.mean())))
        world.load_s[i, of] = load_s
        world.by_load[i, of] = np.argsort(load_s, kind="stable")
        if instance.slow is not None:
            world.slow[i, : stages[i]] = instance.slow
        world.unit_s[i] = op_s.mean()
        world.mean[i] = memory.live.mean(), lane.boundary_s.mean(), load_s.mean()
    return world


def _windows(instances: Sequence[Instance], most_stages: int) -> Spells:
    """Windows of all instances, those of a stage in the order given."""
    counts = np.zeros((len(instances), most_stages), np.int64)
    for i, instance in enumerate(instances):
        found = np.diff(instance.windows.first)
        counts[i, : len(found)] = found
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    parts = [instance.windows for instance in instances]
    begin_s, end_s, speed = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("begin_s", "end_s", "speed")
    )
    return Spells(first, begin_s, end_s, speed, np.concatenate([part.source for part in parts]))
