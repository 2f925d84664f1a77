"""Runs whose ops took what some costs say, made without workers, and plans to run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hydraplan.cost_terms import Term, free_links, scaled, terms
from hydraplan.costfit import CostFit
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps, simulated_waits
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.runfile import RunHeader, append_steps, create_run, finished, plan_digest
from hydraplan.files.trafficfile import Traffic
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times


def off(fit: CostFit, times: Callable[[Term], float]) -> CostFit:
    """The fit with each term so many times as long."""
    return scaled(fit, {term: times(term) for term in terms(fit)})


def attention(factor: float) -> Callable[[Term], float]:
    """All of attention, and nothing else, so many times as long."""
    return lambda term: factor if term.field.startswith("attention") else 1.0


def measured_run(
    path: Path,
    plan_path: Path,
    truth: CostFit,
    *,
    steps: int = 4,
    sigma: float = 0.03,
    slow: Callable[[int, int, int], float] = lambda stage, lane, step: 1.0,
    seed: int = 0,
    **header: object,
) -> Path:
    """A run folder of a plan whose ops took what `truth` says, links left out, times noise.

    Steps are each a little faster or slower (5%), the first takes twice as long. `slow`: factor of
    (stage, lane, step).
    """
    plan, rng = open_plan(plan_path), np.random.default_rng(seed)
    told = {"fit": free_links(truth), "cluster": None}
    cost = replace(plan.header.model_copy(update=told).cost_model(), rank_speed=None)
    create_run(
        path,
        RunHeader(
            tool_version="0",
            mode="measured",
            device="cpu",
            dtype=plan.header.model.dtype,
            plan_name=plan_path.name,
            plan_digest=plan_digest(plan),
            plan=plan.header,
            steps=max(steps, 1),
            seed=0,
            learning_rate=1e-3,
            data="generated",
        ).model_copy(update=header),
    )
    lanes = range(cost.ranks)
    for step in range(steps):
        batch = read_batch(plan, step % plan.header.num_batches)
        slots = slot_times(cost, batch.sequences.placed(), batch.num_microbatches)
        timeline = simulate(slots, batch.schedule)
        level = float(np.exp(rng.normal(0, 0.05))) * (2.0 if step == 0 else 1.0)
        busy = tuple(
            b * level * [slow(s, r, step) for r in lanes] * np.exp(rng.normal(0, sigma, b.shape))
            for s, b in enumerate(timeline.busy_s)
        )
        took = replace(timeline, busy_s=busy)
        shape = cost.pp, cost.ranks
        append_steps(
            path,
            [
                finished(
                    step,
                    batch,
                    2.5,
                    StepOps(took, simulated_waits(took), timeline),
                    Peaks(np.ones(shape), np.ones(shape)),
                    Traffic(np.ones((3, *shape), np.int64), np.ones((3, *shape), np.int64)),
                )
            ],
        )
    return path
