"""Sequences placed anew while real workers train: the same data, the same losses, repeatable."""

import os
import subprocess
import sys

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths
from hydraplan.files.planfile import open_plan, read_batch, write_plan
from hydraplan.files.profilefile import Profile
from hydraplan.files.runfile import open_run, read_step_ops
from hydraplan.places import places_of
from hydraplan.planner.plan import plan as make_plan
from hydraplan.slots import slot_rows
from tests.executor.trained import losses, make_up_times, train
from tests.planner.cases import options, profile
from tests.plans import plan_header

pytestmark = [pytest.mark.dist, pytest.mark.slow]

SLOW = 1


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Two batches on three lanes, with room for more on each; some sequences are split."""
    path = tmp_path_factory.mktemp("plan") / "x.plan"
    values = np.random.default_rng(2).integers(8, 120, 48)
    values[::12] = 400
    asked = options(
        pp=1, ranks=3, batch_sequences=24, max_tokens_per_rank=600, microbatches=4, seed=1
    )
    known = profile("tiny").header
    slow_device = plan_header(known.model, 1, 3, 1).fit  # tokens cost more than calls
    costs = Profile(known.model_copy(update={"fit": slow_device}), "0" * 64)
    header, batches = make_plan(Lengths("t", "sequences", values), costs, asked, None)
    write_plan(path, header, batches)
    return path


@pytest.fixture(params=[2, 20])
def taken(request, monkeypatch):
    """Have every rank take what is predicted, lane 1 longer from step 2 to 7, +-1%."""
    return make_up_times(monkeypatch, (0, SLOW), range(2, 8), request.param)


@pytest.mark.timeout(400)
def test_batches_placed_anew_train_the_same_rows_and_are_repeated_and_undone(
    plan, tmp_path, taken, request, monkeypatch
):
    asked = {"steps": 12, "correction": "portfolio", "dtype": "float32"}
    run = train(plan, output=tmp_path / "x.run", **asked)
    first, second, *_, last = run.decisions
    assert (first.step, second.step) == (3, 4)
    assert "place" in first.kind
    assert [(r.stage, r.lane) for r in first.slow if r.factor > 1] == [(0, SLOW)]
    assert (last.kind, last.slow) == ("undo", ())
    assert 8 < last.step < 12
    opened = open_plan(plan)
    for row in (first, second):
        assert row.change.places not in (None, places_of(read_batch(opened, row.batch).sequences))
    assert run.peaks.differ() == []
    assert np.array_equal(run.traffic.measured, run.traffic.predicted)
    held = [read_step_ops(run, step).predicted.busy_s[0].sum(axis=0) for step in (1, 3)]
    assert held[1][SLOW] < 0.9 * held[0][SLOW]
    is_left_out = request.node.callspec.params["taken"] == 20
    for row in (first, second):
        assert (row.change.places.on_lane(SLOW) == 0) == is_left_out

    taken[0] = 100  # nobody is slow any more
    plain = train(plan, steps=12, dtype="float32")
    assert losses(plain)[:3] == losses(run)[:3]
    assert losses(plain) == pytest.approx(losses(run), rel=1e-5)
    assert losses(plain) != losses(run)
    again = train(plan, replay=tmp_path / "x.run", dtype="float32")
    assert losses(again) == losses(run)
    assert [row.change for row in again.decisions] == [row.change for row in run.decisions]

    if is_left_out:  # what is planned may be paced, what is placed anew holds more
        batches = [read_batch(opened, number) for number in (0, 1)]
        most = max(slot_rows(b.sequences.placed(), 3, b.num_microbatches).max() for b in batches)
        elements = int(most) * opened.header.model.vocab_size
        monkeypatch.setattr("hydraplan.memory.LOSS_CHUNK_ELEMENTS", elements)
        with pytest.raises(InputError, match=r"--paced: .* are more logits"):
            train(plan, replay=tmp_path / "x.run", paced=True)


def torchrun(done, *arguments):
    """The command by torchrun on three workers; lane 1 takes 20 times as long from step 2 to 7."""
    started = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"),
            *("-m", "tests.executor.as_made_up", "0", str(SLOW), "20", "2", "7", str(done)),
            *("execute", *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert started.returncode == 0, started.stderr
    return started


@pytest.mark.timeout(400)
def test_torchrun_places_batches_anew_goes_on_with_them_and_repeats_them(plan, tmp_path):
    first, asked = tmp_path / "x.run", ("--dtype", "float32", "--correction", "portfolio")
    told = torchrun(0, plan, "--steps", 12, *asked, "-o", first)
    assert "step 4 ran with sequences placed anew, " in told.stderr
    whole = open_run(first)
    kinds = [row.kind for row in whole.decisions]
    assert [row.step for row in whole.decisions][:2] == [3, 4]
    assert ("place" in kinds[0], "place" in kinds[1], kinds[-1]) == (True, True, "undo")
    for row in whole.decisions[:2]:
        assert row.change.places.on_lane(SLOW) == 0
    plain = train(plan, steps=12, dtype="float32", learning_rate=3e-4)
    assert losses(plain)[:3] == losses(whole)[:3]
    assert losses(plain) == pytest.approx(losses(whole), rel=1e-5)

    begun = tmp_path / "y.run"
    torchrun(0, plan, "--steps", 5, *asked, "-o", begun, "--checkpoint-every", 5)
    torchrun(5, plan, "--steps", 12, "--resume", begun)
    found = open_run(begun)
    assert losses(found) == losses(whole)
    again = tmp_path / "z.run"
    torchrun(100, plan, "--dtype", "float32", "--replay", first, "-o", again)
    repeated = open_run(again)
    assert losses(repeated) == losses(whole)
    for run in (found, repeated):
        made = [(row.step, row.event, row.kind, row.change) for row in run.decisions]
        assert made == [(row.step, row.event, row.kind, row.change) for row in whole.decisions]
