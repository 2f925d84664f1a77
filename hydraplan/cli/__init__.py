"""Command line: one module a command; everything heavy is imported inside the command."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script; an interrupt while it loads is one as well."""
    try:
        from hydraplan.cli.app import main as start
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    start()
