"""The page in a browser: Debian's chromium, without a window, driven by playwright.

Skipped where no chromium is found; CI installs one. Screenshots go to the folder that
HYDRAPLAN_ARTIFACTS or CI_ARTIFACTS names.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hydraplan.planner.pipeline.schedules import zb_h1
from tests.builders import Place
from tests.views.made_page import HOSTILE, full, hostile, made, made_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
if BROWSER is None:
    pytest.skip("no chromium here: apt-get install chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

PLACES = [*full(4, 6), Place(5000, 0, 2, 2, microbatch=3)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


class Visit:
    """An opened page and what it did: `said` on the console, `asked` of a network."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())

    def text(self, of: str) -> str:
        """What an element says."""
        return str(self.page.inner_text(of))

    def plot(self) -> dict[str, float]:
        """Where the schedule lies in the window."""
        self.page.locator("#gantt-plot").scroll_into_view_if_needed()
        return dict(self.page.locator("#gantt-plot").bounding_box())

    def view(self) -> list[float]:
        """Start and length of the time that the schedule shows, in parts."""
        box = self.page.get_attribute("#gantt-drawing", "viewBox").split()
        return [float(box[0]), float(box[2])]

    def keep(self, name: str) -> None:
        """A screenshot, where screenshots are wanted."""
        folder = os.environ.get("HYDRAPLAN_ARTIFACTS") or os.environ.get("CI_ARTIFACTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "made.html"
    path.write_text(made_page(made(PLACES, 3, 4, make=zb_h1)), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser: Any, file: Path) -> Iterator[Visit]:
    found = Visit(browser, file, viewport={"width": 1200, "height": 900})
    yield found
    found.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_loads_without_a_word_and_asks_for_nothing(browser: Any, file: Path, scheme) -> None:
    visit = Visit(browser, file, color_scheme=scheme, viewport={"width": 1200, "height": 900})
    assert visit.said == []
    assert visit.asked == [file.as_uri()]
    colour = visit.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
    assert "shown of 25 that fit" in visit.text("#sequences-count")
    visit.keep(f"report-{scheme}")
    visit.page.context.close()


def test_no_request_can_leave_it_and_no_other_script_can_run(visit: Visit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        visit.page.evaluate(
            "(at) => { const s = document.createElement('script'); s.textContent = 'ran = 1';"
            " document.body.append(s); const i = new Image(); document.body.append(i);"
            " return Promise.allSettled([fetch(at), new Promise((done) => {"
            "   i.onload = i.onerror = done; i.src = at; })]); }",
            f"http://127.0.0.1:{server.getsockname()[1]}/x.png",
        )
        with pytest.raises(BlockingIOError):  # nobody came
            server.accept()
    assert visit.page.evaluate("window.ran === undefined")
    assert len(visit.said) >= 3
    assert all("Content Security Policy" in text for text in visit.said)


def test_pointing_at_an_op_reads_it(visit: Visit) -> None:
    box = visit.plot()
    start, end = visit.page.evaluate(
        "() => { const g = JSON.parse(document.getElementById('data').textContent).gantt;"
        " return g.bands[1].ops[0].slice(3, 5).map((t) => t / g.parts); }"
    )
    band = 3 * 12 + 8
    visit.page.mouse.move(box["x"] + (start + end) / 2 * box["width"], box["y"] + band + 6)
    said = visit.text("#gantt-readout")
    assert said.startswith("F of microbatch 0, stage 1: ")
    assert " (over all lanes " in said
    assert " s); idle before " in said
    assert ", waits inside " in said
    visit.page.mouse.move(box["x"] + 1, box["y"] + band + 3 * 12 + 4)
    assert visit.text("#gantt-readout").endswith("no op on this line")


def test_the_mouse_zooms(visit: Visit) -> None:
    box = visit.plot()
    x, y, wide = box["x"], box["y"] + 6, box["width"]
    visit.page.mouse.move(x + 0.25 * wide, y)
    visit.page.mouse.down()
    visit.page.mouse.move(x + 0.5 * wide, y, steps=3)
    visit.page.mouse.up()
    start, length = visit.view()
    assert start == pytest.approx(250_000, abs=2000)
    assert length == pytest.approx(250_000, abs=4000)
    visit.page.keyboard.down("Control")
    visit.page.mouse.wheel(0, -100)
    visit.page.wait_for_function(
        "() => document.getElementById('gantt-drawing').viewBox.baseVal.width < 200000"
    )
    visit.page.mouse.wheel(0, 100)
    visit.page.keyboard.up("Control")
    visit.keep("report-zoomed")
    visit.page.mouse.dblclick(x + 0.5 * wide, y)
    assert visit.view() == [0, 1_000_000]
    visit.page.click("#zoom-in")
    assert visit.view()[1] == 500_000


def test_the_keyboard_is_enough(visit: Visit) -> None:
    press = visit.page.keyboard.press
    press("Tab")
    assert visit.page.evaluate("document.activeElement.className") == "skip"
    for _ in range(40):
        press("Tab")
        if visit.page.evaluate("document.activeElement.id") == "gantt":
            break
    ring = visit.page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert ring == "3px"
    press("ArrowRight")
    assert visit.text("#gantt-readout").startswith("F of microbatch 0, stage 0")
    press("ArrowRight")
    assert visit.text("#gantt-readout").startswith("F of microbatch 1, stage 0")
    press("ArrowDown")
    assert ", stage 1: " in visit.text("#gantt-readout")
    press("+")
    press("+")
    assert visit.view()[1] == 250_000
    press("End")
    start, length = visit.view()
    assert start + length > 900_000
    press("-")
    assert visit.view()[1] == 500_000
    press("0")
    assert visit.view() == [0, 1_000_000]
    visit.page.focus("#heat")
    press("ArrowDown")
    press("ArrowDown")
    assert visit.text("#heat-readout").startswith("lane 1, microbatch 0: ")


def test_charts_can_be_read_as_tables_and_by_name(visit: Visit) -> None:
    assert visit.page.locator(".scroll[tabindex]").count() == 0  # all fit
    visit.page.click("summary")
    ops = sum(map(len, made(PLACES, 3, 4, make=zb_h1).batch.schedule))
    assert visit.page.locator("#ops tbody tr").count() == ops == 54
    seen = visit.page.locator("body").aria_snapshot()
    for name in ("Ops of every stage over time", "Load of every slot", "Load of every lane"):
        assert f'img "{name}' in seen, name
    assert 'table "The heaviest microbatches"' in seen


def test_sequences_are_filtered(visit: Visit) -> None:
    visit.page.fill("#filter-microbatch", "3")
    visit.page.fill("#filter-rank", "1")
    rows = visit.page.locator("#sequences tbody tr")
    assert rows.count() == 2
    assert "2 shown of 2 that fit" in visit.text("#sequences-count")
    visit.page.fill("#filter-degree", "4")
    assert rows.count() == 1
    assert rows.inner_text().split()[1] == "5,000"
    visit.page.fill("#filter-degree", "x")
    assert rows.count() == 0
    visit.page.click("button[type=reset]")
    visit.page.wait_for_function(
        "() => document.getElementById('sequences-count').textContent.includes('of 25 that')"
    )


def test_a_narrow_window_scrolls_down_only(browser: Any, file: Path) -> None:
    visit = Visit(browser, file, viewport={"width": 390, "height": 800})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visit.page.locator(".scroll[tabindex='0'][role=region]").count() >= 3
    visit.keep("report-narrow")
    visit.page.context.close()


def test_hostile_text_is_seen_and_nothing_runs(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    shown = made(PLACES, 3, 4, name=HOSTILE, header=hostile, advice=HOSTILE)
    file.write_text(made_page(shown), encoding="utf-8")
    visit = Visit(browser, file)
    assert visit.text("h1").startswith("</title></script><script>window.ran=1</script><img")
    assert visit.page.evaluate("window.ran === undefined")
    assert (visit.said, visit.asked) == ([], [file.as_uri()])
    assert visit.page.locator("img").count() == 0
    visit.page.context.close()
