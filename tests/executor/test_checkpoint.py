import json

import pytest
import torch

from hydraplan.errors import InputError, RunFailed
from hydraplan.executor.checkpoint import MOMENTS, load, save, share
from hydraplan.executor.groups import World
from hydraplan.files.checkpointfile import newest_checkpoint
from tests.processes import run_ranks

pytestmark = pytest.mark.dist


def made(names, rows=3):
    """Weights of so many rows, all different, and an optimizer that has made a step."""
    weights = {name: torch.full((rows, 2), float(ord(name)), requires_grad=True) for name in names}
    optimizer = torch.optim.AdamW(list(weights.values()), lr=0.1)
    for weight in weights.values():
        weight.grad = weight.detach() / 7
    optimizer.step()
    return weights, optimizer


def values(weights, optimizer):
    return {
        name: [weight.tolist(), *(optimizer.state[weight][key].tolist() for key in MOMENTS)]
        for name, weight in weights.items()
    }


@pytest.fixture
def saved(tmp_path):
    """What two stages saved after one step, and what they held."""

    def entry(rank: int):
        weights, optimizer = made("ab" if rank == 0 else "c")
        tensors = share(weights, optimizer)
        save(World(rank, 2, 1), tmp_path, 1, tensors, "p" * 64, "l" * 64, 2)
        return values(weights, optimizer)

    held = run_ranks(entry, 2)
    return newest_checkpoint(tmp_path), held[0] | held[1]


def loaded(saved, names, rows=3):
    """What one worker with these weights reads, or the refusal."""

    def entry(rank: int):
        weights = {name: torch.zeros(rows, 2, requires_grad=True) for name in names}
        optimizer = torch.optim.AdamW(list(weights.values()), lr=0.1)
        try:
            load(saved, weights, optimizer)
        except InputError as error:
            return str(error)
        return values(weights, optimizer)

    return run_ranks(entry, 1)[0]


def test_weights_and_moments_come_back_by_name_on_other_stages(saved):
    checkpoint, held = saved
    about = checkpoint.about
    assert (about.steps, about.pp, about.ranks) == (1, 2, 1)
    assert (about.plan_digest, about.ledger_digest) == ("p" * 64, "l" * 64)
    assert sorted(about.files) == ["stage-0-lane-0.safetensors", "stage-1-lane-0.safetensors"]
    assert loaded(checkpoint, "cab") == held
    assert loaded(checkpoint, "b") == {"b": held["b"]}


def test_a_weight_that_is_absent_or_of_another_shape_is_refused_by_name(saved):
    checkpoint, _ = saved
    assert "lacks 4 tensors of this model, d is one" in loaded(checkpoint, "ad")
    said = loaded(checkpoint, "a", rows=5)
    assert "a is torch.float32 of shape (3, 2), the run has torch.float32 of (5, 2)" in said


def test_a_tensor_that_two_files_hold_is_refused(saved):
    checkpoint, _ = saved
    first, second = (checkpoint.path / name for name in sorted(checkpoint.about.files))
    second.write_bytes(first.read_bytes())
    assert "a is in stage-0-lane-0" in loaded(checkpoint, "a")


def test_the_manifest_is_json_that_tells_size_and_digest_of_every_file(saved):
    checkpoint, _ = saved
    told = json.loads((checkpoint.path / "checkpoint.json").read_text())
    for name, file in told["files"].items():
        assert (checkpoint.path / name).stat().st_size == file["size_bytes"]
        assert len(file["sha256"]) == 64


def test_a_disk_without_room_is_told_with_the_folder_of_the_checkpoint(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hydraplan.executor.checkpoint.write_tensors", full)

    def entry(rank: int):
        try:
            save(World(rank, 1, 1), tmp_path, 1, {}, "p" * 64, "l" * 64, 2)
        except RunFailed as error:
            return str(error)
        return ""

    said = f"{tmp_path}/checkpoints/.step-00000001.tmp: No space left on device"
    assert run_ranks(entry, 1) == [f"checkpoint after step 1: {said}"]
