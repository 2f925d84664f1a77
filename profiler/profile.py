"""Measured profiles: run the sweeps of one device, fit, and write down where it came from.

The budget is shared out: links first (they fork, which is safest before any other work),
then memory, the linear part, and attention takes what is left. On one machine there is one
kind of link, so node and fabric get the same fit. On CUDA attention, linear work and memory
are timed by the same code and links are taken from a cluster file; such a profile stays
`analytic`, because not every coefficient was timed.
"""

import platform
import time
from collections.abc import Callable

import torch

from hydraplan.config import ACCUMULATOR_BYTES, Cluster, ModelShape
from hydraplan.costfit import CostFit
from hydraplan.errors import Infeasible
from hydraplan.files.profilefile import Measurement, ProfileHeader
from hydraplan.host import GIB, available_bytes
from hydraplan.kernels.attention import AttentionKernel, choose_kernel, package_versions
from hydraplan.profiler.analytic import link_fits
from hydraplan.profiler.attention_points import attention_points
from hydraplan.profiler.fit import fit_component
from hydraplan.profiler.linear_points import linear_points
from hydraplan.profiler.links import measure_links
from hydraplan.profiler.measure import Device, cpu_device, cuda_device, sweep
from hydraplan.profiler.memory_points import memory_points
from hydraplan.version import __version__

Note = Callable[[str], None]
Measured = tuple[ProfileHeader, list[Measurement]]

LINKS_SHARE = 0.2
MEMORY_SHARE = 0.05
LINEAR_SHARE = 0.3
"""Of the budget; attention takes the rest."""

REQUIRED_ATTENTION, REQUIRED_LINEAR = 12, 2
"""Points that are measured however slow the device: enough for the coefficients of the fit."""

LAYER_COPIES = 3
"""Weights, gradients and casts: llama-70b, 9.6 GiB by this, held 9.9 GiB at its most here."""

DEVICES_PER_MACHINE = 1024
"""All processes of one machine share its memory, so no inner group ever leaves the node."""


def profile_cpu(
    model: ModelShape, budget_s: float, note: Note, attention: str = "auto"
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
        kernel = choose_kernel(device.torch_device, getattr(torch, model.dtype), attention)
        began = time.perf_counter()
        note(f"measuring for about {budget_s:g} s: links")
        links = measure_links(LINKS_SHARE * budget_s)
        left_s = budget_s - (time.perf_counter() - began)
        rows = _device_rows(model, device, kernel, budget_s, left_s, note)
    finally:
        torch.set_num_threads(threads)
    rows += links
    all_to_all, p2p = (fit_component(name, rows) for name in ("node_all_to_all", "node_p2p"))
    fit = CostFit.model_validate(
        _device_fits(rows)
        | {"node_all_to_all": all_to_all, "fabric_all_to_all": all_to_all}
        | {"node_p2p": p2p, "fabric_p2p": p2p}
        | {
            "devices_per_node": DEVICES_PER_MACHINE,
            "segments_in_one_call": kernel.segments_in_one_call,
        }
    )
    header = ProfileHeader(
        tool_version=__version__,
        mode="measured",
        device=f"cpu {platform.machine()}, 1 thread",
        versions=_versions(kernel),
        model=model,
        cluster=None,
        fit=fit,
    )
    return header, rows


def check_memory(model: ModelShape, available: int) -> None:
    """Refuse a model of which one layer cannot be timed in `available` bytes.

    Raises:
        Infeasible: Weights, their gradients and what the passes keep do not fit.
    """
    needed = LAYER_COPIES * model.layer_parameters * ACCUMULATOR_BYTES[model.dtype]
    if needed > available:
        raise Infeasible(
            f"one layer of {model.name} needs {needed / GIB:.1f} GiB to be timed,"
            f" {available / GIB:.1f} GiB are free",
            "use --device analytic, or a machine with more memory",
        )


def profile_cuda(
    model: ModelShape, cluster: Cluster, budget_s: float, note: Note, attention: str = "auto"
) -> Measured:
    """Measure `model` on the current CUDA device; links and node size come from `cluster`.

    `attention` names the kernel.

    Raises:
        MissingDependency: The named kernel does not work here.
    """
    device = cuda_device()
    kernel = choose_kernel(device.torch_device, getattr(torch, model.dtype), attention)
    note(f"measuring for about {budget_s:g} s; links are taken from {cluster.name}, not measured")
    rows = _device_rows(model, device, kernel, budget_s, budget_s, note)
    segments = {"segments_in_one_call": kernel.segments_in_one_call}
    fit = CostFit.model_validate(_device_fits(rows) | segments | link_fits(cluster))
    name = torch.cuda.get_device_name()
    header = ProfileHeader(
        tool_version=__version__,
        mode="analytic",
        device=f"cuda {name} measured, links of {cluster.name} not measured",
        versions=_versions(kernel),
        model=model,
        cluster=cluster,
        fit=fit,
    )
    return header, rows


def _device_rows(
    model: ModelShape,
    device: Device,
    kernel: AttentionKernel,
    budget_s: float,
    left_s: float,
    note: Note,
) -> list[Measurement]:
    """Rows of memory, linear part and attention."""
    began = time.perf_counter()
    target = device.torch_device
    note(f"memory and linear part, dtype {model.dtype}")
    rows = sweep(memory_points(target), device, MEMORY_SHARE * budget_s, 1)
    rows += sweep(linear_points(model, target), device, LINEAR_SHARE * budget_s, REQUIRED_LINEAR)
    note(f"attention, kernel {kernel.name}")
    left_s -= time.perf_counter() - began
    points = attention_points(model, kernel, target)
    return rows + sweep(points, device, left_s, REQUIRED_ATTENTION)


def _device_fits(rows: list[Measurement]) -> dict[str, object]:
    names = [f"attention_{direction}" for direction in ("forward", "backward")]
    names += [f"linear_{direction}" for direction in ("forward", "input", "weight")]
    return {name: fit_component(name, rows) for name in (*names, "memory_bytes_per_s")}


def _versions(kernel: AttentionKernel) -> dict[str, str]:
    return {
        "hydraplan": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **package_versions(kernel.name),
    }
