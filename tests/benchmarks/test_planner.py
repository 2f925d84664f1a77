"""The evidence harness itself: batches are as large as it says, tables land where they belong."""

from types import ModuleType

import numpy as np
import pytest

from tests.benchmarks.scripts import PLANNER, script


@pytest.fixture
def load(monkeypatch):
    def load(name: str) -> ModuleType:
        return script(monkeypatch, PLANNER, name)

    return load


def test_a_batch_fills_its_tokens_up_to_the_next_sequence(load):
    mixes = load("mixes")
    tokens = 3_000_000
    length = mixes.batch(mixes.MIXES["256K"], tokens, seed=1)
    assert tokens - 262_144 < length.sum() <= tokens
    assert length.min() >= 128
    assert length.max() <= 262_144
    again = mixes.batch(mixes.MIXES["256K"], tokens, seed=1)
    assert (length == again).all()


def test_scaled_lengths_keep_their_count_and_reach_their_tokens(load):
    mixes = load("mixes")
    length = mixes.scaled(mixes.MIXES["256K"], 5_000, 20_000_000, seed=0)
    assert len(length) == 5_000
    assert length.sum() == pytest.approx(20_000_000, rel=0.01)


def test_a_length_file_is_drawn_without_empty_and_overlong_rows(load, tmp_path):
    mixes = load("mixes")
    path = tmp_path / "lengths_some.txt"
    path.write_text("0\n5\n7\n999\n")
    source = mixes.file_source(path, context_tokens=100)
    assert source.name == "some"
    assert source.left_out == 2
    assert set(mixes.sequences(source, 50, 0).tolist()) == {5, 7}


def test_the_readme_holds_a_section_for_every_script_and_gets_only_that_replaced(load):
    tables = load("tables")
    whole = tables.README.read_text()
    for section in ("cost", "target", "balance", "throughput", "ablation", "diagnosis"):
        changed = tables.spliced(whole, section, "new")
        assert f"<!-- {section} -->\nnew\n<!-- end of {section} -->" in changed
        before, after = changed.split("new\n<!-- end of " + section)
        assert whole.startswith(before)
        assert whole.endswith(after)
    with pytest.raises(AssertionError, match="no section absent"):
        tables.spliced(whole, "absent", "new")


def test_an_interval_needs_all_seeds(load):
    throughput = load("throughput")
    # standard deviation 1, t = 4.303 at 2 degrees of freedom, over the root of 3
    assert throughput.ratio([1.0, 2.0, 3.0]) == "2.000 +- 2.484"
    assert throughput.ratio([1.0, 2.0]) == "1.500 (2 of 3 seeds)"
    assert throughput.ratio([]) == "-"


def test_wrong_costs_run_as_planned_where_no_cost_is_wrong(load):
    ablation, mixes = load("ablation"), load("mixes")
    length = mixes.sequences(mixes.MIXES["32K"], 700, 0)
    planned = ablation.planned(length, "memory-ffd")
    same = planned.run(np.ones(len(length)))
    assert same["iteration_s"] == pytest.approx(planned.plan.figures["iteration_s"], rel=1e-12)
    twice = planned.run(np.full(len(length), 2.0))
    assert twice["iteration_s"] > 1.5 * same["iteration_s"]


def test_the_load_driven_candidate_is_shown_where_the_memory_sized_plan_wins(load):
    cells, mixes = load("cells"), load("mixes")
    pool = cells.Pool(4, 8, 32, 8_192)
    length = mixes.batch(mixes.MIXES["256K"], mixes.filling_tokens(8, 32, 8_192), 0)
    asked = cells.ask(length[length < 131_072], pool)
    request, winner = asked.placed()
    found = asked.load_driven(request, winner)
    assert found.winner == "load-driven"
    assert found.iteration_s == pytest.approx(winner.search.load_driven_s, rel=1e-12)
