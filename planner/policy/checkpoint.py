"""Where a training run stands, as a file: what goes on from it makes the same policy.

It is a policy file with Adam's moments beside, and in its texts the settings, the counts and the
figures so far. Of the same form, so equally safe to read.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hydraplan.config import validation_text
from hydraplan.errors import InputError
from hydraplan.planner.policy.gradient import Moments, no_moments
from hydraplan.planner.policy.network import Policy
from hydraplan.planner.policy.policy_file import load_with, save_policy
from hydraplan.planner.policy.train import Learner, Settings

History = list[dict[str, float]]
_COUNTS = ("rounds", "steps", "adam_steps")
_FIGURES = {"steps", "greedy_percent", "drawn_percent", "greedy_over_rules_percent"}
"""What every row of a history has."""
_COUNT = TypeAdapter(Annotated[int, Field(ge=0, le=1 << 48)])
_HISTORY = TypeAdapter(list[dict[str, Annotated[float, Field(allow_inf_nan=False)]]])


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

    def refuse(why: str, hint: str = "train anew, without --resume") -> InputError:
        return InputError(f"checkpoint {path} {why}", hint)

    for name in (*_COUNTS, "settings", "history"):
        if name not in about:
            raise refuse(f"has no {name}")
    asked = json.dumps(asdict(settings))
    if about["settings"] != asked:
        raise refuse(
            f"is of a run with {about['settings'][: 2 * len(asked)]}, not {asked}",
            "give the same options, or train anew without --resume",
        )
    if (weights.bias_1.size, weights.bias_2.size) != (settings.hidden, settings.hidden):
        raise refuse(f"has not {settings.hidden} hidden units a layer")
    size = len(no_moments(weights).first)
    if not all(array.shape == (size,) for array in more.values()) or more["second"].min() < 0:
        raise refuse(f"has moments that are not {size} numbers each, the second not below zero")
    try:
        rounds, steps, adam_steps = (_COUNT.validate_strings(about[name]) for name in _COUNTS)
        history = _HISTORY.validate_json(about["history"])
    except ValidationError as error:
        raise refuse(f"is damaged: {validation_text(error)}") from error
    told = [row["steps"] for row in history if row.keys() >= _FIGURES]
    if len(told) < len(history) or told[-1:] != [steps]:
        raise refuse(f"has figures that do not lead to its {steps} choices")
    return Learner(weights, Moments(**more, steps=adam_steps), rounds, steps), history
