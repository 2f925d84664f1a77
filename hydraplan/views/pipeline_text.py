"""One schedule by itself, as text with its chart and as JSON."""

from collections.abc import Mapping
from typing import Any

from hydraplan.errors import many, printable
from hydraplan.model import Timeline
from hydraplan.views import console
from hydraplan.views.gantt import NAMES_WIDTH, gantt, legend


def pipeline_object(told: Mapping[str, Any], figures: Mapping[str, float]) -> dict[str, object]:
    """What was asked and what came out, for `--json`."""
    return {**told, **figures}


def _way(told: Mapping[str, Any]) -> str:
    """How chunks lie where a stage has several, and whose ops a planned order runs."""
    way = f" on route {told['route']}" if told["chunks"] > 1 else ""
    if "same_ops_as" not in told:
        return way
    if told.get("ops_from"):
        return f"{way}, ops by {told['ops_from']}"
    return f"{way}, ops {'as ' + told['same_ops_as'] if told['same_ops_as'] else 'of its own'}"


def print_pipeline(
    told: Mapping[str, Any], figures: Mapping[str, float], timeline: Timeline
) -> None:
    """What was asked, a table of what came out, and the chart; times in the unit of the user."""
    console.emit(
        f"{printable(told['schedule'])}: {many(told['pp'], 'stage')},"
        f" {many(told['microbatches'], 'microbatch')}, {many(told['chunks'], 'chunk')} a stage"
        f"{_way(told)}, simulated"
    )
    console.emit(
        f"a stage takes forward {told['forward']:g}, backward {told['backward']:g}, weight"
        f" {told['weight']:g}; comm {told['comm']:g}"
    )
    console.emit()
    limit = told["memory_limit"]
    console.print_table(
        ["figure", "value"],
        [list(figure) for figure in figures.items()],
        caption="" if limit is None else f"peak_memory: allowed are at most {limit:g}",
    )
    if told["ops_status"]:
        console.emit(
            f"op order {told['ops_status']}: makespan {figures['makespan']:.6g}, bound"
            f" {told['ops_bound']:.6g}, gap {told['ops_gap']:.2%} after"
            f" {told['ops_deterministic_s']:.3g} deterministic seconds (no op order within the"
            " limit is below the bound)"
        )
    console.emit(f"\nops of every stage:\n{legend(timeline.schedule)}")
    start, end = ([stage[:, 0] for stage in side] for side in (timeline.start_s, timeline.end_s))
    cells = console.cells(NAMES_WIDTH)
    console.paint(gantt(timeline.schedule, start, end, cells, unit=""))
