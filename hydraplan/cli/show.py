"""`hydraplan show`: look at a plan or a run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hydraplan.cli import options as o

View = Literal["summary", "loads", "gantt", "sequences"]

LIMIT = 20
"""Rows of the sequences view where none are asked for."""


def show(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="Plan or run folder.")],
    view: Annotated[
        View | None, typer.Option("--view", help="Only this view of a plan.  [default: all four]")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", min=0, help="Only this batch of a plan.  [default: all, drawn is the first]"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Most rows of the sequences view.  [default: 20]"),
    ] = None,
    json: o.Json = False,
) -> None:
    """Show a plan (summary, load of every slot, Gantt chart, sequences) or the steps of a run."""
    from hydraplan.cli.defaults import is_flag, strongest
    from hydraplan.errors import InputError

    if (path / "steps.parquet").is_file():
        for option, value in (("view", view), ("batch", batch), ("limit", limit)):
            if is_flag(context, option):
                raise InputError(
                    f"{path} is a run, --{option} {value} shows a part of a plan",
                    f"leave --{option} out, or show the plan of the run",
                )
        _show_run(path, json)
    elif path.is_dir() and (path / "sequences.parquet").is_file():
        if json and view not in (None, "summary"):
            chosen = strongest(context, {"view": 1, "json": 1})
            if chosen["view"] and chosen["json"]:
                raise InputError(
                    f"--view {view} is drawn as text, --json holds the summary of every batch",
                    "leave one of the two out",
                )
            json = bool(chosen["json"])
        if is_flag(context, "limit") and (json or view not in (None, "sequences")):
            raise InputError(
                f"--limit {limit} counts rows of the sequences view, which is not asked for",
                "leave --limit out, or use --view sequences without --json",
            )
        _show_plan(path, view, batch, limit or LIMIT, json)
    else:
        raise InputError(
            f"{path} is neither a plan nor a run folder",
            "plans come from `hydraplan plan -o`, runs from `hydraplan execute -o`",
        )


def _show_run(path: Path, json: bool) -> None:
    from hydraplan.files.runfile import open_run
    from hydraplan.views import console
    from hydraplan.views.run_text import print_run, run_json

    run = open_run(path)
    if json:
        console.emit_json(run_json(run))
    else:
        print_run(run)


def _show_plan(path: Path, view: View | None, batch: int | None, limit: int, json: bool) -> None:
    from hydraplan.errors import Infeasible, InvalidPlan
    from hydraplan.executor.valid import check_order
    from hydraplan.files.planfile import open_plan, read_batch
    from hydraplan.invariants import check_plan
    from hydraplan.memory_limit import planned_bytes
    from hydraplan.planner.stage_skew import stage_skew
    from hydraplan.slots import slot_times
    from hydraplan.views import console
    from hydraplan.views.charts import LANES_WIDTH, SHADES, heat_map
    from hydraplan.views.gantt import NAMES_WIDTH, gantt, legend
    from hydraplan.views.plan_text import plan_object, print_plan, print_sequences

    plan = open_plan(path)
    summaries, skews, held = [], [], []
    for index in range(plan.header.num_batches) if batch is None else [batch]:
        found = read_batch(plan, index)
        broken = check_plan(plan.header, found)
        if broken:
            raise InvalidPlan(f"{path} is not valid: {broken[0]}", f"see hydraplan validate {path}")
        summaries.append(found.summary())
        if json or view in (None, "summary"):
            try:
                skews.append(stage_skew(plan.header, found))
                held.append(planned_bytes(plan.header, found))
            except Infeasible:  # its ops wait for each other; say which
                check_order(path, plan.header, found)
                raise
    if json:
        console.emit_json(plan_object(path, plan.header, summaries, skews, held))
        return
    shown = read_batch(plan, batch or 0)
    if view in (None, "summary"):
        print_plan(plan.header, summaries, skews, held)
    if view in (None, "loads"):
        slots = slot_times(
            plan.header.cost_model(), shown.sequences.placed(), shown.num_microbatches
        )
        load_s = slots.load_s
        console.emit(
            f"\nload of every slot of batch {shown.batch}: lanes down, microbatches across,"
            f"\n'{SHADES[0]}' nothing to '{SHADES[-1]}' {load_s.max():.4g} s"
            f" (mean {load_s.mean():.4g} s)"
        )
        console.draw(heat_map(load_s, console.cells(LANES_WIDTH)))
    if view in (None, "gantt"):
        check_order(path, plan.header, shown)
        console.emit(
            f"\nops of every stage of batch {shown.batch} (simulated, gradient sync excluded):"
            f"\n{legend(shown.schedule)}"
        )
        starts_s, ends_s = shown.predicted_start_s, shown.predicted_end_s
        cells = console.cells(NAMES_WIDTH)
        console.paint(gantt(shown.schedule, starts_s, ends_s, cells))
    if view in (None, "sequences"):
        console.emit()
        print_sequences(shown, limit)
