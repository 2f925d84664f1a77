"""The zero-bubble heuristic: an order for given costs, with input and weight gradients apart.

The order is made by placing op after op at the time it would run. Stages first run forwards
until their first backward arrives, as far as memory allows; then rounds of one forward on every
stage, downwards, and one input gradient on every stage, upwards. Weight gradients, which nobody
waits for, fill the gaps that this leaves, make room where memory is full, and come last
otherwise. Three habits, each with and without, make eight orders; the fastest is taken.

Costs are those of the slowest lane of each slot; the eight are compared on all lanes. Forwards
keep the order of the microbatches, and so do both kinds of gradients.

Source: the Zero Bubble paper's heuristic, as it is told there in words; what the words leave
open is ours.
"""

from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from hydraplan.metrics import shares
from hydraplan.model import Op, OpKind, Schedule, Timeline
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import SlotTimes

ROUNDING = 1e-9
"""Share of a time by which it may differ and still count as equal."""

ALIKE = 1e-3
"""Share of an iteration that is no reason to prefer an order: far below any error of the costs."""


class Habits(NamedTuple):
    """What the eight orders differ in.

    `late_start`: one more forward before the first backward, although it then has to wait.
    `fill_small_gaps`: run a weight gradient in a gap too short for it, where waiting would
    make this the stage that was idle longest. `stay_close`: leave out a forward while more than
    one ahead of the next stage.
    """

    late_start: bool
    fill_small_gaps: bool
    stay_close: bool


def zero_bubble(times: SlotTimes, memory: Memory) -> Schedule:
    """The best of `eight_orders`: the fastest, or what is within `ALIKE` of it.

    Among those it is the one whose stages are all through soonest after their first op. ZB-1p is
    this with a limit of P microbatches, ZB-2p with twice as much. Arguments and errors as
    `eight_orders`.
    """
    runs = [simulate(times, order) for order in eight_orders(times, memory)]
    taken_s = [shares(run)["iteration_s"] for run in runs]
    fastest = [r for r, s in zip(runs, taken_s, strict=True) if s <= min(taken_s) * (1 + ALIKE)]
    return min(fastest, key=_longest_span_s).schedule


def eight_orders(times: SlotTimes, memory: Memory) -> list[Schedule]:
    """Orders of F, B and W that keep to the limit, one for each set of habits; doubles left out.

    Args:
        times: Costs with one chunk a stage.

    Raises:
        Infeasible: Some microbatch alone is beyond the limit.
    """
    assert times.op_s.shape[2] == 1, times.op_s.shape
    memory.check()
    habits = [Habits(*chosen) for chosen in product([False, True], repeat=3)]
    return list(dict.fromkeys(_order(times, memory, chosen) for chosen in habits))


def _longest_span_s(run: Timeline) -> float:
    spans = (end.max() - start.min() for start, end in zip(run.start_s, run.end_s, strict=True))
    return float(max(spans))


@dataclass(slots=True)
class _Stage:
    """What a stage has run so far; every kind takes the microbatches in order.

    `op_s`: seconds of F, B and W of each microbatch. `end_s`: when its forwards and input
    gradients ended. `idle_s`: what it waited since its first op.
    """

    op_s: dict[OpKind, list[float]]
    memory: Memory
    live: list[float]
    ops: list[Op] = field(default_factory=list)
    end_s: dict[OpKind, list[float]] = field(default_factory=lambda: {"F": [], "B": [], "W": []})
    free_s: float = 0.0
    idle_s: float = 0.0
    held: float = 0.0

    def count(self, kind: OpKind) -> int:
        return len(self.end_s[kind])

    def weights_wait(self) -> bool:
        return self.count("W") < self.count("B")

    def next_s(self, kind: OpKind) -> float:
        return self.op_s[kind][self.count(kind)]

    def has_room(self) -> bool:
        return self.memory.fits(self.held + self.live[self.count("F")])

    def run(self, op: Op, arrival_s: float = 0.0) -> None:
        begin_s = max(arrival_s, self.free_s)
        self.idle_s += begin_s - self.free_s if self.ops else 0.0
        self.free_s = begin_s + self.next_s(op.kind)
        self.end_s[op.kind].append(self.free_s)
        self.held += self.memory.share(op.kind) * self.live[op.microbatch]
        self.ops.append(op)

    def run_weight(self) -> None:
        self.run(Op("W", self.count("W")))


@dataclass(slots=True)
class _Pipe:
    """All stages of one order in the making; `idlest_s`: most that any of them waited so far."""

    stages: list[_Stage]
    boundary_s: list[float]
    habits: Habits
    idlest_s: float = 0.0

    def arrival_s(self, s: int, kind: OpKind) -> float:
        """When the next forward or input gradient of a stage can begin there at the earliest."""
        m, here = self.stages[s].count(kind), self.stages[s]
        if kind == "F":
            return self.stages[s - 1].end_s["F"][m] + self.boundary_s[m] if s else 0.0
        if s == len(self.stages) - 1:
            return here.end_s["F"][m]
        return self.stages[s + 1].end_s["B"][m] + self.boundary_s[m]

    def forward(self, s: int) -> bool:
        """Run the next forward of a stage, weight gradients before it; False if none fits."""
        here = self.stages[s]
        while not here.has_room():
            if not here.weights_wait():
                return False
            here.run_weight()
        self._fill_and_run(s, Op("F", here.count("F")))
        return True

    def backward(self, s: int) -> None:
        """Run the next input gradient of a stage, weight gradients before it."""
        self._fill_and_run(s, Op("B", self.stages[s].count("B")))

    def _fill_and_run(self, s: int, op: Op) -> None:
        here, arrival_s = self.stages[s], self.arrival_s(s, op.kind)
        while here.weights_wait():
            gap_s = arrival_s - here.free_s
            if gap_s <= ROUNDING * arrival_s:
                break
            too_small = gap_s < here.next_s("W") * (1 - ROUNDING)
            may_wait = not self.habits.fill_small_gaps or here.idle_s + gap_s <= self.idlest_s
            if too_small and may_wait:
                break
            here.run_weight()
        here.run(op, arrival_s)
        self.idlest_s = max(self.idlest_s, here.idle_s)


def _order(times: SlotTimes, memory: Memory, habits: Habits) -> Schedule:
    slowest_s = times.op_s[:, :, 0].max(axis=2)
    live = memory.live.tolist()
    stages = [
        _Stage({"F": forward_s, "B": backward_s, "W": weight_s}, memory, live)
        for forward_s, backward_s, weight_s in slowest_s.swapaxes(0, 1).tolist()
    ]
    pipe = _Pipe(stages, times.boundary_s.max(axis=0).tolist(), habits)
    _warm_up(pipe, memory)
    count = len(live)
    while pipe.stages[0].count("B") < count:
        _round(pipe, count)
    for stage in pipe.stages:
        while stage.weights_wait():
            stage.run_weight()
    return tuple(tuple(stage.ops) for stage in pipe.stages)


def _warm_up(pipe: _Pipe, memory: Memory) -> None:
    """Forwards of all stages until the first input gradient of each, and that one too.

    Every stage stays at least one forward ahead of the next one, whatever memory allows: else
    the next one would wait for this one's first backward.
    """
    stages, room = pipe.stages, memory.whole()
    narrower = int(room < len(memory.live))
    most = [max(1, room - narrower * s) for s in range(len(stages))]
    for s in range(len(stages)):
        pipe.forward(s)
    for s in reversed(range(len(stages))):
        here, first_s = stages[s], pipe.arrival_s(s, "B")
        while (count := here.count("F")) < most[s]:
            for upstream in range(s):
                if stages[upstream].count("F") == count < most[upstream]:
                    pipe.forward(upstream)
            begin_s = max(pipe.arrival_s(s, "F"), here.free_s)
            end_s = begin_s + (0.0 if pipe.habits.late_start else here.next_s("F"))
            if end_s > first_s * (1 + ROUNDING) or begin_s >= first_s * (1 - ROUNDING):
                break
            pipe.forward(s)
        pipe.backward(s)


def _round(pipe: _Pipe, num_microbatches: int) -> None:
    """One forward on every stage that may, downwards; then one input gradient each, upwards."""
    stages = pipe.stages
    last = len(stages) - 1
    stuck = False  # whether the stage before has forwards left and could run none
    for s, here in enumerate(stages):
        done, before = here.count("F"), stages[s - 1].count("F") if s else num_microbatches
        ahead = before == num_microbatches or before > done + 1 or (stuck and before > done)
        if done == num_microbatches:
            stuck = False
        elif not ahead:
            stuck = before == done
        elif pipe.habits.stay_close and s < last and done > stages[s + 1].count("F") + 1:
            stuck = False
        else:
            stuck = not pipe.forward(s)
    for s in reversed(range(len(stages))):
        ready = stages[s].count("F") if s == last else stages[s + 1].count("B")
        if stages[s].count("B") < ready:
            pipe.backward(s)
