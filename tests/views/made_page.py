"""Plans as a page shows them, made in memory; a reader that says what is wrong with a page."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from hydraplan.memory import TERMS
from hydraplan.metrics import FIGURES, balance, shares
from hydraplan.model import Schedule, StageSkew
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import predicted
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from hydraplan.views.html_report import page
from hydraplan.views.report_data import Shown
from tests.builders import Place
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model

LIMITS = [(0.2, "sequence 3 (900 tokens on 2 ranks, microbatch 1)"), (0.05, "gradient sync")]
FLOPS = "1e+12 model flops"
HOSTILE = "</title></script><script>window.ran=1</script><img src=x onerror=window.ran=1>\"'&\u2028"


def hostile(header: PlanHeader) -> PlanHeader:
    """Markup in every text of a header that a file may hold."""
    options = header.options.model_copy(update={"strategy": HOSTILE, "pipeline": HOSTILE})
    model = header.model.model_copy(update={"name": HOSTILE})
    changes = dict.fromkeys(("lengths_name", "tool_version", "lengths_digest"), HOSTILE)
    changes |= {"profile_digest": HOSTILE, "profile_mode": HOSTILE, "invariants": (HOSTILE,)}
    return header.model_copy(update={**changes, "options": options, "model": model})


def made(
    places: Sequence[Place],
    pp: int = 2,
    ranks: int = 2,
    *,
    name: str = "made.plan",
    make: Callable[[int, int], Schedule] = one_f_one_b,
    header: Callable[[PlanHeader], PlanHeader] = lambda header: header,
    advice: str = "",
) -> Shown:
    """A plan of one batch with simulated times, and those figures that follow from them."""
    found = header(plan_header(tiny_model(num_layers=pp), pp, ranks, 1))
    count = 1 + max(place.microbatch for place in places)
    plain = batch_plan(0, batch_rows(places), count, pp)
    slots = slot_times(found.cost_model(), plain.sequences.placed(), count)
    timeline = simulate(slots, make(pp, count))
    start_s, end_s = predicted(timeline)
    figures = dict.fromkeys(FIGURES, 0.0) | balance(slots.load_s, float("nan")) | shares(timeline)
    figures |= {"efficiency": 0.75, "lower_bound_s": 0.75 * figures["iteration_s"]}
    batch = replace(
        plain,
        schedule=timeline.schedule,
        predicted_start_s=start_s,
        predicted_end_s=end_s,
        figures=figures,
        search=replace(plain.search, window_advice=advice),
    )
    return Shown(
        name=name,
        header=found,
        summaries=[batch.summary()],
        skew=StageSkew(0, np.ones(pp), 0.0, 0.0),
        held=np.ones((len(TERMS), pp), np.int64),
        batch=batch,
        load_s=slots.load_s,
        timeline=timeline,
    )


def full(ranks: int, microbatches: int) -> list[Place]:
    """A sequence in every slot, lengths all different enough to draw."""
    return [
        Place(100 + (37 * lane + 101 * m) % 900, lane, microbatch=m)
        for m in range(microbatches)
        for lane in range(ranks)
    ]


def made_page(shown: Shown) -> str:
    """Its page, with limits and flops that stand for others."""
    return page(shown, LIMITS, FLOPS)


VOID = {"meta", "link", "input", "br"}
REFERENCES = ("aria-labelledby", "aria-describedby", "aria-controls", "for")


class Reader(HTMLParser):
    """Reads a page strictly: `faults` says what is wrong, `texts` what it says outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.texts: list[str] = []
        self.ids: Counter[str] = Counter()
        self.referred: set[str] = set()
        self.levels: list[int] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        self.faults += [f"id {name} {n} times" for name, n in self.ids.items() if n > 1]
        self.faults += [f"no id {name}" for name in self.referred - self.ids.keys()]
        self.faults += [f"<{name}> stays open" for name in self.open]
        for before, after in zip([0, *self.levels], self.levels, strict=False):
            if after > before + 1:
                self.faults.append(f"h{after} after h{before}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)
        if "svg" not in self.open:
            self.faults.append(f"<{tag}/> outside of a drawing")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)

    def _seen(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if len(found) < len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        self.elements.append((tag, found))
        self.ids.update([name] if (name := found.get("id")) else [])
        for key in REFERENCES:
            self.referred |= set((found.get(key) or "").split())
        if tag in ("h1", "h2", "h3", "h4"):
            self.levels.append(int(tag[1]))
