"""Work that moves between real workers: losses and gradients of the same step without moves."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hydraplan.executor.launch import run_workers
from hydraplan.executor.prepare import Job, prepare
from hydraplan.executor.settings import Settings
from hydraplan.executor.stage import build_stage
from hydraplan.executor.worker import run_step, set_up
from hydraplan.migration import NO_MOVES, HeadShares, Moves
from hydraplan.planner.pipeline.schedules import SCHEDULES
from tests.builders import Place
from tests.plans import tiny_model, write_test_plan

pytestmark = pytest.mark.dist

TIMEOUT_S = 60.0
PLACES = [
    Place(150, 0, 2, 2), Place(40, 0, 2, 1), Place(45, 2), Place(30, 3),
    Place(61, 0, 1, 2, 1), Place(90, 2, 2, 1, 1), Place(37, 0, 1, 1, 1), Place(20, 0, 1, 1, 1),
    Place(80, 0, 4, 1, 2), Place(50, 3, 1, 1, 2),
]  # fmt: skip
"""Of three microbatches on four lanes; lane 1 of the last has only rows of the group."""

SHARES = (
    HeadShares(0, 0, 0, 2, 2, ((3, 5), (5, 3))),
    HeadShares(0, 2, 0, 4, 1, ((0, 4, 3, 1),)),
    HeadShares(1, 0, 0, 2, 1, ((6, 2),)),
    HeadShares(1, 1, 2, 2, 1, ((8, 0),)),
)


class Case(NamedTuple):
    """A step of one pipeline with some moves."""

    pipeline: str
    recompute: str
    dtype: str
    moves: Moves


def run_cases(folder: Path, jobs: dict[str, tuple[Job, Moves]], world):
    """Every case on the groups of the first: gradients of lane 0 and the loss as files."""
    first = set_up(world, next(iter(jobs.values()))[0])
    for name, (job, moves) in jobs.items():
        header, route = job.header, job.header.cost_model().route
        dtype = getattr(torch, job.dtype)
        stage = build_stage(
            job.model, header.layers, route, world.stage, job.seed, dtype, None, job.recompute
        )
        worker = replace(first, route=route, stage=stage)
        measured = run_step(worker, job, job.batches[0], moves)
        if world.lane == 0:
            gradients = {n: w.grad.numpy() for n, w in stage.weights.items()}
            np.savez(folder / f"{name}.{world.stage}.npz", **gradients)
        if measured is not None:
            np.save(folder / f"{name}.npy", np.array([measured.loss]))


def check_cases(folder: Path, cases: dict[str, Case], pp=2, ranks=4):
    """Run all in one launch; the largest error of a loss or gradient, relative to its norm."""
    jobs = {}
    for name, case in cases.items():
        pipeline = SCHEDULES[case.pipeline]
        chunks = pipeline.chunks or 1
        path = folder / f"{case.pipeline}.plan"
        if not path.exists():
            write_test_plan(
                path, [PLACES], pp=pp, ranks=ranks, model=tiny_model(8, 2, 2 * pp * chunks),
                num_microbatches=3, make=partial(pipeline.make, num_chunks=chunks),
                route=pipeline.route, num_chunks=chunks,
            )  # fmt: skip
        settings = Settings(7, dtype=case.dtype, recompute=case.recompute, timeout_s=TIMEOUT_S)
        job = prepare(path, [0], settings)
        jobs[name] = job, case.moves
        jobs[f"{name}-still"] = job, NO_MOVES
    run_workers(partial(run_cases, folder, jobs), pp, ranks, TIMEOUT_S)
    return {name: largest_error(folder, name, pp) for name in cases}


def largest_error(folder: Path, name: str, pp: int) -> float:
    """Of loss and gradients against the same case without moves."""
    moved, still = (np.load(folder / f"{name}{end}.npy") for end in ("", "-still"))
    errors = [abs(moved - still).max() / abs(still).max()]
    for stage in range(pp):
        files = [folder / f"{name}{end}.{stage}.npz" for end in ("", "-still")]
        with np.load(files[0]) as found, np.load(files[1]) as wanted:
            for weight in wanted:
                off = np.linalg.norm(found[weight] - wanted[weight])
                errors.append(off / np.linalg.norm(wanted[weight]))
    return float(max(errors))


def test_a_step_with_moved_work_has_the_loss_and_gradients_of_one_without(tmp_path):
    moves = Moves(SHARES)
    errors = check_cases(tmp_path, {"a": Case("zb-h1", "none", "float64", moves)})
    assert max(errors.values()) <= 1e-12
