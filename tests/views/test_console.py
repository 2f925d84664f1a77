"""stdout holds data: plain JSON, tables that lose nothing; stderr the rest."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text

from hydraplan.views import console


def test_json_starts_with_the_schema_version_and_holds_plain_values(capsys):
    console.emit_json(
        {
            "rows": [{"a_s": np.float64(0.25), "n": np.int64(3)}],
            "array": np.arange(2),
            "lost": float("nan"),
            "far": np.float64("inf"),
            "nested": {"x": (np.bool_(True), -np.inf)},
            "path": Path("a/b"),
        }
    )
    text = capsys.readouterr().out
    found = json.loads(text)
    assert next(iter(found)) == "schema_version"
    assert found == {
        "schema_version": 1,
        "rows": [{"a_s": 0.25, "n": 3}],
        "array": [0, 1],
        "lost": None,
        "far": None,
        "nested": {"x": [True, None]},
        "path": "a/b",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345, "12,345"),
        (0.123456, "0.1235"),
        (1.2e-5, "1.2e-05"),
        (-3e-17, "0"),
        (123456.7, "123,457"),
        (np.float64("nan"), "-"),
        (None, "-"),
        (np.bool_(True), "yes"),
        (np.int64(7), "7"),
        ("1f1b", "1f1b"),
    ],
)
def test_a_cell_is_short_and_exact_enough(value, text):
    assert console.cell(value) == text


def table_lines(capsys, *arguments, **keywords):
    console.print_table(*arguments, **keywords)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_text_wider_than_the_terminal_is_folded_and_loses_no_character(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = [f"w{i:02}" + "x" * 20 for i in range(7)]
    lines = table_lines(capsys, [f"c{i}" for i in range(7)], [words], title="T", caption="C")
    assert max(map(len, lines)) <= 80
    assert (lines[0], lines[-1]) == ("T", "C")
    assert "".join(lines).count("x") == 140


def test_text_is_folded_at_hyphens_and_spaces_where_it_has_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "22")
    table = ["winner", "order", "n"], [["load-driven", "long-first", 7], ["memory", "", 12]]
    assert table_lines(capsys, *table) == [
        "winner    order      n",
        "----------------------",
        "load-     long-      7",
        "driven    first",
        "memory              12",
    ]


def test_columns_stand_closer_before_any_text_is_folded(capsys, monkeypatch):
    table = ["winner", "n"], [["load-driven", 7]]
    for width, gap in ((15, 3), (14, 2)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert table_lines(capsys, *table)[-1] == "load-driven" + " " * gap + "7"


def test_sentences_are_wrapped_on_words_and_drawings_are_not(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    console.emit("use --max-tokens-per-rank 9 or\n\nmore\x1b[2J")
    console.draw(["ab  " * 8 + "\x1b|"])
    assert capsys.readouterr().out.splitlines() == [
        "use",
        "--max-tokens-per-rank",
        "9 or",
        "",
        "more\\x1b[2J",
        "ab  " * 8 + "\\x1b|",
    ]


def test_a_sentence_in_a_pipe_stays_on_its_line(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    console.emit("word " * 40 + "end")
    assert capsys.readouterr().out == "word " * 40 + "end\n"


@pytest.mark.parametrize("said", ["0", "000", "-1", "abc", "", " ", "\N{SUPERSCRIPT TWO}", "1e2"])
def test_columns_that_are_no_number_from_1_on_say_nothing(said, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", said)
    assert console.cells(8) == 72
    console.emit("word " * 40 + "end")
    console.paint([Text("x" * 90)])
    console.print_table(["a"], [["w" * 90]])
    assert capsys.readouterr().out.splitlines() == [
        "word " * 40 + "end", "x" * 90, "a", "-" * 80, "w" * 80, "w" * 10,
    ]  # fmt: skip


@pytest.mark.parametrize("said", ["10000", "010000", "10001", "999999999999", "9" * 5000])
def test_no_chart_is_wider_than_ten_thousand_columns(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", said)
    assert console.cells(8) == 9992


def test_numbers_are_never_folded_even_where_they_are_too_wide(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = table_lines(capsys, ["text", *"abcdefgh"], [["w" * 40, *[123_456_789] * 8]])
    assert max(line.count("123,456,789") for line in lines) == 8
    assert "".join(lines).count("w") == 40


def test_a_head_over_numbers_stacks_its_words_only_where_room_is_short(capsys, monkeypatch):
    table = ["slot imbalance", "name"], [[1.5, "a"]]
    assert table_lines(capsys, *table)[0] == "slot imbalance   name"
    monkeypatch.setenv("COLUMNS", "20")
    assert table_lines(capsys, *table)[:2] == ["     slot", "imbalance   name"]


def test_numbers_stand_right_and_markup_is_text(capsys):
    lines = table_lines(capsys, ["n", "[red]t[/red]"], [[1, "[b]x"], [1000, "y"]])
    assert lines[0] == "    n   [red]t[/red]"
    assert lines[2:] == ["    1   [b]x", "1,000   y"]
    assert table_lines(capsys, ["of"], [["5.1%"], ["15.1%"]])[2:] == [" 5.1%", "15.1%"]


def test_notes_go_to_stderr_and_short_work_says_nothing_off_a_terminal(capsys):
    console.note("n")
    with console.progress("work", 3) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "n\n")


def test_long_work_says_off_a_terminal_how_far_it_is_every_half_minute(capsys, monkeypatch):
    times_s = iter([100.0, 129.9, 130.0, 131.0, 160.0])
    monkeypatch.setattr(console, "monotonic", lambda: next(times_s))
    with console.progress("choices played", 20_000) as advance:
        for step in (1000, 500, 1, 2):
            advance(step)
    said = "choices played: 1,500 of 20,000\nchoices played: 1,503 of 20,000\n"
    assert capsys.readouterr() == ("", said)
    times_s = iter([0.0, 30.0])
    with console.progress("trials simulated") as advance:
        advance(7)
    assert capsys.readouterr().err == "trials simulated: 7\n"
