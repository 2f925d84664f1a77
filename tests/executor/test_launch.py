import os
import signal

import pytest
import torch
import torch.distributed as dist

from hydraplan.errors import Infeasible, RunFailed, StalePlan
from hydraplan.executor import launch
from hydraplan.executor.launch import run_workers

pytestmark = pytest.mark.dist


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch):
    monkeypatch.setattr(launch, "SYMPTOM_WAIT_S", 1.0)


def test_every_worker_runs_once_in_one_world_and_handlers_are_given_back(tmp_path):
    handler = signal.getsignal(signal.SIGINT)

    def entry(world):
        total = torch.tensor([1.0])
        dist.all_reduce(total)
        (tmp_path / f"{world.stage}-{world.lane}").write_text(str(total.item()))

    assert run_workers(entry, 2, 3, 30.0) is True
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
    assert {p.read_text() for p in tmp_path.iterdir()} == {"6.0"}
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_killed_worker_is_named_though_its_peers_fail_too():
    def entry(world):
        if world.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    with pytest.raises(RunFailed, match=r"rank 2 \(stage 1, lane 0\) was killed by SIGKILL"):
        run_workers(entry, 2, 2, 30.0)


def test_an_error_of_ours_arrives_as_itself_with_its_hint():
    def entry(world):
        if world.rank == 1:
            raise Infeasible("no way", "go round")
        dist.barrier()

    with pytest.raises(Infeasible, match="no way") as caught:
        run_workers(entry, 1, 2, 30.0)
    assert caught.value.hint == "go round"


def test_a_bug_in_a_worker_names_the_rank_and_carries_its_traceback():
    def entry(world):
        if world.rank == 1:
            raise ZeroDivisionError("by nothing")
        dist.barrier()

    with pytest.raises(
        RunFailed, match=r"rank 1 \(stage 0, lane 1\).*ZeroDivisionError: by no"
    ) as e:
        run_workers(entry, 1, 2, 30.0)
    assert "Traceback" in "".join(e.value.__notes__)


def test_a_worker_that_waits_too_long_says_so(tmp_path):
    def entry(world):
        if world.rank == 0:
            dist.recv(torch.empty(1), 1)
        else:
            signal.pause()

    with pytest.raises(RunFailed, match=r"rank 0 \(stage 0, lane 0\).*[Tt]imed out"):
        run_workers(entry, 2, 1, 2.0)


def test_another_number_of_workers_than_the_plans_is_refused_with_both(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(StalePlan, match=r"started 6 workers.*pp 2 x ranks 4 = 8"):
        run_workers(lambda world: None, 2, 4, 1.0)
