"""Requests and cost models that planner tests share."""

from dataclasses import replace

import numpy as np

from hydraplan.config import load_cluster, load_model
from hydraplan.cost import CostModel
from hydraplan.costfit import LinkFit
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.model import IntArray
from hydraplan.planheader import PlanOptions
from hydraplan.planner.open_request import open_request
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.plan import prepare
from hydraplan.profiler.analytic import analytic_header
from hydraplan.stages import split_layers


def profile(model: str = "llama-8b") -> Profile:
    header = analytic_header(load_cluster("h100-sxm"), load_model(model))
    return Profile(header, "0" * 64)


def cost_model(ranks: int, pp: int = 1, tp: int = 1, model: str = "llama-8b") -> CostModel:
    header = profile(model).header
    layers = tuple(tuple(row) for row in split_layers(header.model.num_layers, pp))
    return CostModel(header.fit, header.model, tp, pp, ranks, layers)


def with_pods(ranks: int, pp: int = 1) -> CostModel:
    """h100-sxm with pods of 32 devices, 5 GB/s and 50 us between them."""
    base = cost_model(ranks=ranks, pp=pp)
    pod = {"pod_p2p": LinkFit(bytes_per_s=5e9, latency_s=50e-6), "devices_per_pod": 32}
    return replace(base, fit=base.fit.model_copy(update=pod))


def options(**changes: object) -> PlanOptions:
    plain: dict[str, object] = {
        "pp": 2,
        "ranks": 8,
        "tp": 1,
        "max_tokens_per_rank": 4096,
        "batch_sequences": 64,
        "batch_tokens": None,
        "strategy": "hydra",
        "pipeline": "1f1b",
        "microbatches": None,
        "microbatch_order": "auto",
        "on_overlong": "skip",
        "seed": 0,
    }
    return PlanOptions.model_validate(plain | changes)


def long_tailed(count: int, seed: int, longest: int = 60_000) -> IntArray:
    rng = np.random.default_rng(seed)
    length = np.exp(rng.normal(np.log(1500), 1.4, count)).astype(np.int64)
    return np.clip(length, 1, longest)


def mix(name: str, count: int, seed: int) -> IntArray:
    """The length mixes of our evaluation: log-normal around 2K, a tenth around 32K."""
    rng = np.random.default_rng(seed)
    length = np.exp(rng.normal(np.log(2000), 1.4, count))
    if name != "32K":
        long = rng.random(count) < 0.1
        length[long] = np.exp(rng.normal(np.log(32_768), 1.2, int(long.sum())))
    return np.clip(length, 128, 1024 * int(name[:-1])).astype(np.int64)


def request_for(values: IntArray, **changes: object) -> Request:
    """What a strategy is asked for one batch of these lengths."""
    asked = options(batch_sequences=len(values), **changes)
    _, batches = prepare(Lengths("t", "sequences", values), profile(), asked, 1)
    return open_request(batches.cost, asked, batches[0])
