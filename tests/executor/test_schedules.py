"""Every schedule on real workers: gradients of one process, tokens held as predicted.

One launch of the workers runs all schedules of its pool one after the other, so that the
processes are started once.
"""

from collections.abc import Callable
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
from hydraplan.executor.verify import gradient_errors, reference_gradients
from hydraplan.executor.worker import run_step, set_up
from hydraplan.metrics import planned_live_peaks
from hydraplan.model import Schedule
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.schedules import SCHEDULES, Layout
from hydraplan.planner.planned import PLANNED
from hydraplan.route import RouteName
from hydraplan.slots import slot_times
from tests.builders import Place
from tests.planner.orders import random_order
from tests.plans import batch_rows, plan_header, tiny_model, write_test_plan

pytestmark = pytest.mark.dist

TIMEOUT_S = 60.0


class Order(NamedTuple):
    """Ops by name, and the way through the chunks they are for."""

    name: str
    make: Callable[[int, int], Schedule]
    route: RouteName = "loop"
    num_chunks: int = 1


def all_orders(pp: int) -> list[Order]:
    """Static schedules that are executed, interleaved with 2 and 3 chunks, and random orders."""
    found = []
    for name, pipeline in SCHEDULES.items():
        if pipeline.simulated_only:
            continue
        for chunks in [pipeline.chunks] if pipeline.chunks else [2, 3]:
            make = partial(pipeline_ops, name, chunks)
            found.append(Order(f"{name}-{chunks}", make, pipeline.route, chunks))
    for seed, (route, chunks) in enumerate([("loop", 1), ("loop", 2), ("v", 2), ("loop", 3)]):
        make = partial(random_ops, route, chunks, seed)
        found.append(Order(f"random-{route}-{chunks}", make, route, chunks))
    return found


def pipeline_ops(name, chunks, pp, count):
    return SCHEDULES[name].make(pp, count, chunks)


def random_ops(route, chunks, seed, pp, count):
    return random_order(route, pp, chunks, count, seed)


def places_of(ranks: int, num_microbatches: int, seed: int) -> list[Place]:
    """Lengths that vary by a factor of 40, all degrees; in microbatch 0 only lane 0 has rows."""
    rng = np.random.default_rng(seed)
    places = [Place(7)]
    for m in range(1, num_microbatches):
        degree = 1
        while degree <= ranks:
            inner = int(rng.choice([u for u in (1, 2, 4) if degree % u == 0]))
            first = int(rng.integers(ranks // degree)) * degree
            places.append(Place(int(rng.integers(2, 80)), first, inner, degree // inner, m))
            degree *= 2
    return places


def check_orders(
    folder: Path, pp: int, ranks: int, num_microbatches: int, seed: int, orders, modes=("none",)
):
    """Run the orders on one launch of workers; hold each against one process and the prediction.

    Each under every `recompute` of `modes`.
    """
    model, places = tiny_model(8, 2, 3 * pp), places_of(ranks, num_microbatches, seed)
    jobs = {}
    for order in orders:
        path = write_test_plan(
            folder / f"{order.name}.plan", [places], pp=pp, ranks=ranks, model=model,
            num_microbatches=num_microbatches, make=order.make, route=order.route,
            num_chunks=order.num_chunks,
        )  # fmt: skip
        for mode in modes:
            settings = Settings(seed, dtype="float64", recompute=mode, timeout_s=TIMEOUT_S)
            jobs[f"{order.name}-{mode}"] = prepare(path, [0], settings)
    run_workers(partial(run_jobs, folder, jobs), pp, ranks, TIMEOUT_S)
    job = next(iter(jobs.values()))
    placed = job.batches[0].sequences.placed()
    loss, reference = reference_gradients(job, placed)
    for name, job in jobs.items():
        found = {}
        for stage in range(pp):
            with np.load(folder / f"{name}.{stage}.npz", allow_pickle=False) as file:
                found |= dict(file)
        errors = gradient_errors(found, reference)
        assert max(errors.values()) <= 1e-10, (name, errors)
        found_loss, *peaks = np.load(folder / f"{name}.npy", allow_pickle=False)
        assert abs(found_loss - loss) <= 1e-10 * loss, name
        predicted = planned_live_peaks(job.cost, job.batches[0])
        assert peaks == pytest.approx(predicted.ravel(), rel=1e-12), name
        assert max(peaks) > 0


def run_jobs(folder: Path, jobs: dict[str, Job], world):
    """Every job on the groups of the first: gradients of lane 0, loss and peaks as files."""
    first = set_up(world, next(iter(jobs.values())))
    for name, job in jobs.items():
        header, route = job.header, job.header.cost_model().route
        stage = build_stage(
            job.model, header.layers, route, world.stage, job.seed, torch.float64, None,
            job.recompute,
        )  # fmt: skip
        worker = replace(first, route=route, stage=stage)
        measured = run_step(worker, job, job.batches[0])
        if world.lane == 0:
            gradients = {n: w.grad.numpy() for n, w in stage.weights.items()}
            np.savez(folder / f"{name}.{world.stage}.npz", **gradients)
        if measured is not None:
            said = [measured.loss, *measured.peak_live_tokens.ravel().tolist()]
            np.save(folder / f"{name}.npy", np.array(said))


RECOMPUTED = {"1f1b-1", "interleaved-2", "zb-h2-1", "zb-v-2", "random-v-2"}


@pytest.mark.parametrize(
    ("pp", "ranks", "num_microbatches"),
    [(2, 2, 3), pytest.param(2, 4, 5, marks=pytest.mark.slow)],
)
def test_so_do_schedules_whose_backward_makes_activations_again(
    tmp_path, pp, ranks, num_microbatches
):
    orders = [order for order in all_orders(pp) if order.name in RECOMPUTED]
    assert len(orders) == len(RECOMPUTED)
    check_orders(tmp_path, pp, ranks, num_microbatches, 7, orders, ("selective", "full"))


def planned_orders(pp: int, ranks: int, num_microbatches: int, seed: int) -> list[Order]:
    """Orders planned for the very costs of this batch, under 1 or 2 pp microbatches of memory."""
    found = []
    rows = batch_rows(places_of(ranks, num_microbatches, seed)).placed()
    header = plan_header(tiny_model(8, 2, 3 * pp), pp, ranks, 1)
    one, v, loop = Layout("loop", 1), Layout("v", 2), Layout("loop", 2)
    for name, most, (way, chunks) in (
        ("zb-1p", 1, one), ("zb-2p", 2, one), ("portfolio", 2, one), ("exact", 2, one),
        ("auto", 1, one), ("portfolio", 1, v), ("auto", 2, loop),
    ):  # fmt: skip
        layers = (((3,) if chunks == 1 else (2, 1)),) * pp
        cost = header.model_copy(update={"layers": layers, "route": way}).cost_model()
        times = slot_times(cost, rows, num_microbatches)
        live = times.rows.max(axis=0).astype(float)
        schedule = PLANNED[name](times, Memory(most * pp * live.max(), live))
        label = f"{name}-{way}-{chunks}"
        found.append(Order(label, lambda pp, count, ops=schedule: ops, way, chunks))
    return found


@pytest.mark.parametrize(
    ("pp", "ranks", "num_microbatches"),
    [
        (2, 2, 3),
        pytest.param(3, 1, 2, marks=pytest.mark.slow),
        pytest.param(4, 1, 9, marks=pytest.mark.slow),
        pytest.param(2, 4, 6, marks=pytest.mark.slow),
        pytest.param(4, 2, 3, marks=pytest.mark.slow),
        pytest.param(3, 4, 1, marks=pytest.mark.slow),
    ],
)
def test_every_schedule_has_the_gradients_of_one_process_and_holds_what_is_predicted(
    tmp_path, pp, ranks, num_microbatches
):
    check_orders(tmp_path, pp, ranks, num_microbatches, 10 * pp + ranks, all_orders(pp))


@pytest.mark.parametrize(
    ("pp", "ranks", "num_microbatches"),
    [(2, 2, 5), pytest.param(4, 2, 8, marks=pytest.mark.slow)],
)
def test_orders_planned_for_the_batch_do_so_too(tmp_path, pp, ranks, num_microbatches):
    orders = planned_orders(pp, ranks, num_microbatches, pp)
    check_orders(tmp_path, pp, ranks, num_microbatches, pp, orders)
