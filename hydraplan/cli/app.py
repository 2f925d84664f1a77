"""The typer application, error printing and exit codes.

Commands lie one a module beside this file and import what they need when they run, so that
`--help` stays light. Exit codes are those of `hydraplan.errors`; besides, 130 is an
interrupt, 141 a reader that went away, 70 anything that nobody expected.
"""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from hydraplan.cli import INTERRUPTED
from hydraplan.cli.check import check
from hydraplan.cli.compare import compare
from hydraplan.cli.defaults import (
    CONFIG_FILE,
    PROJECT_FILE,
    bind_environment,
    read_defaults,
    usage_text,
)
from hydraplan.cli.demo import demo
from hydraplan.cli.diff import diff
from hydraplan.cli.doctor import doctor
from hydraplan.cli.execute import execute
from hydraplan.cli.export import export
from hydraplan.cli.lengths import lengths
from hydraplan.cli.pipeline import pipeline
from hydraplan.cli.plan import plan
from hydraplan.cli.profile import profile
from hydraplan.cli.profile_diff import profile_diff
from hydraplan.cli.profile_refit import profile_refit
from hydraplan.cli.show import show
from hydraplan.cli.train_policy import train_policy
from hydraplan.cli.validate import validate
from hydraplan.cli.verify import verify
from hydraplan.errors import HydraplanError, InputError, MissingDependency, printable
from hydraplan.version import __version__

COMMANDS = (
    demo,
    lengths,
    profile,
    profile_diff,
    profile_refit,
    plan,
    compare,
    pipeline,
    show,
    diff,
    check,
    validate,
    execute,
    verify,
    export,
    train_policy,
    doctor,
)
"""In the order of `--help`; a new command adds its import above and a line here."""

TWO_WORDS: dict[Callable[..., None], str] = {
    profile_diff: "profile diff",
    profile_refit: "profile refit",
}
"""Commands beside one that is their first word; the others are named by their function."""

SECOND_WORD = {"profile": {"--refit": "refit"}}
"""Options of a command that are another one's second word; their value is its first argument."""

READER_GONE = 141
BUG = 70

_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""click's own base of usage errors; typer carries click under changing names."""

MISSING = {
    "max_tokens_per_rank": "--max-tokens-per-rank auto takes the most that fits a device",
    "profile": "a profile without a GPU: hydraplan profile --device analytic --cluster h100-sxm"
    " --model llama-8b -o h100.profile.parquet",
    "ranks": "ranks of one pipeline stage: devices / (pp x tp)",
}
"""Hints for options that a newcomer leaves out, by parameter."""

_DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO,
)  # fmt: skip


class _Commands(TyperGroup):
    """The commands, of which one may be another and a second word."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        args = _with_second_word(args)
        words = " ".join(args[:2])
        return super().resolve_command(ctx, [words, *args[2:]] if words in self.commands else args)


def _with_second_word(args: list[str]) -> list[str]:
    """`profile -o NEW --refit RUN` or `--refit=RUN` as `profile refit RUN -o NEW`."""
    for place, arg in enumerate(args[1:], 1):
        option, _, value = arg.partition("=")
        word = SECOND_WORD.get(args[0], {}).get(option)
        if word is not None:
            values = [value] if value else args[place + 1 : place + 2]
            rest = args[1:place] + args[place + 1 + (not value) :]
            return [args[0], word, *values, *rest]
    return args


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _command in COMMANDS:
    app.command(TWO_WORDS.get(_command))(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hydraplan {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = (
        False
    ),
) -> None:
    """Profile, plan and execute dynamic context parallelism on pipelines."""
    for path in (CONFIG_FILE, PROJECT_FILE):
        if path.is_file():
            context.default_map = read_defaults(path, context)
            break


def main() -> None:
    """Entry point of the console script."""
    _open_streams()
    sys.unraisablehook = _hear
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
            signal.signal(number, _end)
    sys.exit(run(sys.argv[1:]))


def _end(number: int, frame: object) -> None:
    """Leave through the stack, so that half-written files are removed on the way out."""
    raise SystemExit(128 + number)


_unheard: list[BaseException] = []
"""Interrupts while C called Python: a compiler of loops takes them for its own failure."""


def _hear(said: Any) -> None:
    """Keep an interrupt that cannot be passed on; whatever else is told as ever."""
    if isinstance(said.exc_value, KeyboardInterrupt | SystemExit):
        _unheard.append(said.exc_value)
    else:
        sys.__unraisablehook__(said)


def _open_streams() -> None:
    """Make both streams take any text, even where the caller has closed one.

    A closed one is None, and `print` would send what is meant for stderr to stdout; a file
    opened later could also get its number.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(args: list[str]) -> int:
    """Run one command line and return its exit code; every error ends as one line here."""
    debug = "--debug" in args or bool(os.environ.get("HYDRAPLAN_DEBUG"))
    args = [arg for arg in args if arg != "--debug"] or ["--help"]
    group: Any = typer.main.get_command(app)
    bind_environment(group)
    try:
        with group.make_context("hydraplan", args) as context:
            group.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:
        if _unheard:
            print("interrupted", file=sys.stderr)
            code = getattr(_unheard.pop(), "code", INTERRUPTED)
            return code if isinstance(code, int) else INTERRUPTED
        if debug:
            traceback.print_exc()
        failure = _explain(error)
        print(f"error: {printable(str(failure))}", file=sys.stderr)
        if failure.hint:
            print(f"\nhint: {printable(failure.hint)}", file=sys.stderr)
        return failure.exit_code
    return 0


def _explain(error: Exception) -> HydraplanError:
    """The error as one of ours: message, hint and exit code."""
    if isinstance(error, HydraplanError):
        return error
    if isinstance(error, _UsageError):
        return _explain_usage(cast(typer.BadParameter, error))
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return MissingDependency(
            f"this needs the Python package {package}, which is not installed",
            "pip install 'hydraplan[torch]'" if package == "torch" else f"pip install {package}",
        )
    if isinstance(error, OSError) and (error.filename or error.errno in _DISK_ERRORS):
        where = f"{error.filename}: " if error.filename else ""
        return InputError(f"{where}{error.strerror}", "check path, permissions and free space")
    if isinstance(error, UnicodeEncodeError):
        return InputError(f"{error.object!r} is not UTF-8", "give the file or folder another name")
    text = (str(error).strip().splitlines() or [""])[0]
    bug = HydraplanError(
        f"internal error: {type(error).__name__}: {text}",
        "rerun with --debug and report what it prints",
    )
    bug.exit_code = BUG
    return bug


def _explain_usage(error: typer.BadParameter) -> InputError:
    """A usage error on one line; the hint names the environment where the value came from there."""
    path = error.ctx.command_path if error.ctx else "hydraplan"
    hint = f"see {path} --help"
    option: Any = getattr(error, "param", None)
    if option is not None and type(error).__name__ == "MissingParameter":
        hint = MISSING.get(option.name, hint)
    if option is not None and error.ctx is not None and option.name:
        source: Any = error.ctx.get_parameter_source(option.name)
        if source is not None and source.name == "ENVIRONMENT":
            hint = f"{option.envvar} is set in the environment; {hint}"
    return InputError(usage_text(error), hint)
