"""Where a training run stands, as a file: what goes on from it makes the same policy.

It is a policy file with Adam's moments beside, and in its texts the settings, the counts and the
figures so far. Of the same form, so equally safe to read.
"""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hydraplan.errors import InputError
from hydraplan.planner.policy.gradient import Moments, no_moments
from hydraplan.planner.policy.network import Policy
from hydraplan.planner.policy.policy_file import load_with, save_policy
from hydraplan.planner.policy.train import Learner, Settings

History = list[dict[str, float]]
_COUNTS = ("rounds", "steps", "adam_steps")


def save_learner(settings: Settings, learner: Learner, history: History, path: Path) -> None:
    """Write all that a run needs to go on; replaces the file as a whole."""
    weights, moments, rounds, steps = learner
    counts = dict(zip(_COUNTS, map(str, (rounds, steps, moments.steps)), strict=True))
    about = {"settings": json.dumps(asdict(settings)), "history": json.dumps(history), **counts}
    more = {"first": moments.first, "second": moments.second}
    save_policy(Policy(weights, about), path, more)


def load_learner(settings: Settings, path: Path) -> tuple[Learner, History]:
    """Read it back.

    Raises:
        InputError: The file is missing, damaged, no checkpoint, or of other settings.
    """
    policy, more = load_with(path, ("first", "second"))
    about, weights = policy.about, policy.weights
    for name in (*_COUNTS, "settings", "history"):
        if name not in about:
            raise InputError(f"checkpoint {path} has no {name}", "train anew, without --resume")
    asked = json.dumps(asdict(settings))
    if about["settings"] != asked:
        raise InputError(
            f"checkpoint {path} is of a run with {about['settings']}, not {asked}",
            "give the same options, or train anew without --resume",
        )
    size = len(no_moments(weights).first)
    if not all(array.shape == (size,) for array in more.values()) or more["second"].min() < 0:
        raise InputError(
            f"checkpoint {path}: moments are not {size} numbers each, the second not below zero",
            "train anew, without --resume",
        )
    try:
        rounds, steps, adam_steps = (int(about[name]) for name in _COUNTS)
        history = json.loads(about["history"])
    except ValueError as error:
        raise InputError(f"checkpoint {path}: {error}", "train anew, without --resume") from error
    first, second = (np.require(more[name], requirements="C") for name in ("first", "second"))
    return Learner(weights, Moments(first, second, adam_steps), rounds, steps), history
