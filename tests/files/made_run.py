"""A run of two stages and two lanes, made by hand, for tests of what lies in its folder."""

import numpy as np

from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps
from hydraplan.files.runfile import RunHeader, Step
from hydraplan.files.trafficfile import Traffic
from hydraplan.model import Op, Timeline, Waits
from tests.plans import plan_header, tiny_model

OPS = (Op("F", 0), Op("BW", 0))
TOKENS = np.array([[5.0, 4.0], [3.0, 2.5]])
HELD = Peaks(TOKENS, np.array([[5.0, 4.0], [3.0, 2.0]]), TOKENS * 512, TOKENS * 500)
"""Stages x lanes; one rank holds more than predicted."""
SENT = Traffic(np.arange(12).reshape(3, 2, 2), np.arange(12).reshape(3, 2, 2) + 1)


def timeline(shift: float) -> Timeline:
    """2 stages, 2 lanes, exact binary fractions of a second."""
    start = np.array([[0.0, 0.25], [1.0, 1.25]])
    return Timeline(
        schedule=(OPS, OPS),
        start_s=(start, start + shift),
        end_s=(start + 0.5, start + 0.5 + shift),
        busy_s=(np.full((2, 2), 0.25), np.full((2, 2), 0.5)),
        grad_sync_s=np.array([0.0, 0.125]),
    )


def ops(found: Timeline) -> StepOps:
    """With waits of 1/16 and 1/8 s, and everything predicted a quarter of a second later."""
    waits = (tuple(np.full((2, 2), x) for _ in range(2)) for x in (0.0625, 0.125))
    later = (tuple(x + 0.25 for x in times) for times in (found.start_s, found.end_s))
    then = Timeline(found.schedule, *later, found.busy_s, found.grad_sync_s * 2)
    return StepOps(found, Waits(*waits), then)


def header(**changes: object) -> RunHeader:
    """The footer of its files."""
    return RunHeader(
        tool_version="0",
        mode="measured",
        device="cpu",
        dtype="float32",
        plan_name="x.plan",
        plan_digest="0" * 64,
        plan=plan_header(tiny_model(), 2, 2, 1),
        steps=2,
        seed=0,
        learning_rate=1e-3,
        data="generated",
    ).model_copy(update=changes)


def step(number: int, loss: float | None = 2.5, shift: float = 0.5) -> Step:
    """A step of three rows, following those of the step before."""
    return Step(number, 0, 3 * number, 3, 10, 8, loss, ops(timeline(shift)), HELD, SENT)
