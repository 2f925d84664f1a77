"""Measured profiles: time one device, fit, check on whole microbatches, tell where it is from.

Links are timed first (they fork, which is safest before any other work); then one sweep goes over
all other components and spends the budget where the fit is least certain; what is kept of it is for
whole microbatches that no fit has seen. On one machine there is one kind of link, so node and
fabric get the same fit. On CUDA all but links is timed by the same code and links are taken from a
cluster file; such a profile stays `analytic`, because not every coefficient was timed.

What lies above this package, points of the executor and whole microbatches, is handed in.
"""

import platform
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from hydraplan.config import ACCUMULATOR_BYTES, Cluster, ModelShape
from hydraplan.costfit import CostFit
from hydraplan.errors import Infeasible
from hydraplan.files.profilefile import Measurement, ProfileHeader, WholeCheck
from hydraplan.host import GIB, available_bytes
from hydraplan.kernels.attention import AttentionKernel, choose_kernel, package_versions
from hydraplan.profiler.analytic import link_fits
from hydraplan.profiler.attention_points import attention_points
from hydraplan.profiler.certainty import term_errors, uncertainty
from hydraplan.profiler.clock import clock_state
from hydraplan.profiler.fit import COMPONENTS, fit_component, rows_of
from hydraplan.profiler.links import measure_links
from hydraplan.profiler.measure import (
    Device,
    Point,
    cpu_device,
    cuda_device,
    is_out_of_memory,
    pinned,
)
from hydraplan.profiler.memory_points import memory_points
from hydraplan.profiler.sweep import sweep
from hydraplan.version import __version__

Note = Callable[[str], None]
Measured = tuple[ProfileHeader, list[Measurement]]

LINKS_SHARE = 0.2
CHECK_SHARE = 0.15
"""Of the budget; all else goes to the sweep."""

REQUIRED = {"attention": 12, "linear": 4, "memory": 1, "embedding": 3, "loss": 3, "optimizer": 1}
"""Points that are measured however slow the device: enough for the coefficients of the fit."""


class Above(NamedTuple):
    """What the executor brings: its own points, and whole microbatches to check a fit on.

    `check` takes model, kernel, device, fit and a budget in seconds.
    """

    points: Callable[[ModelShape, torch.device], Sequence[Point]]
    check: Callable[[ModelShape, AttentionKernel, Device, CostFit, float], Sequence[WholeCheck]]


NEEDED = (
    "attention_forward", "attention_backward", "linear_forward", "linear_input", "linear_weight",
    "memory_bytes_per_s",
)  # fmt: skip
"""Coefficients without which there are no costs; those of the ends of the route can be derived."""


LAYER_COPIES = 3
"""Weights, gradients and casts: llama-70b, 9.6 GiB by this, held 9.9 GiB at its most here."""

DEVICES_PER_MACHINE = 1024
"""All processes of one machine share its memory, so no inner group ever leaves the node."""


def profile_cpu(
    model: ModelShape, budget_s: float, note: Note, above: Above, attention: str = "auto"
) -> Measured:
    """Measure `model` on this CPU, one thread a process, for about `budget_s` seconds.

    `attention` names the kernel.

    Raises:
        Infeasible: One layer of the model does not fit the free memory.
        MissingDependency: The named kernel does not work here.
        RunFailed: The processes of the link measurement did not come to an end.
    """
    check_memory(model, available_bytes())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        device = cpu_device()
        choose_kernel(device.torch_device, getattr(torch, model.dtype), attention)
        began = time.perf_counter()
        note(f"measuring for about {budget_s:g} s: links")
        links = measure_links(LINKS_SHARE * budget_s)
        left_s = budget_s - (time.perf_counter() - began)
        with pinned():
            return profile_device(_cpu_links(links), model, device, attention, left_s, note, above)
    finally:
        torch.set_num_threads(threads)


def check_memory(model: ModelShape, available: int) -> None:
    """Refuse a model of which one layer or head cannot be timed in `available` bytes.

    Raises:
        Infeasible: Weights, their gradients and what the passes keep do not fit.
    """
    largest = max(model.layer_parameters, model.vocab_size * model.hidden_size)
    needed = LAYER_COPIES * largest * ACCUMULATOR_BYTES[model.dtype]
    if needed > available:
        raise Infeasible(
            f"one layer or head of {model.name} needs {needed / GIB:.1f} GiB to be timed,"
            f" {available / GIB:.1f} GiB are free",
            "use --device analytic, or a machine with more memory",
        )


def profile_cuda(
    model: ModelShape,
    cluster: Cluster,
    budget_s: float,
    note: Note,
    above: Above,
    attention: str = "auto",
) -> Measured:
    """Measure `model` on the current CUDA device; links and node size come from `cluster`.

    `attention` names the kernel.

    Raises:
        MissingDependency: The named kernel does not work here.
    """
    device = cuda_device()
    note(f"measuring for about {budget_s:g} s; links are taken from {cluster.name}, not measured")
    name = torch.cuda.get_device_name()
    links = Links(
        [],
        link_fits(cluster),
        f"cuda {name} measured, links of {cluster.name} not measured",
        cluster,
    )
    return profile_device(links, model, device, attention, budget_s, note, above)


class Links(NamedTuple):
    """What is known of links before anything else is timed: rows, fits, and in words of what."""

    rows: list[Measurement]
    fits: dict[str, object]
    device: str
    cluster: Cluster | None


def _cpu_links(rows: list[Measurement]) -> Links:
    all_to_all, p2p = (fit_component(name, rows) for name in ("node_all_to_all", "node_p2p"))
    fits: dict[str, object] = {"node_all_to_all": all_to_all, "fabric_all_to_all": all_to_all}
    fits |= {"node_p2p": p2p, "fabric_p2p": p2p, "devices_per_node": DEVICES_PER_MACHINE}
    return Links(rows, fits, f"cpu {platform.machine()}, 1 thread", None)


def profile_device(
    links: Links,
    model: ModelShape,
    device: Device,
    attention: str,
    budget_s: float,
    note: Note,
    above: Above,
) -> Measured:
    """Sweep, fit and check on one device whose links are known; `attention` names the kernel.

    Raises:
        Infeasible: Not even the smallest calls of some part fit the memory.
    """
    kernel = choose_kernel(device.torch_device, getattr(torch, model.dtype), attention)
    began, target = time.perf_counter(), device.torch_device
    before = clock_state(target)
    note(f"attention by kernel {kernel.name}, linear part, ends and memory, dtype {model.dtype}")
    points = [*memory_points(target), *above.points(model, target)]
    points += attention_points(model, kernel, target)
    rows = sweep(points, device, (1 - CHECK_SHARE) * budget_s, REQUIRED, uncertainty)
    fits = {name: fit_component(name, rows) for name in COMPONENTS if rows_of(name, rows)}
    for name in NEEDED:
        if name not in fits:
            raise Infeasible(f"{model.name}: no memory to time {name}, not in its smallest size")
    fit = CostFit.model_validate(
        {"segments_in_one_call": kernel.segments_in_one_call} | fits | links.fits
    )
    note("whole microbatches, to check the fit on")
    left_s = budget_s - (time.perf_counter() - began)
    checks: Sequence[WholeCheck] = ()
    try:
        checks = above.check(model, kernel, device, fit, max(left_s, CHECK_SHARE * budget_s))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        note("there is no memory for whole microbatches")
    rows += links.rows
    header = ProfileHeader(
        tool_version=__version__,
        mode="measured" if links.cluster is None else "analytic",
        device=links.device,
        versions=_versions(kernel),
        model=model,
        cluster=links.cluster,
        fit=fit,
        terms=term_errors(fit, rows),
        checks=tuple(checks),
        before=before,
        after=clock_state(target),
    )
    return header, rows


def _versions(kernel: AttentionKernel) -> dict[str, str]:
    return {
        "hydraplan": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **package_versions(kernel.name),
    }
