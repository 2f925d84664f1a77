"""FLOP rates of attention and of a layer's linears, against the rate of a matrix product here.

What a chip can do is measured: the product of two square matrices of random numbers, as the clock
of the moment allows. The data sheet's peak stands beside it where the GPU is known. Work is
counted exactly, as the cost model counts it: causal attention has half the pairs and the diagonal,
backward 2.5 times forward. No cache is flushed between repeats, as in a profile.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from budget import Left, Row
from devices import known
from kernel_ratios import drawn
from scale import Heads, Scale

from hydraplan.config import ModelShape, load_model
from hydraplan.cost import BACKWARD_FLOPS_RATIO
from hydraplan.executor.layer_points import layer_points
from hydraplan.files.profilefile import Measurement
from hydraplan.kernels.attention import KERNELS, why_not
from hydraplan.profiler.attention_points import attention_flops
from hydraplan.profiler.measure import Call, time_call

PART = "rates"
SLICE_S = 0.5
"""Seconds in which one call is repeated."""


def rate_rows(scale: Scale, left: Left) -> Iterator[Row]:
    """The chip's own rate, then every kernel's and every pass of the linears', with its share."""
    torch.manual_seed(0)
    a, b = (
        torch.randn(scale.product, scale.product, device=scale.target).bfloat16() for _ in range(2)
    )
    chip = 2.0 * scale.product**3 / median_s(scale, left, lambda: a @ b)
    gpu = known(scale.device_name)
    note = "not a GPU whose data sheet is known"
    if gpu is not None:
        note = f"{chip / gpu.peak_flops_per_s:.0%} of the data sheet's {gpu.peak_flops_per_s:.3g}"
    width = f"{scale.product:,}"
    yield Row(PART, f"bf16 matrix product, {width} wide", chip / 1e12, "TFLOP/s", note=note)
    model = load_model(scale.model)
    for what, flops, seconds in (
        *attention_times(scale, model, left),
        *linear_times(scale, model, left),
    ):
        if seconds is None:
            yield Row(PART, what, verdict="left out", note="no time")
        else:
            rate = flops / seconds
            note = f"{rate / chip:.0%} of the product here"
            yield Row(PART, what, rate / 1e12, "TFLOP/s", note=note)


Times = Iterator[tuple[str, float, float | None]]
"""What was timed, its work, and its seconds if there was time for it."""


def attention_times(scale: Scale, model: ModelShape, left: Left) -> Times:
    """Forward and backward of one causal sequence, every kernel that works here but the naive."""
    heads = Heads("", model.num_heads, model.num_kv_heads)
    names = [
        n for n in KERNELS if n != "reference" and not why_not(n, scale.target, torch.bfloat16)
    ]
    for length in scale.rate_tokens:
        sized = scale._replace(head_dim=model.head_dim)
        case = drawn(sized, heads, "", (0, length), (0, length), True)
        flops = attention_flops(length, length, True, heads.queries, model.head_dim)
        dout, q, k, v = case.dout, case.q, case.k, case.v
        for name in names:
            kernel, what = KERNELS[name], f"attention {name}, {length:,} tokens"
            if not left.seconds():
                yield f"{what}, both ways", flops, None
                continue
            out, lse = kernel.forward(q, k, v, *case.call)

            def forward(kernel=kernel, q=q, k=k, v=v, call=case.call) -> object:
                return kernel.forward(q, k, v, *call)

            def backward(
                kernel=kernel, dout=dout, q=q, k=k, v=v, out=out, lse=lse, call=case.call
            ) -> object:
                return kernel.backward(dout, q, k, v, out, lse, *call)

            yield f"{what}, forward", flops, median_s(scale, left, forward)
            yield (
                f"{what}, backward",
                BACKWARD_FLOPS_RATIO * flops,
                median_s(scale, left, backward),
            )


def linear_times(scale: Scale, model: ModelShape, left: Left) -> Times:
    """The three passes of a layer's linears, element-wise work included, at several rows."""
    for point in layer_points(model, scale.target, scale.linear_rows):
        if not left.seconds():
            yield "linears at more rows", point.work, None
            return
        for call in point.prepare():
            what = f"linears, {call.row.query_rows:,} rows, {call.row.direction}"
            yield what, call.row.flops, median_call_s(scale, left, call)


def median_s(scale: Scale, left: Left, run: Callable[[], object]) -> float:
    """Median seconds of something to run, repeated for a slice of time."""
    return median_call_s(scale, left, Call(Measurement("attention", "forward"), run))


def median_call_s(scale: Scale, left: Left, call: Call) -> float:
    """Median seconds of a call, repeated for a slice of time."""
    samples = time_call(call, scale.device, SLICE_S, max(left.seconds(), SLICE_S))
    return float(np.median([sample.seconds for sample in samples]))
