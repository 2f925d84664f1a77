"""A profile made by all ranks of a cluster at once, under torchrun: slow devices, and real links.

Every rank times its own device as one alone would, links are timed between all of them, and rank 0
brings together what they found. A device's factor is the median, over all calls that it and others
timed, of its seconds over the median of all. The profile is that of the median device: plans cost a
nominal one and take the factors as speeds (`plan --rank-speed PROFILE`).

What ranks report travels as JSON in tensors.

Source: ours.
"""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hydraplan.config import Cluster, ModelShape
from hydraplan.errors import InputError, RunFailed, first_line, many
from hydraplan.files.profilefile import DeviceFactor, Measurement, ProfileHeader
from hydraplan.host import available_bytes
from hydraplan.model import FloatArray
from hydraplan.profiler.analytic import link_fits
from hydraplan.profiler.exchanges import Place, measure_exchanges, place
from hydraplan.profiler.fit import fit_component
from hydraplan.profiler.measure import cpu_device, cuda_device, pinned
from hydraplan.profiler.profile import (
    DEVICES_PER_MACHINE,
    LINKS_SHARE,
    Above,
    Links,
    Measured,
    Note,
    check_memory,
    profile_device,
)

ANSWER_S = 600.0
"""Longest that a rank waits for the slowest of all, beyond the budget."""

TIMED = ("attention", "linear")
"""Components that tell devices apart."""


def profile_all_ranks(
    model: ModelShape,
    cluster: Cluster | None,
    device_name: str,
    attention: str,
    budget_s: float,
    note: Note,
    above: Above,
) -> Measured | None:
    """Measure on every rank of torchrun's world; the profile on rank 0, None on all others.

    Raises:
        InputError: Nodes have different numbers of ranks, or links across nodes are neither
            measured nor in a cluster file.
        Infeasible: One layer of the model does not fit a rank's part of the free memory.
        RunFailed: A rank died or did not answer in time.
    """
    is_cuda = device_name == "cuda"
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if is_cuda:
        torch.cuda.set_device(local_rank)
    else:
        check_memory(model, available_bytes() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        torch.set_num_threads(1)
    device = cuda_device() if is_cuda else cpu_device()
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            timeout=timedelta(seconds=budget_s + ANSWER_S),
        )
        here = _checked(place(device.torch_device), cluster)
        told = note if here.rank == 0 else _to_nobody
        told(f"measuring on {here.size} ranks for about {budget_s:g} s: links")
        rows = measure_exchanges(here, LINKS_SHARE * budget_s)
        links = _links(rows, here, cluster)
        left_s = (1 - LINKS_SHARE) * budget_s
        with nullcontext() if is_cuda else pinned(local_rank):
            own = profile_device(links, model, device, attention, left_s, told, above)
        result = _together(own, here)
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        raise RunFailed(f"profile of all ranks failed: {first_line(error)}") from error
    return result


def _to_nobody(text: str) -> None:
    """What other ranks would say a second time."""


def _checked(here: Place, cluster: Cluster | None) -> Place:
    """This place, if a profile can be made there."""
    if here.size % here.local_size:
        raise InputError(
            f"{here.size} ranks on nodes of {here.local_size}: nodes differ in size",
            "start as many ranks on every node",
        )
    if here.num_nodes == 1 and here.device.type == "cuda" and cluster is None:
        raise InputError(
            "one node cannot tell what links across nodes take", "name one with --cluster"
        )
    return here


def _links(rows: list[Measurement], here: Place, cluster: Cluster | None) -> Links:
    """Fits of the links that were measured; others of the cluster file, or as inside the node."""
    fits: dict[str, object] = {} if cluster is None else link_fits(cluster)
    present = {row.component for row in rows}
    for tier, component in (
        ("node_all_to_all", "all_to_all"),
        ("node_p2p", "p2p"),
        ("fabric_all_to_all", "fabric_all_to_all"),
        ("fabric_p2p", "fabric_p2p"),
    ):
        if component in present:
            fits[tier] = fit_component(tier, rows)
    if not present:
        raise InputError("a profile of all ranks needs two or more", "leave torchrun out")
    for kind in ("all_to_all", "p2p"):
        fits.setdefault(f"node_{kind}", fits.get(f"fabric_{kind}"))
        fits.setdefault(f"fabric_{kind}", fits[f"node_{kind}"])
    if here.num_nodes > 1:
        fits["devices_per_node"] = here.local_size
    elif cluster is None:
        fits["devices_per_node"] = DEVICES_PER_MACHINE
    words = f"{_name(here.device)}, {here.size} ranks on {many(here.num_nodes, 'node')}"
    if here.num_nodes == 1 and cluster is not None:
        return Links(
            rows, fits, f"{words}, links across nodes of {cluster.name} not measured", cluster
        )
    return Links(rows, fits, words, None)


def _together(own: Measured, here: Place) -> Measured | None:
    """Rank 0's profile, with the rows and the fit of the median device."""
    header, rows = own
    clock = None if header.after is None else header.after.model_dump()
    told = {"device": _name(here.device), "seconds": timed_seconds(rows), "clock": clock}
    answers = _gathered(json.dumps(told))
    factors = device_factors([answer["seconds"] for answer in answers])
    median_rank = int(np.argsort(factors, kind="stable")[(len(factors) - 1) // 2])
    whole = [header.model_dump_json(), json.dumps([list(row) for row in rows])]
    chosen_header, chosen_rows = (_from(median_rank, text) for text in whole)
    if here.rank != 0:
        return None
    devices = tuple(
        DeviceFactor(world_rank=rank, device=answer["device"], factor=factor, clock=answer["clock"])
        for rank, (answer, factor) in enumerate(zip(answers, factors.tolist(), strict=True))
    )
    found = ProfileHeader.model_validate_json(chosen_header)
    return (
        found.model_copy(update={"devices": devices}),
        [Measurement(*row) for row in json.loads(chosen_rows)],
    )


def _name(device: torch.device) -> str:
    """Of the device, in words."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name())
    return f"cpu {platform.machine()}, 1 thread"


def timed_seconds(rows: Sequence[Measurement]) -> dict[str, float]:
    """First decile of every call that tells devices apart, by what was called.

    Packed sequences in one call have the shape of one of them and more flops.
    """
    return {
        "/".join(str(part) for part in (*row[:7], row.flops, row.calls)): row.p10_s
        for row in rows
        if row.component in TIMED
    }


def device_factors(seconds: Sequence[dict[str, float]]) -> FloatArray:
    """Times as long as the median device, (ranks,); the lower median of all factors is 1.

    Only calls that more than one rank timed tell anything; a rank that shares none has factor 1.
    """
    kinds = sorted({kind for known in seconds for kind in known})
    table = np.array([[known.get(kind, np.nan) for kind in kinds] for known in seconds])
    shared = table[:, np.isfinite(table).sum(axis=0) > 1]
    if not shared.size:
        return np.ones(len(seconds))
    ratios = shared / np.nanquantile(shared, 0.5, axis=0, method="lower")
    known = np.isfinite(ratios).any(axis=1)
    factors = np.ones(len(seconds))
    factors[known] = np.nanmedian(ratios[known], axis=1)
    result: FloatArray = factors / np.quantile(factors, 0.5, method="lower")
    return result


def _gathered(text: str) -> list[dict[str, Any]]:
    """What every rank says, on every rank."""
    mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)]))
    most = max(int(size) for size in sizes)
    parts = [torch.zeros(most, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(parts, torch.nn.functional.pad(mine, (0, most - len(mine))))
    return [
        json.loads(bytes(part[: int(size)].numpy()))
        for part, size in zip(parts, sizes, strict=True)
    ]


def _from(rank: int, text: str) -> str:
    """What one rank says, on all."""
    mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    size = torch.tensor([len(mine)])
    dist.broadcast(size, rank)
    told = mine if dist.get_rank() == rank else torch.zeros(int(size), dtype=torch.uint8)
    dist.broadcast(told, rank)
    return bytes(told.numpy()).decode()
