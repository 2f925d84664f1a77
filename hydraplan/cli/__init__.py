"""Command line: one module a command; everything heavy is imported inside the command."""

from hydraplan.cli.app import main

__all__ = ["main"]
