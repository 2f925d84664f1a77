"""Two small batches by hand, and training with a plan of them."""

from dataclasses import fields, replace

import numpy as np

from hydraplan.executor import run as executor_run
from hydraplan.executor.predicted import predict
from hydraplan.executor.run import execute
from hydraplan.executor.settings import Settings
from tests.builders import Place

BATCHES = [
    [Place(33, 0, 2, 1), Place(8, 0, 1, 2, 1), Place(5, 1, 1, 1, 1)],
    [Place(20, 0, 1, 2), Place(0), Place(1, 1)],
]
SETTINGS = {field.name for field in fields(Settings)}


def train(path, **changes):
    asked = {"timeout_s": 60.0} | {name: changes.pop(name) for name in SETTINGS & changes.keys()}
    options = {
        "steps": None,
        "output": None,
        "force": False,
        "learning_rate": 1e-2,
        "clip_grad": 1.0,
    }
    return execute(path, Settings(**asked), **(options | changes))


def losses(run):
    return [row["loss"] for row in run.steps]


def make_up_times(monkeypatch, rank, slow_steps, factor=2):
    """Have ranks take what is predicted, +-1%, and `rank` (stage, lane) longer in some steps.

    Returns the number of steps so far, in a list: what is put there counts on.
    """
    count, run_step = [0], executor_run.run_step

    def measured(worker, job, batch, moves, slow):
        found = run_step(worker, job, batch, moves, slow)
        step = count[0]
        count[0] += 1
        if found is None:
            return None
        rng = np.random.default_rng(step)
        planned = predict(job.cost, batch, moves).timeline
        busy = [b * rng.lognormal(0, 0.01, (1, b.shape[1])) for b in planned.busy_s]
        if step in slow_steps:
            busy[rank[0]][:, rank[1]] *= factor
        timeline = found.timeline
        start = tuple(end - b for end, b in zip(timeline.end_s, busy, strict=True))
        first = min(s.min() for s in start)
        times = {
            "start_s": tuple(s - first for s in start),
            "end_s": tuple(e - first for e in timeline.end_s),
            "busy_s": tuple(busy),
        }
        return found._replace(timeline=replace(timeline, **times))

    monkeypatch.setattr(executor_run, "run_step", measured)
    return count
