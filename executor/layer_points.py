"""Everything in a decoder layer that is not attention: the executor's own layer, to be timed.

The layer runs as workers run it, autograd and put-off weight gradients included, with an attention
that hands its queries back: whatever attention computes is timed by itself, and what it takes to
call one from a layer is in here. Timed apart are the three ops F, B and W. What a chunk computes
once for all its layers (rotary angles) is in none of them.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraplan.config import ModelShape
from hydraplan.executor.decoder import decoder_layer, rotary_angles
from hydraplan.executor.split_linear import Work
from hydraplan.executor.whole import Ends, random_stage
from hydraplan.files.profilefile import Measurement, Pass
from hydraplan.profiler.measure import Call, Point, Run

ROWS = (
    *(1, 4, 16, 64),
    *sorted({2**power for power in range(7, 16)} | {3 * 2**power for power in range(6, 14)}),
)


class Handed(torch.autograd.Function):
    """Attention that gives its queries back and asks for no gradient of keys and values."""

    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
        """The queries, by another name."""
        ctx.save_for_backward(k_TGD, v_TGD)
        return q_THD.view_as(q_THD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_THD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the right shapes."""
        k_TGD, v_TGD = ctx.saved_tensors
        return dout_THD, torch.zeros_like(k_TGD), torch.zeros_like(v_TGD)


def hand_back(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
    """The stand-in as layers call attention (`decoder.Attend`)."""
    return cast(Tensor, cast(Any, Handed.apply)(q_THD, k_TGD, v_TGD))


def layer_points(
    model: ModelShape, device: torch.device, row_counts: Sequence[int] = ROWS
) -> list[Point]:
    """One point a row count."""
    return [_point(model, device, rows) for rows in row_counts]


def _point(model: ModelShape, device: torch.device, rows: int) -> Point:
    flops = 2.0 * rows * model.layer_parameters
    row = Measurement(
        "linear",
        "forward",
        query_rows=rows,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        dtype=model.dtype,
        kernel="torch",
        flops=flops,
    )

    def prepare() -> Sequence[Call]:
        stage = random_stage(model, Ends(1, has_embedding=False, has_head=False), device)
        compute = getattr(torch, model.dtype)
        x_TC, dy_TC = (
            torch.randn(rows, model.hidden_size, device=device).to(compute) for _ in range(2)
        )
        x_TC.requires_grad_()
        rotary = rotary_angles(model, torch.arange(rows, device=device), compute)
        gradients, made, waiting = stage.gradients, list[Tensor](), list[Work]()

        def forward() -> None:
            layer = stage.weights, 0, model, x_TC, rotary, hand_back, gradients.keeping
            made[:] = [decoder_layer(*layer)]

        def backward() -> None:
            x_TC.grad = None
            gradients.are_put_off = True
            made.pop().backward(dy_TC)
            waiting[:] = gradients.take()

        def both() -> None:
            forward()
            backward()

        def weight() -> None:
            for work in waiting:
                work()

        calls: tuple[tuple[Pass, Run, Run | None], ...] = (
            ("forward", forward, made.clear),
            ("input", backward, forward),
            ("weight", weight, both),
        )
        return [
            Call(row._replace(direction=direction), run, before) for direction, run, before in calls
        ]

    return Point("linear", flops, prepare)
