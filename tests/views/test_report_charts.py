"""Charts of the page: what they show is what the numbers say."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hydraplan.planner.pipeline.schedules import one_f_one_b, zb_h1
from hydraplan.views.report_charts import (
    SHADES,
    degree_bars,
    heat_map,
    heat_runs,
    lane_bars,
    shares_bar,
)
from hydraplan.views.report_data import HEAT_PARTS, heat_data, sequence_rows
from hydraplan.views.report_gantt import PARTS, Chart, bands, gantt_data, gantt_svg, waits_s
from tests.builders import Place
from tests.views.made_page import full, made


def _painted(svg: str, shape: tuple[int, int]) -> np.ndarray:
    """Shade of every cell of a map, from its paths."""
    cells = np.zeros(shape, int)
    for level, path in re.findall(r'class="heat h(\d)" d="([^"]*)"', svg):
        for x, y, wide in re.findall(r"M(\d+) (\d+)h(\d+)v1", path):
            assert not cells[int(y), int(x) : int(x) + int(wide)].any()
            cells[int(y), int(x) : int(x) + int(wide)] = int(level)
    return cells


@given(arrays(float, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(0, 1e6)))
def test_a_map_paints_every_cell_in_its_shade(load_s: np.ndarray) -> None:
    svg, left_out = heat_map(load_s)
    assert left_out == []
    wanted = load_s / (load_s.max() or 1.0) * (SHADES - 1) + 0.5
    assert (_painted(svg, load_s.shape) == np.minimum(SHADES - 1, wanted.astype(int))).all()


@given(st.integers(1, 300), st.integers(1, 300))
def test_cells_of_a_large_map_show_their_fullest_slot(lanes: int, microbatches: int) -> None:
    load_s = np.arange(lanes * microbatches, dtype=float).reshape(lanes, microbatches)
    cells, rows, columns = heat_runs(load_s)
    assert cells.shape == (min(lanes, 128), min(microbatches, 128))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (0, lanes, 0, microbatches)
    for y, x in ((0, 0), (len(rows) - 2, len(columns) - 2)):
        slots = load_s[rows[y] : rows[y + 1], columns[x] : columns[x + 1]]
        assert cells[y, x] == slots.max()
    data = heat_data(load_s)
    assert np.array(data["cells"]).shape == cells.shape
    assert np.allclose(np.array(data["cells"]) * data["part_s"], cells, atol=data["part_s"])
    assert data["cells"][-1][-1] in (0, HEAT_PARTS)


def test_bars_of_lanes_are_as_high_as_their_load_and_the_busiest_is_darker() -> None:
    svg, left_out = lane_bars(np.array([1.0, 2.0, 4.0, 3.0, 0.5, 0.25]))
    high = [float(h) for h in re.findall(r'class="bar[^>]* height="([\d.]+)"', svg)]
    assert high == [25.0, 50.0, 100.0, 75.0, 12.5, 6.25]
    assert re.findall(r'"bar slow" x="([\d.]+)"', svg) == ["333.33"]
    assert str(lane_bars(np.arange(40.0))[0]).count('"bar slow"') == 5
    assert "most 4 s" in svg
    assert left_out == []
    assert "a bar stands for up to 2 lanes" in lane_bars(np.ones(300))[1][0]


def test_shares_add_up_to_the_bar() -> None:
    svg = shares_bar("shares", "<title>", [("busy", 0.6), ("grad_sync", 0.4)], 0.5)
    assert re.findall(r'x="([\d.]+)" width="([\d.]+)"', svg) == [
        ("0.00", "600.00"),
        ("600.00", "400.00"),
    ]
    assert 'd="M500.00 0v20"' in svg
    assert "&lt;title&gt;" in svg


def test_degrees_that_one_plan_alone_has_are_shown_too() -> None:
    rows = degree_bars({1: 4, 8: 1}, {1: 2, 2: 3})
    assert [row[:3] for row in rows] == [[1, 4, 2], [2, 0, 3], [8, 1, 0]]


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1])
def test_ops_of_the_chart_are_those_of_the_plan(make) -> None:
    shown = made(full(2, 5), 3, 2, make=make)
    chart = Chart("stage", shown.timeline)
    drawn, left_out = bands([chart])
    data = gantt_data([chart], drawn)
    assert left_out == []
    assert [band["label"] for band in data["bands"]] == ["stage 0", "stage 1", "stage 2"]
    assert data["lines"] == (2 if make is one_f_one_b else 3)
    end_s = max(e.max() for e in shown.batch.predicted_end_s)
    for stage, band in enumerate(data["bands"]):
        for (kind, microbatch, chunk, start, end, *_), op in zip(
            band["ops"], shown.batch.schedule[stage], strict=True
        ):
            assert (data["kinds"][kind], microbatch, chunk) == op[:3]
            assert 0 <= start <= end <= PARTS
        for at, of in ((7, shown.batch.predicted_start_s), (8, shown.batch.predicted_end_s)):
            times = [op[at] * data["part_s"] for op in band["ops"]]
            assert np.allclose(times, of[stage], atol=end_s / PARTS)
        assert all(op[7] <= op[3] and op[4] <= op[8] for op in band["ops"])
        assert all(a[4] <= b[3] + 1 for a, b in pairwise(band["ops"]))
    svg = gantt_svg(drawn, data["lines"])
    ops = [op for band in drawn for op in band.ops]
    for style, a, b in (("op", 3, 4), ("span", 7, 8)):
        paths = "".join(re.findall(rf'class="{style} [^>]* d="([^"]*)"', svg))
        boxes = [(int(x), int(w)) for x, w in re.findall(r"M(\d+) \d+h(\d+)v", paths)]
        assert sorted(boxes) == sorted((op[a], op[b] - op[a]) for op in ops)


def test_work_and_idle_time_and_waits_of_a_lane_fill_its_stage() -> None:
    timeline = made([*full(2, 4), Place(5000, 0, 2, microbatch=2)], 2, 2).timeline
    for stage in range(2):
        idle_s, wait_s = waits_s(timeline, stage)
        whole = timeline.end_s[stage][-1].mean()
        busy = timeline.busy_s[stage].sum(axis=0).mean()
        assert idle_s.sum() + wait_s.sum() + busy == pytest.approx(whole)
    assert wait_s.sum() > 0


def test_two_plans_lie_stage_by_stage_on_one_axis() -> None:
    plans = [made(full(2, n), 2, 2) for n in (3, 6)]
    charts = [Chart(n, p.timeline) for n, p in zip(("new", "old"), plans, strict=True)]
    drawn, _ = bands(charts)
    assert [band.label for band in drawn] == ["new 0", "old 0", "new 1", "old 1"]
    ends = [max(op[8] for band in drawn if band.plan == plan for op in band.ops) for plan in (0, 1)]
    assert ends[0] < ends[1] == PARTS


def test_of_many_ops_the_first_are_drawn_and_that_is_said() -> None:
    shown = made(full(1, 700), 70, 1)
    drawn, left_out = bands([Chart("stage", shown.timeline)])
    assert len(drawn) == 64
    assert {len(band.ops) for band in drawn} == {375}
    assert left_out == [
        "64 of 70 stages, from the first to the last",
        "the first 375 of 1400 ops a stage",
    ]


def test_the_costliest_sequences_come_first() -> None:
    shown = made([Place(100, 0), Place(900, 0, 2), Place(500, 1)], 1, 2)
    predicted_s = np.array([0.003, 0.002, 0.001])
    rows = replace(shown.batch.sequences, predicted_s=predicted_s)
    found = sequence_rows(replace(shown.batch, sequences=rows))
    assert found == [
        [1, 900, 2, 2, 1, 0, 0, 2000],  # 4 ms of two ranks
        [0, 100, 1, 1, 1, 0, 0, 3000],
        [2, 500, 1, 1, 1, 1, 0, 1000],
    ]
