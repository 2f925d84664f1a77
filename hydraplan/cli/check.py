"""`hydraplan check`: hold a plan to limits, against a baseline or absolute, as a gate in CI."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydraplan.cli import options as o

if TYPE_CHECKING:
    from hydraplan.files.planfile import Plan


def check(
    plan: Annotated[Path, typer.Argument(help="Plan folder to hold to limits.")],
    baseline: Annotated[
        Path | None, typer.Option(help="Plan folder that figures are compared with.")
    ] = None,
    max_regress: Annotated[
        list[str] | None,
        typer.Option(help="Most by which a figure may be worse than the baseline's: NAME=2%."),
    ] = None,
    largest: Annotated[
        list[str] | None, typer.Option("--max", help="Largest value: NAME=1.1.")
    ] = None,
    smallest: Annotated[
        list[str] | None, typer.Option("--min", help="Smallest value: NAME=0.9.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotation lines for GitHub to stdout, too.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write verdicts as JUnit XML.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Add verdicts to a Markdown file, as a job's summary.")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Make the plan the baseline, and pass.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Check a plan: it is valid, and its figures keep every limit.

    Exit 1 if a limit is broken or the plan is not valid, 2 if the baseline is of another kind.

    Example: hydraplan check new.plan --baseline main.plan --max-regress iteration_s=2%
    --max slot_imbalance=1.1
    """
    from hydraplan.errors import InputError, RunFailed
    from hydraplan.files.parquet import beside
    from hydraplan.files.planfile import open_plan
    from hydraplan.gate import DEFAULT_SHARES, check_comparable, parsed_limit, verdicts
    from hydraplan.views import console
    from hydraplan.views import gate_text as view

    if json and github:
        raise InputError("--json and --github both print to stdout", "leave one of the two out")
    if update_baseline and baseline is None:
        raise InputError("--update-baseline needs --baseline, the folder that is written")
    shares = [parsed_limit("max-regress", text) for text in max_regress or ()]
    if baseline is not None and not shares:
        shares = [parsed_limit("max-regress", text) for text in DEFAULT_SHARES]
    limits = [
        *shares,
        *(parsed_limit("max", text) for text in largest or ()),
        *(parsed_limit("min", text) for text in smallest or ()),
    ]
    if shares and baseline is None:
        raise InputError("--max-regress compares with a --baseline, and there is none")
    if not limits:
        raise InputError(
            "there is nothing to check", "give --baseline OLD, or a bound: --max NAME=VALUE"
        )
    opened = open_plan(plan)
    known = None
    if baseline is not None and not baseline.exists() and not update_baseline:
        raise InputError(
            f"baseline {baseline} does not exist", "--update-baseline makes this plan the baseline"
        )
    if baseline is not None and not (update_baseline and not baseline.exists()):
        known = open_plan(baseline)
        if not update_baseline:
            check_comparable(opened.header, known.header)
    figures = _valid_figures(opened)
    if update_baseline and baseline is not None:
        _replace(plan, baseline)
        console.note(f"{baseline} is now {plan}")
        return
    found = verdicts(limits, figures, None if known is None else _valid_figures(known))
    if json:
        console.emit_json(view.gate_object(plan, baseline, found))
    else:
        view.print_gate(found)
    if github:
        console.draw(view.github_lines(found))
    if junit is not None:
        with beside(junit) as spare:
            spare.write_text(view.junit(plan, found), encoding="utf-8")
    if markdown is not None:
        with markdown.open("a", encoding="utf-8") as file:
            file.write(view.markdown(plan, found))
    broken = [verdict for verdict in found if not verdict.is_kept]
    if broken:
        raise RunFailed(
            f"{plan} breaks {len(broken)} of {len(found)} limits; the first: {broken[0].text()}",
            "see what changed: hydraplan diff BASELINE PLAN; accept it: --update-baseline"
            if baseline is not None
            else "",
        )


def _valid_figures(plan: "Plan") -> dict[str, float]:
    """Figures of a plan that keeps every rule, those of its files included."""
    from hydraplan.errors import InvalidPlan
    from hydraplan.files.planfile import read_batch
    from hydraplan.metrics import mean_figures
    from hydraplan.planner.pipeline.deadlock import one_line
    from hydraplan.planner.validity import broken_by_rule

    for texts in broken_by_rule(plan).values():
        raise InvalidPlan(
            f"{plan.path} is not valid: {one_line(texts[0])}",
            f"see hydraplan validate {plan.path}",
        )
    return mean_figures([read_batch(plan, i).figures for i in range(plan.header.num_batches)])


def _replace(plan: Path, baseline: Path) -> None:
    """Copy a plan's files over the baseline, all of them or none; a link keeps leading there."""
    import shutil

    from hydraplan.errors import InputError
    from hydraplan.files.parquet import beside, refuse_existing
    from hydraplan.files.planfile import PLAN_FILES

    baseline = baseline.resolve()
    refuse_existing(baseline, True, PLAN_FILES)
    if baseline.exists() and baseline.samefile(plan):
        raise InputError(f"{baseline} is the plan itself", "give the baseline's own folder")
    with beside(baseline) as spare:
        spare.mkdir()
        for name in PLAN_FILES:
            shutil.copyfile(plan / name, spare / name)
