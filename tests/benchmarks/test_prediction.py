"""The benchmark of predictions: what its columns mean, and its page."""

import numpy as np
import pytest

from tests.benchmarks.scripts import BENCHMARKS, script

PREDICTION = BENCHMARKS / "prediction"


@pytest.fixture
def predict(monkeypatch):
    return script(monkeypatch, PREDICTION, "predict")


def test_a_row_tells_the_error_and_what_is_left_of_it_without_one_factor(predict):
    busy_s = np.array([1.0, 2.0, 4.0])
    ops = predict.Ops(["F"] * 3, [False] * 3, busy_s, busy_s * [1.1, 1.2, 1.44])
    row = predict.row("x", ops)
    assert (row["count"], row["median ms"], row["above 15%"]) == (3, 2000.0, "67%")
    assert row["median error"] == pytest.approx(0.2)
    assert row["predicted / measured"] == pytest.approx(1.2)
    assert row["median error, that out"] == pytest.approx(1 - 1.1 / 1.2)
    assert row["p90 error, that out"] == pytest.approx(0.8 * 0.2 + 0.2 * (1 - 1.1 / 1.2))


def test_ops_are_told_apart_by_kind_and_by_whether_their_microbatch_shares_a_sequence(predict):
    ones = np.ones(4)
    whole = predict.Ops(["F", "BW", "F", "W"], [False, True, True, False], ones, ones)
    found = {name: len(ops.kind) for name, ops in predict.by_kind(whole)}
    shared = "degree above 1 in its microbatch"
    assert found == {"F": 1, f"F, {shared}": 1, "W": 1, f"BW, {shared}": 1}


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
