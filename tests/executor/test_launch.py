import json
import os
import resource
import signal
import time
from multiprocessing.process import BaseProcess

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hydraplan.errors import (
    Infeasible,
    InputError,
    MissingDependency,
    RunFailed,
    StalePlan,
    WorkerLost,
)
from hydraplan.executor import launch
from hydraplan.executor.groups import World
from hydraplan.executor.launch import run_workers
from hydraplan.executor.root_cause import root_cause

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


def test_a_signal_that_the_command_was_started_to_ignore_ends_nobody():
    """As nohup starts it."""

    def entry(world):
        if world.rank == 1:
            os.kill(os.getppid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
        dist.barrier()

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_workers(entry, 1, 2, 30.0) is True
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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


def test_a_gpu_without_memory_is_the_cause_and_not_what_its_peers_saw(tmp_path):
    """It is a RuntimeError to PyTorch, as a lost peer is, and is wrapped on its way up."""

    def entry(world):
        if world.rank == 1:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")
            except RuntimeError as error:
                raise RunFailed("F of microbatch 0: CUDA out of memory") from error
        dist.barrier()

    with pytest.raises(RunFailed, match=r"rank 1 .*: F of microbatch 0: CUDA out of memory") as e:
        run_workers(entry, 1, 2, 30.0)
    assert not isinstance(e.value, WorkerLost)
    assert "--recompute full" in e.value.hint


def test_a_worker_that_waits_too_long_says_so(tmp_path):
    def entry(world):
        if world.rank == 0:
            dist.recv(torch.empty(1), 1)
        else:
            signal.pause()

    named = (
        r"no word from rank 1 \(stage 1, lane 0\); worker rank 0 \(stage 0, lane 0\).*[Tt]imed out"
    )
    with pytest.raises(RunFailed, match=named):
        run_workers(entry, 2, 1, 2.0)


def test_who_waited_too_long_is_told_before_who_saw_its_connections_end(tmp_path):
    """A worker that gives up ends its connections; its peers may write that down before it does."""
    for rank, time_s, message in ((0, 1.0, "Connection closed"), (1, 1.5, "Timed out waiting")):
        note = {"time_s": time_s, "lost_peer": True, "kind": "RunFailed", "message": message}
        path = tmp_path / f"note-{rank}.json"
        path.write_text(json.dumps(note | {"hint": "", "traceback": ""}))
    failure = ProcessFailure(0, 1, 1, str(tmp_path / "absent.json"))
    cause = root_cause({0: failure}, tmp_path, World(0, 3, 1))
    assert str(cause) == (
        "no word from rank 2 (stage 2, lane 0); worker rank 1 (stage 1, lane 0): Timed out waiting"
    )


def test_no_worker_talks_before_all_are_forked(tmp_path, monkeypatch):
    """A fork while the launcher's thread looks up a name locks the child's resolver for ever."""
    fork, join, forked_s = BaseProcess.start, launch._join_world, []

    def start(process):
        fork(process)
        forked_s.append(time.monotonic())

    def joined(entry, world, timeout_s):
        (tmp_path / str(world.rank)).write_text(repr(time.monotonic()))
        join(entry, world, timeout_s)

    monkeypatch.setattr(BaseProcess, "start", start)
    monkeypatch.setattr(launch, "_join_world", joined)
    run_workers(lambda world: None, 2, 4, 30.0)
    joined_s = [float(path.read_text()) for path in tmp_path.iterdir()]
    assert len(forked_s) == len(joined_s) == 8
    assert min(joined_s) > forked_s[-2]  # the last fork itself may return after its child ran


def test_the_interface_asked_for_on_a_cluster_does_not_stop_local_workers(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert run_workers(lambda world: dist.barrier(), 1, 2, 30.0)


def test_too_few_open_files_are_refused_or_raised_before_any_worker_starts(monkeypatch):
    limits, raised = [], []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: raised.append(pair))
    limits.append((20, 40))
    with pytest.raises(MissingDependency, match=r"32 workers need \d+ open files each.* is 40"):
        launch._allow_open_files(32)
    assert raised == []
    limits.append((20, 4096))
    launch._allow_open_files(32)
    assert 218 < raised[0][0] < 400  # 218 were counted
    assert raised[0][1] == 4096
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    launch._allow_open_files(32)
    assert len(raised) == 1


def test_a_machine_without_loopback_is_told_so_at_once(monkeypatch):
    def refuse(address):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(launch.socket, "create_server", refuse)
    with pytest.raises(MissingDependency, match=r"127\.0\.0\.1: Network is unreachable"):
        run_workers(lambda world: None, 1, 2, 30.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"MASTER_ADDR": None}, "MASTER_ADDR= is"),
        ({"RANK": "x"}, "RANK=x is"),
        ({"RANK": "8"}, "RANK=8 is"),
        ({"WORLD_SIZE": "-8"}, "WORLD_SIZE=-8 is"),
        ({"MASTER_PORT": ""}, "MASTER_PORT= is"),
    ],
)
def test_leftovers_of_torchruns_environment_are_exit_2_with_the_variable(
    monkeypatch, changes, named
):
    whole = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (whole | changes).items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=named) as caught:
        run_workers(lambda world: None, 2, 4, 1.0)
    assert "unset RANK" in caught.value.hint


def test_another_number_of_workers_than_the_plans_is_refused_with_both(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(StalePlan, match=r"started 6 workers.*pp 2 x ranks 4 = 8"):
        run_workers(lambda world: None, 2, 4, 1.0)
