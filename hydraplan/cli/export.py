"""`hydraplan export`: a plan or a run in the formats of other tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from hydraplan.cli import options as o

if TYPE_CHECKING:
    from hydraplan.model import IntArray, Timeline
    from hydraplan.route import Route

Format = Literal["chrome", "pytorch-csv", "csv", "megatron"]


class Exported(NamedTuple):
    """A batch of a plan or a step of a run: its ops with their times, and rows of its slots."""

    timeline: "Timeline"
    route: "Route"
    rows: "IntArray"
    about: dict[str, object]


def export(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="Plan or run folder.")],
    form: Annotated[
        Format, typer.Option("--format", help="Chrome trace, PyTorch's schedule, or rows as CSV.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=0, help="Batch of a plan.  [default: the first; csv: all]"),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Step of a run.  [default: the last]")
    ] = None,
    messages: Annotated[
        bool,
        typer.Option("--messages", help="In pytorch-csv, name every send and receive too."),
    ] = False,
    lanes: Annotated[
        str | None,
        typer.Option("--lanes", help="In chrome, only these, as 0..7 or 3.  [default: all]"),
    ] = None,
    force: o.Force = False,
) -> None:
    """Write a batch of a plan, or a step of a run, for other tools.

    Example: hydraplan export run.plan --format chrome -o trace.json
    """
    from hydraplan.cli.defaults import is_flag
    from hydraplan.errors import InputError, many, printable
    from hydraplan.files.chrome_trace import trace_events, write_trace
    from hydraplan.files.parquet import refuse_existing
    from hydraplan.files.pytorch_csv import compute_rows, write_csv
    from hydraplan.planner.pipeline.lowering import lower
    from hydraplan.planner.pipeline.pytorch_form import loss_note, lowered_rows
    from hydraplan.views import console

    if form == "megatron":
        raise InputError(
            "Megatron-LM takes no op order, only the name of a schedule: nothing to export yet",
            "use --format pytorch-csv or chrome",
        )
    if is_flag(context, "messages") and messages and form != "pytorch-csv":
        raise InputError(f"--messages is of pytorch-csv, not of {form}", "leave --messages out")
    if is_flag(context, "lanes") and form != "chrome":
        raise InputError(f"--lanes is of chrome, not of {form}", "leave --lanes out")
    refuse_existing(output, force)
    if form == "csv":
        _write_rows(path, output, batch, step)
        return
    found = _read(path, batch, step)
    what = printable(", ".join(f"{name} {value}" for name, value in found.about.items()))
    where = printable(str(output))
    if form == "chrome":
        shown = _lanes(lanes, found)
        events = trace_events(found.timeline, found.route, found.rows, shown)
        number = write_trace(output, events, found.about)
        console.emit(f"{where}: {number:,} events; {what}")
        return
    schedule, way = found.timeline.schedule, found.route
    rows = compute_rows(schedule, way)
    if messages:
        rows = lowered_rows(lower(schedule, way, found.rows.shape[1]), way)
    write_csv(output, rows)
    if said := loss_note(schedule, way):
        console.note(said)
    console.emit(f"{where}: {sum(map(len, rows)):,} actions on {many(len(rows), 'rank')}; {what}")


def _write_rows(path: Path, output: Path, batch: int | None, step: int | None) -> None:
    """Sequences of a plan, or steps of a run, as CSV."""
    from hydraplan.errors import InputError, many, printable
    from hydraplan.files.planfile import open_plan
    from hydraplan.files.runfile import open_run
    from hydraplan.files.table_csv import write_sequences, write_steps
    from hydraplan.views import console

    if _is_run(path, batch, step):
        if step is not None:
            raise InputError("csv of a run holds every step", "leave --step out")
        run = open_run(path)
        if not run.steps:
            raise InputError(f"run {path} has no finished step")
        count, what = write_steps(output, run), "step"
    else:
        plan = open_plan(path)
        if batch is not None and batch >= plan.header.num_batches:
            raise InputError(f"batch {batch} is not in {path}: 0..{plan.header.num_batches - 1}")
        count, what = write_sequences(output, plan, batch), "sequence"
    console.emit(f"{printable(str(output))}: {many(count, what)}")


def _lanes(text: str | None, found: Exported) -> range:
    """The lanes a trace shows, of no more events than viewers open."""
    import re

    from hydraplan.errors import InputError, printable
    from hydraplan.files.chrome_trace import MOST_EVENTS, lane_events

    ranks = found.rows.shape[0]
    shown = range(ranks)
    if text is not None:
        match = re.fullmatch(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?", text)
        shown = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not shown or shown[-1] >= ranks:
            raise InputError(
                f"--lanes {printable(text)} names no lanes of 0..{ranks - 1}", "as 0..7, or 3"
            )
    events = lane_events(found.timeline, found.route, found.rows)[shown].cumsum()
    stages = len(found.timeline.schedule)
    if stages + events[-1] > MOST_EVENTS:
        fit = int((stages + events <= MOST_EVENTS).sum())
        raise InputError(
            f"a trace of {stages + int(events[-1]):,} events, beyond the {MOST_EVENTS:,} that"
            " viewers open",
            f"show fewer lanes, as --lanes {shown[0]}..{shown[0] + fit - 1}"
            if fit
            else "one lane is too many already: export a plan of fewer microbatches",
        )
    return shown


def _read(path: Path, batch: int | None, step: int | None) -> Exported:
    is_run = _is_run(path, batch, step)
    return _read_run(path, step) if is_run else _read_plan(path, batch or 0)


def _is_run(path: Path, batch: int | None, step: int | None) -> bool:
    """Whether it is a run and no plan; refuses what is neither, and the option of the other."""
    from hydraplan.errors import InputError

    is_run = (path / "steps.parquet").is_file()
    if not is_run and not (path / "sequences.parquet").is_file():
        raise InputError(
            f"{path} is neither a plan nor a run folder",
            "plans come from `hydraplan plan -o`, runs from `hydraplan execute -o`",
        )
    if (batch if is_run else step) is not None:
        wrong, right = ("batch", "step") if is_run else ("step", "batch")
        raise InputError(
            f"--{wrong} names no part of a {'run' if is_run else 'plan'}", f"use --{right}"
        )
    return is_run


def _read_plan(path: Path, batch: int) -> Exported:
    """A batch as its plan predicts it."""
    from hydraplan.executor.valid import read_valid_batch
    from hydraplan.files.planfile import open_plan
    from hydraplan.planner.pipeline.simulator import simulate
    from hydraplan.slots import slot_times

    plan = open_plan(path)
    found = read_valid_batch(plan, batch)
    cost = plan.header.cost_model()
    slots = slot_times(cost, found.sequences.placed(), found.num_microbatches)
    about: dict[str, object] = {"plan": path.name, "batch": batch, "mode": "simulated"}
    return Exported(simulate(slots, found.schedule), cost.route, slots.rows, about)


def _read_run(path: Path, step: int | None) -> Exported:
    """A step as it was measured or simulated; plan and decisions tell which slots hold rows."""
    from hydraplan.errors import InputError
    from hydraplan.files.runfile import batch_of, open_run, plan_of, read_timeline
    from hydraplan.slots import slot_times

    run = open_run(path)
    if not run.steps:
        raise InputError(
            f"run {path} has no finished step",
            "execute its plan again: hydraplan execute PLAN -o RUN",
        )
    step = len(run.steps) - 1 if step is None else step
    if step >= len(run.steps):
        raise InputError(
            f"step {step} is not in {path}: 0..{len(run.steps) - 1}",
            "leave --step out for the last one",
        )
    plan = plan_of(run)
    batch, cost = batch_of(run, plan, step), plan.header.cost_model()
    rows = slot_times(cost, batch.sequences.placed(), batch.num_microbatches).rows
    about: dict[str, object] = {"run": path.name, "step": step, "mode": run.header.mode}
    timeline = read_timeline(run, step)
    ran, planned = (
        [sorted(op[:3] for op in ops) for ops in schedule]
        for schedule in (timeline.schedule, batch.schedule)
    )
    if ran != planned:
        raise InputError(f"{path / 'ops.parquet'}: ops of step {step} are not those of its batch")
    return Exported(timeline, cost.route, rows, about)
