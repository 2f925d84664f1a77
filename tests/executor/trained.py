"""Two small batches by hand, and training with a plan of them."""

from dataclasses import fields

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
