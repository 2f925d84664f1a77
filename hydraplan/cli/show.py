"""`hydraplan show`: look at a plan or a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hydraplan.cli import options as o
from hydraplan.cli.summary import print_summary, slot_loads, summary_object, worse

if TYPE_CHECKING:
    from hydraplan.model import BatchPlan
    from hydraplan.planheader import PlanHeader

View = Literal["summary", "loads", "ranks", "degrees", "microbatches", "gantt", "sequences"]

LIMIT = 20
"""Rows of the sequences view where none are asked for."""


def show(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="Plan or run folder.")],
    view: Annotated[
        View | None, typer.Option("--view", help="Only this view of a plan.  [default: all]")
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
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="Only sequences that this lane shares.")
    ] = None,
    microbatch: Annotated[
        int | None, typer.Option("--microbatch", min=0, help="Only sequences of this microbatch.")
    ] = None,
    degree: Annotated[
        int | None, typer.Option("--degree", min=1, help="Only sequences of this degree.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", min=0, help="Only this row of the length file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a plan as one page that works offline.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="Another plan to lay over the page of this.")
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Show a plan (summary, load of every slot, Gantt chart, sequences) or the steps of a run.

    Example: hydraplan show new.plan --html new.html --against old.plan
    """
    from hydraplan.cli.defaults import is_flag, strongest
    from hydraplan.errors import InputError

    if (path / "steps.parquet").is_file():
        asked: dict[str, object] = {"view": view, "batch": batch, "limit": limit, "rank": rank}
        asked |= {"microbatch": microbatch, "degree": degree, "sequence": sequence}
        asked |= {"html": html, "against": against}
        for option, value in asked.items():
            if is_flag(context, option):
                raise InputError(
                    f"{path} is a run, --{option} {value} shows a part of a plan",
                    f"leave --{option} out, or show the plan of the run",
                )
        _show_run(path, json)
    elif path.is_dir() and (path / "sequences.parquet").is_file():
        if (page := _page_asked(context, html)) is not None:
            from hydraplan.cli.show_html import show_html

            show_html(path, page, against, batch, force)
            return
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
        wanted = {
            "rank": rank, "microbatch": microbatch, "degree": degree, "sequence": sequence,
        }  # fmt: skip
        given = {name: value for name, value in wanted.items() if value is not None}
        if given and (json or view not in (None, "sequences")):
            name = next(iter(given))
            raise InputError(
                f"--{name} {given[name]} filters the sequences view, which is not asked for",
                f"leave --{name} out, or use --view sequences without --json",
            )
        view = "sequences" if given else view
        _show_plan(path, view, batch, limit or LIMIT, json, given)
    else:
        raise InputError(
            f"{path} is neither a plan nor a run folder",
            "plans come from `hydraplan plan -o`, runs from `hydraplan execute -o`",
        )


PRINTED = ("view", "limit", "rank", "microbatch", "degree", "sequence", "json")
"""Options of what is printed, which a page holds in full or not at all."""


def _page_asked(context: typer.Context, html: Path | None) -> Path | None:
    """The file of the page, or None where the command line asks for what is printed."""
    from hydraplan.cli.defaults import is_flag
    from hydraplan.errors import InputError

    if html is None:
        for option in ("against", "force"):
            if is_flag(context, option):
                raise InputError(
                    f"--{option} is of a page, which is not asked for",
                    "add --html FILE; hydraplan diff compares two plans as text",
                )
        return None
    printed = [option for option in PRINTED if is_flag(context, option)]
    if printed and is_flag(context, "html"):
        raise InputError(
            f"--{printed[0]} is of what is printed, --html {html} writes a page",
            "leave one of the two out",
        )
    return None if printed else html


def _show_run(path: Path, json: bool) -> None:
    from hydraplan.files.runfile import open_run
    from hydraplan.views import console
    from hydraplan.views.run_text import print_run, run_json

    run = open_run(path)
    if json:
        console.emit_json(run_json(run))
    else:
        print_run(run)


def _show_plan(
    path: Path,
    view: View | None,
    batch: int | None,
    limit: int,
    json: bool,
    filters: dict[str, int],
) -> None:
    from hydraplan.errors import Infeasible, InvalidPlan
    from hydraplan.executor.valid import check_order
    from hydraplan.files.planfile import open_plan, read_batch
    from hydraplan.invariants import check_plan
    from hydraplan.memory_limit import planned_bytes
    from hydraplan.planner.stage_skew import stage_skew
    from hydraplan.views import console
    from hydraplan.views.charts import LANES_WIDTH, SHADES, heat_map
    from hydraplan.views.gantt import NAMES_WIDTH, gantt, legend
    from hydraplan.views.loads_text import print_degrees, print_loads, tokens_by_degree
    from hydraplan.views.microbatch_text import microbatch_rows, print_microbatches
    from hydraplan.views.plan_text import print_sequences

    plan = open_plan(path)
    summaries, skews, held, worst, holder = [], [], [], None, batch
    for index in range(plan.header.num_batches) if batch is None else [batch]:
        found = read_batch(plan, index)
        broken = check_plan(plan.header, found)
        if broken:
            raise InvalidPlan(f"{path} is not valid: {broken[0]}", f"see hydraplan validate {path}")
        summaries.append(found.summary())
        if holder is None and filters.get("sequence", -1) in found.sequences.sequence_id:
            holder = index
        worst = worse(worst, found)
        if json or view in (None, "summary"):
            try:
                skews.append(stage_skew(plan.header, found))
                held.append(planned_bytes(plan.header, found))
            except Infeasible:  # its ops wait for each other; say which
                check_order(path, plan.header, found)
                raise
    assert worst is not None
    told = plan.header, summaries, skews, held, worst
    if json:
        console.emit_json(summary_object(path, *told))
        return
    shown = read_batch(plan, holder or 0)
    _check_filters(path, plan.header, shown, filters)
    if view in (None, "summary"):
        print_summary(*told)
    if view in (None, "degrees"):
        console.emit()
        print_degrees(shown.summary().degrees, tokens_by_degree(shown))
    load_s = slot_loads(plan.header, shown)
    if view in (None, "ranks"):
        console.emit()
        print_loads(load_s)
    if view in (None, "microbatches"):
        console.emit()
        print_microbatches(shown.batch, microbatch_rows(shown, load_s))
    if view in (None, "loads"):
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
        print_sequences(shown, limit, filters)


def _check_filters(
    path: Path, header: "PlanHeader", shown: "BatchPlan", filters: dict[str, int]
) -> None:
    """Refuse to look for what a batch cannot hold."""
    from hydraplan.errors import InputError

    bounds = {"rank": header.options.ranks, "microbatch": shown.num_microbatches}
    for name, most in bounds.items():
        if filters.get(name, 0) >= most:
            raise InputError(
                f"{name} {filters[name]} is not in batch {shown.batch} of {path}: 0..{most - 1}"
            )
    row, ids = filters.get("sequence"), shown.sequences.sequence_id
    if row is not None and row not in ids:
        raise InputError(
            f"row {row} is not in batch {shown.batch} of {path}: {ids.min()}..{ids.max()}",
            f"the plan has batches 0..{header.num_batches - 1}; without --batch all are looked at",
        )
