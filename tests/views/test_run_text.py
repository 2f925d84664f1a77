import math
from types import SimpleNamespace

import numpy as np
import pytest

from hydraplan.files.memoryfile import Peaks
from hydraplan.files.runfile import Run
from hydraplan.files.trafficfile import Traffic
from hydraplan.files.trialsfile import CORRECTION, Trials
from hydraplan.views.run_text import (
    OP_WAIT,
    RUN_COLUMNS,
    TRIAL_COLUMNS,
    cause_rows,
    causes_json,
    confidence_95,
    crowded_note,
    noise_rows,
    run_caption,
    run_columns,
    run_json,
    run_rows,
)

NOTHING = Peaks(None, np.zeros((0, 1, 1)))
UNSENT = Traffic(None, np.zeros((0, 3, 1, 1), np.int64))


def header(live_limit_tokens=None, trials=1, mode="simulated", **asked):
    options = SimpleNamespace(
        live_limit_tokens=live_limit_tokens, memory_bytes=None, memory_gib=None
    )
    return SimpleNamespace(
        mode=mode, device="none", noise="jitter=0.3", trials=trials, pool_barrier=False,
        **({"paced": False, "injected": (), "correction": "none", "migration": False,
            "replays": None} | asked),
        plan=SimpleNamespace(options=options),
    )  # fmt: skip


def step(number):
    names = ("batch", "tokens", "busy", "pipeline_bubble", "dp_bubble", "group_wait")
    return {"step": number, "loss": None, "iteration_s": 1.0} | dict.fromkeys(names, 0)


@pytest.mark.parametrize(
    ("device", "paced", "cores", "is_told"),
    [
        ("cpu", False, 2, True),
        ("cpu", False, 4, False),
        ("cpu", True, 2, False),
        ("x", False, 2, False),
    ],
)
def test_workers_that_shared_cores_are_told(device, paced, cores, is_told):
    plan = SimpleNamespace(options=SimpleNamespace(pp=2, ranks=2))
    run = SimpleNamespace(device=device, paced=paced, plan=plan)
    said = crowded_note(run, cores)
    assert said.startswith("note: 4 workers shared 2 cores: steps take longer") == is_told
    assert bool(said) == is_told


def test_one_step_has_a_time_and_no_interval():
    run = Run(None, header(), [step(0)], NOTHING, UNSENT)
    assert run_caption(run) == "1 step, 1 s a step, 0 tokens/s"
    assert run_columns(run) == RUN_COLUMNS
    assert len(run_rows(run)[0]) == len(RUN_COLUMNS)


def test_the_two_bubbles_of_a_step_have_a_column_each():
    bubbles = {"pipeline_bubble": 0.2, "dp_bubble": 0.1}
    row = run_rows(Run(None, header(), [step(0) | bubbles], NOTHING, UNSENT))[0]
    shown = dict(zip(RUN_COLUMNS, row, strict=True))
    assert (shown["pipeline bubble"], shown["dp bubble"]) == (0.2, 0.1)


def test_waiting_inside_measured_ops_is_not_called_waiting_for_groups():
    run = Run(None, header(mode="measured"), [step(0)], NOTHING, UNSENT)
    assert run_columns(run)[-1] == "op wait"
    assert run_caption(run).endswith(f"\n{OP_WAIT}")
    simulated = run._replace(header=header())
    assert run_columns(simulated)[-1] == "group wait"
    assert OP_WAIT not in run_caption(simulated)


def test_steps_of_several_trials_show_their_mean_and_interval_not_the_first_trial():
    step_s = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    trials = Trials(step_s.mean(axis=0), 1.0, {}, {}, step_s)
    run = Run(None, header(trials=3), [step(0), step(1)], NOTHING, UNSENT, trials)
    assert run_columns(run) == TRIAL_COLUMNS
    interval = pytest.approx(4.303 / math.sqrt(3))
    assert run_rows(run) == [[0, 0, 0, 2.0, interval], [1, 0, 0, 5.0, 0.0]]
    assert "3.5 +- 1.2 s a step (mean of 3 trials and its 95% interval)" in run_caption(run)


def test_json_says_what_was_asked_to_slow_and_to_correct_a_run():
    asked = {"injected": ("1.1=2@0-3",), "correction": "policy", "migration": True, "paced": True}
    run = Run(None, header(mode="measured", **asked), [step(0)], NOTHING, UNSENT)
    told = run_json(run)
    assert {name: told[name] for name in asked} == asked | {"injected": ["1.1=2@0-3"]}
    assert told["replays"] is None
    again = run_json(run._replace(header=header(replays="0" * 64)))
    assert (again["replays"], again["correction"]) == ("0" * 64, "none")


def test_the_interval_of_three_values_uses_students_t():
    # standard deviation 1, t = 4.303 at 2 degrees of freedom
    assert confidence_95(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.303 / math.sqrt(3))


def test_many_values_use_the_normal_quantile():
    values = np.tile([0.0, 2.0], 50)
    assert confidence_95(values) == pytest.approx(1.96 * values.std(ddof=1) / 10)


def test_one_value_has_no_interval():
    assert math.isnan(confidence_95(np.array([1.0])))


@pytest.mark.parametrize(("count", "hidden"), [(100, 0), (101, 1), (1000, 900)])
def test_of_a_long_run_the_first_and_last_fifty_steps_are_shown_and_the_caption_says_so(
    count, hidden
):
    steps = [step(i) for i in range(count)]
    run = Run(None, header(), steps, NOTHING, UNSENT)
    numbers = [row[0] for row in run_rows(run)]
    if hidden:
        assert numbers == [*range(50), *range(count - 50, count)]
        assert run_caption(run).startswith(f"{hidden} steps in the middle are not shown\n")
    else:
        assert numbers == list(range(count))
    meaning = "(mean of the steps and its 95% interval)"
    assert f"{count} steps, 1 +- 0 s a step {meaning}" in run_caption(run)


def test_a_run_without_a_finished_step_says_so():
    run = Run(None, SimpleNamespace(mode="simulated"), [], NOTHING, UNSENT)
    assert run_caption(run) == "no finished step"


TRIALS = Trials(
    np.array([10.0, 14.0]),
    8.0,
    {"compute": np.array([8.0, 8.0]), "jitter": np.array([2.0, 6.0])},
    {"jitter": np.array([9.0, 9.0])},
)


def test_causes_add_up_to_the_iteration():
    assert cause_rows(TRIALS) == [
        ["own work as planned", 8.0, "66.7%"],
        ["lengthened by jitter", 4.0, "33.3%"],
        ["iteration T", 12.0, "100.0%"],
    ]


def test_what_a_source_costs_is_told_from_the_same_trials_without_it():
    # costs of 1 and 5 s, of 2 and 6 s: deviation sqrt(8), t = 12.706 at 1 degree of freedom
    interval = pytest.approx(12.706 * 2)
    assert noise_rows(TRIALS) == [
        ["jitter", 9.0, 3.0, interval, "25.0%"],
        ["all together", 8.0, 4.0, interval, "33.3%"],
    ]
    changed = TRIALS._replace(without_s={CORRECTION: np.array([11.0, 19.0])})
    assert noise_rows(changed)[0] == ["what changed meanwhile", 15.0, -3.0, interval, "-25.0%"]
    assert causes_json(TRIALS)[1] == {
        "cause": "jitter",
        "lost_s": 4.0,
        "share": pytest.approx(1 / 3),
        "without_s_mean": 9.0,
        "cost_s_mean": 3.0,
        "cost_s_ci95": interval,
        "cost_share": 0.25,
    }


def test_a_share_that_rounds_to_nothing_has_no_sign():
    tiny = TRIALS._replace(lost_s={"jitter": np.array([-1e-5, 0.0])})
    assert cause_rows(tiny)[0][2] == "0.0%"
