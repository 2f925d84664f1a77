"""Commands of the tool, as a user would give them, run in this process."""

from contextlib import redirect_stdout
from io import StringIO

from hydraplan.cli.app import run


def told(*words: object) -> str:
    """Run a command of the tool in this process; what it printed."""
    out = StringIO()
    with redirect_stdout(out):
        code = run([str(word) for word in words])
    if code:
        raise SystemExit(f"hydraplan {' '.join(map(str, words))} ended with exit code {code}")
    return out.getvalue()
