"""`hydraplan validate`: does a plan obey every invariant it promises?"""

from hydraplan.cli import options as o

SHOWN = 3
"""Broken rows printed of one rule; the rest is counted."""


def validate(plan: o.PlanFolder, json: o.Json = False) -> None:
    """Check every batch of a plan: rows, degrees, cap, order, schedule, deadlock, figures.

    Exit 0 if all hold, 1 with the broken rows if not.
    """
    from hydraplan.errors import InvalidPlan, many, printable
    from hydraplan.files.planfile import open_plan
    from hydraplan.planner.pipeline.deadlock import one_line
    from hydraplan.planner.pipeline.wait_graph import TRANSPORTS
    from hydraplan.planner.validity import broken_by_rule
    from hydraplan.version import __version__
    from hydraplan.views import console

    opened = open_plan(plan)
    by_rule = broken_by_rule(opened)
    broken = [text for texts in by_rule.values() for text in texts]
    if json:
        console.emit_json(
            {
                "plan": plan,
                "valid": not broken,
                "num_broken": len(broken),
                "rules": {rule: len(texts) for rule, texts in by_rule.items()},
                "broken": broken,
            }
        )
    elif not broken:
        checked = ", ".join((*opened.header.invariants, "figures"))
        console.emit(
            f"{printable(str(plan))} is valid:"
            f" {many(opened.header.num_batches, 'batch')}, {checked};"
            f" no deadlock on {', '.join(TRANSPORTS)} transports"
        )
    else:
        for rule, texts in by_rule.items():
            console.emit(f"{rule}: broken {_times(len(texts))}")
            for text in texts[:SHOWN]:
                console.emit("  " + text.replace("\n", "\n  "))
            if len(texts) > SHOWN:
                console.emit(f"  and {len(texts) - SHOWN} more")
    if broken:
        first = one_line(broken[0])
        made_by = opened.header.tool_version
        raise InvalidPlan(
            f"{plan} breaks {', '.join(by_rule)} {_times(len(broken))}; the first: {first}",
            "its files were changed or damaged after planning; make the plan again"
            if made_by == __version__
            else f"hydraplan {made_by} made it, this is {__version__}; make the plan again",
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
