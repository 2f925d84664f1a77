"""The fitted coefficients of one device and its links, and the shape of each formula.

`hydraplan profile` finds them: measured with `--device cpu|cuda`, or written from a cluster's
constants with `--device analytic`. `hydraplan.cost` applies them to a model cut into stages.

Source: the saturation n / (n + half_rows), the loss n / (n + SPILL_ROWS) and one fixed time a call
are our choice of shape; HyDra publishes no formula.
"""

from typing import Self

import numpy as np
from pydantic import Field, NonNegativeFloat, model_validator

from hydraplan.config import Config, Count, Rate, Rows, Seconds, check_pods
from hydraplan.model import FloatArray

SPILL_ROWS = 256.0
"""Rows at which half of `spill` is there; of 256 to 4,096 the best for torch's kernel on a CPU."""


class RateFit(Config):
    """seconds = call_s + flops / flops_per_s * `slowness(rows of the call)`.

    Short calls cannot fill the device (`half_rows`: twice as slow there), long ones no longer find
    what they need in caches (`spill`: slower by this share in the end, at most 1,000 so that
    seconds stay finite). Attention kernels skip
    masked keys in whole blocks, so a causal square takes `causal_waste(rows, causal_block_rows)`
    times its exact flops.
    """

    call_s: Seconds
    flops_per_s: Rate
    half_rows: Rows = 0.0
    spill: float = Field(default=0.0, ge=0.0, le=1e3)
    causal_block_rows: Rows = 0.0
    relative_error: NonNegativeFloat = 0.0

    def slowness(self, rows: FloatArray) -> FloatArray:
        """Time over that at the full rate, by the smaller side of a call; `rows` at least 1."""
        result: FloatArray = 1 + self.half_rows / rows
        return result if self.spill == 0 else result + self.spill * spilt(rows)


class LinkFit(Config):
    """seconds = latency_s + bytes / bytes_per_s."""

    bytes_per_s: Rate
    latency_s: Seconds
    relative_error: NonNegativeFloat = 0.0


class CostFit(Config):
    """Fitted coefficients of one device and its links.

    `linear_*` are one decoder layer's matrices together with all element-wise work, per
    microbatch. `segments_in_one_call` tells whether the kernel takes all packed sequences in
    one call (CUDA varlen) or one call each (CPU). `pod_p2p` links devices in different pods,
    where the fabric has such a third tier. `embedding_*` and `loss_*` (final norm, head and loss)
    are those of the ends of the route; None where they were not measured, and `hydraplan.ends`
    derives them. `relative_error` is the median of
    |fit - measured| / measured over the points fitted on, 0 if analytic.
    """

    attention_forward: RateFit
    attention_backward: RateFit
    linear_forward: RateFit
    linear_input: RateFit
    linear_weight: RateFit
    memory_bytes_per_s: Rate
    node_all_to_all: LinkFit
    node_p2p: LinkFit
    fabric_all_to_all: LinkFit
    fabric_p2p: LinkFit
    devices_per_node: Count
    segments_in_one_call: bool = Field(default=True)
    pod_p2p: LinkFit | None = None
    devices_per_pod: Count | None = None
    embedding_forward: LinkFit | None = None
    embedding_weight: LinkFit | None = None
    loss_forward: RateFit | None = None
    loss_input: RateFit | None = None
    loss_weight: RateFit | None = None

    @model_validator(mode="after")
    def _pods_hold_nodes(self) -> Self:
        check_pods(self.devices_per_node, self.devices_per_pod, self.pod_p2p)
        return self


def spilt(rows: FloatArray) -> FloatArray:
    """Share of a call, by its smaller side, that runs from beyond the caches."""
    result: FloatArray = rows / (rows + SPILL_ROWS)
    return result


def causal_waste(rows: FloatArray, block_rows: float) -> FloatArray:
    """Work of a causal square over its exact work, at least 1; 1 everywhere if block_rows is 0.

    Row i computes all keys of its block instead of i + 1, half a block more on average, and
    never more than the whole square: min(n * n, n * (n + block) / 2) pairs for n rows.
    """
    result: FloatArray = np.maximum(1.0, np.minimum(2 * rows, rows + block_rows) / (rows + 1))
    return result
