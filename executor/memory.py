"""Does a run on this machine alone fit its memory? Asked before any worker starts.

Every lane holds its stage's weights and gradients in accumulator precision; the two AdamW moments
are there once a stage (`optimizer`); every worker is a process of its own. Activations, which
depend on the batch, are not counted, so what passes may still be too large; what is refused
certainly is.
"""

from hydraplan.config import ACCUMULATOR_BYTES
from hydraplan.errors import Infeasible
from hydraplan.host import GIB
from hydraplan.planheader import PlanHeader

STATES_OF_A_LANE, STATES_OF_A_POOL = 2, 2
"""Weights and gradients; two moments."""

PROCESS_BYTES = 100 << 20
"""Private memory of a forked worker besides its states; seen here, torch 2.13 on CPU."""


def needed_bytes(header: PlanHeader, dtype: str) -> int:
    """Bytes that the workers of a plan hold for certain, all on one machine."""
    model, options = header.model, header.options
    parameters = model.num_layers * (model.layer_parameters + 2 * model.hidden_size)
    parameters += (2 * model.vocab_size + 1) * model.hidden_size
    times = options.ranks * STATES_OF_A_LANE + STATES_OF_A_POOL
    states = times * parameters * ACCUMULATOR_BYTES[dtype]
    return states + options.pp * options.ranks * PROCESS_BYTES


def check_device_memory(weights_bytes: int, ranks: int, available: int) -> None:
    """Refuse a worker whose gradients and moments do not fit beside its weights on its GPU.

    Raises:
        Infeasible: They need more than the `available` bytes.
    """
    moments = STATES_OF_A_POOL / ranks
    needed = weights_bytes * (STATES_OF_A_LANE - 1 + moments)
    if needed > available:
        raise Infeasible(
            f"beside {weights_bytes / GIB:.1f} GiB of weights a worker needs {needed / GIB:.1f} GiB"
            f" for gradients and moments, {available / GIB:.1f} GiB of its GPU are free",
            "plan with more stages (--pp)",
        )


def check_memory(header: PlanHeader, dtype: str, available: int) -> None:
    """Refuse a run whose states alone do not fit.

    Raises:
        Infeasible: The workers need more than `available` bytes.
    """
    needed = needed_bytes(header, dtype)
    if needed > available:
        count = header.options.pp * header.options.ranks
        raise Infeasible(
            f"{count} workers of {header.model.name} need at least {needed / GIB:.1f} GiB on this"
            f" machine, {available / GIB:.1f} GiB are free",
            "use execute --simulate, or start the workers on a cluster with torchrun",
        )
