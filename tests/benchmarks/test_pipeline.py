"""The benchmark of the simulator: its slots are what it says, its page has a place for it."""

import numpy as np
import pytest

from hydraplan.planner.pipeline.noise import SOURCES, parse_noise
from tests.benchmarks.scripts import PIPELINE, script


@pytest.fixture
def simulator(monkeypatch):
    return script(monkeypatch, PIPELINE, "simulator")


def test_ops_are_counted_by_stage_lane_microbatch_and_pass(simulator):
    slots, schedule, ops = simulator.case("zb-h1", 3, 4, 5)
    assert ops == 3 * 4 * 5 * 3
    assert [len(stage) for stage in schedule] == [15, 15, 15]
    assert slots.op_s.shape == (3, 3, 1, 4, 5)
    assert simulator.case("1f1b", 3, 4, 5)[2] == 3 * 4 * 5 * 2


def test_slots_have_groups_in_about_half_of_the_microbatches(simulator):
    slots, _, _ = simulator.case("1f1b", 2, 64, 400)
    alone = (slots.component == np.arange(64)[:, None]).all(axis=0)
    assert 0.4 < alone.mean() < 0.6
    assert (slots.component <= np.arange(64)[:, None]).all()


def test_every_source_of_noise_is_timed_alone_and_all_together(simulator):
    asked = [parse_noise(text).active for text in simulator.NOISES]
    assert [(name,) for name in SOURCES] == asked[:8]
    assert asked[-1] == SOURCES


def test_the_page_holds_a_section_for_the_script(simulator):
    page = (PIPELINE / "README.md").read_text()
    assert "python benchmarks/pipeline/simulator.py --readme" in page
    assert "<!-- simulator -->" in page
    assert "<!-- end of simulator -->" in page
