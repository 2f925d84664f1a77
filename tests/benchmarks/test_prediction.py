"""The benchmark of predictions: what its columns mean, and its page."""

import numpy as np
import pytest

from tests.benchmarks.scripts import BENCHMARKS, script

PREDICTION = BENCHMARKS / "prediction"


@pytest.fixture
def predict(monkeypatch):
    return script(monkeypatch, PREDICTION, "predict")


def test_a_row_tells_the_error_and_what_is_left_of_it_at_the_speed_of_the_machine(predict):
    busy_s, machine = np.array([1.0, 2.0, 4.0]), np.full(3, 1.25)
    ops = predict.Ops(["F"] * 3, [False] * 3, busy_s, busy_s * [0.8, 0.72, 1.12], machine)
    row = predict.row("x", ops)
    assert (row["count"], row["median ms"], row["above 15%"]) == (3, 2000.0, "67%")
    assert row["median error"] == pytest.approx(0.2)
    assert (row["predicted / measured"], row["machine"]) == pytest.approx((0.8, 1.25))
    assert row["median error, machine out"] == pytest.approx(0.1)
    assert row["median error, factor out"] == pytest.approx(1 - 0.72 / 0.8)
    assert row["p90 error, factor out"] == pytest.approx(0.8 * 0.4 + 0.2 * 0.1)


def test_ops_are_told_apart_by_kind_and_by_whether_their_microbatch_shares_a_sequence(predict):
    ones = np.ones(4)
    whole = predict.Ops(["F", "BW", "F", "W"], [False, True, True, False], ones, ones, ones)
    found = {name: len(ops.kind) for name, ops in predict.by_kind(whole)}
    shared = "degree above 1 in its microbatch"
    assert found == {"F": 1, f"F, {shared}": 1, "W": 1, f"BW, {shared}": 1}


@pytest.mark.dist
@pytest.mark.timeout(60)
def test_fixed_work_is_timed_in_every_process_and_none_is_left(predict, monkeypatch):
    monkeypatch.setattr(predict, "PROBES", 3)
    assert 1e-5 < predict.fixed_work_s(2) < 1.0
    assert predict.multiprocessing.active_children() == []


def test_no_case_needs_more_than_two_workers_and_lengths_are_within_the_cap(predict):
    assert max(case.pp * case.ranks for case in predict.CASES) == 2
    for case in predict.CASES:
        assert 16 <= min(predict.drawn(case.lengths)) <= max(predict.drawn(case.lengths))
        assert max(predict.drawn(case.lengths)) <= predict.CAP


def test_the_page_holds_a_section_for_the_script():
    page = (PREDICTION / "README.md").read_text()
    assert "python benchmarks/prediction/predict.py" in page
    assert "<!-- predict -->\n" in page
    assert "<!-- end of predict -->" in page
