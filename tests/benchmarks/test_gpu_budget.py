"""The budget of the GPU check: shares, what is left out, what fails, what is stopped."""

from itertools import count

import pytest

from tests.benchmarks.gpu_scripts import gpu_script


@pytest.fixture
def budget(monkeypatch):
    return gpu_script(monkeypatch, "budget")


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_part_gets_its_share_and_what_those_before_it_left(budget):
    clock, seen = Clock(), {}

    def part(name, share_s, used_s):
        def run(left):
            seen[name] = left.seconds()
            clock.now += used_s
            yield budget.Row(name, "x", 1.0)

        return budget.Part(name, share_s, run)

    parts = [part("a", 10, 4), part("b", 20, 50), part("c", 30, 1)]
    rows = budget.run_parts(parts, budget.Left.of(60, clock), lambda text: None)
    assert seen == {"a": 10, "b": 26, "c": 6}
    assert [row.part for row in rows] == ["a", "b", "c"]
    assert not budget.is_failed(rows)


def test_a_part_that_no_time_is_left_for_is_named_and_fails(budget):
    clock = Clock()

    def run(left):
        clock.now += 100
        yield budget.Row("a", "x", 1.0)

    parts = [budget.Part("a", 10, run), budget.Part("b", 10, run)]
    rows = budget.run_parts(parts, budget.Left.of(20, clock), lambda text: None)
    assert [(row.part, row.verdict) for row in rows] == [
        ("a", "measured"), ("b", "left out"), ("b", "no"),
    ]  # fmt: skip
    assert rows[-1].note == "nothing was measured: no time was left"
    assert budget.is_failed(rows)


@pytest.mark.parametrize("error", [ValueError("broken\nline two"), SystemExit("broken")])
def test_what_a_part_raises_is_a_row_and_the_next_part_runs(budget, error, capsys):
    def broken(left):
        yield budget.Row("a", "before", 1.0)
        raise error

    def fine(left):
        yield budget.Row("b", "x", 2.0)

    parts = [budget.Part("a", 1, broken), budget.Part("b", 1, fine)]
    rows = budget.run_parts(parts, budget.Left.of(20), lambda text: None)
    assert [row.what for row in rows] == ["before", "ended early", "x"]
    assert rows[1].note == f"{type(error).__name__}: broken"
    assert budget.is_failed(rows)
    assert "Traceback" in capsys.readouterr().err


def test_a_part_that_does_not_look_at_the_time_is_stopped_and_the_next_one_runs(budget):
    def endless(left):
        yield budget.Row("a", "before", 1.0)
        for _ in count():
            pass

    def fine(left):
        yield budget.Row("b", "x", 2.0)

    parts = [budget.Part("a", 0.05, endless), budget.Part("b", 30, fine)]
    rows = budget.run_parts(parts, budget.Left.of(30.05), lambda text: None)
    assert [(row.what, row.verdict) for row in rows] == [
        ("before", "measured"), ("what was to come", "left out"), ("x", "measured"),
    ]  # fmt: skip
    assert "it was stopped after" in rows[1].note


def test_a_part_that_measured_nothing_fails_with_the_reason(budget):
    def absent(left):
        yield budget.Row("a", "kernel", verdict="absent", note="no such device")

    rows = budget.run_parts([budget.Part("a", 1, absent)], budget.Left.of(2), lambda text: None)
    assert rows[-1] == budget.Row(
        "a", "this part", verdict="no", note="nothing was measured: no such device"
    )


def test_a_share_never_goes_beyond_the_whole(budget):
    clock = Clock()
    left = budget.Left.of(10, clock)
    assert left.share(4).seconds() == 4
    assert left.share(40).seconds() == 10
    clock.now = 12
    assert left.seconds() == left.share(4).seconds() == 0
