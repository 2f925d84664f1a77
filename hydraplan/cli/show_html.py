"""`hydraplan show --html`: a plan as one page that works offline."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydraplan.files.planfile import Plan
    from hydraplan.views.report_data import Shown


def show_html(path: Path, html: Path, against: Path | None, batch: int | None, force: bool) -> None:
    """Write the page of a plan; of several batches the least efficient one is shown in full.

    Args:
        path: Plan folder.
        html: File to write.
        against: Another plan, laid over this one.
        batch: The batch to show in full.
        force: Whether a file there is replaced.
    """
    from hydraplan.differ import batch_diff
    from hydraplan.files.parquet import refuse_existing
    from hydraplan.files.plandiff import compared
    from hydraplan.files.planfile import open_plan
    from hydraplan.planner.limits import what_limits
    from hydraplan.views import console
    from hydraplan.views.html_report import page, write_page
    from hydraplan.views.limits_text import limit_text
    from hydraplan.views.loads_text import flops_object, flops_text
    from hydraplan.views.report_changes import MOST_ROWS

    refuse_existing(html, force, option="--html")
    plan = open_plan(path)
    shown = _read(plan, batch)
    old = diff = None
    if against is not None:
        old_plan = open_plan(against)
        diff, number = compared(old_plan, plan, 0.0, 0), shown.batch.batch
        if number < old_plan.header.num_batches:
            old = _read(old_plan, number)
            headers = old_plan.header, plan.header
            full = batch_diff(headers, old.batch, shown.batch, most_rows=MOST_ROWS)
            batches = [full if found.batch == number else found for found in diff.batches]
            diff = diff._replace(batches=batches)
    summary = shown.batch.summary()
    limits = [(x.share, limit_text(x, summary)) for x in what_limits(plan.header, shown.batch)]
    flops = flops_text(flops_object(plan.header, shown.batch))
    text = page(shown, limits, flops, old, diff)
    write_page(html, text)
    console.emit(f"wrote {html}: {len(text.encode()) / 1e3:,.0f} KB, batch {shown.batch.batch}")


def _read(plan: "Plan", batch: int | None) -> "Shown":
    """All batches of a valid plan in short, one in full."""
    from hydraplan.errors import InvalidPlan
    from hydraplan.executor.valid import check_order
    from hydraplan.files.planfile import read_batch
    from hydraplan.invariants import check_plan
    from hydraplan.memory_limit import planned_bytes
    from hydraplan.planner.pipeline.simulator import simulate
    from hydraplan.planner.stage_skew import stage_skew
    from hydraplan.slots import slot_times
    from hydraplan.views.report_data import Shown

    path, header = plan.path, plan.header
    summaries, shown = [], None
    for index in range(header.num_batches):
        found = read_batch(plan, index)
        if broken := check_plan(header, found):
            raise InvalidPlan(f"{path} is not valid: {broken[0]}", f"see hydraplan validate {path}")
        summaries.append(found.summary())
        least = shown is None or found.figures["efficiency"] < shown.figures["efficiency"]
        if index == batch or (batch is None and least):
            shown = found
    if shown is None:
        assert batch is not None
        shown = read_batch(plan, batch)  # which refuses it
    check_order(path, header, shown)
    slots = slot_times(header.cost_model(), shown.sequences.placed(), shown.num_microbatches)
    return Shown(
        name=path.resolve().name,
        header=header,
        summaries=summaries,
        skew=stage_skew(header, shown),
        held=planned_bytes(header, shown),
        batch=shown,
        load_s=slots.load_s,
        timeline=simulate(slots, shown.schedule),
    )
