"""Every hydraplan command that stands in the docs is one: known options, values that fit.

The tutorial and the README run whole (test_tutorial.py, test_readme_commands.py). Elsewhere a
command is parsed as the command line parses it, and not run.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from hydraplan.cli.app import _with_second_word, app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NUMBERS = dict.fromkeys(("N", "NUMBER", "M", "S", "R", "PP", "ROWS"), "1")
"""What stands for a number, where an option takes one."""

GROUP: Any = typer.main.get_command(app)


def commands(text: str) -> list[tuple[str, ...]]:
    """Command lines in blocks, and between backticks `~` before their words."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"```(?:sh[^\n]*|console)?\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += [f"~{line}" for line in re.findall(r"`(hydraplan [^`]+)`", text)]
    found = []
    for line in lines:
        line = re.sub(r"^.*?torchrun .*? -m hydraplan ", "hydraplan ", line.removeprefix("$ "))
        if not re.match(r"~?hydraplan ", line) or "[" in line or "..." in line:
            continue
        words = shlex.split(line, comments=True)
        end = next((i for i, word in enumerate(words) if word in ("|", ">", "&&", ";")), len(words))
        in_prose = ("~",) if line.startswith("~") else ()
        found.append((*in_prose, *(word.rstrip(";") for word in words[1:end])))
    return found


ALL = [(page.name, words) for page in PAGES for words in commands(page.read_text())]


@pytest.mark.parametrize(("page", "words"), ALL, ids=[f"{p}: {' '.join(w)}" for p, w in ALL])
def test_a_command_of_the_docs_is_one(page: str, words: tuple[str, ...]) -> None:
    in_prose = words[0] == "~"
    words = _with_second_word([NUMBERS.get(word, word) for word in words[in_prose:]])
    if words == ["COMMAND", "--help"] or words[0].startswith("--"):
        return
    name = " ".join(words[:2]) if " ".join(words[:2]) in GROUP.commands else words[0]
    assert name in GROUP.commands, f"{page}: there is no command {name}"
    rest = words[len(name.split()) :]
    if "--help" in rest or not rest:
        return
    try:
        GROUP.commands[name].make_context(name, rest)
    except typer.BadParameter as error:
        if not (in_prose and "Missing" in type(error).__name__):  # prose may leave out the rest
            raise


def test_the_docs_have_commands() -> None:
    assert len(ALL) > 60
    assert {page for page, _ in ALL} >= {"README.md", "cli.md", "tutorial.md", "profile.md"}
