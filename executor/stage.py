"""One stage's part of the decoder: its layers, the embedding on the first, the loss on the last."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hydraplan.config import ModelShape
from hydraplan.executor.data import Slot
from hydraplan.executor.decoder import (
    Attend,
    Weights,
    decoder_layer,
    embed,
    initial_weights,
    loss_sum,
    rotary_angles,
    weight_shapes,
)


@dataclass(frozen=True, slots=True)
class Stage:
    """Weights of consecutive layers and the dtype activations have."""

    model: ModelShape
    layers: range
    is_first: bool
    is_last: bool
    compute: torch.dtype
    weights: Weights

    def forward(self, slot: Slot, received_TC: Tensor | None, attend: Attend) -> Tensor:
        """Activations (T, C) for the next stage; on the last, the sum of losses (scalar)."""
        x_TC = received_TC
        if x_TC is None:
            x_TC = embed(self.weights, slot.ids_T, self.compute)
        rotary = rotary_angles(self.model, slot.positions_T, self.compute)
        for layer in self.layers:
            x_TC = decoder_layer(self.weights, layer, self.model, x_TC, rotary, attend)
        return loss_sum(self.weights, x_TC, slot.labels_T) if self.is_last else x_TC


def build_stage(
    model: ModelShape, layers_per_stage: list[int], stage: int, seed: int, compute: torch.dtype
) -> Stage:
    """The stage's weights, drawn from the seed; `layers_per_stage` has one entry a stage."""
    start = sum(layers_per_stage[:stage])
    layers = range(start, start + layers_per_stage[stage])
    is_first, is_last = stage == 0, stage == len(layers_per_stage) - 1
    shapes = weight_shapes(model, layers, is_first, is_last)
    weights = initial_weights(shapes, seed, compute)
    return Stage(model, layers, is_first, is_last, compute, weights)
