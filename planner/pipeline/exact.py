"""The exact reference for op orders: CP-SAT finds the fastest order on one lane, or a bound.

F, B and W of every chunk and microbatch are intervals, no two of a stage overlap, messages take
their time, and the activations of a stage are two cumulative demands: what B frees lasts from F to
B, the rest from F to W. Times become integers rounded down, so that the bound is a true one.
Among microbatches that are alike in every op, each kind of op runs in their order on every stage:
whoever does not, can be renumbered op by op without moving anything, since sorted begins of what
comes first stay before sorted begins of what comes next. Microbatches that differ keep all
freedom.

A heuristic order stands by: as hint, as upper limit, and as result where nothing faster is found.
The run is one lane's (`one_lane`); between real lanes the order is as good as that reduction.

Source: Zero Bubble (appendix G) states an integer program with one binary per pair of ops; the
model with intervals and the symmetry argument are ours.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import floor, gcd
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import Infeasible, many
from hydraplan.metrics import shares
from hydraplan.model import IntArray, Op, OpKind, Schedule
from hydraplan.planner.cp_sat import cp_sat, solved
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.portfolio import fastest
from hydraplan.planner.pipeline.simulator import simulate, waits_for
from hydraplan.planner.pipeline.static_orders import ROOM
from hydraplan.route import NOWHERE, Route
from hydraplan.route import route as named
from hydraplan.slots import SlotTimes

AnyArray = NDArray[Any]

UNITS = 10_000
"""Integer units in the mean op. Rounding loses less than one per op on the longest path."""
MAX_UNITS = 1 << 40
"""Most integer units of an op or a message; their sums fit 64 bits, shorter ones may round to 0."""
SHARES = 2_520
"""Integer units in a token's activations over chunks; what B leaves is rounded up to whole ones."""
MAX_OPS = 2_000
"""Largest model that is built; far smaller ones are proven."""
KINDS: tuple[OpKind, OpKind, OpKind] = ("F", "B", "W")


@dataclass(frozen=True, slots=True)
class ExactOrder:
    """An op order and what is known of faster ones; times of one lane, seconds.

    `status`: "optimal" if no order within the limit is faster by more than the rounding.
    `bound_s`: none is faster than that. `deterministic_s`: work of the solver, in its own measure.
    """

    schedule: Schedule
    status: Literal["optimal", "feasible"]
    time_s: float
    bound_s: float
    num_ops: int
    deterministic_s: float

    @property
    def gap(self) -> float:
        """How far the order is above the bound, relative."""
        return self.time_s / self.bound_s - 1


def solve_order(
    lane: SlotTimes,
    memory: Memory,
    deterministic_s: float = 1.0,
    hint: Schedule | None = None,
    keep_order: bool = False,
) -> ExactOrder:
    """Order the ops of one lane (`one_lane.one_lane`) so that it ends first.

    Args:
        deterministic_s: CP-SAT's measure of work; two to ten CPU seconds each.
        hint: An order within the limit, B and W apart; None: `portfolio.fastest`.
        keep_order: Forwards enter the first stage in the order of their numbers.

    Raises:
        Infeasible: Too many ops, or no order within the memory limit.
        MissingDependency: ortools is not installed.
    """
    _, stages, chunks, _, count = lane.op_s.shape
    num_ops = 3 * stages * chunks * count
    if num_ops > MAX_OPS:
        raise Infeasible(
            f"--pipeline exact takes at most {MAX_OPS} ops: {many(stages, 'stage')} x"
            f" {many(chunks, 'chunk')} x {many(count, 'microbatch')} make {num_ops}",
            "use --pipeline portfolio, or fewer microbatches",
        )
    module = cp_sat("--pipeline exact", "--pipeline portfolio")
    hint = hint or fastest(lane, memory)
    run = _scaled(lane)
    model, begins, end = _model(module, run, memory, keep_order)
    _add_hint(model, begins, end, run, hint)
    solver, status = solved(module, model, deterministic_s)
    assert status in (module.OPTIMAL, module.FEASIBLE, module.UNKNOWN), solver.status_name(status)
    drafts, bound = [hint], run.least
    if status != module.UNKNOWN:
        bound = max(bound, floor(solver.best_objective_bound))
        begin = np.reshape([solver.value(x) for x in begins.ravel()], begins.shape)
        drafts.append(_in_order(begin, run.op))
    timed = [(time_s, order) for order in drafts if (time_s := _time_s(lane, memory, order)) > 0]
    time_s, best = min(timed, key=lambda known: known[0])
    return ExactOrder(
        schedule=best,
        status="optimal" if status == module.OPTIMAL else "feasible",
        time_s=time_s,
        bound_s=min(bound * run.unit_s * (1 - 1e-12), time_s),
        num_ops=num_ops,
        deterministic_s=float(solver.response_proto.deterministic_time),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """Whole units of `unit_s` seconds, rounded down.

    `op` (3, stages, chunks, M), `travel` (M,), `sync` (stages,); `before` and `after` as
    `route.Route` has them. `alike`: numbers of the microbatches that agree in all of this, and in
    their rows.
    """

    unit_s: float
    op: IntArray
    travel: IntArray
    sync: IntArray
    route: Route
    alike: tuple[IntArray, ...]

    @property
    def least(self) -> int:
        """The first forward to reach a stage, then all its work; no run is shorter."""
        arrival = np.zeros(self.op.shape[1:], np.int64)
        for s, c in self.route.nodes():
            needed = self.needs(0, s, c)
            if needed is not None:
                travel = self.travel if needed[1] != s else 0
                arrival[s, c] = arrival[needed[1:]] + self.op[needed] + travel
        work = self.op.sum(axis=(0, 2, 3)) + self.sync
        return int((arrival.min(axis=(1, 2)) + work).max())

    def needs(self, kind: int, stage: int, chunk: int) -> tuple[int, int, int] | None:
        """Kind, stage and chunk of the op whose result an op waits for."""
        source, way = waits_for(kind, stage, chunk, self.route.before, self.route.after)
        return None if source < 0 else (way, *divmod(source, self.route.num_chunks))


def _scaled(lane: SlotTimes) -> _Run:
    """Seconds as integers without a common divisor."""
    op_s = lane.op_s[:, :, :, 0]
    seconds = op_s, lane.boundary_s[0], lane.grad_sync_s
    longest_s = max(float(s.max()) for s in seconds)
    unit_s = max(float(op_s.mean()) / UNITS, longest_s / MAX_UNITS)
    parts = [np.floor(s / unit_s * (1 + 1e-12)).astype(np.int64) for s in seconds]
    divisor = reduce(gcd, np.concatenate([part.ravel() for part in parts]).tolist())
    op, travel, sync = (part // divisor for part in parts)
    kinds = np.vstack([op.reshape(-1, op.shape[-1]), travel, lane.rows])
    which = np.unique(kinds, axis=1, return_inverse=True)[1].reshape(-1)
    alike = tuple(np.flatnonzero(which == i) for i in range(which.max() + 1))
    way = lane.route or named("loop", *op.shape[1:3])
    return _Run(unit_s * divisor, op, travel, sync, way, alike)


def _model(
    module: ModuleType, run: _Run, memory: Memory, keep_order: bool
) -> tuple[Any, AnyArray, Any]:
    """The model, the begin of every op (as `_Run.op`), and the end of the run."""
    model = module.CpModel()
    _, stages, chunks, count = run.op.shape
    horizon = int(run.op.sum() + (run.travel * 2 * stages * chunks).sum() + run.sync.max())
    begins = np.array([model.new_int_var(0, horizon, "") for _ in range(run.op.size)], object)
    begins = begins.reshape(run.op.shape)
    ends = begins + run.op
    end = model.new_int_var(run.least, horizon, "")
    for k, s, c in np.ndindex(3, stages, chunks):
        for m in range(count):
            needed = run.needs(k, s, c)
            if needed is not None:
                travel = int(run.travel[m]) if needed[1] != s else 0
                model.add(begins[k, s, c, m] >= ends[(*needed, m)] + travel)
            if k == 2:
                model.add(end >= ends[k, s, c, m] + int(run.sync[s]))
        for same in run.alike:
            for i, j in pairwise(same.tolist()):
                model.add(begins[k, s, c, j] >= ends[k, s, c, i])
        if keep_order and k == 0 and run.route.before[s, c] == NOWHERE:
            for m in range(count - 1):
                model.add(begins[k, s, c, m + 1] >= ends[k, s, c, m])
    for s in range(stages):
        model.add_no_overlap(
            model.new_fixed_size_interval_var(begin, int(size), "")
            for begin, size in zip(begins[:, s].ravel(), run.op[:, s].ravel(), strict=True)
        )
    _limit_memory(model, run, memory, begins, ends, horizon)
    model.minimize(end)
    return model, begins, end


def _limit_memory(
    model: Any, run: _Run, memory: Memory, begins: AnyArray, ends: AnyArray, horizon: int
) -> None:
    """What B frees is held from F to B, the rest from F to W; messages on their way included."""
    _, stages, chunks, count = run.op.shape
    whole = np.floor(memory.live * SHARES + 1e-6).astype(np.int64)
    waits = np.ceil(memory.live * (1 - memory.frees) * SHARES - 1e-6).astype(np.int64)
    rest = np.minimum(waits, whole)  # rounded up, so no order breaks the limit by rounding
    freed = whole - rest
    limit = floor(memory.limit * chunks * SHARES + 1e-6)
    if chunks * int((freed + rest).sum()) <= limit:
        return
    divisor = max(1, reduce(gcd, [*freed.tolist(), *rest.tolist()]))
    for s in range(stages):
        spans, demands = [], []
        for kind, held in ((1, freed), (2, rest)):
            for c, m in np.ndindex(chunks, count):
                begin, last = begins[0, s, c, m], ends[kind, s, c, m]
                size = model.new_int_var(0, horizon, "")
                spans.append(model.new_interval_var(begin, size, last, ""))
                demands.append(int(held[m]) // divisor)
        model.add_cumulative(spans, demands, limit // divisor)


def _add_hint(model: Any, begins: AnyArray, end: Any, run: _Run, hint: Schedule) -> None:
    """Begins of a known order; the end is no later than its end."""
    begin = np.zeros(run.op.shape, np.int64)
    last = 0
    slots = SlotTimes(
        op_s=run.op[:, :, :, None].astype(float),
        rows=np.ones((1, len(run.travel)), np.int64),
        component=np.zeros((1, len(run.travel)), np.int64),
        boundary_s=run.travel[None].astype(float),
        grad_sync_s=run.sync.astype(float),
        route=run.route,
    )
    timeline = simulate(slots, hint)
    for s, ops in enumerate(hint):
        for op, start_s in zip(ops, timeline.start_s[s][:, 0], strict=True):
            begin[KINDS.index(op.kind), s, op.chunk, op.microbatch] = round(start_s)
        last = max(last, round(float(timeline.end_s[s].max())) + int(run.sync[s]))
    for same in run.alike:
        begin[..., same] = np.sort(begin[..., same], axis=-1)
    for variable, value in zip(begins.ravel(), begin.ravel().tolist(), strict=True):
        model.add_hint(variable, value)
    model.add_hint(end, last)
    model.add(end <= last)


def _in_order(begin: IntArray, op: IntArray) -> Schedule:
    """The ops of every stage by when they begin; what takes no time goes first."""
    _, stages, chunks, count = op.shape
    lists = []
    for s in range(stages):
        ops = [
            (begin[k, s, c, m], begin[k, s, c, m] + op[k, s, c, m], k, Op(KINDS[k], m, c))
            for k, c, m in np.ndindex(3, chunks, count)
        ]
        lists.append(tuple(entry[-1] for entry in sorted(ops)))
    return tuple(lists)


def _time_s(lane: SlotTimes, memory: Memory, order: Schedule) -> float:
    """Seconds of an order; 0 where rounding made it break the limit."""
    chunks = lane.op_s.shape[2]
    if max(memory.peak(ops, chunks) for ops in order) > memory.limit * (1 + ROOM):
        return 0.0
    return shares(simulate(lane, order))["iteration_s"]
