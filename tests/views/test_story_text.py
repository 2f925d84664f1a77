"""A run's decisions as a story in 80 columns and as JSON."""

import numpy as np

from hydraplan.files.decisionsfile import Change, Decided, Slow
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.runfile import Run
from hydraplan.files.trafficfile import Traffic
from hydraplan.migration import HeadMove, HeadShares, Moves, RowMove
from hydraplan.model import Op
from hydraplan.places import Places
from hydraplan.views.story_text import (
    decision_note,
    events,
    print_story,
    slow_devices,
    story_json,
)
from tests.files.made_run import header

ORDER = ((Op("F", 0), Op("BW", 0)),) * 2
MOVES = Moves((HeadShares(1, 0, 0, 2, 1, ((5, 3),)),), (RowMove(1, 0, 1, 0, 32),))
FIRST = (Slow(1, 1, 5, 1.5),)
SLOW = (
    "stage 1, lane 1 takes 1.50x as long as planned since step 5; its load is 1.02 of its stage's"
    " mean by plan, so it is the device, not the data"
)
WELL = "stage 1, lane 1 takes as long as planned again, since step 15"
ROWS = (
    Decided(7, 1, 1, "reorder+migrate", SLOW, FIRST, 2.0, 0.2, 0.5, 0.01, Change(ORDER, MOVES)),
    Decided(8, 0, 1, "reorder", SLOW, FIRST, 2.0, 0.2, None, 0.01, Change(ORDER)),
    Decided(17, 1, 2, "undo", WELL, (), 1.6, 0.08, 0.1, 0.0, Change()),
)


def run(path, rows=ROWS, **changes):
    plan = header().plan.model_copy(update={"num_batches": 2})
    asked = {"plan": plan, "steps": 20, "correction": "portfolio", "migration": True} | changes
    taken_s = [1.0] * 5 + [2.0] * 2 + [1.5] * 10 + [1.0] * 3
    steps = [{"step": i, "batch": i % 2, "iteration_s": s} for i, s in enumerate(taken_s)]
    nothing = Peaks(None, np.zeros((0, 1, 1))), Traffic(None, np.zeros((0, 3, 1, 1), np.int64))
    return Run(path, header(**asked), steps, *nothing, None, rows)


def told(capsys, monkeypatch, found):
    monkeypatch.setenv("COLUMNS", "80")
    print_story(found)
    return capsys.readouterr().out


def test_the_story_of_a_straggler_that_comes_and_goes(tmp_path, capsys, monkeypatch):
    assert (
        told(capsys, monkeypatch, run(tmp_path))
        == """
What changed while it ran: correction portfolio, migration on
1. steps 7 to 16: stage 1, lane 1 takes 1.50x as long as planned since step 5;
   its load is 1.02 of its stage's mean by plan, so it is the device, not the
   data. Done: op order of 2 batches changed, attention heads of 1 group shared
   unevenly, MLP rows of 1 slot given away by lane 1 to lane 0. Bought:
   predicted 10.0% of a step, measured 25.0%: 1.5 s a step over 5 steps, 2 s
   expected without. Deciding took 0.02 s between steps.
2. steps 17 to 19: stage 1, lane 1 takes as long as planned again, since step
   15. Done: all batches as planned again. Against keeping it: predicted 5.0% of
   a step, measured 9.1%: 1 s a step over 2 steps, 1.1 s expected without.
"""
    )


def test_a_rank_that_is_slow_at_the_end_comes_with_the_plan_for_coming_batches(
    tmp_path, capsys, monkeypatch
):
    text = told(capsys, monkeypatch, run(tmp_path, ROWS[:2]))
    lines = text.replace("\n", " ")
    assert "Speeds at the end: lane 1 0.67. To place coming batches by them, as if" in text
    assert "the 1.8 s that are predicted of this one as it runs by now: hydraplan plan" in lines
    assert "hydraplan plan by-hand --profile PROFILE --pp 2 --ranks 2 --tp 1" in lines
    assert f"--rank-speed {tmp_path} -o NEXT.plan" in lines
    assert "--resume-from" not in text
    kept = told(capsys, monkeypatch, run(tmp_path, ROWS[:2], checkpoint_every=5))
    assert f"--resume-from {tmp_path}" in kept.replace("\n", " ")
    plan = header().plan
    derived = plan.options.model_copy(update={"cap_is_derived": True, "memory_gib": 8.0})
    found = run(tmp_path, ROWS[:2], plan=plan.model_copy(update={"options": derived}))
    lines = told(capsys, monkeypatch, found).replace("\n", " ")
    assert "--max-tokens-per-rank auto" in lines
    assert "derived" not in lines
    alone = plan.model_copy(update={"options": plan.options.model_copy(update={"ranks": 1})})
    row = ROWS[0]._replace(slow=(Slow(1, 0, 5, 1.5),))
    assert "Speeds" not in told(capsys, monkeypatch, run(tmp_path, (row,), plan=alone))
    gone = told(capsys, monkeypatch, run(tmp_path / "gone", ROWS[:2]))
    assert "--rank-speed RUN -o NEXT.plan" in gone.replace("\n", " ")


def test_a_slow_rank_that_nothing_helps_and_a_run_without_any(tmp_path, capsys, monkeypatch):
    left = ROWS[0]._replace(kind="leave", change=Change(), predicted_gain_s=0.0)
    well = ROWS[2]._replace(kind="leave")
    text = told(capsys, monkeypatch, run(tmp_path, (left, well)))
    assert "Done: nothing, no change would gain enough." in text
    assert "Done: nothing, all is as planned.\n" in text
    assert "Bought" not in text
    assert "nothing: in 20 steps no rank was found slow" in told(
        capsys, monkeypatch, run(tmp_path, ())
    )


def test_a_run_that_could_change_nothing_has_no_story_and_a_replay_says_so(
    tmp_path, capsys, monkeypatch
):
    plain = run(tmp_path, (), correction="none", migration=False)
    assert told(capsys, monkeypatch, plain) == ""
    again = run(tmp_path, correction="none", migration=False, replays="0" * 64)
    assert "decisions repeated from another run" in told(capsys, monkeypatch, again)
    nothing = run(tmp_path, (), correction="none", migration=False, replays="0" * 64)
    assert "in 20 steps that run decided nothing" in told(capsys, monkeypatch, nothing)
    slow = run(tmp_path, ROWS[:2], correction="none", migration=False, replays="0" * 64)
    assert "Speeds" not in told(capsys, monkeypatch, slow)


def test_a_gain_that_was_not_measured_is_not_made_up(tmp_path, capsys, monkeypatch):
    rows = (ROWS[0]._replace(measured_gain_s=None), ROWS[1], ROWS[2])
    text = told(capsys, monkeypatch, run(tmp_path, rows))
    assert "predicted 10.0% of a step; not measured" in text.replace("\n   ", " ")


def test_a_gain_says_how_far_single_steps_differ_and_whose_it_is(tmp_path, capsys, monkeypatch):
    found = run(tmp_path, mode="simulated", trials=200)
    found.steps[9]["iteration_s"], found.steps[11]["iteration_s"] = 2.2, 1.0
    text = told(capsys, monkeypatch, found).replace("\n   ", " ").replace("\n", " ")
    assert "migration on; of the first of 200 trials, each decides for itself 1." in text
    assert "simulated 23.0% (single steps -10.0% to 50.0%): 1.54 s a step over 5 steps" in text
    assert "measured" not in text
    found.steps[9]["iteration_s"] = 2.0000001
    text = told(capsys, monkeypatch, found).replace("\n   ", " ")
    assert "simulated 25.0% (single steps 0.0% to 50.0%)" in text


def test_lanes_that_give_and_take_are_named_if_they_are_few(tmp_path, capsys, monkeypatch):
    heads = tuple(HeadMove(1, m, 4, m % 2, 8) for m in range(4))
    rows = tuple(RowMove(1, m, 9, m, 32) for m in range(5))
    moved = ROWS[0]._replace(kind="migrate", change=Change(None, Moves((), rows, heads)))
    text = told(capsys, monkeypatch, run(tmp_path, (moved,))).replace("\n   ", " ")
    assert "MLP rows of 5 slots given away by lane 9 to 5 lanes, attention heads of 4" in text
    assert "slots given away by lane 4 to lanes 0, 1. Bought" in text


def test_places_say_how_much_is_left_on_slow_lanes(tmp_path, capsys, monkeypatch):
    places = Places((0, 0, 1), (0, 2, 0), (2, 1, 1), (1, 2, 2))
    slow = tuple(Slow(0, lane, 5, 9.0) for lane in (1, 4))
    row = ROWS[0]._replace(kind="place", slow=slow, change=Change(places=places))
    rows = (row, row._replace(step=8, batch=0), ROWS[2])
    text = told(capsys, monkeypatch, run(tmp_path, rows)).replace("\n   ", " ")
    assert "sequences of 2 batches placed anew (4 of 6 on lane 1, none on lane 4)." in text
    many = tuple(Slow(0, lane, 5, 9.0) for lane in range(5))
    text = told(capsys, monkeypatch, run(tmp_path, (row._replace(slow=many), ROWS[2])))
    assert "sequences of 1 batch placed anew. Bought" in text.replace("\n   ", " ")


def test_a_step_that_ran_a_decision_says_what_and_why_once_an_event():
    well = "step 18 ran as planned again: " + WELL
    assert decision_note(ROWS[2], ROWS[1]) == well
    assert decision_note(ROWS[0], None).startswith(
        "step 8 ran with another op order, with work moved: stage 1, lane 1 takes 1.50x"
    )
    assert (
        decision_note(ROWS[1], ROWS[0]) == "step 9 ran with another op order: for the same reason"
    )


def test_json_counts_decisions_and_tells_slow_ranks_from_fast_ones(tmp_path):
    more = (*FIRST, Slow(0, 0, 6, 0.8))
    second = ROWS[2]._replace(step=12, batch=0, slow=more, kind="reorder", change=Change(ORDER))
    last = ROWS[2]._replace(event=3)
    found = run(tmp_path, (*ROWS[:2], second, last))
    said = story_json(found)
    assert (said["corrections"], said["migrations"]) == (3, 1)
    assert said["slow_devices"] == slow_devices(found)
    assert slow_devices(found) == [
        {"stage": 1, "lane": 1, "since": 5, "factor": 1.5, "until": 17},
    ]
    assert [(e.first, e.last) for e in events(found)] == [(7, 11), (12, 16), (17, 19)]
    assert [d["moves"] for d in said["decisions"]] == [2, 0, 0, 0]
    assert slow_devices(run(tmp_path, ROWS[:2]))[0]["until"] is None
