"""Rows of the MLP that another lane of the stage computes.

Both hold the same weights, so only activations travel. The giver normalises its last rows and sends
them, computes the rest meanwhile and puts the results in place; norm and residual stay with it. The
taker computes after its own rows. Backward: gradients of the results go out, those of the
normalised rows come back. The taker keeps what they need, and adds what its weights get from
foreign rows to its own gradients, at once (BW) or put off like those (W). So the gradient of a lane
alone is another than without moves; the sum over lanes, which is all that is used, is the same.

Each end is two nodes of autograd around the lane's own MLP, so that what must come before or after
it in backward does by what depends on what. Where B makes a layer again, both ends exchange again:
the second node keeps a tensor even where it needs none, since checkpoints stop at the last that is
kept; and it asks for it before it sends gradients, so that these come after what is made again.

M moved rows, T own rows, C hidden_size, F ffn_hidden_size.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraplan.executor.decoder import Mlp, MlpWeights, gated, norm
from hydraplan.executor.split_linear import WeightGradients
from hydraplan.kernels.link import BACK, BACKWARD_BACK, BACKWARD_OUT, OUT, Coming, Link


@dataclass(frozen=True, slots=True)
class RowTrip:
    """One end of rows that move in a microbatch; `rows` are the giver's last ones."""

    rows: int
    is_giver: bool
    link: Link
    gradients: WeightGradients

    def shared(self, mlp: Mlp, x_TC: Tensor, weights: MlpWeights) -> Tensor:
        """The MLP of a lane's rows (`decoder.Shared`)."""
        layer = _Layer(self, weights)
        if self.is_giver:
            kept, moved = len(x_TC) - self.rows, norm(x_TC[-self.rows :], weights.norm)
            kept_TC = _apply(_Give, x_TC[:kept], moved, layer)
            return _apply(_Fetch, mlp(kept_TC), layer)
        return _apply(_Host, mlp(_apply(_Open, x_TC, layer)), layer)


@dataclass(slots=True)
class _Layer:
    """What both nodes of an end share in one layer: what is under way, and what was kept."""

    trip: RowTrip
    weights: MlpWeights
    coming: list[Coming] = field(default_factory=list)
    saved: tuple[Tensor, ...] = ()

    def expect(self, carries: int, like_TC: Tensor) -> None:
        """Post the receive of the moved rows."""
        elements = self.trip.rows * like_TC.shape[1]
        self.coming.append(self.trip.link.expect(carries, elements, like_TC))

    def arrived(self) -> Tensor:
        """The moved rows, (M, C)."""
        return self.coming.pop().wait().view(self.trip.rows, -1)


def _apply(function: Any, *inputs: object) -> Tensor:
    return cast(Tensor, function.apply(*inputs))  # torch does not type it


class _Give(torch.autograd.Function):
    """Before the giver's own MLP; backward after it."""

    @staticmethod
    def forward(ctx: Any, kept_TC: Tensor, moved_MC: Tensor, layer: _Layer) -> Tensor:
        ctx.layer = layer
        layer.trip.link.send(OUT, moved_MC)
        layer.expect(BACK, moved_MC)
        return kept_TC.view_as(kept_TC)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dkept_TC: Tensor) -> tuple[Tensor, Tensor, None]:
        return dkept_TC, ctx.layer.arrived(), None


class _Fetch(torch.autograd.Function):
    """After the giver's own MLP; backward before it."""

    @staticmethod
    def forward(ctx: Any, kept_TC: Tensor, layer: _Layer) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(kept_TC.new_empty(0))
        return torch.cat([kept_TC, layer.arrived()])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TC: Tensor) -> tuple[Tensor, None]:
        _, layer = ctx.saved_tensors, ctx.layer
        kept = len(dy_TC) - layer.trip.rows
        layer.trip.link.send(BACKWARD_OUT, dy_TC[kept:])
        layer.expect(BACKWARD_BACK, dy_TC)
        return dy_TC[:kept], None


class _Open(torch.autograd.Function):
    """Before the taker's own MLP; backward after it: gradients of the foreign rows."""

    @staticmethod
    def forward(ctx: Any, x_TC: Tensor, layer: _Layer) -> Tensor:
        ctx.layer = layer
        layer.expect(OUT, x_TC)
        return x_TC.view_as(x_TC)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx_TC: Tensor) -> tuple[Tensor, None]:
        layer = ctx.layer
        layer.trip.link.send(BACKWARD_BACK, _foreign_gradient(layer, layer.arrived()))
        return dx_TC, None


class _Host(torch.autograd.Function):
    """After the taker's own MLP: that of the foreign rows; backward before it."""

    @staticmethod
    def forward(ctx: Any, own_TC: Tensor, layer: _Layer) -> Tensor:
        ctx.layer, x_MC, weights = layer, layer.arrived(), layer.weights
        times = layer.trip.gradients.times
        gate_MF, up_MF = times(x_MC, weights.gate), times(x_MC, weights.up)
        layer.trip.link.send(BACK, times(gated(gate_MF, up_MF), weights.down))
        ctx.save_for_backward(x_MC, gate_MF, up_MF)
        return own_TC.view_as(own_TC)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TC: Tensor) -> tuple[Tensor, None]:
        layer = ctx.layer
        layer.saved = ctx.saved_tensors
        layer.expect(BACKWARD_OUT, dy_TC)
        return dy_TC, None


def _foreign_gradient(layer: _Layer, dy_MC: Tensor) -> Tensor:
    """Gradient of the normalised rows, (M, C), products in the order of the lane's own MLP."""
    (x_MC, gate_MF, up_MF), layer.saved = layer.saved, ()
    gradients, weights = layer.trip.gradients, layer.weights
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (gate_MF, up_MF)]
        hidden_MF = gated(*leaves)
    gradients.add(weights.down, hidden_MF.detach(), dy_MC)
    dhidden_MF = gradients.times_transposed(dy_MC, weights.down)
    dgate_MF, dup_MF = torch.autograd.grad(hidden_MF, leaves, dhidden_MF)
    gradients.add(weights.up, x_MC, dup_MF)
    dx_MC = gradients.times_transposed(dup_MF, weights.up)
    gradients.add(weights.gate, x_MC, dgate_MF)
    return dx_MC + gradients.times_transposed(dgate_MF, weights.gate)
