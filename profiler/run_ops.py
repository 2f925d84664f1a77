"""What the ops of a run took, beside the terms that the plan's costs have of them.

Steps that ran the same batch in the same way are brought together: every op has the median over
them, once each step's own level is taken out (a machine is not equally fast in all steps). The
first step of a run warms up and is left out, and so is what tells nothing of the costs: slots
without rows, slots whose work moved, and on a GPU, whose seconds hold waits for groups, slots
that share a sequence. Only the last `LATEST_STEPS` steps count.

Known device factors are divided out by the caller's `factor`. Reads run and plan, decides
nothing.

Source: our choice.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, CostModel
from hydraplan.cost_terms import each_term_s
from hydraplan.errors import InputError, many
from hydraplan.files.decisionsfile import Change, in_force
from hydraplan.files.opsfile import each_ops
from hydraplan.files.planfile import Plan
from hydraplan.files.runfile import Run, batch_of
from hydraplan.files.speeds import LATEST_STEPS
from hydraplan.layout import expand
from hydraplan.model import BatchPlan, FloatArray, IntArray, Timeline
from hydraplan.slots import slot_rows

MOST_OPS = 20_000
"""Ops of all batches that are looked at; of more, each so-many-th."""

LEAST_S = 1e-9
"""What no clock tells from nothing; shorter ops say nothing of costs."""

PASSES = {"F": FORWARD, "B": INPUT_GRADIENT, "W": WEIGHT_GRADIENT}
"""Letters of the kinds of ops, of which BW is two."""

Factor = Callable[[int, int, int], float]
"""Times as long as nominal that a rank is known to have taken: from stage, lane and step."""

BoolArray = NDArray[np.bool_]


class RunOps(NamedTuple):
    """Ops that a run tells costs of, each once however many steps ran it; arrays are (ops,).

    `term_s` by the plan's costs on nominal ranks, (terms, ops); `taken_s` measured, own work alone.
    `batch` numbers what ran: a batch of the plan in one way. `microbatch` counts over all of these.
    `lanes` of the plan; `steps` that were looked at. `is_whole`: no op of a slot with rows was left
    out.
    """

    term_s: FloatArray
    taken_s: FloatArray
    kind: NDArray[np.str_]
    stage: IntArray
    lane: IntArray
    batch: IntArray
    microbatch: IntArray
    lanes: int
    steps: int
    is_whole: bool


def refuse_unmeasured(run: Run) -> None:
    """Refuse a run whose op times are no measurement of what the plan's costs are of.

    Raises:
        InputError: It was simulated or paced, ran in another dtype, or has not two finished steps.
    """
    header = run.header
    where = f"run {run.path}"
    if header.mode != "measured":
        raise InputError(f"{where} was simulated: its op times are those of the plan's costs")
    if header.paced:
        raise InputError(
            f"{where} was paced: its parts took as long as the plan's costs say",
            "execute the plan without --paced",
        )
    if header.dtype != header.plan.model.dtype:
        raise InputError(
            f"{where} computed in {header.dtype}, the plan's costs are of {header.plan.model.dtype}"
        )
    if len(run.steps) < 2:
        steps = many(len(run.steps), "finished step")
        raise InputError(
            f"{where} has {steps}, at least 2 are needed: the first warms up and is left out",
            "let it finish more: hydraplan execute PLAN --steps 5",
        )


def read_run_ops(run: Run, plan: Plan, factor: Factor) -> RunOps:
    """The ops of a measured run of a plan.

    Raises:
        InputError: As `refuse_unmeasured`; files are damaged or of another plan; nothing is left.
    """
    refuse_unmeasured(run)
    cost = _cost(run)
    first = max(1, len(run.steps) - LATEST_STEPS)
    each_step = each_ops(run.path / "ops.parquet", len(run.steps), cost.pp, cost.ranks, first)
    ways: dict[tuple[int, Change], dict[int, Timeline]] = {}
    for step, ops in enumerate(each_step, first):
        batch = int(run.steps[step]["batch"])
        way = batch, in_force(run.decisions, step, batch)
        ways.setdefault(way, {})[step] = ops.timeline
    parts, seen = [], 0
    for number, ((_, change), steps) in enumerate(ways.items()):
        found = batch_of(run, plan, min(steps))
        for step, timeline in steps.items():
            if timeline.schedule != found.schedule:
                raise InputError(f"run {run.path}: step {step} did not run the ops of its plan")
        taken_s = _taken_s(steps, factor)
        used, is_whole = _used(cost, found, change, taken_s, run.header.device)
        parts.append(
            _columns(cost, found, taken_s, used, number, seen, MOST_OPS // len(ways), is_whole)
        )
        seen += found.num_microbatches
    result = _joined(parts, len(run.steps) - first)
    if not len(result.taken_s):
        raise InputError(
            f"run {run.path} has no op that tells costs: none with rows took any time of its own",
            "let it run a plan with sequences on ranks, without --migration on",
        )
    return result


def _cost(run: Run) -> CostModel:
    """The plan's costs for what the run did: B may have made other things again."""
    options = run.header.plan.options.model_copy(update={"recompute": run.header.recompute})
    return run.header.plan.model_copy(update={"options": options}).cost_model()


def _taken_s(steps: dict[int, Timeline], factor: Factor) -> tuple[FloatArray, ...]:
    """Seconds of every op on a nominal rank, (ops, lanes) a stage: median over the steps.

    Each step counts relative to its own level, the middle of its ops over their medians.
    """
    sizes = [stage.shape for stage in steps[min(steps)].busy_s]
    rows = []
    for step, timeline in steps.items():
        known = [
            [factor(stage, lane, step) for lane in range(size[1])]
            for stage, size in enumerate(sizes)
        ]
        stages = zip(timeline.busy_s, known, strict=True)
        rows.append(np.concatenate([(busy / np.array(f)).ravel() for busy, f in stages]))
    busy_s = np.stack(rows)
    is_there = (busy_s >= LEAST_S).all(axis=0)
    taken_s = np.zeros(busy_s.shape[1])
    if is_there.any():
        log_s = np.log(busy_s[:, is_there])
        level = np.median(log_s - np.median(log_s, axis=0), axis=1, keepdims=True)
        taken_s[is_there] = np.exp(np.median(log_s - level, axis=0) + np.median(level))
    ends = np.cumsum([count * lanes for count, lanes in sizes])[:-1]
    return tuple(
        part.reshape(size) for part, size in zip(np.split(taken_s, ends), sizes, strict=True)
    )


def _used(
    cost: CostModel,
    batch: BatchPlan,
    change: Change,
    taken_s: tuple[FloatArray, ...],
    device: str,
) -> tuple[tuple[BoolArray, ...], bool]:
    """Ops that tell costs, (ops, lanes) a stage, and whether these are all of slots with rows."""
    placed = batch.sequences.placed()
    rows = slot_rows(placed, cost.ranks, batch.num_microbatches)
    tells = np.repeat((rows > 0)[None], cost.pp, axis=0)
    for share in change.moves.shares:
        lanes = slice(share.first_rank, share.first_rank + share.ulysses_size * share.ring_size)
        tells[share.stage, lanes, share.microbatch] = False
    for moves in (change.moves.rows, change.moves.heads):
        for at, slot, giver, taker, _ in moves:
            tells[at, [giver, taker], slot] = False
    if device != "cpu":
        group, member = expand(np.where(placed.degree > 1, placed.degree, 0))
        tells[:, placed.first_rank[group] + member, placed.microbatch[group]] = False
    used, is_whole = [], True
    for stage, (ops, took_s) in enumerate(zip(batch.schedule, taken_s, strict=True)):
        microbatch = [op.microbatch for op in ops]
        here = tells[stage][:, microbatch].T & (took_s > 0)
        is_whole &= bool(here[(rows[:, microbatch] > 0).T].all())
        used.append(here)
    return tuple(used), is_whole


def _columns(
    cost: CostModel,
    batch: BatchPlan,
    taken_s: tuple[FloatArray, ...],
    used: tuple[BoolArray, ...],
    number: int,
    first_microbatch: int,
    most: int,
    is_whole: bool,
) -> RunOps:
    """The ops of one batch, thinned to `most`."""
    where = np.concatenate(
        [
            np.stack([np.full(int(here.sum()), stage), *np.nonzero(here)])
            for stage, here in enumerate(used)
        ],
        axis=1,
    )
    stride = -(-where.shape[1] // max(most, 1)) or 1
    where = where[:, ::stride]
    stage, _, lane = where
    ops = [batch.schedule[s][p] for s, p in where[:2].T.tolist()]
    chunk, microbatch = (
        np.array([getattr(op, name) for op in ops], np.int64) for name in ("chunk", "microbatch")
    )
    does = {
        direction: np.array([letter in op.kind for op in ops], np.bool_)
        for letter, direction in PASSES.items()
    }
    term_s = np.stack(
        [
            sum(
                (mask * each_s[d, stage, chunk, lane, microbatch] for d, mask in does.items()),
                start=np.zeros(len(ops)),
            )
            for each_s in each_term_s(cost, batch.sequences.placed(), batch.num_microbatches)
        ]
    )
    took = [taken_s[s][p, r] for s, p, r in where.T.tolist()]
    return RunOps(
        term_s=term_s,
        taken_s=np.array(took, float),
        kind=np.array([op.kind for op in ops], "<U2"),
        stage=stage,
        lane=lane,
        batch=np.full(len(ops), number),
        microbatch=first_microbatch + microbatch,
        lanes=cost.ranks,
        steps=0,
        is_whole=is_whole and stride == 1,
    )


def _joined(parts: list[RunOps], steps: int) -> RunOps:
    """The ops of all batches, microbatches numbered without gaps."""
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
        for name in ("term_s", "taken_s", "kind", "stage", "lane", "batch", "microbatch")
    }
    some = arrays["term_s"].sum(axis=0) > 0
    arrays = {name: values[..., some] for name, values in arrays.items()}
    for name in ("batch", "microbatch"):
        arrays[name] = np.unique(arrays[name], return_inverse=True)[1].reshape(-1)
    is_whole = all(part.is_whole for part in parts) and bool(some.all())
    return RunOps(**arrays, lanes=parts[0].lanes, steps=steps, is_whole=is_whole)
