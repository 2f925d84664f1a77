"""Which device a worker takes, and what is refused; GPUs are made up."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from hydraplan.cli.app import run
from hydraplan.errors import InputError, MissingDependency
from hydraplan.executor import device
from hydraplan.executor.device import BACKENDS, take_device
from hydraplan.executor.launch import run_workers
from hydraplan.executor.prepare import prepare
from hydraplan.executor.settings import Settings
from tests.builders import Place
from tests.plans import write_test_plan


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs, of which the made-up torch tells which one was taken."""
    taken = []
    fake = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, set_device=taken.append
    )
    monkeypatch.setattr(device.torch, "cuda", fake)
    return taken


def test_the_cpu_needs_nothing_of_torch_or_the_launcher():
    assert take_device("cpu") == torch.device("cpu")


def test_every_worker_of_a_host_takes_a_gpu_of_its_own(gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert take_device("cuda") == torch.device("cuda", int(rank))
    assert gpus == [torch.device("cuda", 1), torch.device("cuda", 0)]


def test_more_workers_than_gpus_are_refused_with_both_numbers(gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(MissingDependency, match="3 workers on a host with 2 CUDA devices"):
        take_device("cuda")
    assert gpus == []


def test_stages_on_gpus_need_messages_without_tags(tmp_path):
    path = write_test_plan(tmp_path / "x.plan", [[Place(9)]], pp=2, ranks=1)
    assert prepare(path, [0], Settings()).transport == "tagged"
    job = prepare(path, [0], Settings(device="cuda"))
    assert (job.device, job.transport) == ("cuda", "ordered")
    with pytest.raises(InputError, match="tagged has tags, and NCCL on --device cuda knows none"):
        prepare(path, [0], Settings(device="cuda", transport="tagged"))


def test_the_world_on_gpus_has_gloo_for_tensors_of_the_cpu():
    devices = dist.BackendConfig(dist.Backend(BACKENDS["cuda"])).get_device_backend_map()
    assert devices == {"cpu": "gloo", "cuda": "nccl"}


@pytest.mark.dist
@pytest.mark.timeout(60)
def test_workers_compute_on_the_cpu_unless_asked(tmp_path):
    def entry(world):
        (tmp_path / str(world.rank)).write_text(f"{world.device} {dist.get_backend()}")

    assert run_workers(entry, 1, 2, 30.0)
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["cpu gloo"] * 2


@pytest.mark.dist
@pytest.mark.timeout(90)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("command", ["execute", "verify"])
def test_no_gpu_is_told_by_the_worker_in_a_line(command, tmp_path, capfd):
    path = write_test_plan(tmp_path / "x.plan", [[Place(9)]], pp=1, ranks=1)
    assert run([command, str(path), "--device", "cuda", "--timeout", "20"]) == 3
    told = capfd.readouterr().err
    assert "finds no CUDA device" in told
    assert "use --device cpu" in told
