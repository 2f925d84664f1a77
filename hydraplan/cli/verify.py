"""`hydraplan verify`: does a plan train like one process would?"""

from typing import Annotated, Literal

import typer

from hydraplan.cli import options as o
from hydraplan.cli.execute import (
    Data,
    DebugMessages,
    Device,
    RecomputeRun,
    RingHops,
    Timeout,
    Transport,
)


def verify(
    plan: o.PlanFolder,
    batch: Annotated[int, typer.Option("--batch", min=0, help="Batch of the plan.")] = 0,
    dtype: Annotated[
        Literal["float64", "float32"], typer.Option("--dtype", help="Precision of the workers.")
    ] = "float64",
    recompute: RecomputeRun = None,
    seed: o.Seed = 0,
    data: Data = None,
    device: Device = None,
    attention: o.Attention = None,
    timeout: Timeout = 120.0,
    transport: Transport = None,
    debug_messages: DebugMessages = False,
    ring_hops: RingHops = "batched",
    json: o.Json = False,
) -> None:
    """Compare loss and gradients of a planned batch with one float64 process.

    The workers run the code of execute; the other side runs the whole model with naive
    attention. Exit 0 if both errors are within the limit of the dtype and every worker held as
    many tokens' activations as the plan predicts, 1 if not.
    """
    from hydraplan.errors import RunFailed
    from hydraplan.executor.settings import Settings
    from hydraplan.executor.verify import verify as verify_plan
    from hydraplan.files.planfile import open_plan
    from hydraplan.views import console
    from hydraplan.views.memory_text import difference, limit_text, print_peaks

    settings = Settings(
        seed=seed,
        data=data,
        dtype=dtype,
        recompute=recompute,
        device=device,
        attention=attention,
        timeout_s=timeout,
        transport=transport,
        debug_messages=debug_messages,
        ring_hops=ring_hops,
    )
    verdict = verify_plan(plan, batch, settings)
    if json:
        console.emit_json(verdict.as_dict())
    else:
        degrees = ", ".join(f"{count} of degree {d}" for d, count in verdict.degrees.items())
        console.print_table(
            ["", "value"],
            [
                ["loss", f"{verdict.loss:.12g}"],
                ["reference loss", f"{verdict.reference_loss:.12g}"],
                ["loss error", f"{verdict.loss_error:.2e}"],
                ["largest gradient error", f"{verdict.max_gradient_error:.2e}"],
                ["in", verdict.worst_parameter],
                ["limit", f"{verdict.limit:.0e}"],
            ],
            f"{plan}, batch {batch} in {dtype}, recompute {verdict.recompute}, {verdict.pipeline}:"
            f" {verdict.num_sequences} sequences ({degrees})",
            f"both errors are within the limit of {dtype}" if verdict.is_within else "",
        )
        console.emit()
        limit = limit_text(open_plan(plan).header.options)
        print_peaks(verdict.peaks, limit, recomputed=verdict.recompute != "none")
    if not verdict.is_within:
        raise RunFailed(
            f"{plan}, batch {batch}: loss error {verdict.loss_error:.2e}, gradient error"
            f" {verdict.max_gradient_error:.2e} in {verdict.worst_parameter}, the limit in {dtype}"
            f" is {verdict.limit:.0e}"
        )
    if not verdict.holds_as_predicted:
        raise RunFailed(
            f"{plan}, batch {batch}: {difference(verdict.peaks)}",
            "the workers and the plan count apart: please report it",
        )
