"""The typer application, error printing and exit codes."""

import sys

import typer

from hydraplan.cli.profile import profile
from hydraplan.errors import HydraplanError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """Profile, plan and execute dynamic context parallelism on pipelines."""


app.command()(profile)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except HydraplanError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"\nhint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
