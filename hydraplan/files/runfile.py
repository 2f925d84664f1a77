"""Run folder: steps, op times, memory, traffic, decisions as Parquet, kept whole after each step.

Steps are appended by writing the file anew beside itself and renaming it, steps last, so
that whatever ends a run leaves only finished steps. A rewrite grows with the run, so in a long
run several steps are written together: writing takes a fixed share of the run at most. Every
footer says what ran: the plan in full, its digest, measured or simulated, seed and data.
"""

import hashlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import PositiveInt

from hydraplan.activations import Recompute
from hydraplan.config import Config
from hydraplan.errors import InputError
from hydraplan.files.checkpointfile import CHECKPOINTS, only_checkpoints
from hydraplan.files.decisionsfile import (
    DECISIONS_SCHEMA,
    Decided,
    decisions_table,
    in_force,
    read_decisions,
    with_change,
)
from hydraplan.files.memoryfile import MEMORY_SCHEMA, Peaks, memory_table, peaks_of
from hydraplan.files.opsfile import OPS_SCHEMA, StepOps, ops_table, read_ops
from hydraplan.files.parquet import (
    beside,
    open_parquet,
    read_batches,
    read_footer,
    read_rows,
    seen_to_disk,
    with_footer,
)
from hydraplan.files.planfile import Plan, open_plan, read_batch
from hydraplan.files.trafficfile import TRAFFIC_SCHEMA, Traffic, traffic_of, traffic_table
from hydraplan.files.trialsfile import TRIALS_SCHEMA, Trials, read_trials
from hydraplan.invariants import broken_rules, check_plan
from hydraplan.metrics import shares
from hydraplan.model import BatchPlan, Timeline
from hydraplan.planheader import PlanHeader

RUN_SCHEMA_VERSION: Final = 1

SHARES = ("busy", "pipeline_bubble", "dp_bubble", "group_wait", "grad_sync")


def _required(*fields: tuple[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in fields]


STEPS_SCHEMA = pa.schema(
    [
        *_required(*((n, pa.int64()) for n in ("step", "batch"))),
        *_required(*((n, pa.int64()) for n in ("first_sequence_id", "num_sequences"))),
        *_required(*((n, pa.int64()) for n in ("tokens", "valid_tokens"))),
        pa.field("loss", pa.float64()),
        *_required(*((n, pa.float64()) for n in ("iteration_s", *SHARES))),
    ]
)
RUN_FILES = {
    "steps.parquet": STEPS_SCHEMA,
    "ops.parquet": OPS_SCHEMA,
    "memory.parquet": MEMORY_SCHEMA,
    "traffic.parquet": TRAFFIC_SCHEMA,
    "decisions.parquet": DECISIONS_SCHEMA,
    "trials.parquet": TRIALS_SCHEMA,
}

Correction = Literal["none", "portfolio", "policy"]
"""What makes new op orders while a run goes on."""

WAIT_PER_WRITE = 4.0
"""Steps wait this many times as long as the last write took; a fifth of the time is writing."""

ROWS_OF_A_GROUP = 2**16
"""Rows of a row group of a long run."""


class RunHeader(Config):
    """Footer of the files of a run. `data` is the file ids came from, or "generated".

    `clip_grad`: the largest gradient norm, 0 for no limit, None where nothing was trained.
    `recompute`: what B made again. `attention`: the kernel that was asked for.

    `noise` and `trials`: what a simulated run was drawn from, and how often; its steps and ops are
    those of the first trial. `pool_barrier`: its lanes met in every F and B. `checkpoint_every`:
    steps from one checkpoint to the next, None where none are kept. `injected`: ranks that were
    slow on purpose, as `execute --inject` names them. `paced`: parts took as long as the plan says.
    `correction`: what made op orders while it ran. `migration`: whether work moved. `replays`:
    digest of the decisions that were repeated, None where they were its own.
    """

    schema_version: Literal[1] = RUN_SCHEMA_VERSION
    tool_version: str
    mode: Literal["measured", "simulated"]
    device: str
    dtype: str
    plan_name: str
    plan_digest: str
    plan: PlanHeader
    steps: PositiveInt
    seed: int
    learning_rate: float | None
    data: str
    clip_grad: float | None = None
    recompute: Recompute = "none"
    attention: str = "auto"
    noise: str = "none"
    trials: PositiveInt = 1
    pool_barrier: bool = False
    checkpoint_every: PositiveInt | None = None
    injected: tuple[str, ...] = ()
    paced: bool = False
    correction: Correction = "none"
    migration: bool = False
    replays: str | None = None


class Step(NamedTuple):
    """What a finished step adds to a run; `loss` is None in a simulated one.

    Rows `first_sequence_id` to `first_sequence_id + num_sequences - 1` of the length file are done.
    `peaks` of shape (stages, lanes), `traffic` (3, stages, lanes). `decided`: the decision that
    took effect in it.
    """

    step: int
    batch: int
    first_sequence_id: int
    num_sequences: int
    tokens: int
    valid_tokens: int
    loss: float | None
    ops: StepOps
    peaks: Peaks
    traffic: Traffic
    decided: Decided | None = None


class Run(NamedTuple):
    """An opened run folder, the rows of its steps, and the trials of a simulated one.

    `peaks` of shape (steps, stages, lanes), `traffic` (steps, 3, stages, lanes).
    """

    path: Path
    header: RunHeader
    steps: list[dict[str, Any]]
    peaks: Peaks
    traffic: Traffic
    trials: Trials | None = None
    decisions: tuple[Decided, ...] = ()


def finished(
    step: int,
    batch: BatchPlan,
    loss: float | None,
    ops: StepOps,
    peaks: Peaks,
    traffic: Traffic,
    decided: Decided | None = None,
) -> Step:
    """A step that ran a batch; its rows count whether they were trained on or not."""
    rows, placed = batch.sequences, batch.sequences.placed()
    tokens, valid = int(placed.length_tokens.sum()), int(placed.valid_tokens.sum())
    first, count = int(rows.sequence_id[0]), len(rows)
    return Step(step, batch.batch, first, count, tokens, valid, loss, ops, peaks, traffic, decided)


def plan_digest(plan: Plan) -> str:
    """SHA-256 of the three files of a plan folder, in hexadecimal."""
    total = hashlib.sha256()
    for name in ("sequences", "schedule", "batches"):
        total.update(hashlib.sha256((plan.path / f"{name}.parquet").read_bytes()).digest())
    return total.hexdigest()


def our_files(path: Path) -> Collection[str]:
    """Names of what a run folder holds, with what a killed process left half-written there."""
    ours = {*RUN_FILES, *unfinished_files(path)}
    folder = path / CHECKPOINTS
    return {*ours, CHECKPOINTS} if folder.is_dir() and only_checkpoints(folder) else ours


def unfinished_files(path: Path) -> list[str]:
    """Names of what a killed process left half-written in a run folder."""
    left = re.compile(rf"\.({'|'.join(map(re.escape, RUN_FILES))})\.[0-9a-f]{{8}}\.tmp")
    return (
        [file.name for file in path.iterdir() if left.fullmatch(file.name)] if path.is_dir() else []
    )


def create_run(path: Path, header: RunHeader) -> None:
    """Make a run folder without steps, in place of whatever run was there."""
    with beside(path) as spare:
        spare.mkdir()
        for name, schema in RUN_FILES.items():
            pq.write_table(with_footer(schema, header).empty_table(), spare / name)


def append_steps(path: Path, steps: Sequence[Step]) -> None:
    """Add finished steps to a run folder."""
    rows = []
    for step in steps:
        figures = shares(step.ops.timeline)
        rows.append(step._asdict() | {name: figures[name] for name in ("iteration_s", *SHARES)})
        for name in ("ops", "peaks", "traffic", "decided"):
            del rows[-1][name]
    held = pa.concat_tables([memory_table(step.step, step.peaks) for step in steps])
    sent = pa.concat_tables([traffic_table(step.step, step.traffic) for step in steps])
    _append(path / "memory.parquet", held)
    _append(path / "traffic.parquet", sent)
    _append(path / "ops.parquet", ops_table([(step.step, step.ops) for step in steps]))
    if decided := [step.decided for step in steps if step.decided is not None]:
        _append(path / "decisions.parquet", decisions_table(decided))
    _append(path / "steps.parquet", pa.Table.from_pylist(rows, schema=STEPS_SCHEMA))


@contextmanager
def recorder(path: Path, is_timed: bool = True) -> Iterator[Callable[[Step, bool], None]]:
    """Give a function that adds one finished step to a run folder.

    A step is written at once if that is asked for, or unless the last write was too recent for its
    length; what waits is written with a later step, or when the block ends, however it ends. Writes
    cut files into row groups; if not `is_timed` as many steps wait as were written, so that the
    same steps give the same bytes.

    Raises:
        RunFailed: The disk refused a write; the steps written before stay.
    """
    waiting: list[Step] = []
    due_s, written = 0.0, 0

    def write() -> None:
        nonlocal due_s, written
        began_s = time.perf_counter()
        with seen_to_disk(path):
            append_steps(path, waiting)
        written += len(waiting)
        waiting.clear()
        ended_s = time.perf_counter()
        due_s = ended_s + WAIT_PER_WRITE * (ended_s - began_s)

    def record(step: Step, at_once: bool) -> None:
        waiting.append(step)
        is_due = time.perf_counter() >= due_s if is_timed else len(waiting) >= written
        if at_once or is_due:
            write()

    try:
        yield record
    finally:
        if waiting:
            write()


def open_run(path: Path) -> Run:
    """Open a run folder, finished or not.

    Raises:
        InputError: It is none, or its steps are damaged or not numbers of a run.
    """
    if not path.is_dir():
        raise InputError(f"run {path} is not a folder", "make one: hydraplan execute PLAN -o ...")
    steps_path = path / "steps.parquet"
    file = open_parquet(steps_path, STEPS_SCHEMA)
    header = read_footer(file, steps_path, RunHeader)
    steps = read_rows(file, steps_path).to_pylist()
    for i, row in enumerate(steps):
        finite = all(math.isfinite(v) for v in row.values() if v is not None)
        counts = min(row["tokens"] - row["valid_tokens"], row["valid_tokens"])
        counts = min(counts, row["first_sequence_id"], row["num_sequences"] - 1)
        is_next = (row["step"], row["batch"]) == (i, i % header.plan.num_batches)
        if not is_next or not finite or counts < 0 or row["iteration_s"] <= 0:
            raise InputError(f"{steps_path}: row {i} is not what a finished step {i} leaves: {row}")
    held, sent = path / "memory.parquet", path / "traffic.parquet"
    shape = len(steps), header.plan.options.pp, header.plan.options.ranks
    rows_held, rows_sent = (
        read_rows(open_parquet(file, RUN_FILES[file.name]), file) for file in (held, sent)
    )
    peaks = peaks_of(rows_held, *shape, str(held))
    traffic = traffic_of(rows_sent, *shape, str(sent))
    trials = read_trials(path / "trials.parquet", header.trials)
    decisions = read_decisions(
        path / "decisions.parquet",
        pp=shape[1],
        ranks=shape[2],
        batches=header.plan.num_batches,
        steps=len(steps),
    )
    return Run(path, header, steps, peaks, traffic, trials, decisions)


def read_step_ops(run: Run, step: int) -> StepOps:
    """Op times of one step, what held each op up, and what was predicted."""
    if not 0 <= step < len(run.steps):
        raise InputError(f"step {step} is not in {run.path}, it has {len(run.steps)} steps")
    options = run.header.plan.options
    return read_ops(run.path / "ops.parquet", step, options.pp, options.ranks)


def read_timeline(run: Run, step: int) -> Timeline:
    """Op times of one step, as the figures take them."""
    return read_step_ops(run, step).timeline


def plan_of(run: Run) -> Plan:
    """The plan a run was made from: a folder of that name and content, beside the run or here."""
    name = run.header.plan_name
    for folder in (run.path.resolve().parent, Path()):
        path = folder / Path(name).name
        if path.is_dir():
            plan = open_plan(path)
            if plan_digest(plan) == run.header.plan_digest:
                return plan
    raise InputError(
        f"the plan {name} of run {run.path} lies neither beside it nor in this folder, or is"
        " another one by now",
        "put the plan that ran beside the run; it knows what every rank held",
    )


def batch_of(run: Run, plan: Plan, step: int) -> BatchPlan:
    """The batch of its plan that a step ran, where it was placed and in the order of its ops then.

    Raises:
        InputError: The plan is not valid, or the decisions of the run are not of it.
    """
    batch = read_batch(plan, run.steps[step]["batch"])
    broken = check_plan(plan.header, batch)
    if broken:
        raise InputError(f"the plan of run {run.path} is not valid: {broken[0]}")
    found = with_change(batch, in_force(run.decisions, step, batch.batch))
    rules = broken_rules(plan.header, found)
    rules.pop("live-tokens", None)  # the run may have held and made again other things
    for texts in rules.values():
        raise InputError(f"the decisions of run {run.path} are not of its plan: {texts[0]}")
    return found


def _append(path: Path, rows: pa.Table) -> None:
    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    with beside(path) as spare, pq.ParquetWriter(spare, schema) as writer:
        for batch in read_batches(file, path, ROWS_OF_A_GROUP):
            writer.write_batch(batch)
        writer.write_table(rows.cast(schema), row_group_size=ROWS_OF_A_GROUP)
