"""From measured seconds to the coefficients of the cost model. Pure numpy.

A call takes call_s + flops / flops_per_s * (1 + half_rows / rows + spill * rows / (rows + 256)), a
message latency_s + bytes / bytes_per_s. Both are linear in non-negative coefficients of at most
four columns, so the best fit is found exactly: try every set of columns that may be in use, solve
ordinary least squares on it, keep the best that has no negative coefficient. Robustness comes
from reweighting: the sum of |log(fit / measured)| is minimised, so a few disturbed points do
not move the fit, and twice too fast counts as much as twice too slow. It does not measure and
does not extrapolate on its own: `half_rows` stays below the largest call measured and `spill` below
`MOST_SPILL`, since beyond these the data cannot tell them from another rate.

What is fitted is the first decile of a point's repeats: other processes only ever add time,
and on a busy machine the median is mostly theirs. On a quiet one the two agree.

Kernels skip masked keys in whole blocks; the block is found by trying powers of two.

Source: our choice of shape and method; HyDra publishes none.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydraplan.config import MAX_RATE
from hydraplan.costfit import CostFit, LinkFit, RateFit, causal_waste, spilt
from hydraplan.errors import InputError
from hydraplan.files.profilefile import Measurement, Name, Pass
from hydraplan.model import FloatArray

BoolArray = NDArray[np.bool_]

REWEIGHTINGS = 30
MOST_SPILL = 3.0
CAUSAL_BLOCKS_ROWS = (0.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
CONVERGED = 1e-9
SMALLEST_ERROR = 1e-4
"""Errors below this weigh the same; keeps the reweighting finite."""


class AttentionWork(NamedTuple):
    """Attention that was timed, arrays of shape (num_points,).

    `flops` exact and forward or backward, `rows` the smaller side of a call, `calls` of the kernel.
    """

    flops: FloatArray
    rows: FloatArray
    is_causal: BoolArray
    calls: FloatArray

    def wasted_flops(self, block_rows: float) -> FloatArray:
        """Flops with those of keys that a kernel cannot skip."""
        result: FloatArray = self.flops * np.where(
            self.is_causal, causal_waste(self.rows, block_rows), 1.0
        )
        return result


class Component(NamedTuple):
    """Which measurements a coefficient of `CostFit` is fitted on, and with which formula."""

    component: Name
    direction: Pass
    formula: Literal["attention", "rate", "bandwidth", "link"]


COMPONENTS = {
    "attention_forward": Component("attention", "forward", "attention"),
    "attention_backward": Component("attention", "backward", "attention"),
    "linear_forward": Component("linear", "forward", "rate"),
    "linear_input": Component("linear", "input", "rate"),
    "linear_weight": Component("linear", "weight", "rate"),
    "memory_bytes_per_s": Component("memory", "send", "bandwidth"),
    "node_all_to_all": Component("all_to_all", "send", "link"),
    "node_p2p": Component("p2p", "send", "link"),
    "fabric_all_to_all": Component("fabric_all_to_all", "send", "link"),
    "fabric_p2p": Component("fabric_p2p", "send", "link"),
    "embedding_forward": Component("embedding", "forward", "link"),
    "embedding_weight": Component("embedding", "weight", "link"),
    "loss_forward": Component("loss", "forward", "rate"),
    "loss_input": Component("loss", "input", "rate"),
    "loss_weight": Component("loss", "weight", "rate"),
}
"""Field of `CostFit` -> what it is fitted on."""


def least_log_error(columns: Sequence[FloatArray], measured_s: FloatArray) -> FloatArray:
    """Non-negative coefficients with the least sum of |log(fit / measured)| that was found.

    Args:
        columns: Terms of the model, each of shape (num_points,), positive.
        measured_s: Positive seconds, shape (num_points,).

    Returns:
        One coefficient a column, shape (num_columns,).

    Raises:
        InputError: There are fewer points than columns, or a time is not positive.
    """
    if len(measured_s) < len(columns):
        raise InputError(
            f"{len(measured_s)} measurements cannot fit {len(columns)} coefficients",
            "give the profile more --seconds",
        )
    check_times(measured_s)
    relative = np.stack(columns, axis=1) / measured_s[:, None]
    scale = relative.max(axis=0)
    relative = relative / scale
    weight = np.ones(len(measured_s))
    last = best = np.zeros(len(columns))
    best_error = np.inf
    for _ in range(REWEIGHTINGS):
        coefficients = _non_negative(relative, weight)
        ratio = relative @ coefficients
        error = np.abs(np.log(ratio))
        if error.sum() < best_error:
            best, best_error = coefficients, float(error.sum())
        if np.allclose(coefficients, last, rtol=CONVERGED, atol=0):
            break
        last = coefficients
        weight = np.sqrt(np.maximum(error, SMALLEST_ERROR))
        weight /= np.maximum(np.abs(ratio - 1), SMALLEST_ERROR)
    result: FloatArray = best / scale
    return result


def check_times(measured_s: FloatArray) -> None:
    """Refuse seconds that no call takes; of a clock that stands still, say.

    Raises:
        InputError: One is not a positive number.
    """
    wrong = measured_s[~(np.isfinite(measured_s) & (measured_s > 0))]
    if len(wrong):
        raise InputError(
            f"a measured time is {float(wrong[0]):g} s, not positive",
            "measure again; does the clock of this machine run?",
        )


def _non_negative(relative: FloatArray, weight: FloatArray) -> FloatArray:
    """Weighted non-negative least squares of relative @ x = 1, by trying all column sets."""
    count = relative.shape[1]
    best, best_cost = np.zeros(count), np.inf
    for size in range(1, count + 1):
        for used in combinations(range(count), size):
            part = relative[:, used] * weight[:, None]
            solved = np.linalg.lstsq(part, weight, rcond=None)[0]
            cost = float(np.square(part @ solved - weight).sum())
            if (solved > 0).all() and cost < best_cost:
                best, best_cost = np.zeros(count), cost
                best[list(used)] = solved
    return best


def fit_rate(flops: FloatArray, measured_s: FloatArray) -> RateFit:
    """Fit call_s and flops_per_s; arrays of shape (num_points,)."""
    found = least_log_error([np.ones(len(flops)), flops], measured_s)
    rate = RateFit(call_s=float(found[0]), flops_per_s=_per_s(float(found[1])))
    error = np.abs(rate_s(rate, flops) - measured_s) / measured_s
    return rate.model_copy(update={"relative_error": float(np.median(error))})


def fit_attention(
    work: AttentionWork, measured_s: FloatArray, blocks_rows: Sequence[float] = CAUSAL_BLOCKS_ROWS
) -> RateFit:
    """Fit all coefficients of attention calls; arrays of shape (num_points,).

    The block is the one of `blocks_rows` with the least sum of |log(fit / measured)|.
    """
    fits = [_fit_with_block(work, measured_s, block) for block in blocks_rows]
    ratios = [attention_call_s(rate, work) / measured_s for rate in fits]
    best = min(range(len(fits)), key=lambda i: float(np.abs(np.log(ratios[i])).sum()))
    error = float(np.median(np.abs(ratios[best] - 1)))
    return fits[best].model_copy(update={"relative_error": error})


def _fit_with_block(work: AttentionWork, measured_s: FloatArray, block_rows: float) -> RateFit:
    """Fit the linear coefficients under a given block.

    `half_rows` and `spill` are written as a mix of three rates, one with neither, one with
    half_rows at the largest call, one with `MOST_SPILL`, which keeps them below these.
    """
    flops, rows = work.wasted_flops(block_rows), work.rows
    limit = float(rows.max())
    late = flops * (1 + MOST_SPILL * spilt(rows))
    columns = [work.calls, flops, flops * (1 + limit / rows), late]
    call_s, full, short, long = (float(x) for x in least_log_error(columns, measured_s))
    slope_s = full + short + long
    return RateFit(
        call_s=call_s,
        flops_per_s=_per_s(slope_s),
        half_rows=limit * short / slope_s if slope_s else 0.0,
        spill=MOST_SPILL * long / slope_s if slope_s else 0.0,
        causal_block_rows=block_rows,
    )


def fit_link(moved_bytes: FloatArray, measured_s: FloatArray) -> LinkFit:
    """Fit latency_s and bytes_per_s; arrays of shape (num_points,)."""
    found = least_log_error([np.ones(len(moved_bytes)), moved_bytes], measured_s)
    link = LinkFit(latency_s=float(found[0]), bytes_per_s=_per_s(float(found[1])))
    error = np.abs(link_s(link, moved_bytes) - measured_s) / measured_s
    return link.model_copy(update={"relative_error": float(np.median(error))})


def _per_s(slope_s: float) -> float:
    """Rate of a slope, at most `MAX_RATE`: times that do not grow cannot tell it.

    A fixed time alone is then the best fit. Work alone, the other end of what coefficients may be,
    would miss small calls by the whole range that was measured.
    """
    return 1 / slope_s if slope_s * MAX_RATE > 1 else MAX_RATE


def rate_s(rate: RateFit, flops: FloatArray) -> FloatArray:
    """Seconds the fit predicts for linear calls of `flops`, shape (num_points,)."""
    result: FloatArray = rate.call_s + flops / rate.flops_per_s
    return result


def attention_call_s(rate: RateFit, work: AttentionWork) -> FloatArray:
    """Seconds the fit predicts for attention, shape (num_points,)."""
    flops = work.wasted_flops(rate.causal_block_rows)
    busy_s = flops / rate.flops_per_s * rate.slowness(work.rows)
    result: FloatArray = work.calls * rate.call_s + busy_s
    return result


def link_s(link: LinkFit, moved_bytes: FloatArray) -> FloatArray:
    """Seconds the fit predicts for messages of `moved_bytes`, shape (num_points,)."""
    result: FloatArray = link.latency_s + moved_bytes / link.bytes_per_s
    return result


def rows_of(name: str, rows: Sequence[Measurement]) -> list[Measurement]:
    """Measurements that the coefficient `name` of `COMPONENTS` is fitted on."""
    wanted = COMPONENTS[name]
    return [m for m in rows if (m.component, m.direction) == wanted[:2]]


def fit_component(
    name: str, rows: Sequence[Measurement], like: RateFit | None = None
) -> RateFit | LinkFit | float:
    """Fit the coefficient `name` of `COMPONENTS` on its rows of a profile.

    Rows of an attention call are the smaller side of its rectangle, as in
    `CostModel.attention_s`, where a ring step of half a shard counts as such. `like`: take the
    causal block from there instead of searching for it.
    """
    points = rows_of(name, rows)
    if not points:
        raise InputError(f"nothing was measured for {name}", "give the profile more --seconds")
    seconds, flops, moved = (
        undisturbed_s(points),
        _column(points, "flops"),
        _column(points, "bytes"),
    )
    match COMPONENTS[name].formula:
        case "attention":
            blocks = CAUSAL_BLOCKS_ROWS if like is None else (like.causal_block_rows,)
            return fit_attention(attention_work(points), seconds, blocks)
        case "rate":
            return fit_rate(flops, seconds)
        case "link":
            return fit_link(moved, seconds)
        case "bandwidth":
            check_times(seconds)
            return float(np.median(moved / seconds))


def predicted_s(fit: CostFit, name: str, points: Sequence[Measurement]) -> FloatArray:
    """Seconds that `fit` predicts for measurements of the coefficient `name`."""
    flops, moved = _column(points, "flops"), _column(points, "bytes")
    coefficient = getattr(fit, name)
    match COMPONENTS[name].formula:
        case "attention":
            return attention_call_s(coefficient, attention_work(points))
        case "rate":
            return rate_s(coefficient, flops)
        case "link":
            return link_s(coefficient, moved)
        case "bandwidth":
            result: FloatArray = moved / coefficient
            return result


def undisturbed_s(points: Sequence[Measurement]) -> FloatArray:
    """The seconds that are fitted: the first decile of each point, shape (num_points,)."""
    return _column(points, "p10_s")


def _column(points: Sequence[Measurement], name: str) -> FloatArray:
    return np.array([getattr(p, name) for p in points], float)


def attention_work(points: Sequence[Measurement]) -> AttentionWork:
    """What attention measurements were asked to do."""
    return AttentionWork(
        flops=_column(points, "flops"),
        rows=np.array([min(p.query_rows, p.key_rows) for p in points], float),
        is_causal=np.array([p.causal for p in points], bool),
        calls=_column(points, "calls"),
    )
