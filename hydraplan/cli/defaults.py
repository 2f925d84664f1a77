"""Where an option's value comes from: flag, then environment, then hydraplan.toml, then default.

Without `hydraplan.toml`, `[tool.hydraplan]` of `pyproject.toml` is read. The file of the working
folder has a section a command, its keys are the long options (`[plan]`, `max-tokens-per-rank =
8192`, dashes or underscores). The environment says the same as
`HYDRAPLAN_PLAN_MAX_TOKENS_PER_RANK=8192`. A key that no command knows is an error, and so is one
that stands twice, spelt with dashes and with underscores.
"""

from pathlib import Path
from typing import Any, TypeVar

import typer

from hydraplan.errors import InputError

CONFIG_FILE = Path("hydraplan.toml")
PROJECT_FILE = Path("pyproject.toml")
"""Where [tool.hydraplan] stands for the file, if there is none."""

_TO_VARIABLE = str.maketrans("- ", "__")
"""Command `profile diff` is [profile-diff] in the file and HYDRAPLAN_PROFILE_DIFF_ outside it."""

CLOSE = 0.6
"""Similarity (difflib's, 0 to 1) from which on a known name may be what was meant. Our choice."""


def bind_environment(group: Any) -> None:
    """Give every option of every command its `HYDRAPLAN_*` variable."""
    for name, command in group.commands.items():
        for spelling, option in _options(command).items():
            option.envvar = f"HYDRAPLAN_{name}_{spelling}".upper().translate(_TO_VARIABLE)
            option.show_envvar = False


def read_defaults(path: Path, context: typer.Context) -> dict[str, dict[str, object]]:
    """Defaults by command and parameter name, as click's `default_map` takes them.

    Raises:
        InputError: The file is not TOML, names what no command knows, or a value does not fit.
    """
    group: Any = context.command
    values = _tables(path)
    names = {name.translate(_TO_VARIABLE): name for name in group.commands}
    defaults: dict[str, dict[str, object]] = {}
    for section, table in values.items():
        name = names.get(section.translate(_TO_VARIABLE), section.replace("_", "-"))
        if not isinstance(table, dict):
            raise InputError(
                f"{path}: {section} stands outside a section", "put it under its command, as [plan]"
            )
        if name not in group.commands:
            raise InputError(
                f"{path}: [{section}] is not a command",
                _nearest(name, group.commands, "see hydraplan --help"),
            )
        options = _options(group.commands[name])
        if name in defaults:
            raise InputError(f"{path}: [{name}] stands twice, as [{name.replace('-', '_')}] too")
        defaults[name] = {}
        for key, value in table.items():
            option = options.get(key.replace("_", "-"))
            if option is None:
                otherwise = f"see hydraplan {name} --help"
                raise InputError(
                    f"{path}: [{section}] has no option {key}", _nearest(key, options, otherwise)
                )
            if option.name in defaults[name]:
                raise InputError(
                    f"{path}: [{section}] {key} stands twice, with dashes and with underscores",
                    "keep one of the two",
                )
            defaults[name][option.name] = _fit(
                context, f"{path}: [{section}] {key} = {value!r}", value, option
            )
    return defaults


def _tables(path: Path) -> dict[str, Any]:
    """Sections of a file of ours, or those below [tool.hydraplan] of a project's.

    A project's file that is damaged and never names us says nothing to us: it is other tools' to
    refuse.
    """
    import tomllib

    is_ours = path.name != PROJECT_FILE.name
    text = path.read_bytes()
    if not (is_ours or b"hydraplan" in text):
        return {}
    try:
        values = tomllib.loads(text.decode())
    except ValueError as error:  # of the text, of TOML, or a number of thousands of digits
        raise InputError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply") from None
    if is_ours:
        return values
    for key in ("tool", "hydraplan"):
        values = values.get(key, {})
        if not isinstance(values, dict):
            raise InputError(f"{path}: {key} is no section", "spelt [tool.hydraplan.plan]")
    return values


_SOURCES = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP", "DEFAULT")
"""Where a value may come from, as click names it, the strongest first."""

V = TypeVar("V")


def strongest(context: typer.Context, values: dict[str, V | None]) -> dict[str, V | None]:
    """Of options that exclude each other, those from the strongest source; None for the others.

    So a flag replaces what the file says by the other option; two flags both stay.
    """
    given = {name: value for name, value in values.items() if value is not None}
    sources: dict[str, Any] = {name: context.get_parameter_source(name) for name in given}
    rank = {name: _SOURCES.index(source.name) for name, source in sources.items()}
    best = min(rank.values(), default=0)
    return {name: value if rank.get(name) == best else None for name, value in values.items()}


def is_flag(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, and is no default from anywhere."""
    source: Any = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, from wherever, and is not the built-in default."""
    source: Any = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def usage_text(error: typer.BadParameter) -> str:
    """A value that no option takes, on one line: which, what it is, what it must be."""
    from pydantic import ValidationError

    from hydraplan.config import complaint

    option: Any = getattr(error, "param", None)
    if option is None or not isinstance(error.__cause__, ValidationError):
        return " ".join(error.format_message().split())
    first = error.__cause__.errors()[0]
    name = (
        max(option.opts, key=len) if option.opts[0].startswith("-") else option.human_readable_name
    )
    value = "" if first["type"] == "value_error" else f" {first['input'] or repr(first['input'])}"
    colon = ":" if first["type"] == "value_error" else ""
    return f"{name}{value}{colon} {complaint(error.__cause__)}"


def _options(command: Any) -> dict[str, Any]:
    """Options of a command by their long spelling without dashes in front."""
    found = {}
    for option in command.params:
        long = [name for name in option.opts if name.startswith("--")]
        if long and long[0] != "--help":
            found[long[0][2:]] = option
    return found


def _nearest(key: str, known: Any, otherwise: str) -> str:
    import difflib

    close = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=CLOSE)
    return f"the nearest known one is {close[0]}" if close else otherwise


def _fit(context: typer.Context, where: str, value: object, option: Any) -> object:
    """The value as a command line would spell it; refused here, where its place is known."""
    if isinstance(value, dict) or (option.is_flag and not isinstance(value, bool)):
        raise InputError(f"{where} does not fit {option.opts[0]}", "true and false fit a flag")
    if option.is_flag:
        return value
    texts = [str(v) for v in value] if isinstance(value, list) else [str(value)]
    spelt = texts if option.multiple else ",".join(texts)
    try:
        option.process_value(context, spelt)
    except typer.BadParameter as error:
        raise InputError(f"{where}: {usage_text(error)}") from None
    return spelt
