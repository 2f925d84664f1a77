"""`hydraplan diff`: what is different in two plans, and what it is worth."""

from pathlib import Path
from typing import Annotated

import typer

from hydraplan.cli import options as o


def diff(
    old: Annotated[Path, typer.Argument(help="Plan folder to compare with.")],
    new: Annotated[Path, typer.Argument(help="Plan folder that is looked at.")],
    only_changed: Annotated[
        bool, typer.Option("--only-changed", help="Leave figures out that are the same.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, help="Relative change below which a figure is the same; 0.01 is 1 %."
        ),
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=1, help="Most sequences to print.")] = 20,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 1 if anything is different.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Compare two plans: where they come from, figures, sequences, lanes, ops.

    Example: hydraplan diff main.plan new.plan --only-changed --exit-code
    """
    from hydraplan.errors import InputError, RunFailed
    from hydraplan.files.plandiff import compared
    from hydraplan.files.planfile import open_plan
    from hydraplan.views import console
    from hydraplan.views.diff_text import diff_object, print_diff

    if not tolerance < float("inf"):
        raise InputError(f"--tolerance {tolerance:g} is no share that a figure can change by")
    found = compared(open_plan(old), open_plan(new), tolerance, None if json else limit)
    if json:
        console.emit_json(diff_object(found))
    else:
        print_diff(found, only_changed, limit)
    if exit_code and found.is_different():
        raise RunFailed(f"{new} differs from {old}", "leave --exit-code out to exit 0")
