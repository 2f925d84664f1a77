"""`hydraplan profile --refit RUN`: costs learnt from what the ops of a run took."""

from pathlib import Path
from typing import Annotated

import typer

from hydraplan.cli import options as o


def profile_refit(
    run: Annotated[Path, typer.Argument(help="Run folder of real workers; its plan beside it.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Profile, *.profile.parquet.")],
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Learn costs from a run: `hydraplan profile --refit RUN -o NEW.profile.parquet`.

    The costs of its plan, each term times as long as its ops took; links are kept.
    """
    from hydraplan.executor.inject import known_factor
    from hydraplan.files.parquet import refuse_existing
    from hydraplan.files.profilefile import write_profile
    from hydraplan.files.runfile import open_run, plan_of
    from hydraplan.profiler.refit import header_of, refit
    from hydraplan.profiler.refit_report import print_refit, refit_json
    from hydraplan.profiler.run_ops import refuse_unmeasured
    from hydraplan.views import console

    refuse_existing(output, force)
    opened = open_run(run)
    refuse_unmeasured(opened)
    found = refit(opened, plan_of(opened), known_factor(opened.header.injected))
    write_profile(output, header_of(opened, found), [])
    if json:
        console.emit_json({"run": str(run), "profile": str(output), **refit_json(found)})
    else:
        print_refit(found, run.name)
    console.note(f"wrote {output}")
