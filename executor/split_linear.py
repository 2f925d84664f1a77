"""Linears whose weight gradients may wait: B finds the gradient of their input, W of their weights.

`SplitLinear` multiplies as usual. In backward it hands on the gradient of its input and leaves
the product that its weight's gradient takes to `WeightGradients`: done at once (BW), or put
off until somebody asks for it (W). What is put off holds the rows that went in and the gradient
of those that came out; everything else of the microbatch is free after B. No private part of
autograd is used, and a weight's gradient is the same bits whether it waited or not, as long
as the order of products is the same.

`RemadeLinears` keeps what its input was made from (selective recomputation) and makes it again in
backward, once for all linears that share it. From there on all is as above, in the same order, so
both give the same bits and leave the same for W.

Source: Zero Bubble splits the backward pass so; queueing the products as functions is ours, as is
remaking inside the linears that need it.

Shape letters: T rows, I features in, O features out.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from hydraplan.executor.decoder import Make
from hydraplan.executor.pace import Pace

Work = Callable[[], None]


@dataclass(slots=True)
class WeightGradients:
    """Work that weights wait for. `are_put_off`: a backward pass leaves it here for W.

    `pace`: how long products take, None for as long as they do.
    """

    are_put_off: bool = False
    pace: Pace | None = None
    _waiting: list[Work] = field(default_factory=list)

    def do(self, work: Work) -> None:
        """Add a share to some weight's gradient, now or later."""
        if self.are_put_off:
            self._waiting.append(work)
        else:
            work()

    def add(self, weight_IO: Tensor, x_TI: Tensor, dy_TO: Tensor) -> None:
        """Add x^T dy to the gradient of a weight, now or later."""
        self.do(partial(self._add, weight_IO, x_TI, dy_TO))

    def _add(self, weight_IO: Tensor, x_TI: Tensor, dy_TO: Tensor) -> None:
        with self._paced(WEIGHT_GRADIENT, x_TI, weight_IO):
            add_product(weight_IO, x_TI, dy_TO)

    def times(self, x_TI: Tensor, weight_IO: Tensor) -> Tensor:
        """Rows times a weight that is cast to their precision, (T, O); no autograd."""
        with self._paced(FORWARD, x_TI, weight_IO):
            return x_TI @ weight_IO.to(x_TI.dtype)

    def times_transposed(self, dy_TO: Tensor, weight_IO: Tensor) -> Tensor:
        """The gradient of the rows, (T, I)."""
        with self._paced(INPUT_GRADIENT, dy_TO, weight_IO):
            return dy_TO @ weight_IO.to(dy_TO.dtype).T

    def _paced(self, direction: int, rows: Tensor, weight: Tensor) -> AbstractContextManager[None]:
        pace = self.pace
        return (
            nullcontext()
            if pace is None
            else pace.part(pace.product_s(direction, len(rows), weight))
        )

    def take(self) -> list[Work]:
        """What was put off since the last call, in the order backward met it."""
        taken, self._waiting = self._waiting, []
        return taken

    def linear(self, x_TI: Tensor, weight_IO: Tensor) -> Tensor:
        """Rows times a weight that is cast to their precision, (T, I) to (T, O)."""
        apply = cast(Any, SplitLinear.apply)  # torch does not type it
        return cast(Tensor, apply(x_TI, weight_IO, self))

    def keeping(
        self, make: Make, inputs: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Linears that keep what they multiply (`decoder.Linears`)."""
        x_TI = make(*inputs)
        return [self.linear(x_TI, weight_IO) for weight_IO in weights]

    def remaking(
        self, make: Make, inputs: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Linears that make it again in backward (`decoder.Linears`)."""
        apply = cast(Any, RemadeLinears.apply)
        return cast(Sequence[Tensor], apply(make, self, weights, *inputs))


class SplitLinear(torch.autograd.Function):
    """The linear itself; its weight gets no gradient from autograd."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_IO: Tensor, gradients: WeightGradients) -> Tensor:
        """Multiply, and keep both factors; the weight itself, not what checkpoints make of it."""
        ctx.save_for_backward(x_TI)
        ctx.weight_IO, ctx.gradients = weight_IO, gradients
        return gradients.times(x_TI, weight_IO)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TO: Tensor) -> tuple[Tensor, None, None]:
        """Gradient of the input; that of the weight goes its own way."""
        (x_TI,), weight_IO = ctx.saved_tensors, ctx.weight_IO
        ctx.gradients.add(weight_IO, x_TI, dy_TO)
        return ctx.gradients.times_transposed(dy_TO, weight_IO), None, None


class RemadeLinears(torch.autograd.Function):
    """Linears of one input that is cheap to make; the weights get no gradient from autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        make: Make,
        gradients: WeightGradients,
        weights: Sequence[Tensor],
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        """Multiply, and keep the weights and what the other factor was made from."""
        ctx.save_for_backward(*inputs)
        ctx.make, ctx.gradients, ctx.weights = make, gradients, weights
        x_TI = make(*inputs)
        return tuple(gradients.times(x_TI, weight_IO) for weight_IO in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of what the input is made from, linears last to first as autograd does it."""
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            x_TI = ctx.make(*leaves)
        dx_TI: Tensor | None = None
        for weight_IO, dy_TO in zip(reversed(ctx.weights), reversed(dy), strict=True):
            ctx.gradients.add(weight_IO, x_TI.detach(), dy_TO)
            share = ctx.gradients.times_transposed(dy_TO, weight_IO)
            dx_TI = share if dx_TI is None else dx_TI + share
        found = torch.autograd.grad(x_TI, leaves, dx_TI)
        return None, None, None, *found


@torch.no_grad()
def add_product(weight_IO: Tensor, x_TI: Tensor, dy_TO: Tensor) -> None:
    """Add x^T dy to the gradient of a weight, in the weight's precision."""
    product = (x_TI.T @ dy_TO).to(weight_IO.dtype)
    weight_IO.grad = product if weight_IO.grad is None else weight_IO.grad.add_(product)


@torch.no_grad()
def add_rows(weight_VC: Tensor, ids_T: Tensor, dx_TC: Tensor) -> None:
    """Add the gradients of embedded rows to those of the ids they came from."""
    if weight_VC.grad is None:
        weight_VC.grad = torch.zeros_like(weight_VC)
    weight_VC.grad.index_add_(0, ids_T, dx_TC.to(weight_VC.dtype))
