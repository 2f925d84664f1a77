import numpy as np
import pytest

from hydraplan.files.memoryfile import Peaks
from hydraplan.views.memory_text import RECOMPUTED, difference, peaks_json, print_peaks

HELD = Peaks(np.array([[[30.0, 40.0], [10.0, 5.0]]]), np.array([[[30.0, 40.0], [10.0, 20.0]]]))
"""A step of 2 stages x 2 lanes; the last rank holds less than predicted."""


def test_a_stage_holds_as_much_as_its_fullest_lane() -> None:
    stages = [
        {"stage": 0, "peak_live_tokens": 40.0, "predicted_peak_live_tokens": 40.0},
        {"stage": 1, "peak_live_tokens": 10.0, "predicted_peak_live_tokens": 20.0},
    ]
    whole = {"peak_live_tokens": 40.0, "predicted_peak_live_tokens": 40.0}
    assert peaks_json(HELD) == {**whole, "stages": stages}
    simulated = peaks_json(HELD._replace(measured=None))
    assert simulated["peak_live_tokens"] is None
    assert simulated["stages"][1]["predicted_peak_live_tokens"] == 20.0


def test_a_difference_is_told_with_its_rank_and_both_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "stage 1, lane 1 held activations of 5 tokens at once, 20 were predicted"
    assert difference(HELD) == f"in step 0 {said}"
    assert difference(Peaks(*(array[0] for array in HELD[:2]))) == said
    assert difference(HELD._replace(measured=HELD.predicted + 1)).endswith("(and 3 more like that)")
    assert difference(HELD._replace(measured=None)) == ""
    print_peaks(HELD)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split() for line in shown[3:5]] == [["0", "40", "40"], ["1", "20", "10"]]
    assert shown[5:] == [f"in step 0 {said}"]
    print_peaks(HELD, "at most 50")
    assert capsys.readouterr().out.splitlines()[5:] == [
        "allowed are at most 50", f"in step 0 {said}"
    ]  # fmt: skip
    print_peaks(HELD, recomputed=True)
    assert capsys.readouterr().out.splitlines()[5:] == [RECOMPUTED, f"in step 0 {said}"]


def test_bytes_stand_beside_what_was_predicted_where_a_gpu_told_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gib = float(1 << 30)
    predicted = HELD._replace(measured=HELD.predicted, predicted_bytes=HELD.predicted * gib / 8)
    print_peaks(predicted, memory_gib=6.0)
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["stage", "predicted", "measured", "GiB", "predicted"]
    assert said[3].split() == ["0", "40", "40", "5.000"]
    assert said[5:] == ["a device has 6.00 GiB"]
    print_peaks(predicted._replace(measured_bytes=HELD.predicted * gib / 10))
    said = capsys.readouterr().out.splitlines()
    assert said[1].endswith("GiB predicted   GiB measured")
    assert said[4].split() == ["1", "20", "20", "2.500", "2.000"]
    assert len(said) == 5
