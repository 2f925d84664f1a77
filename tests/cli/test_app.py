"""The command line as a whole: exit codes, one-line errors, defaults from file and environment."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

import hydraplan.cli
from hydraplan.cli import app as cli
from hydraplan.errors import (
    HydraplanError,
    Infeasible,
    InputError,
    InvalidPlan,
    MissingDependency,
    RunFailed,
    StalePlan,
)


@pytest.fixture
def lengths_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("5\n17\n")
    return "a.txt"


def raising(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("hydraplan.files.lengths_sources.read_sources", fail)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidPlan("no"), 1),
        (RunFailed("no"), 1),
        (InputError("no"), 2),
        (StalePlan("no"), 2),
        (MissingDependency("no"), 3),
        (Infeasible("no"), 4),
        (HydraplanError("no"), 70),
    ],
)
def test_every_error_ends_as_one_line_and_a_hint_with_its_exit_code(
    lengths_file, monkeypatch, capsys, error, code
):
    error.hint = "do this"
    raising(monkeypatch, error)
    assert cli.run(["lengths", lengths_file]) == code
    assert capsys.readouterr() == ("", "error: no\n\nhint: do this\n")


def test_a_bug_is_one_line_and_a_traceback_only_under_debug(lengths_file, monkeypatch, capsys):
    raising(monkeypatch, ValueError("broken\nsecond line"))
    assert cli.run(["lengths", lengths_file]) == 70
    quiet = capsys.readouterr().err
    assert quiet.startswith("error: internal error: ValueError: broken\n\nhint: rerun with --debug")
    assert cli.run(["lengths", lengths_file, "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_message_stays_one_line_and_never_steers_the_terminal(lengths_file, monkeypatch, capsys):
    raising(monkeypatch, InputError("column a\nb\x1b[2J \udcff \u00fc", "not\rthis"))
    assert cli.run(["lengths", lengths_file]) == 2
    wanted = "error: column a\\nb\\x1b[2J \\udcff \u00fc\n\nhint: not\\rthis\n"
    assert capsys.readouterr() == ("", wanted)


def test_a_closed_stream_is_no_error_and_notes_never_reach_stdout(lengths_file, tmp_path):
    command = [sys.executable, "-m", "hydraplan", "lengths", lengths_file]
    for closed in (">&-", "2>&-", ">&- 2>&- <&-"):
        words = ["sh", "-c", f'"$@" {closed}', "sh", *command]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), closed
    missing = ["sh", "-c", '"$@" 2>&-', "sh", *command[:-1], "missing.txt"]
    done = subprocess.run(missing, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_name_that_the_terminal_cannot_spell_is_escaped(lengths_file, tmp_path):
    (tmp_path / "\u00fc\udcff.txt").write_text("5\n")
    done = subprocess.run(
        [sys.executable, "-m", "hydraplan", "lengths", "\u00fc\udcff.txt"],
        capture_output=True, cwd=tmp_path, timeout=60, env={"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"\\xfc\\udcff.txt: 1 sequences, 5 tokens")


def test_an_interrupt_is_130(lengths_file, monkeypatch, capsys):
    raising(monkeypatch, KeyboardInterrupt())
    assert cli.run(["lengths", lengths_file]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_absent_package_is_exit_3_and_says_how_to_get_it(lengths_file, monkeypatch, capsys):
    raising(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert cli.run(["lengths", lengths_file]) == 3
    assert "hint: pip install 'hydraplan[torch]'" in capsys.readouterr().err


def test_a_file_the_system_refuses_is_exit_2(lengths_file, monkeypatch, capsys):
    raising(monkeypatch, PermissionError(13, "Permission denied", "/x/y"))
    assert cli.run(["lengths", lengths_file]) == 2
    assert capsys.readouterr().err.startswith("error: /x/y: Permission denied\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lengths"], "error: Missing argument 'LENGTHS...'."),
        (["lenths"], "error: No such command 'lenths'."),
        (["lengths", "a.txt", "--unti", "x"], "error: No such option: --unti"),
        (["pipeline", "--schedule", "1f1b", "--pp", "x"], "error: --pp x must be a whole number"),
        (["pipeline", "--schedule", "1f1b", "--pp", "0"], "error: --pp 0 must be at least 1"),
        (["pipeline", "--schedule", "1f1b", "--comm", ""], "error: --comm '' must be a number"),
        (["lengths", "a.txt", "--unit", "x"], "error: --unit: 'x' is not one of 'sequences'"),
    ],
)
def test_a_usage_error_looks_like_any_other(lengths_file, capsys, args, message):
    assert cli.run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, blank, hint = err.splitlines()
    assert first.startswith(message)
    assert blank == ""
    assert hint.startswith("hint: see hydraplan")


def test_without_arguments_the_help_is_printed(capsys):
    assert cli.run([]) == 0
    assert capsys.readouterr().out.startswith("Usage: hydraplan")


def test_version_is_printed(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == "hydraplan 0.1.0\n"


def test_flag_beats_environment_beats_file_beats_default(
    lengths_file, tmp_path, monkeypatch, capsys
):
    seen = []

    def spy(_sources, unit, _tokenizer):
        seen.append(unit)
        raise InputError("stop")

    monkeypatch.setattr("hydraplan.files.lengths_sources.read_sources", spy)
    cli.run(["lengths", lengths_file])
    (tmp_path / "hydraplan.toml").write_text('[lengths]\nunit = "documents"\n')
    cli.run(["lengths", lengths_file])
    monkeypatch.setenv("HYDRAPLAN_LENGTHS_UNIT", "sequences")
    cli.run(["lengths", lengths_file])
    cli.run(["lengths", lengths_file, "--unit", "documents"])
    assert seen == ["sequences", "documents", "sequences", "documents"]


def test_a_wrong_value_in_the_environment_is_traced_to_it(lengths_file, monkeypatch, capsys):
    monkeypatch.setenv("HYDRAPLAN_LENGTHS_UNIT", "rows")
    assert cli.run(["lengths", lengths_file]) == 2
    assert "hint: HYDRAPLAN_LENGTHS_UNIT is set in the environment" in capsys.readouterr().err
    assert cli.run(["lengths", lengths_file, "--unit", "lines"]) == 2
    assert "hint: see hydraplan lengths --help" in capsys.readouterr().err


def test_a_flag_is_spelt_in_file_and_environment_as_its_option(
    lengths_file, tmp_path, monkeypatch, capsys
):
    (tmp_path / "hydraplan.toml").write_text("[lengths]\njson = true\n")
    assert cli.run(["lengths", lengths_file]) == 0
    assert capsys.readouterr().out.startswith("{")
    monkeypatch.setenv("HYDRAPLAN_LENGTHS_JSON", "0")
    assert cli.run(["lengths", lengths_file]) == 0
    assert not capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[lengths]\nunits = "x"', "[lengths] has no option units", "nearest known one is unit"),
        ("[plan]\nbogus = 1", "[plan] has no option bogus", "hint: see hydraplan plan --help"),
        ("[bogus]\n", "[bogus] is not a command", "hint: see hydraplan --help"),
        ("[lenght]\n", "[lenght] is not a command", "nearest known one is lengths"),
        ("unit = 1", "unit stands outside a section", "put it under its command"),
        ('[lengths]\nunit = "rows"', "[lengths] unit = 'rows'", ""),
        ("[lengths]\njson = 3", "[lengths] json = 3 does not fit --json", "true and false"),
        ("[lengths]\nunit = {a = 1}", "does not fit --unit", ""),
        ("[profile]\nseconds = true", "[profile] seconds = True", ""),
        ("[lengths", "hydraplan.toml is not TOML", ""),
        ("[plan]\nmax-groups = 4\nmax_groups = 8", "[plan] max_groups stands twice", "keep one"),
        ("[plan]\nmax_groups = 8\nmax-groups = 8", "[plan] max-groups stands twice", "keep one"),
        ('[lengths]\nunit = "rows"\n[plan]\nranks = 2', "[lengths] unit = 'rows'", ""),
        ("a = " + "[" * 100_000, "hydraplan.toml is nested too deeply", ""),
    ],
)
def test_a_mistake_in_the_file_is_named(lengths_file, tmp_path, capsys, text, message, hint):
    (tmp_path / "hydraplan.toml").write_text(text)
    assert cli.run(["lengths", lengths_file]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert hint in err


def test_a_reader_that_goes_away_leaves_no_noise(tmp_path):
    command = "import sys; from hydraplan.cli.app import run; sys.exit(run(['--help']))"
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, sys; os.close(1); r, w = os.pipe(); os.close(r)\n"
            f"assert w == 1 or os.dup2(w, 1) == 1\n{command}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _, err = child.communicate(timeout=60)
    assert err == b""
    assert child.returncode == 141


def test_an_interrupt_while_the_command_line_loads_is_no_traceback(monkeypatch):
    class Loading(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "hydraplan.cli.app", Loading("app"))
    with pytest.raises(SystemExit) as ended:
        hydraplan.cli.main()
    assert ended.value.code == 130


@pytest.mark.parametrize(("came", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupt_that_a_compiler_swallows_is_no_bug(
    lengths_file, monkeypatch, capsys, came, code
):
    cli._hear(SimpleNamespace(exc_value=came))
    raising(monkeypatch, RuntimeError("no compiled object yet"))
    assert cli.run(["lengths", lengths_file]) == code
    assert capsys.readouterr().err == "interrupted\n"
    assert cli.run(["lengths", lengths_file]) == 70  # the next failure is one
