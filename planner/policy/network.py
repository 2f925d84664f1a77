"""The network of a policy: features of a stage that chooses to preferences among its actions.

Two hidden layers of rectified sums in single precision, one network for all stages and sizes. What
follows ZB-H1 gets a head start on its preference. Sums are added up one input after the other,
eight of them at a time by their place, so a machine with wider vectors gets the same bits.

Source: that the net starts from a template's action is ours, as is its size; Conductor gives none.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.model import FloatArray
from hydraplan.planner.compiled import compiled_in_place
from hydraplan.planner.policy.episode import NUM_ACTIONS, WAIT
from hydraplan.planner.policy.features import NUM_FEATURES

Floats = NDArray[np.float32]

HIDDEN = 32
"""Width of both hidden layers of a new network; a file may have others."""
HEAD_START = 4.0
"""What a new network adds to the preference of the action that follows ZB-H1."""


class Weights(NamedTuple):
    """Arrays of float32: matrices (inputs, outputs), biases (outputs,), `head_start` (1,)."""

    into_1: Floats
    bias_1: Floats
    into_2: Floats
    bias_2: Floats
    into_3: Floats
    bias_3: Floats
    head_start: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A network and how it was made: names and texts, such as the command that trained it."""

    weights: Weights
    about: dict[str, str] = field(default_factory=dict)


def new_weights(rng: np.random.Generator, hidden: int = HIDDEN) -> Weights:
    """Random hidden layers and no preferences, so that it follows ZB-H1 mostly."""

    def matrix(inputs: int, outputs: int) -> Floats:
        return rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)

    return Weights(
        matrix(NUM_FEATURES, hidden), np.zeros(hidden, np.float32),
        matrix(hidden, hidden), np.zeros(hidden, np.float32),
        np.zeros((hidden, NUM_ACTIONS), np.float32), np.zeros(NUM_ACTIONS, np.float32),
        np.full(1, HEAD_START, np.float32),
    )  # fmt: skip


@compiled_in_place
def fill_logits(
    weights: Weights,
    features: FloatArray,
    mask: NDArray[np.bool_],
    hidden: Floats,
    logits: Floats,
) -> None:
    """Fill the preferences of one choice, (NUM_ACTIONS,), minus infinity where illegal.

    Args:
        hidden: Room, (3, widest layer).
    """
    first, second = hidden[1], hidden[2]
    for i in range(NUM_FEATURES):
        hidden[0, i] = features[i]
    _layer(weights.into_1, weights.bias_1, hidden[0], first)
    _rectify(first, len(weights.bias_1))
    _layer(weights.into_2, weights.bias_2, first, second)
    _rectify(second, len(weights.bias_2))
    _last(weights.into_3, weights.bias_3, second, logits)
    template = template_action(features, mask)
    if template >= 0:
        logits[template] += weights.head_start[0]
    for a in range(NUM_ACTIONS):
        if not mask[a]:
            logits[a] = -np.inf


@compiled_in_place
def template_action(features: FloatArray, mask: NDArray[np.bool_]) -> int:
    """What follows ZB-H1: its next op, or else to wait for it, or else -1, any op."""
    kind = int(features[NUM_FEATURES - 3 :].argmax())
    if mask[kind]:
        return kind
    return WAIT if mask[WAIT] else -1


@compiled_in_place
def _layer(into: Floats, bias: Floats, inputs: Floats, outputs: Floats) -> None:
    """Fill the weighted sums of one layer, four inputs at a time."""
    count, width = into.shape
    for j in range(width):
        outputs[j] = bias[j]
    for i in range(0, count - 3, 4):
        a, b, c, d = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
        for j in range(width):
            outputs[j] += (a * into[i, j] + b * into[i + 1, j]) + (
                c * into[i + 2, j] + d * into[i + 3, j]
            )
    for i in range(count - count % 4, count):
        a = inputs[i]
        for j in range(width):
            outputs[j] += a * into[i, j]


@compiled_in_place
def _last(into: Floats, bias: Floats, inputs: Floats, outputs: Floats) -> None:
    """As `_layer`; too narrow for a loop over the outputs."""
    f, b, w, wait, light, heavy = bias[0], bias[1], bias[2], bias[3], bias[4], bias[5]
    for i in range(len(into)):
        a = inputs[i]
        f += a * into[i, 0]
        b += a * into[i, 1]
        w += a * into[i, 2]
        wait += a * into[i, 3]
        light += a * into[i, 4]
        heavy += a * into[i, 5]
    outputs[0], outputs[1], outputs[2] = f, b, w
    outputs[3], outputs[4], outputs[5] = wait, light, heavy


@compiled_in_place
def _rectify(values: Floats, width: int) -> None:
    for j in range(width):
        values[j] = max(values[j], np.float32(0.0))
