"""`hydraplan validate`: does a plan obey every invariant it promises?"""

from hydraplan.cli import options as o

SHOWN = 20
"""Broken rows printed of one batch; the rest is counted."""


def validate(plan: o.PlanFolder, json: o.Json = False) -> None:
    """Check every batch of a plan: rows, degrees, alignment, cap, order, schedule, figures.

    Exit 0 if all hold, 1 with the broken rows if not.
    """
    from hydraplan.errors import InvalidPlan
    from hydraplan.files.planfile import open_plan, read_batch
    from hydraplan.invariants import check_plan, follows
    from hydraplan.planner.figures import check_figures
    from hydraplan.views import console

    opened = open_plan(plan)
    broken: list[str] = []
    next_row = 0
    for index in range(opened.header.num_batches):
        batch = read_batch(opened, index)
        found = check_plan(opened.header, batch) or check_figures(opened.header, batch)
        broken += found + follows(opened.header, batch, next_row)
        next_row += len(batch.sequences)
    if json:
        console.emit_json(
            {"plan": plan, "valid": not broken, "num_broken": len(broken), "broken": broken}
        )
    else:
        for text in broken[:SHOWN]:
            console.emit(text)
        checked = ", ".join((*opened.header.invariants, "figures"))
        if not broken:
            console.emit(f"{plan} is valid: {opened.header.num_batches} batches, {checked}")
    if broken:
        raise InvalidPlan(
            f"{plan} breaks {len(broken)} rules; the first: {broken[0]}",
            "make the plan again with this version of hydraplan",
        )
