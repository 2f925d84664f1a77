"""What ops take beside what the plan predicts, learnt from the run itself, alike for all lanes.

A cost model can be wrong for a stage (its loss, its embedding), for a kind of op, or by a fixed
time an op. That is no slow device, but on ranks with unlike loads it would look like one. So each
stage and kind of op has a line, seconds = fixed + rate x predicted, through the ops of all lanes in
the last `STEPS` steps, known device factors taken off. What the lines say of the present step is
the load that estimates compare with.

Ops that are predicted to take nothing, in empty slots of a model without fixed times, take what the
middle one of them does: so a lane that has no others is seen to become faster or slower.

Lines are those of least absolute relative residuals, so a slow lane does not bend them while most
of the ops they go through are of others, or older. A stage of a single lane is its own reference:
it is seen to become slow, not to have been so from the first step on.

Source: ours; least absolute residuals by reweighting are standard.
"""

from dataclasses import dataclass, field

import numpy as np

from hydraplan.model import FloatArray, Timeline

STEPS = 8
"""Steps whose ops lines go through."""

POINTS = 4096
"""Ops, at most, that a line goes through; of more, each so-many-th."""

ROUNDS = 10
"""Reweightings of a line; residuals of real ops change by less than a per cent after these."""

LEAST_SPREAD = 0.05
"""Relative spread of what is predicted below which a line has no fixed part."""

Key = tuple[int, str]
"""Stage and kind of op."""


@dataclass(slots=True)
class OpScale:
    """Ops of the last steps: predicted seconds, and measured ones at nominal speed."""

    kept: dict[Key, list[tuple[FloatArray, FloatArray]]] = field(default_factory=dict)

    def load_s(
        self, measured: Timeline, predicted: Timeline, factor: FloatArray
    ) -> tuple[FloatArray, ...]:
        """Seconds that each op of a step asks of nominal ranks, (ops, lanes) a stage; take it in.

        Args:
            factor: Times as long as nominal that ranks are known to take, shape (stages, lanes).
        """
        load_s = tuple(np.zeros_like(planned_s) for planned_s in predicted.busy_s)
        for stage, ops in enumerate(measured.schedule):
            for kind in sorted({op.kind for op in ops}):
                at = [i for i, op in enumerate(ops) if op.kind == kind]
                planned_s = predicted.busy_s[stage][at]
                own_s = measured.busy_s[stage][at] / factor[stage]
                kept = self.kept.setdefault((stage, kind), [])
                kept.append((planned_s.ravel(), own_s.ravel()))
                del kept[:-STEPS]
                fixed_s, rate = line(
                    *(np.concatenate(column) for column in zip(*kept, strict=True))
                )
                load_s[stage][at] = fixed_s + rate * planned_s
                if not planned_s.all():
                    load_s[stage][at] = np.where(planned_s > 0, load_s[stage][at], _idle_s(kept))
        return load_s


def _idle_s(kept: list[tuple[FloatArray, FloatArray]]) -> float:
    """What ops take that are predicted to take nothing: in the middle, and at nominal speed."""
    return float(np.median(np.concatenate([own_s[planned_s == 0] for planned_s, own_s in kept])))


def line(predicted_s: FloatArray, taken_s: FloatArray) -> tuple[float, float]:
    """Fixed seconds and rate of the line of least absolute relative residuals, neither negative."""
    used = predicted_s > 0
    step = max(1, -(-int(used.sum()) // POINTS))
    planned_s, own_s = predicted_s[used][::step], taken_s[used][::step]
    if not len(planned_s):
        return 0.0, 1.0
    inverse, ratio = 1 / planned_s, own_s / planned_s
    middle = float(np.median(ratio))
    if inverse.std() < LEAST_SPREAD * inverse.mean():
        return 0.0, middle
    fixed_s, rate = 0.0, middle
    for _ in range(ROUNDS):
        rest = np.abs(ratio - rate - fixed_s * inverse)
        weight = 1 / np.maximum(rest, 1e-3 * middle + 1e-30)
        mean_x, mean_y = np.average(inverse, weights=weight), np.average(ratio, weights=weight)
        off = inverse - mean_x
        fixed_s = float((weight * off * (ratio - mean_y)).sum() / (weight * off**2).sum())
        rate = float(mean_y - fixed_s * mean_x)
    if fixed_s < 0:
        return 0.0, middle
    if rate < 0:
        return float(np.median(own_s)), 0.0
    return fixed_s, rate
