"""The fitted coefficients of one device and its links, and the shape of each formula.

`hydraplan profile` finds them: measured with `--device cpu|cuda`, or written from a cluster's
constants with `--device analytic`. `hydraplan.cost` applies them to a model cut into stages.

Source: the saturation n / (n + half_rows) and one fixed time a call are our choice of shape;
HyDra publishes no formula.
"""

from typing import Self

import numpy as np
from pydantic import Field, NonNegativeFloat, model_validator

from hydraplan.config import Config, Count, Rate, Rows, Seconds, check_pods
from hydraplan.model import FloatArray


class RateFit(Config):
    """seconds = call_s + flops / flops_per_s * (1 + half_rows / rows of the call).

    Attention kernels skip masked keys in whole blocks, so a causal square takes
    `causal_waste(rows, causal_block_rows)` times its exact flops.
    """

    call_s: Seconds
    flops_per_s: Rate
    half_rows: Rows = 0.0
    causal_block_rows: Rows = 0.0
    relative_error: NonNegativeFloat = 0.0


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
    where the fabric has such a third tier. `relative_error` is the median of
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

    @model_validator(mode="after")
    def _pods_hold_nodes(self) -> Self:
        check_pods(self.devices_per_node, self.devices_per_pod, self.pod_p2p)
        return self


def causal_waste(rows: FloatArray, block_rows: float) -> FloatArray:
    """Work of a causal square over its exact work, at least 1; 1 everywhere if block_rows is 0.

    Row i computes all keys of its block instead of i + 1, half a block more on average, and
    never more than the whole square: min(n * n, n * (n + block) / 2) pairs for n rows.
    """
    result: FloatArray = np.maximum(1.0, np.minimum(2 * rows, rows + block_rows) / (rows + 1))
    return result
