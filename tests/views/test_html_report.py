"""The page of a plan: whole, small, the same every time, and text alone of all that it shows."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from importlib import resources

import pytest

from hydraplan.metrics import FIGURES
from hydraplan.planheader import PlanHeader
from hydraplan.planner.pipeline.schedules import one_f_one_b, zb_h1
from hydraplan.views.html_report import page, script_json
from hydraplan.views.report_data import heaviest_table
from tests.builders import Place
from tests.views.made_page import (
    FLOPS,
    HOSTILE,
    LIMITS,
    Reader,
    full,
    hostile,
    made,
    made_page,
)

FEW = [Place(900, 0, 2), Place(300, 0, microbatch=1), Place(500, 1, microbatch=1)]


def test_a_page_is_valid_and_says_the_same_every_time() -> None:
    text = made_page(made(FEW))
    assert text == made_page(made(FEW))
    reader = Reader(text)
    assert reader.faults == []
    assert reader.levels[:2] == [1, 2]
    said = " ".join(reader.texts)
    assert "made.plan" in said
    assert all(what in said for _, what in LIMITS)
    assert FLOPS in said


def test_a_slow_lane_may_take_longest_for_an_empty_slot() -> None:
    def slow(header: PlanHeader) -> PlanHeader:
        link = header.fit.linear_forward.model_copy(update={"call_s": 1.0})
        options = header.options.model_copy(update={"rank_speed": (1.0, 0.1)})
        fit = header.fit.model_copy(update={"linear_forward": link})
        return header.model_copy(update={"fit": fit, "options": options})

    shown = made([Place(10, 0), Place(300, 0, 2, microbatch=1)], header=slow)
    assert shown.load_s[:, 0].argmax() == 1
    rows = {row[0]: row for row in heaviest_table(shown).rows}
    assert rows[0][1:3] == [1, shown.load_s[1, 0]]
    assert rows[0][-2:] == [0, "-"]
    assert rows[1][-2:] == [1, "1 (300 tokens on 2 ranks)"]
    assert Reader(made_page(shown)).faults == []


def test_every_table_has_a_caption_and_heads_with_a_scope() -> None:
    elements = Reader(made_page(made(FEW))).elements
    names = [tag for tag, _ in elements]
    assert names.count("table") == names.count("caption") > 6
    assert {found.get("scope") for tag, found in elements if tag == "th"} == {"col", "row"}


def test_every_drawing_has_a_title_and_a_description_or_is_hidden() -> None:
    drawn = [found for tag, found in Reader(made_page(made(FEW))).elements if tag == "svg"]
    named = [found for found in drawn if found.get("role") == "img"]
    assert len(named) == 4  # shares, schedule, slots, lanes
    assert all(f.get("aria-hidden") == "true" for f in drawn if f not in named)
    assert all(len((f.get("aria-labelledby") or "").split()) == 2 for f in named)


def test_nothing_is_asked_of_a_network() -> None:
    text = made_page(made(FEW))
    elements = Reader(text).elements
    asked = [f[key] for _, f in elements for key in ("src", "href") if key in f]
    assert asked == ["data:,", "#limits"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(", text)


def test_the_policy_names_the_digests_of_what_stands_there() -> None:
    text = made_page(made(FEW))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy[1]
    for name, inside in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*?)</script>")):
        found = re.findall(inside, text, re.DOTALL)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy[1].replace("&#43;", "+")
    assert " style=" not in text
    assert not re.search(r" on[a-z]+=", text)


def test_markup_in_what_a_plan_says_is_text() -> None:
    shown = made(FEW, name=HOSTILE, header=hostile, advice=HOSTILE)
    text = page(shown, [(0.1, HOSTILE)], HOSTILE)
    reader = Reader(text)
    assert reader.faults == []
    assert [tag for tag, _ in reader.elements].count("script") == 2
    assert "img" not in [tag for tag, _ in reader.elements]
    said = "".join(reader.texts)
    assert said.count("<script>window.ran=1</script>") >= 9
    assert "\u2028" not in text
    assert "\\u2028" in said


def test_the_smallest_plan_has_a_page() -> None:
    assert Reader(made_page(made([Place(5)], 1, 1))).faults == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_figures_that_are_no_numbers_spoil_no_page(value: float) -> None:
    shown = made(FEW)
    batch = replace(shown.batch, figures=dict.fromkeys(FIGURES, value))
    shown = shown._replace(batch=batch, summaries=[batch.summary()])
    assert Reader(made_page(shown)).faults == []


def test_json_in_a_script_cannot_end_it() -> None:
    value = {"<!--": ["</script>", "&amp;", "\u2028\u2029", "]]>"]}
    text = script_json(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == value


def test_64_ranks_of_64_microbatches_take_less_than_a_megabyte() -> None:
    text = made_page(made(full(64, 64) * 4, 16, 64, make=zb_h1))
    assert len(text.encode()) < 1_000_000
    assert "the page holds all 16,384" in text
    assert "To keep this page small" not in text


def test_2048_ranks_take_less_than_5_megabytes_and_the_page_says_what_it_leaves_out() -> None:
    text = made_page(made(full(2048, 64), 8, 2048, make=one_f_one_b))
    assert len(text.encode()) < 5_000_000
    for said in (
        "a row of the map stands for up to 16 lanes and shows their fullest slot",
        "a bar stands for up to 8 lanes and shows the busiest of them",
        "the table of sequences holds the 16,384 costliest of 131,072",
    ):
        assert said in text


def _colours() -> list[dict[str, str]]:
    """Colours by name, in light and in dark."""
    style = (resources.files("hydraplan") / "data" / "report.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks)
    return [light, dark]


def _mixed(over: str, under: str, opacity: float) -> str:
    pairs = zip(bytes.fromhex(over[1:]), bytes.fromhex(under[1:]), strict=True)
    return "#" + "".join(f"{round(opacity * a + (1 - opacity) * b):02x}" for a, b in pairs)


def _contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", _colours(), ids=["light", "dark"])
def test_text_and_drawings_stand_out(colours: dict[str, str]) -> None:
    paper, rest = colours["paper"], colours["rest"]
    for name in ("ink", "quiet", "accent"):
        assert _contrast(colours[name], paper) >= 4.5, name
    for name in ("F", "B", "W"):
        assert _contrast(colours["on-op"], colours[name]) >= 4.5, name
        assert _contrast(colours["ink"], _mixed(colours[name], rest, 0.4)) >= 4.5, name
        assert _contrast(colours[name], rest) >= 3, name
    for name in ("bar", "slow", "focus", "old", "heat", "dp", "group", "sync"):
        assert _contrast(colours[name], paper) >= 3, name
