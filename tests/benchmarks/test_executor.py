"""The benchmark of the executor: it covers every schedule that runs, its page has a place."""

import pytest

from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.planned import PLANNED
from tests.benchmarks.scripts import PIPELINE, script


@pytest.fixture
def executor(monkeypatch):
    return script(monkeypatch, PIPELINE, "executor")


def test_every_schedule_that_is_executed_is_there(executor):
    executed = {name for name, pipeline in SCHEDULES.items() if not pipeline.simulated_only}
    assert {name.split()[0] for name in executor.SCHEDULES} == executed | set(PLANNED)


def test_lengths_differ_and_some_are_hardly_there(executor):
    lengths = executor.drawn(0)
    assert len(lengths) == executor.COUNT + 3
    assert lengths[:3] == [1, 2, 3]
    assert max(lengths) > 5 * sorted(lengths)[len(lengths) // 4]
    assert executor.drawn(1) != lengths


def test_a_stage_is_told_by_the_figure_asked_for(executor):
    said = {"stages": [{"a": 426.0}, {"a": 1239.373}]}
    assert executor.by_stage(said, "a") == "426 1239.37"


def test_the_page_holds_a_section_for_the_script():
    page = (PIPELINE / "README.md").read_text()
    assert "python benchmarks/pipeline/executor.py --readme" in page
    assert "<!-- executor -->\n" in page
    assert "<!-- end of executor -->" in page
