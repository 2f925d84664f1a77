"""AdamW on the weights of a stage: gradients clipped as one, moments sharded over the lanes.

Every lane holds the weights of its stage and, after the gradient sum, their whole gradients. The
moments of a weight live on one lane alone, which updates it and sends it to the others (ZeRO-1, by
PyTorch's ZeroRedundancyOptimizer in the stage's pool): two of four states are there once instead of
once a lane. AdamW looks at one weight at a time, so the bits are those of unsharded AdamW.

Clipping takes the norm of the whole model's gradient, over all stages. Lanes of a stage hold the
same gradients, so lane 0 speaks for them and every weight counts once, embedding and head included.
Gradients are scaled where they are; nothing is scaled for a loss, bfloat16 needs none.

Source: ZeRO cuts optimizer states so; that whole weights are dealt out, not slices, is PyTorch's.
"""

import math
import warnings

import torch
import torch.distributed as dist

from hydraplan.errors import RunFailed
from hydraplan.executor.decoder import Weights
from hydraplan.executor.groups import Groups
from hydraplan.executor.transport import reason

with warnings.catch_warnings():  # the package compiles optimizers of no use here as it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

NORM_ROUNDING = 1e-6
"""Added to the norm that a limit is divided by, as PyTorch does."""


def sharded_adamw(
    weights: Weights, groups: Groups, learning_rate: float
) -> torch.optim.AdamW | ZeroRedundancyOptimizer:
    """AdamW whose moments lie on one lane a weight; collective over the lanes of the stage."""
    held = list(weights.values())
    if groups.world.ranks == 1:
        return torch.optim.AdamW(held, lr=learning_rate)
    return ZeroRedundancyOptimizer(held, torch.optim.AdamW, groups.pool, lr=learning_rate)


def clip_gradients(weights: Weights, groups: Groups, limit: float) -> float:
    """Norm of the gradient of the whole model; scales it down to `limit` where that is not 0.

    Call it on every worker once its gradients are summed.

    Raises:
        RunFailed: A peer died or did not answer in time.
    """
    gradients = [w.grad for w in weights.values() if w.grad is not None]
    square = 0.0
    if groups.world.lane == 0:
        norms = [float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in gradients]
        square = math.fsum(norm * norm for norm in norms)
    total = torch.tensor([square], dtype=torch.float64)
    try:
        dist.all_reduce(total)
    except RuntimeError as error:
        raise RunFailed(f"gradient norm: {reason(error)}") from error
    norm = math.sqrt(float(total))
    if limit and norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / (norm + NORM_ROUNDING))
    return norm


def update(optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimizer; afterwards all lanes of the stage hold the same weights.

    Raises:
        RunFailed: A peer died or did not answer in time.
    """
    try:
        optimizer.step()
    except RuntimeError as error:
        raise RunFailed(f"weight update: {reason(error)}") from error
