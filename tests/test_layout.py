"""House rules that a machine can check: layout, names, sizes, light start, documented commands."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from hydraplan.cli.app import app

ROOT = Path(__file__).parents[1]
ROOMS = ("planner", "profiler", "executor", "kernels")
SOURCES = sorted(
    path
    for room in ("hydraplan", *ROOMS)
    for path in (ROOT / room).rglob("*.py")
    if not any(parent.is_symlink() for parent in path.parents)
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
COMMANDS = typer.main.get_command(app).commands

MAX_LINES = 400
LONGER_FILES: dict[str, str] = {}
"""Path: reason."""

NAMED_LIKE_STDLIB = {
    "hydraplan/cli/profile.py": "a module is named as its command, and only imported by full name",
    "profiler/profile.py": "the main function of the room",
}
HEAVY = ("torch", "pandas", "numba", "ortools", "pyarrow", "numpy", "rich", "pydantic", "jinja2")


def relative(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_a_folder_at_the_top_and_a_link_inside_the_package(room):
    link = ROOT / "hydraplan" / room
    assert link.is_symlink()
    assert link.resolve() == ROOT / room
    assert not (ROOT / room).is_symlink()


def test_the_packages_that_are_installed_are_the_folders_with_an_init():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {relative(path.parent) for path in SOURCES if path.name == "__init__.py"}
    mapping = settings["package-dir"]
    where = {mapping.get(name, name.replace(".", "/")) for name in settings["packages"]}
    assert where == folders
    assert {relative(path.parent) for path in SOURCES} == folders


def test_no_file_is_too_long():
    longer = {
        relative(path): lines
        for path in SOURCES + TESTS
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert longer.keys() == LONGER_FILES.keys(), longer


def test_no_module_takes_a_name_of_the_standard_library():
    taken = {
        relative(path)
        for path in SOURCES
        if path.stem in sys.stdlib_module_names or path.parent.name in sys.stdlib_module_names
    }
    assert taken == NAMED_LIKE_STDLIB.keys() & {relative(path) for path in SOURCES}
    assert taken >= NAMED_LIKE_STDLIB.keys(), "an exemption that is not needed"


def test_no_module_is_a_drawer_for_odds_and_ends():
    drawers = {"utils", "helpers", "common", "misc", "base"}
    assert not [relative(path) for path in SOURCES if path.stem in drawers]


def test_source_is_ascii():
    for path in SOURCES + TESTS:
        assert path.read_bytes().isascii(), relative(path)


def test_nothing_runs_code_from_a_file_or_through_a_shell():
    banned_names = {"eval", "exec", "pickle", "cloudpickle", "dill", "marshal", "shelve"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{relative(path)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Name):
                assert node.id not in banned_names, where
            if isinstance(node, ast.Import):
                assert not {a.name.partition(".")[0] for a in node.names} & banned_names, where
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in banned_names, where
            if isinstance(node, ast.keyword):
                unsafe = {"allow_pickle": True, "shell": True, "weights_only": False}
                value = node.value.value if isinstance(node.value, ast.Constant) else None
                assert node.arg not in unsafe or value is not unsafe[node.arg], where
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{where}: bare except"


def test_no_source_leaves_work_for_later():
    for path in SOURCES:
        words = re.findall(r"TODO|FIXME|XXX|raise NotImplementedError", path.read_text())
        assert not words, relative(path)


def test_help_loads_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hydraplan", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "typer" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_option_has_help_and_the_command_a_section_in_the_docs(name):
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert parameter.name == "help" or parameter.help, f"{name}: {parameter.name}"
    sections = re.findall(r"^## (.+)$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert name in sections


def test_the_docs_name_only_commands_and_options_that_exist():
    text = (ROOT / "docs" / "cli.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name, _, body = section.partition("\n")
        if name not in COMMANDS:
            continue
        body = re.sub(r"^```.*?^```", "", body, flags=re.MULTILINE | re.DOTALL)
        known = {o for p in COMMANDS[name].params for o in getattr(p, "opts", ())} | {"--help"}
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", body))
        assert named <= known, f"{name}: {named - known}"
        assert {o for o in known if o.startswith("--")} - {"--help"} <= named, name


def test_the_module_map_of_the_docs_holds_every_module_and_no_other():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set()
    for table in re.split(r"\n\n", text):
        room = re.match(r"\| `([a-z/]+)/` \|", table)
        if room:
            named |= {f"{room[1]}/{name}" for name in re.findall(r"`([a-z0-9_/]+\.py)`", table)}
    real = {relative(path) for path in SOURCES if not path.stem.startswith("__")}
    assert named == real, named ^ real
