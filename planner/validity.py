"""Everything that `validate` holds of a plan, batch by batch: rules, deadlock, figures."""

from hydraplan.files.planfile import Plan, read_batch
from hydraplan.invariants import broken_rules, follows
from hydraplan.planner.figures import check_figures
from hydraplan.planner.pipeline.deadlock import check_deadlock


def broken_by_rule(plan: Plan) -> dict[str, list[str]]:
    """Texts by broken rule; none of a valid plan. Later rules need those before."""
    by_rule: dict[str, list[str]] = {}
    next_row = plan.header.options.first_row
    for index in range(plan.header.num_batches):
        batch = read_batch(plan, index)
        found = broken_rules(plan.header, batch)
        if not found:
            found["deadlock"] = check_deadlock(plan.header, batch)
        if not any(found.values()):
            found["figures"] = check_figures(plan.header, batch)
        found["consecutive"] = follows(plan.header, batch, next_row)
        for rule, texts in found.items():
            if texts:
                by_rule.setdefault(rule, []).extend(texts)
        next_row += len(batch.sequences)
    return by_rule
