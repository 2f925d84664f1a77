"""Workers that end, or stand still, in the middle of work that moves."""

import os
import signal

import pytest

from hydraplan.errors import RunFailed
from hydraplan.executor import launch, moved_rows
from hydraplan.executor import run as executor_run
from hydraplan.kernels import loan
from hydraplan.migration import HeadMove, Moves, RowMove
from tests.builders import Place
from tests.executor.trained import losses, train
from tests.plans import write_test_plan

pytestmark = pytest.mark.dist

PLACES = [Place(40), Place(30, 1), Place(21, 0, 1, 2), Place(33, 1, 1, 1, 1), Place(9, 0, 1, 1, 1)]
MOVES = Moves(
    rows=(RowMove(0, 0, 0, 1, 32), RowMove(0, 1, 1, 0, 16)),
    heads=(HeadMove(0, 0, 0, 1, 4), HeadMove(0, 1, 1, 0, 8)),
)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan of two lanes, every step of which runs with moves."""
    run_step = executor_run.run_step

    def moved(worker, job, batch, *_):
        return run_step(worker, job, batch, MOVES)

    monkeypatch.setattr(executor_run, "run_step", moved)
    return write_test_plan(tmp_path / "x.plan", [PLACES], pp=1, ranks=2)


def at_rows(monkeypatch, act):
    """Do something in the backward of foreign rows, on the taker of microbatch 1."""
    found = moved_rows._foreign_gradient

    def gradient(layer, dy):
        if layer.trip.link.microbatch == 1:
            act()
        return found(layer, dy)

    monkeypatch.setattr(moved_rows, "_foreign_gradient", gradient)


def test_a_worker_killed_in_the_middle_of_a_move_is_named_and_started_again_to_the_same_losses(
    plan, tmp_path, monkeypatch
):
    wanted = losses(train(plan, steps=2))
    once = tmp_path / "once"

    def die():
        if not once.exists() and (tmp_path / "x.run" / "checkpoints").exists():
            once.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)

    at_rows(monkeypatch, die)
    options = {"steps": 2, "output": tmp_path / "x.run", "checkpoint_every": 1}
    with pytest.raises(RunFailed, match=r"worker rank 0 \(stage 0, lane 0\) was killed by SIGKILL"):
        train(plan, **options)
    assert once.exists()
    done = train(plan, **(options | {"output": None, "resume": tmp_path / "x.run", "steps": None}))
    assert losses(done) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rows", "heads"])
def test_a_worker_that_stands_still_in_a_move_is_named_with_op_microbatch_and_what_moved(
    form, plan, monkeypatch
):
    monkeypatch.setattr(launch, "SYMPTOM_WAIT_S", 1.0)
    if form == "rows":
        at_rows(monkeypatch, signal.pause)
        who, op, what = 0, "BW of microbatch 1", "rows of the MLP"
    else:
        finish = loan.Loan.finish

        def stuck(each, *about):
            if not each.is_giver and each.link.microbatch == 0:
                signal.pause()
            return finish(each, *about)

        monkeypatch.setattr(loan.Loan, "finish", stuck)
        who, op, what = 1, "F of microbatch 0", "heads"
    named = (
        rf"no word from rank {who} \(stage 0, lane {who}\); worker rank {1 - who} .*: {op}: {what}"
        rf" moved between this lane and rank {who} \(stage 0, lane {who}\), .*Timed out"
    )
    with pytest.raises(RunFailed, match=named):
        train(plan, timeout_s=2.0)
