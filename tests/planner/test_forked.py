"""Work done by forked processes: order, bound, errors and ends."""

import multiprocessing
import os
import resource
import signal
import traceback

import pytest

from hydraplan.errors import Infeasible, MissingDependency, RunFailed
from hydraplan.planner.forked import AHEAD, in_order

FORK = multiprocessing.get_context("fork")

pytestmark = [pytest.mark.dist, pytest.mark.timeout(60)]


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_results_come_in_order_from_as_many_processes_as_there_is_work_for(workers: int) -> None:
    with in_order(square, 7, workers) as results:
        assert len(multiprocessing.active_children()) == (0 if workers == 1 else min(workers, 7))
        found = list(results)
    assert [value for value, _ in found] == [0, 1, 4, 9, 16, 25, 36]
    assert (workers == 1) == (os.getpid() in {process for _, process in found})
    assert multiprocessing.active_children() == []


def test_a_single_batch_needs_no_other_process() -> None:
    with in_order(square, 1, 4) as results:
        assert list(results) == [(0, os.getpid())]


def test_no_more_results_wait_than_the_bound_allows() -> None:
    workers, read = 2, FORK.Value("q", 0)
    enough = FORK.Event()

    def work(number: int) -> int:
        assert number < read.value + AHEAD * workers
        if number == AHEAD * workers - 1:
            enough.set()
        if number == 0:
            assert enough.wait(30)
        return number

    with in_order(work, 20, workers) as results:
        for number in results:
            read.value = number + 1
    assert read.value == 20


def test_the_error_of_the_first_batch_that_fails_is_raised_in_its_turn_as_itself() -> None:
    late = FORK.Event()

    def work(number: int) -> int:
        if number == 3:
            late.set()
            raise ValueError("three")
        if number == 2:
            assert late.wait(30)
            raise Infeasible("two does not fit", "take another")
        return number

    got: list[int] = []
    said = "two does not fit"
    with pytest.raises(Infeasible, match=said) as raised, in_order(work, 9, 2) as results:
        got.extend(results)
    assert got == [0, 1]
    assert raised.value.hint == "take another"
    assert "in work" in "".join(traceback.format_exception(raised.value))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "planning batch 4 is killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "planning batch 4 is killed by SIGTERM"),
        (lambda: os._exit(3), "planning batch 4 is gone with code 3"),
    ],
)
def test_a_worker_that_goes_is_named_with_its_batch(end, said: str) -> None:  # type: ignore[no-untyped-def]
    def work(number: int) -> int:
        if number == 4:
            end()
        return number

    with pytest.raises(RunFailed, match=said), in_order(work, 9, 3) as results:
        list(results)
    assert multiprocessing.active_children() == []


def test_more_workers_than_the_system_allows_are_refused_with_a_number() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    said = r"only \d+ of 500 workers could be started: Too many open files"
    try:
        with pytest.raises(MissingDependency, match=said), in_order(square, 500, 500):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert multiprocessing.active_children() == []


def test_leaving_early_ends_workers_in_the_middle_of_their_work() -> None:
    def work(number: int) -> int:
        while number:
            signal.pause()
        return number

    with in_order(work, 5, 2) as results:
        assert next(results) == 0
    assert multiprocessing.active_children() == []


def test_workers_leave_an_interrupt_of_the_group_to_the_parent() -> None:
    def work(number: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return number

    with in_order(work, 4, 2) as results:
        assert list(results) == [0, 1, 2, 3]
