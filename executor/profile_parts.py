"""What the executor brings to a profile: points of its own code, and whole microbatches to check.

The check's lengths are real: source files of CPython and articles of Wikipedia, as bundled.
"""

import time
from importlib import resources
from pathlib import Path

import torch

from hydraplan.config import ModelShape
from hydraplan.costfit import CostFit
from hydraplan.executor.end_points import end_points
from hydraplan.executor.layer_points import layer_points
from hydraplan.executor.whole import check_whole, microbatches
from hydraplan.files.lengths import read_lengths
from hydraplan.files.lengths_synthetic import draw
from hydraplan.files.profilefile import WholeCheck
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.model import IntArray
from hydraplan.profiler.measure import Device, Point
from hydraplan.profiler.profile import Above

MIX = "synthetic:wikipedia(rows=2000)"
PATIENCE = 2.0
BUNDLED = "lengths_cpython_stdlib.parquet"


def bundled_lengths() -> list[tuple[str, IntArray]]:
    """Names and lengths in tokens of what the check draws from."""
    with resources.as_file(resources.files("hydraplan") / "data" / BUNDLED) as path:
        found = read_lengths(Path(path)).length_tokens
    name, drawn, _ = draw(MIX)
    return [(BUNDLED, found[found > 0]), (name, drawn)]


def check(
    model: ModelShape, kernel: AttentionKernel, device: Device, fit: CostFit, budget_s: float
) -> list[WholeCheck]:
    """Time whole microbatches of the bundled lengths for about so many seconds.

    A fit far too fast chooses too large ones; they end at twice the time, with those that are done.
    """
    chosen = microbatches(model, fit, bundled_lengths(), budget_s)
    end_s = time.perf_counter() + PATIENCE * budget_s
    found = []
    for done in check_whole(model, kernel, device, fit, chosen):
        found.append(done)
        if time.perf_counter() > end_s:
            break
    return found


def points(model: ModelShape, device: torch.device) -> list[Point]:
    """The layer without its attention, and what lies at the ends of the route."""
    return [*layer_points(model, device), *end_points(model, device)]


ABOVE = Above(points, check)
