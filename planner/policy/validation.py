"""A fixed set of batches on which every policy is measured, paired, from before the first step.

Figures are throughput over another order's: its score (`scored`) by the policy's, less one, mean
over the batches. Beside following ZB-H1 there is the best of that and all rules, chosen for each
batch by that score. Batches that training draws come from other random streams.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hydraplan.model import FloatArray
from hydraplan.planner.policy.cloning import followed, teachers
from hydraplan.planner.policy.draws import drawn
from hydraplan.planner.policy.env import Env, empty_env
from hydraplan.planner.policy.network import Weights
from hydraplan.planner.policy.rollout import GREEDY, new_trace, play
from hydraplan.planner.policy.scored import Scenarios, scenarios_of, scored_s
from hydraplan.planner.policy.world import Instance

BATCHES = 150
STREAM = 0x7E57
"""First number of the seed of these batches; training has its own."""


class Validation(NamedTuple):
    """Batches side by side, and the scores of other orders of them, seconds, (batches,)."""

    env: Env
    scenarios: list[Scenarios]
    template_s: FloatArray
    rule_s: FloatArray


def validation_of(instances: Sequence[Instance]) -> Validation:
    """Measure what the others take."""
    parts = [
        scenarios_of(each, np.random.default_rng([STREAM, i])) for i, each in enumerate(instances)
    ]
    taken = [
        scored_s(followed(each, teachers(each))[0], [part])
        for each, part in zip(instances, parts, strict=True)
    ]
    template_s, rule_s = (np.array([f(t) for t in taken]) for f in (lambda t: t[0], np.min))
    return Validation(empty_env(instances), parts, template_s, rule_s)


def validation(count: int) -> Validation:
    """The first so many of the fixed set."""
    return validation_of([drawn(np.random.default_rng([STREAM, i])) for i in range(count)])


def gains(weights: Weights, held: Validation) -> dict[str, float]:
    """Percent that a policy gains: what it prefers, and draws, over ZB-H1; the former over rules.

    Each with half of its 95% interval.
    """
    count, room = len(held.template_s), new_trace(0, len(held.template_s))
    play(weights, held.env, np.full(count, GREEDY), room)
    greedy_s = scored_s(held.env, held.scenarios)
    play(weights, held.env, np.arange(count), room)
    drawn_s = scored_s(held.env, held.scenarios)
    found = {
        "greedy": held.template_s / greedy_s,
        "drawn": held.template_s / drawn_s,
        "greedy_over_rules": held.rule_s / greedy_s,
    }
    result: dict[str, float] = {}
    for name, ratio in found.items():
        result[f"{name}_percent"] = 100 * (float(ratio.mean()) - 1)
        result[f"{name}_interval"] = 196 * float(ratio.std(ddof=1)) / len(ratio) ** 0.5
    return result
