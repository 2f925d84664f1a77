"""Two small batches by hand, and training with a plan of them."""

from hydraplan.executor.run import execute
from tests.builders import Place

BATCHES = [
    [Place(33, 0, 2, 1), Place(8, 0, 1, 2, 1), Place(5, 1, 1, 1, 1)],
    [Place(20, 0, 1, 2), Place(0), Place(1, 1)],
]


def train(path, **changes):
    options = {
        "steps": None,
        "seed": 0,
        "data": None,
        "output": None,
        "force": False,
        "learning_rate": 1e-2,
        "clip_grad": 1.0,
        "timeout_s": 60.0,
    }
    return execute(path, **(options | changes))


def losses(run):
    return [row["loss"] for row in run.steps]
