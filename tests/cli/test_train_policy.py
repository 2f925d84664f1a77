"""`hydraplan train-policy` on a tiny budget."""

import json
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.planner.policy import checkpoint, train, validation
from hydraplan.planner.policy.draws import drawn
from hydraplan.planner.policy.policy_file import load_policy

TINY = ["--steps", "3000", "--group", "3", "--clone", "1"]


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.setattr(train, "drawn", lambda random: drawn(random, 3, 6))
    monkeypatch.setattr(validation, "BATCHES", 2)
    monkeypatch.chdir(tmp_path)


def test_a_policy_is_written_with_its_command_and_its_figures(capsys, tmp_path: Path):
    assert run(["train-policy", "-o", "a.npz", *TINY, "--json", "--log-dir", "logs"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found)) == "schema_version"
    assert found["command"].startswith("hydraplan train-policy --seed 0 --steps 3000 --group 3")
    assert found["rows"][0]["steps"] == 0
    assert found["rows"][-1]["steps"] >= 3000
    assert load_policy(tmp_path / "a.npz").about["command"] == found["command"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "logs"]
    assert run(["train-policy", "-o", "a.npz", *TINY]) == 2
    assert "a.npz exists" in capsys.readouterr().err
    assert run(["train-policy", "-o", "b.npz", *TINY]) == 0
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()
    assert "greedy over ZB-H1" in capsys.readouterr().out


def test_an_interrupted_run_goes_on_to_the_same_policy(capsys, monkeypatch, tmp_path: Path):
    assert run(["train-policy", "-o", "whole.npz", *TINY]) == 0
    real, rounds = train.advance, []

    def interrupted(settings, learner):
        rounds.append(learner.rounds)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return real(settings, learner)

    monkeypatch.setattr(train, "advance", interrupted)
    assert run(["train-policy", "-o", "part.npz", *TINY]) == 130
    assert [p.name for p in tmp_path.glob("part*")] == ["part.checkpoint.npz"]
    said = "part.checkpoint.npz has what was learnt; the same command with --resume goes on"
    assert said in capsys.readouterr().err
    monkeypatch.setattr(train, "advance", real)
    assert run(["train-policy", "-o", "part.npz", *TINY, "--resume"]) == 0
    assert (tmp_path / "part.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    capsys.readouterr()
    assert run(["train-policy", "-o", "part.npz", *TINY, "--force", "--resume"]) == 2
    assert "part.checkpoint.npz does not exist" in capsys.readouterr().err
    for array in load_policy(tmp_path / "part.npz").weights:
        assert np.isfinite(array).all()


def test_what_an_earlier_run_left_is_never_lost_by_a_slip(capsys, tmp_path: Path):
    left = tmp_path / "a.checkpoint.npz"
    left.write_bytes(b"of a run that was interrupted")
    assert run(["train-policy", "-o", "a.npz", *TINY]) == 2
    assert "add --resume to go on from it, or --force" in capsys.readouterr().err
    assert left.read_bytes() == b"of a run that was interrupted"
    assert run(["train-policy", "-o", "a.npz", *TINY, "--resume"]) == 2
    assert "is no .npz of arrays" in capsys.readouterr().err
    left.unlink()
    left.mkdir()
    (left / "kept").touch()
    for option in ("--resume", "--force"):
        assert run(["train-policy", "-o", "a.npz", *TINY, option]) == 2
        assert "is not a file" in capsys.readouterr().err
    assert (left / "kept").exists()


def test_two_outputs_that_differ_in_their_ending_have_checkpoints_of_their_own(monkeypatch):
    made = []
    monkeypatch.setattr(checkpoint, "save_learner", lambda *args: made.append(args[-1].name))
    for name in ("a.v1", "a.v2"):
        assert run(["train-policy", "-o", name, *TINY]) == 0
    assert set(made) == {"a.v1.checkpoint.npz", "a.v2.checkpoint.npz"}


@pytest.mark.parametrize(
    "option", [("--group", "257"), ("--clone", "5001"), ("--steps", "1000000000001")]
)
def test_sizes_that_no_machine_holds_are_refused(capsys, option):
    assert run(["train-policy", "-o", "a.npz", *option]) == 2
    assert f"{option[0]} {option[1]} must be at most" in capsys.readouterr().err
