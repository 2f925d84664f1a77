"""Work that moves between real workers: losses and gradients of the same step without moves."""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hydraplan.executor.launch import run_workers
from hydraplan.executor.predicted import predict
from hydraplan.executor.prepare import Job, prepare
from hydraplan.executor.settings import Settings
from hydraplan.executor.stage import build_stage
from hydraplan.executor.worker import run_step, set_up
from hydraplan.migration import NO_MOVES, HeadMove, HeadShares, Moves, RowMove
from hydraplan.planner.pipeline.schedules import SCHEDULES
from tests.builders import Place
from tests.plans import tiny_model, write_test_plan

pytestmark = pytest.mark.dist

TIMEOUT_S = 60.0
PLACES = [
    Place(150, 0, 2, 2), Place(40, 0, 2, 1), Place(45, 2), Place(30, 3),
    Place(61, 0, 1, 2, 1), Place(90, 2, 2, 1, 1), Place(37, 0, 1, 1, 1), Place(20, 0, 1, 1, 1),
    Place(80, 0, 2, 1, 2), Place(70, 3, 1, 1, 2),
]  # fmt: skip
"""Of three microbatches on four lanes; lane 2 has no row in the last, and takes some there."""

SHARES = (
    HeadShares(0, 0, 0, 2, 2, ((3, 5), (5, 3))),
    HeadShares(0, 2, 0, 2, 1, ((0, 8),)),
    HeadShares(1, 0, 0, 2, 1, ((6, 2),)),
    HeadShares(1, 1, 2, 2, 1, ((4, 4),)),
)
ROWS = (
    RowMove(0, 0, 1, 2, 16), RowMove(0, 1, 0, 3, 48), RowMove(0, 2, 3, 2, 64),
    RowMove(1, 0, 2, 1, 32), RowMove(1, 0, 3, 0, 16), RowMove(1, 1, 2, 0, 32),
    RowMove(1, 2, 3, 2, 32),
)  # fmt: skip
HEADS = (
    HeadMove(0, 0, 2, 1, 4), HeadMove(0, 1, 0, 3, 3), HeadMove(0, 2, 3, 2, 8),
    HeadMove(1, 0, 2, 0, 5), HeadMove(1, 0, 3, 1, 1), HeadMove(1, 2, 3, 2, 7),
)  # fmt: skip
FORMS = {
    "shares": Moves(SHARES),
    "rows": Moves(rows=ROWS),
    "heads": Moves(heads=HEADS),
    "all": Moves(SHARES, ROWS, HEADS),
}


class Case(NamedTuple):
    """A step of one pipeline with some moves."""

    form: str
    pipeline: str
    recompute: str = "none"
    dtype: str = "float64"
    transport: str = "tagged"
    is_checked: bool = False


def run_cases(folder: Path, jobs: dict[str, tuple[Job, Moves]], world):
    """Every case on one launch: gradients of lane 0 and what was measured as files."""
    for name, (job, moves) in jobs.items():
        worker = workers_of(world, job)
        measured = run_step(worker, job, job.batches[0], moves)
        if world.lane == 0:
            gradients = {n: w.grad.numpy() for n, w in worker.stage.weights.items()}
            np.savez(folder / f"{name}.{world.stage}.npz", **gradients)
        if measured is not None:
            said = [[measured.loss], measured.sent_bytes[1].ravel(), measured.peak_live_tokens]
            np.save(folder / f"{name}.npy", np.concatenate([np.ravel(x) for x in said]))


KEPT = {}


def workers_of(world, job):
    """A worker for a job, on the groups of the first with the same transport."""
    key = job.transport, job.settings.debug_messages
    if key not in KEPT:
        KEPT[key] = set_up(world, job)
    header, route = job.header, job.header.cost_model().route
    dtype = getattr(torch, job.dtype)
    stage = build_stage(
        job.model, header.layers, route, world.stage, job.seed, dtype, None, job.recompute
    )
    return replace(KEPT[key], route=route, stage=stage)


def check_cases(folder: Path, cases: list[Case]) -> dict[str, float]:
    """Run all in one launch; the largest error of each, relative to the norm of what is wrong.

    Bytes and tokens have to be as predicted.
    """
    jobs = {}
    for case in cases:
        pipeline = SCHEDULES[case.pipeline]
        chunks = pipeline.chunks or 1
        path = folder / f"{case.pipeline}.plan"
        if not path.exists():
            write_test_plan(
                path, [PLACES], pp=2, ranks=4, model=tiny_model(8, 2, 4 * chunks),
                num_microbatches=3, make=partial(pipeline.make, num_chunks=chunks),
                route=pipeline.route, num_chunks=chunks,
            )  # fmt: skip
        settings = Settings(
            7, dtype=case.dtype, recompute=case.recompute, timeout_s=TIMEOUT_S,
            transport=case.transport, debug_messages=case.is_checked,
        )  # fmt: skip
        job = prepare(path, [0], settings)
        still = f"{case.pipeline}-{case.recompute}-{case.dtype}"
        jobs["-".join(map(str, case))] = job, FORMS[case.form]
        jobs.setdefault(still, (job, NO_MOVES))
    run_workers(partial(run_cases, folder, jobs), 2, 4, TIMEOUT_S)
    errors = {}
    for case in cases:
        name, still = "-".join(map(str, case)), f"{case.pipeline}-{case.recompute}-{case.dtype}"
        job, moves = jobs[name]
        predicted = predict(job.cost, job.batches[0], moves)
        found = np.load(folder / f"{name}.npy")
        assert found[1:9].tolist() == predicted.sent_bytes[1].ravel().tolist(), name
        assert found[9:] == pytest.approx(predicted.live_peaks.ravel(), rel=1e-12), name
        errors[name] = largest_error(folder, name, still)
    return errors


def largest_error(folder: Path, name: str, still: str) -> float:
    """Of loss and gradients against the same case without moves."""
    moved, wanted = (np.load(folder / f"{each}.npy")[0] for each in (name, still))
    errors = [abs(moved - wanted) / abs(wanted)]
    for stage in range(2):
        files = [np.load(folder / f"{each}.{stage}.npz") for each in (name, still)]
        for weight in files[1]:
            off = np.linalg.norm(files[0][weight] - files[1][weight])
            errors.append(off / np.linalg.norm(files[1][weight]))
    return float(max(errors))


def test_a_step_with_moved_work_has_the_loss_and_gradients_of_one_without(tmp_path):
    errors = check_cases(tmp_path, [Case("all", "zb-h1", "full"), Case("all", "1f1b")])
    assert max(errors.values()) <= 1e-13, errors


@pytest.mark.slow
def test_so_it_has_in_every_form_schedule_and_way_of_recomputing(tmp_path):
    modes = ("none", "selective", "full")
    cases = [Case("all", "zb-v", mode) for mode in modes] + [Case("all", "interleaved", "full")]
    cases += [Case(form, "zb-h1", mode) for form, mode in zip(FORMS, modes, strict=False)]
    errors = check_cases(tmp_path, cases)
    assert max(errors.values()) <= 1e-13, errors


@pytest.mark.slow
def test_so_it_has_without_tags_with_headers_and_in_other_precisions(tmp_path):
    cases = [
        Case("all", "zb-h1", "full", transport=transport, is_checked=is_checked)
        for transport, is_checked in product(("tagged", "ordered"), (False, True))
    ]
    errors = check_cases(tmp_path, cases)
    assert max(errors.values()) <= 1e-13, errors
    limits = {"float32": 1e-6, "bfloat16": 2e-2}
    cases = [Case("all", "zb-h1", "none", dtype) for dtype in limits]
    for case, error in zip(cases, check_cases(tmp_path, cases).values(), strict=True):
        assert error <= limits[case.dtype], case
