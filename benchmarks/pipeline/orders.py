"""Schedules x microbatch orders x noise on real batches: who wins where, and what orders gain.

    python benchmarks/pipeline/orders.py LENGTHS_FOLDER [--json FILE] [--readme]

Every length file, resampled with replacement to fill 80% of the cap (8,192 tokens) over 4 x pp
microbatches on a pool of 8 ranks, pp 4 and 8; rows beyond 65,536 tokens are left out. Two plans of
each batch: hydra's and the memory-sized one, both with microbatches as built. On these placements
every schedule runs in every microbatch order, noise-free; then, in the best of its orders (by what
it is chosen by: the portfolio's score, else its time), under noise: 200 trials on the same seeds,
all lanes and stages; none of them is one that the portfolio was scored on. `1x` and `2x`: a rank
may hold the activations of so many caps times stages. Planned schedules are planned anew in every
order.

The third table is what users get: `plan --pipeline NAME`, order auto, its own placement.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from cells import MODEL, Pool, ask  # noqa: E402
from mixes import Source, batch, file_source, filling_tokens  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.activations import held_shares  # noqa: E402
from hydraplan.config import load_model  # noqa: E402
from hydraplan.model import IntArray  # noqa: E402
from hydraplan.planner.forked import in_order  # noqa: E402
from hydraplan.planner.pipeline.memory import Memory  # noqa: E402
from hydraplan.planner.pipeline.noise import draw, parse_noise, shape_of  # noqa: E402
from hydraplan.planner.pipeline.noisy_run import trial_s  # noqa: E402
from hydraplan.planner.pipeline.one_lane import reordered  # noqa: E402
from hydraplan.planner.pipeline.order import ORDERS, microbatch_order  # noqa: E402
from hydraplan.planner.planned import Ordered, plan_ops  # noqa: E402
from hydraplan.slots import SlotTimes, slot_times  # noqa: E402

RANKS, CAP, CONTEXT = 8, 8_192, 65_536
TRIALS, SEED = 200, 1
NOISES = ("none", "jitter=0.3", "straggler=1.4")
GOAL = 0.95


class Named(NamedTuple):
    """A schedule, and the memory it is planned under, in caps times stages (None: no limit)."""

    pipeline: str
    worth: int | None = None

    def __str__(self) -> str:
        return self.pipeline if self.worth is None else f"{self.pipeline} {self.worth}x"


SCHEDULES = (
    Named("1f1b"), Named("zb-h1"), Named("zb-h2"), Named("zb-1p", 1), Named("zb-2p", 2),
    Named("portfolio", 1), Named("portfolio", 2),
)  # fmt: skip
PLANNED = (
    Named("1f1b"), Named("zb-h1"), Named("zb-h2"), Named("zb-2p", 2), Named("auto", 1),
)  # fmt: skip
"""What is planned as users ask for it."""
WAYS = (*ORDERS, "searched")


def main() -> None:
    """All cells, then three tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    sources = [file_source(path, CONTEXT) for path in sorted(args.folder.glob("lengths_*.parquet"))]
    batches = [(source, pp) for pp in (8, 4) for source in sources]

    def work(index: int) -> tuple[list[Cell], list[Cell]]:
        source, pp = batches[index]
        length = batch(source, filling_tokens(pp, RANKS, CAP), 0)
        cells = [
            cell
            for strategy in ("hydra", "memory-ffd")
            for cell in on_one_placement(source, length, pp, strategy)
        ]
        plans = [planned(source, length, pp, name) for name in PLANNED]
        progress(f"{source.name} pp {pp}")
        return cells, plans

    with in_order(work, len(batches), args.workers) as done:
        found = list(done)
    cells = [cell for cells, _ in found for cell in cells]
    plans = [plan for _, plans in found for plan in plans]
    left_out = {s.name: s.left_out for s in sources}
    reported(
        args.json,
        {"left_out": left_out, "cells": cells, "plans": plans},
        tables_of(cells, plans),
        args.readme,
        HERE / "README.md",
    )


def on_one_placement(source: Source, length: IntArray, pp: int, strategy: str) -> list[Cell]:
    """Every schedule in every order on one placement; under noise in its best order."""
    asked = ask(length, Pool(1, pp, RANKS, CAP), strategy, microbatch_order="as-built")
    _, draft = asked.placed()
    times = slot_times(asked.cost, draft.sequences, draft.num_microbatches)
    found = []
    for name in SCHEDULES:
        by_order = {way: ordered(name, times, way) for way in WAYS}
        best = min(by_order, key=lambda way: by_order[way].score_s)
        found.append({
            "source": source.name, "pp": pp, "plan": strategy, "M": draft.num_microbatches,
            "schedule": str(name), "best_order": best,
            "iteration_s": {way: by_order[way].iteration_s for way in WAYS},
            "noise": {text: under_noise(times, by_order[best], text) for text in NOISES},
        })  # fmt: skip
    return found


def ordered(name: Named, times: SlotTimes, way: str) -> Ordered:
    """The schedule with microbatches in that order; `searched` starts from the best of all."""
    limit = np.inf if name.worth is None else float(name.worth * times.op_s.shape[1] * CAP)
    live = times.rows.max(axis=0).astype(float)
    memory = Memory(limit, live, 1 - held_shares(load_model(MODEL)).after_input)
    orders = {o: microbatch_order(o, times.load_s) for o in ORDERS if way in (o, "searched")}
    return plan_ops(name.pipeline, times, memory, orders, search=way == "searched")


def under_noise(times: SlotTimes, found: Ordered, text: str) -> tuple[float, float]:
    """Mean and half of the 95% interval over the trials, seconds."""
    if text == "none":
        return found.iteration_s, 0.0
    slots = reordered(times, found.order)
    draws = draw(parse_noise(text), shape_of(slots), found.iteration_s, range(TRIALS), SEED, 0)
    taken_s = trial_s(slots, found.schedule, draws)
    return float(taken_s.mean()), float(1.96 * taken_s.std(ddof=1) / np.sqrt(TRIALS))


def planned(source: Source, length: IntArray, pp: int, name: Named) -> Cell:
    """What `plan --strategy hydra --pipeline NAME` gives."""
    live = None if name.worth is None else name.worth * pp
    pool = Pool(1, pp, RANKS, CAP)
    plan = ask(length, pool, pipeline=name.pipeline, live_microbatches=live).planned()
    search, figures = plan.search, plan.figures
    inside = search.window_min <= plan.num_microbatches <= search.window_max
    return {
        "source": source.name, "pp": pp, "schedule": str(name), "M": plan.num_microbatches,
        "inside": bool(inside), "asked": bool(inside and plan.num_microbatches >= 4 * pp),
        "efficiency": figures["efficiency"], "fill_bubble": figures["fill_bubble"],
        "pipeline_bubble": figures["pipeline_bubble"],
        "peak": figures["peak_live_tokens"] / (pp * CAP),
    }  # fmt: skip


def tables_of(cells: list[Cell], plans: list[Cell]) -> list[Table]:
    """Orders, noise, and plans."""
    rows_order, rows_noise, rows_plan = [], [], []
    keys = [(pp, plan) for pp in (4, 8) for plan in ("hydra", "memory-ffd")]
    for pp, plan in keys:
        here = [c for c in cells if (c["pp"], c["plan"]) == (pp, plan)]
        base = {c["source"]: c for c in here if c["schedule"] == "1f1b"}
        for name in map(str, SCHEDULES):
            own = [c for c in here if c["schedule"] == name]
            rows_order.append({"pp": pp, "plan": plan, "schedule": name} | {
                way: mean([c["iteration_s"][way] / base[c["source"]]["iteration_s"]["as-built"]
                           for c in own])
                for way in WAYS
            })  # fmt: skip
            rows_noise.append({"pp": pp, "plan": plan, "schedule": name} | {
                text: mean([c["noise"][text][0] / base[c["source"]]["noise"][text][0]
                            for c in own])
                for text in NOISES
            } | {
                "widest interval": max(c["noise"][t][1] / c["noise"][t][0]
                                       for c in own for t in NOISES),
                "fastest in": sum(wins(here, c, t) for c in own for t in NOISES),
            })  # fmt: skip
    for pp in (4, 8):
        for name in map(str, PLANNED):
            own = [p for p in plans if (p["pp"], p["schedule"]) == (pp, name)]
            asked = [p for p in own if p["asked"]]
            rows_plan.append({
                "pp": pp, "schedule": name, "plans": len(own), "inside, M >= 4 pp": len(asked),
                "efficiency, mean": mean([p["efficiency"] for p in own]),
                "efficiency there, least": min([p["efficiency"] for p in asked], default=np.nan),
                "reach 0.95": sum(p["efficiency"] >= GOAL for p in asked),
                "pipeline_bubble": mean([p["pipeline_bubble"] for p in own]),
                "fill_bubble": mean([p["fill_bubble"] for p in own]),
                "peak over pp x cap": max(p["peak"] for p in own),
            })  # fmt: skip
    return [
        Table("Noise-free time over 1F1B as built, same placement; mean of the length files",
              list(rows_order[0])).of(rows_order),
        Table(f"Time over 1F1B's under the same noise, each in its best order; {TRIALS} trials; "
              f"fastest in: cells of {4 * len(NOISES)} (file x noise)",
              list(rows_noise[0])).of(rows_noise),
        Table("Hydra's plans as users get them, order auto; goal: efficiency 0.95 inside the window"
              " at M >= 4 pp", list(rows_plan[0])).of(rows_plan),
    ]  # fmt: skip


def wins(here: list[Cell], cell: Cell, text: str) -> bool:
    """Whether no other schedule is faster on this file under this noise."""
    rivals = [c["noise"][text][0] for c in here if c["source"] == cell["source"]]
    return bool(cell["noise"][text][0] <= min(rivals) * (1 + 1e-9))


def mean(values: list[float]) -> float:
    """Arithmetic mean."""
    return float(np.mean(values))


if __name__ == "__main__":
    main()
