"""The chart of ops reads without colour, fits 80 columns, and says what it leaves out."""

import numpy as np
import pytest

from hydraplan.model import Op
from hydraplan.views import console
from hydraplan.views.gantt import NAMES_WIDTH, STYLES, gantt, legend


def one_after_the_other(*ops):
    """Ops of one stage, 1 s each, with their starts and ends."""
    start = np.arange(len(ops), dtype=float)
    return (ops,), (start,), (start + 1.0,)


def plain(*chart, width=8, unit=" s"):
    return [line.plain for line in gantt(*chart, width=width, unit=unit)]


def test_a_chart_that_skips_ops_says_how_many():
    ops = [Op("F" if i % 2 == 0 else "BW", i // 2) for i in range(720)]
    note, upper, lower, *_ = plain(*one_after_the_other(*ops), width=72)
    assert note == "1 column = 10 s, drawn is its middle: 648 of 720 shorter ops are not"
    assert sum(c != "." for c in upper[6:] + lower[6:]) == 72


def test_a_cell_shows_the_last_digit_over_a_ruler_in_seconds():
    chart = one_after_the_other(Op("F", 10), Op("BW", 10), Op("F", 11), Op("BW", 11))
    assert plain(*chart) == [
        "  0 F 00..11..",
        "    B ..00..11",
        "      +-+-++-+",
        "      0 1  4 s",
    ]


def test_weight_gradients_have_a_line_and_chunks_their_letters():
    chart = one_after_the_other(Op("F", 0), Op("F", 0, 1), Op("B", 0, 1), Op("W", 3, 5))
    assert plain(*chart)[:3] == ["  0 F 00aa....", "    B ....aa..", "    W ......33"]
    assert legend(chart[0]) == (
        "last digit of the microbatch; chunk 1: a-j, 2: k-t, 3: A-J, 4: K-T\n"
        "F forward, B input gradient, W weight gradient, '.' idle"
    )
    assert legend(((Op("F", 0), Op("BW", 0)),)) == (
        "last digit of the microbatch\nF forward, B backward (both gradients at once), '.' idle"
    )
    assert legend(((Op("F", 0), Op("BW", 0), Op("F", 1), Op("B", 1), Op("W", 1)),)) == (
        "last digit of the microbatch\n"
        "F forward, B input gradient or both gradients at once, W weight gradient, '.' idle"
    )


@pytest.mark.parametrize(("columns", "cells"), [("80", 72), ("200", 192), ("10", 24)])
def test_a_chart_is_as_wide_as_the_terminal(columns, cells, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert console.cells(NAMES_WIDTH) == cells
    monkeypatch.delenv("COLUMNS")
    assert console.cells(NAMES_WIDTH) == 72  # a pipe


@pytest.mark.parametrize("end", [1e-300, 1e-9, 0.0123456, 1.0, 98765.4321, 1.2345e12])
def test_the_chart_fits_eighty_columns_for_any_time(end):
    schedule = tuple((Op("F", 0), Op("B", 0), Op("W", 0)) for _ in range(64))
    times = np.array([0.0, 0.4, 0.7]) * end, np.array([0.4, 0.7, 1.0]) * end
    lines = plain(schedule, *([one] * 64 for one in times), width=72)
    assert len(lines) == 64 * 3 + 2
    assert max(map(len, lines)) <= 80
    assert lines[-1].endswith(f"{end:.3g} s")


def test_what_is_not_drawn_is_told_no_wider_than_the_chart():
    schedule = tuple(tuple(Op("F", m) for m in range(100)) for _ in range(65))
    times = np.arange(100.0), np.arange(1.0, 101.0)
    lines = plain(schedule, *([one] * 65 for one in times), width=24)
    assert " ".join(lines[:5]) == (
        "drawn are 64 of 65 stages, from the first to the last 1 column = 4.17 s, drawn is its"
        " middle: 4864 of 6400 shorter ops are not"
    )
    assert max(map(len, lines)) == 30


def test_colour_tells_the_kind_and_its_absence_costs_nothing(capsys, monkeypatch):
    chart = one_after_the_other(Op("F", 0), Op("B", 0), Op("W", 0))
    lines = gantt(*chart, width=6)
    assert [str(span.style) for span in lines[0].spans] == [STYLES["F"], STYLES["."]]
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    console.paint(lines)
    without = capsys.readouterr().out
    assert without == "".join(f"{line.plain}\n" for line in lines)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console.paint(lines)
    coloured = capsys.readouterr().out
    assert "\x1b[34m00\x1b[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    console.paint(lines)
    assert capsys.readouterr().out == without


def test_of_very_many_stages_a_few_are_drawn_and_the_rest_is_told():
    schedule = ((Op("F", 0), Op("BW", 0)),) * 65_536
    start, end = (np.array([0.0, 1.0]),) * 65_536, (np.array([1.0, 2.0]),) * 65_536
    lines = plain(schedule, start, end, width=72)
    assert lines[0] == "drawn are 64 of 65536 stages, from the first to the last"
    assert len(lines) == 1 + 64 * 2 + 2
    assert (lines[1][:8], lines[3][:8], lines[127][:8]) == ("    0 F ", " 1040 F ", "65535 F ")
    assert max(map(len, lines)) == 80
