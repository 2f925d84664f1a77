"""One stage's part of the decoder: its chunks of layers, and what lies at the ends of the route.

The chunk where the route begins embeds, the one where it ends makes the loss; on a v both are
the first stage's. A backward pass finds gradients in two parts, on every stage alike:

* with B: those of the chunk's input, which the chunk before waits for, and of the norms (a sum
  over rows of what is at hand anyway);
* with W: those of all linears, of the embedding and of the head, the head's only while the
  logits of a microbatch are few enough to be kept (`decoder.LOSS_CHUNK_ELEMENTS`), else with B.

Attention has no weights, so W never talks to another rank.

Under `recompute` B makes again what F did not keep: what linears take in, each where it is needed
(selective), or whole layers one by one, which lets their groups exchange once more (full). So all
workers must have the same. Bits are those of `none`, and what is left for W is the same.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import checkpoint

from hydraplan.activations import Recompute
from hydraplan.config import ModelShape
from hydraplan.executor.data import Slot
from hydraplan.executor.decoder import (
    Attend,
    Shared,
    Weights,
    decoder_layer,
    embed,
    initial_weights,
    loss_sum,
    rotary_angles,
    weight_shapes,
)
from hydraplan.executor.split_linear import WeightGradients, Work, add_rows
from hydraplan.route import NOWHERE, Route


class Chunk(NamedTuple):
    """Consecutive layers; `is_first` where the route begins, `is_last` where it ends."""

    layers: range
    is_first: bool
    is_last: bool


class Passed(NamedTuple):
    """A forward pass to go back through: what went in, and where its graph ends.

    What came out is not held: nothing in the graph needs its numbers.
    """

    input_TC: Tensor
    end: GradientEdge


@dataclass(frozen=True, slots=True)
class Stage:
    """Weights of a stage's chunks, the dtype activations have, and what B makes again."""

    model: ModelShape
    chunks: tuple[Chunk, ...]
    compute: torch.dtype
    weights: Weights
    recompute: Recompute = "none"
    gradients: WeightGradients = field(default_factory=WeightGradients)

    def forward(
        self,
        chunk: int,
        slot: Slot,
        received_TC: Tensor | None,
        attend: Attend,
        shared: Shared | None = None,
    ) -> tuple[Passed, Tensor]:
        """Activations (T, C) for the next chunk; on the last, the sum of losses (scalar).

        With the pass to go back through. `received_TC` is None where the route begins. Whatever
        goes in asks for a gradient. `shared`: how lanes share the rows of an MLP, if they do.
        """
        layers, _, is_last = self.chunks[chunk]
        if received_TC is None:
            with torch.no_grad():
                received_TC = embed(self.weights, slot.ids_T, self.compute)
        x_TC = input_TC = received_TC.detach().requires_grad_()
        rotary = rotary_angles(self.model, slot.positions_T, self.compute)
        is_selective = self.recompute == "selective"
        linears = self.gradients.remaking if is_selective else self.gradients.keeping
        for layer in layers:
            run = partial(decoder_layer, self.weights, layer, self.model)
            if self.recompute == "full":
                run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
            x_TC = run(x_TC, rotary, attend, linears, shared)
        if is_last:
            x_TC = loss_sum(self.weights, x_TC, slot.labels_T, linears)
        return Passed(input_TC, get_gradient_edge(x_TC)), x_TC.detach()

    def backward(
        self, chunk: int, slot: Slot, passed: Passed, gradient: Tensor, put_off: bool
    ) -> tuple[Tensor, list[Work]]:
        """Gradient (T, C) of what went in, and, if `put_off`, the work that W has to do."""
        gradients = self.gradients
        gradients.are_put_off = put_off
        torch.autograd.backward([passed.end], [gradient])
        found_TC = passed.input_TC.grad
        assert found_TC is not None
        if self.chunks[chunk].is_first:
            gradients.do(partial(add_rows, self.weights["embedding"], slot.ids_T, found_TC))
        return found_TC, gradients.take()


def build_stage(
    model: ModelShape,
    layers: tuple[tuple[int, ...], ...],
    route: Route,
    stage: int,
    seed: int,
    compute: torch.dtype,
    device: torch.device | None = None,
    recompute: Recompute = "none",
) -> Stage:
    """The stage's weights, drawn from the seed; `layers[stage][chunk]` counts decoder layers."""
    chunks = tuple(
        Chunk(held, bool(before == NOWHERE), bool(after == NOWHERE))
        for held, before, after in zip(
            layer_ranges(layers, route)[stage], route.before[stage], route.after[stage], strict=True
        )
    )
    shapes: dict[str, tuple[int, ...]] = {}
    for chunk in chunks:
        shapes |= weight_shapes(model, *chunk)
    weights = initial_weights(shapes, seed, compute, device)
    return Stage(model, chunks, compute, weights, recompute)


def layer_ranges(layers: tuple[tuple[int, ...], ...], route: Route) -> list[list[range]]:
    """Layers of every [stage][chunk], counted along the route; the model is there once."""
    ranges = [[range(0) for _ in chunks] for chunks in layers]
    start = 0
    for stage, chunk in route.nodes():
        end = start + layers[stage][chunk]
        ranges[stage][chunk] = range(start, end)
        start = end
    return ranges
