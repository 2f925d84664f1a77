import os
import signal

import pytest
import torch
import torch.distributed as dist

from tests.processes import RankFailed, run_ranks

pytestmark = pytest.mark.dist


def test_ranks_meet_in_a_collective_and_answer_in_rank_order():
    def total(rank: int, offset: int) -> list[float]:
        value = torch.tensor([float(rank + offset)])
        dist.all_reduce(value)
        return [rank, value.item()]

    assert run_ranks(total, 3, 10, timeout_s=30) == [[0, 33.0], [1, 33.0], [2, 33.0]]


def test_autograd_works_in_children_after_the_parent_used_it():
    leaf = torch.ones(3, requires_grad=True)
    (leaf * 2).sum().backward()

    def gradient(rank: int) -> list[float]:
        value = torch.full((2,), float(rank), requires_grad=True)
        (value**2).sum().backward()
        assert value.grad is not None
        return value.grad.tolist()

    assert run_ranks(gradient, 2, timeout_s=30) == [[0.0, 0.0], [2.0, 2.0]]


def test_a_traceback_comes_back_as_text():
    def fail(rank: int) -> None:
        if rank == 1:
            raise ValueError("bad row 7")

    with pytest.raises(RankFailed, match=r"(?s)rank 1: Traceback.*bad row 7"):
        run_ranks(fail, 2, timeout_s=30)


def test_a_killed_rank_is_named():
    def die(rank: int) -> None:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RankFailed, match="rank 0: died without a word"):
        run_ranks(die, 2, timeout_s=30)


def test_a_rank_that_waits_for_ever_is_stopped():
    def wait(rank: int) -> None:
        if rank == 0:
            dist.recv(torch.zeros(1), src=1)
        else:
            signal.pause()

    with pytest.raises(RankFailed, match="rank 1: did not end in time"):
        run_ranks(wait, 2, timeout_s=1)
