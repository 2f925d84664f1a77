"""`pipeline`: published numbers of schedules come out of the command."""

import json
from pathlib import Path

import pytest

from hydraplan.planner.planned import PLANNED
from tests.cli.pipeline_command import asked

CASES = json.loads((Path(__file__).parents[1] / "data" / "published_bubbles.json").read_text())
NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "1F1B-I": "interleaved",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-1p": "zb-1p",
    "ZB-2p": "zb-2p",
    "ZB-V": "zb-v",
    "DualPipe": "dualpipe",
    "DualPipeV": "dualpipe-v",
}
FIGURES = {
    "bubble_rate_longest_stage": "bubble_rate",
    "idle_time_longest_stage": "idle",
    "makespan": "makespan",
    "makespan_minus_busy_max_over_ranks": "makespan_idle_max",
}


def arguments(case):
    """The command line of a published case; times of a chunk become those of a whole stage."""
    name = NAMES[case["schedule"]]
    stages = case.get("p") or case["ranks"]
    count = case.get("m") or case["m_total_both_directions"]
    asked = {"schedule": name, "pp": stages, "microbatches": count}
    times = case.get("times_per_stage") or case["times_per_chunk"]
    passes = 2 if "times_per_chunk" in case and name != "dualpipe" else 1
    backward = times.get("B", times.get("B_input"))
    kinds = {"forward": times["F"], "backward": backward, "weight": times["W"]}
    asked |= {kind: passes * time for kind, time in kinds.items()} | {"comm": times["comm"]}
    if "F_and_B_overlapped" in times:
        asked["joined"] = times["F_and_B_overlapped"] / sum(kinds.values())
    if "times_per_stage" in case:
        asked["chunks"] = case["v"]
    if "memory" in case:
        held = case["memory"]
        asked["memory-limit"] = case["memory_limit_in_pMB"] * stages
        asked["backward-frees"] = held["released_by_B"] / held["act_after_F"]
    return [part for option, value in asked.items() for part in (f"--{option}", str(value))]


def case_parameters():
    for case in CASES["cases"]:
        most = 500 if NAMES[case["schedule"]] in PLANNED else 2000
        heavy = case.get("p", 1) * case.get("m", 1) > most
        marks = [pytest.mark.slow] if heavy else []
        yield pytest.param(case, id=f"{case['id']} ({case['source'].split(':')[0]})", marks=marks)


@pytest.mark.parametrize("case", list(case_parameters()))
def test_published_figures_come_out_of_the_command(case, capsys):
    told = json.loads(asked(capsys, *arguments(case), "--json"))
    assert next(iter(told)) == "schema_version"
    value = told[FIGURES[case["metric"]]]
    expected = case.get("expected_strict", case["expected"])
    tolerance = case.get("tolerance_strict", case["tolerance"])
    if case["compare"] == "le":
        assert value <= expected + tolerance
        assert told["peak_memory"] <= told["memory_limit"] * (1 + 1e-9)
    else:
        assert value == pytest.approx(expected, rel=0, abs=tolerance)
