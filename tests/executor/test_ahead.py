"""Deciding beside a run: the same decisions, whether they were begun, dropped or never asked."""

import os
import signal
import time

import numpy as np
import pytest

from hydraplan.executor.ahead import Ahead
from hydraplan.executor.correction import Corrections
from hydraplan.files.decisionsfile import Change
from hydraplan.migration import Moves, RowMove
from tests.builders import Place
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model

ONES = np.ones((1, 2))
BATCHES = {n: batch_plan(n, batch_rows([Place(9, 0), Place(7, 1)]), 1, 1) for n in range(3)}


@pytest.fixture
def ahead():
    """Decides by rows that tell batch and factor; `here` counts decisions of this process."""
    here = []

    def decide(batch, factor):
        if os.getpid() == parent:
            here.append(batch.batch)
        rows = 16 * (1 + batch.batch)
        return Change(moves=Moves(rows=(RowMove(0, 0, 0, 1, rows),))), float(factor.sum()), 1.0

    parent = os.getpid()
    found = Ahead(decide, BATCHES, 30.0)
    yield found, here
    found.close()


def rows_of(answer):
    return answer[0].moves.rows[0].rows, answer[1]


def test_what_was_begun_is_decided_by_the_other_process(ahead):
    found, here = ahead
    for number in (0, 1, 2):
        found.begin(BATCHES[number], ONES)
        assert rows_of(found(BATCHES[number], ONES)) == (16 * (1 + number), 2.0)
    assert here == []


def test_what_was_not_begun_or_for_other_factors_is_decided_here(ahead):
    found, here = ahead
    assert rows_of(found(BATCHES[1], ONES)) == (32, 2.0)
    found.begin(BATCHES[1], ONES)
    assert rows_of(found(BATCHES[2], ONES)) == (48, 2.0)
    assert rows_of(found(BATCHES[1], 2 * ONES)) == (32, 4.0)
    assert here == [1, 2, 1]
    assert found._pipe.poll(30)  # the answer that nobody asked for
    found.begin(BATCHES[0], 2 * ONES)
    assert rows_of(found(BATCHES[0], 2 * ONES)) == (16, 4.0)
    assert here == [1, 2, 1]


def test_a_process_that_is_gone_is_told_once_and_decisions_go_on(ahead, capfd):
    found, here = ahead
    found.begin(BATCHES[0], ONES)
    assert found._pipe.poll(30)
    found._pipe.recv()
    os.kill(found._process.pid, signal.SIGKILL)
    assert rows_of(found(BATCHES[0], ONES)) == (16, 2.0)
    found.begin(BATCHES[1], ONES)
    assert rows_of(found(BATCHES[1], ONES)) == (32, 2.0)
    assert here == [0, 1]
    assert capfd.readouterr().err.count("decides ahead is gone") == 1
    assert not found._process.is_alive()


def test_a_process_that_fails_or_does_not_answer_is_told_in_a_line_and_ended(capfd):
    parent = os.getpid()

    def decide(batch, factor):
        if os.getpid() == parent:
            return Change(), 2.0, 1.0
        if batch.batch == 0:
            raise ValueError("no such lane")
        time.sleep(600)

    for number, said in ((0, "failed on batch 0 (ValueError: no such lane)"),
                         (1, "did not answer within 0.2 s")):  # fmt: skip
        found = Ahead(decide, BATCHES, wait_s=0.2 if number else 30.0)
        found.begin(BATCHES[number], ONES)
        assert found(BATCHES[number], ONES) == (Change(), 2.0, 1.0)
        told = capfd.readouterr().err
        assert (said in told, told.count("\n")) == (True, 1)
        assert not found._process.is_alive()
        assert found(BATCHES[2], ONES) == (Change(), 2.0, 1.0)
        assert capfd.readouterr().err == ""
        found.close()


def test_a_process_that_is_killed_while_it_decides_keeps_nobody_waiting(capfd):
    parent = os.getpid()

    def decide(batch, factor):
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return Change(), 2.0, 1.0

    found = Ahead(decide, BATCHES, 30.0)
    found.begin(BATCHES[0], ONES)
    assert found(BATCHES[0], ONES) == (Change(), 2.0, 1.0)
    assert "decides ahead is gone" in capfd.readouterr().err


def test_a_batch_is_open_while_somebody_is_slow_and_it_is_not_decided():
    deciding = Corrections(_cost(), BATCHES, lambda b, f: (Change(), 1.0, 1.0))
    assert deciding.open(0) is None
    slow = deciding._belief.__class__(deciding._belief.seen, np.array([[1.0, 1.5]]), 1, 0, "slow")
    deciding._belief = slow
    assert deciding.open(0).tolist() == [[1.0, 1.5]]
    deciding.coming(3, BATCHES[0])
    assert deciding.open(0) is None
    assert deciding.open(1) is not None


def _cost():
    return plan_header(tiny_model(), 1, 2, 3).cost_model()
