"""How far a profile can be trusted: points left out, whole microbatches, and profiles made again.

    python benchmarks/profile/trust.py LENGTHS_FOLDER [--profiles 3] [--seconds 60] [--model tiny]
                                       [--json FILE] [--readme]

Profiles are made by `hydraplan profile`, one after the other. `left out` is |fit - measured| /
measured of each point under a fit to all others. Whole microbatches are packed from the four length
files of LENGTHS_FOLDER, which no profile has seen, and timed by the executor's own code beside what
each profile predicts. Two profiles agree as far as `profile diff` says of what they predict.

`load`: what else ran, as the machine's one-minute load average says at the end of each profile.
"""

import argparse
import os
import sys
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from command import told  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.executor.whole import check_whole, microbatches  # noqa: E402
from hydraplan.files.lengths import read_lengths  # noqa: E402
from hydraplan.files.profilefile import Measurement, Profile, WholeCheck, read_profile  # noqa: E402
from hydraplan.kernels.attention import choose_kernel  # noqa: E402
from hydraplan.model import FloatArray  # noqa: E402
from hydraplan.profiler.certainty import left_out_errors  # noqa: E402
from hydraplan.profiler.drift import drift  # noqa: E402
from hydraplan.profiler.fit import COMPONENTS, rows_of  # noqa: E402
from hydraplan.profiler.measure import cpu_device, pinned  # noqa: E402

FILES = ("cpython_stdlib", "debian_docs", "linux_docs", "wikipedia_sample")
KINDS = {
    "attention": ("attention_forward", "attention_backward"),
    "layer without attention": ("linear_forward", "linear_input", "linear_weight"),
    "embedding and loss": (
        "embedding_forward", "embedding_weight", "loss_forward", "loss_input", "loss_weight",
    ),
    "memory": ("memory_bytes_per_s",),
    "links": ("node_all_to_all", "node_p2p"),
}  # fmt: skip


def main() -> None:
    """Three tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lengths", type=Path)
    parser.add_argument("--profiles", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    with TemporaryDirectory(prefix="hydraplan-") as name:
        paths = [Path(name) / f"{i}.profile.parquet" for i in range(args.profiles)]
        left_out, whole = [], []
        for number, path in enumerate(paths, 1):
            told("profile", "--device", "cpu", "--model", args.model,
                 "--seconds", args.seconds, "-o", path)  # fmt: skip
            left_out += points_left_out(number, path)
            whole += whole_rows(number, read_profile(path), args.lengths, args.seconds / 3)
            progress(f"profile {number}: {left_out[-1]} {whole[-1]}")
        agreeing = agreement([read_profile(path) for path in paths])
    tables = [
        Table("Points left out of the fit", list(left_out[0]), 3).of(left_out),
        Table("Whole microbatches of the four length files", list(whole[0]), 3).of(whole),
        Table("Largest difference of what two profiles predict", list(agreeing[0]), 3).of(agreeing),
    ]
    cells = [cell for table in tables for cell in table.rows]
    reported(args.json, {"cells": cells}, tables, args.readme, page=HERE / "README.md")


def points_left_out(number: int, path: Path) -> list[Cell]:
    """Errors by kind of component and of all together, of one profile."""
    fit = read_profile(path).header.fit
    rows = [Measurement(*row.values()) for row in pq.read_table(path).to_pylist()]
    samples, disturbed = (
        sum(getattr(r, n) for r in rows) for n in ("num_samples", "num_disturbed")
    )
    errors = {
        name: np.abs(left_out_errors(name, points, fit))
        for name in COMPONENTS
        if (points := rows_of(name, rows))
    }
    kinds = {kind: np.concatenate([errors[n] for n in names]) for kind, names in KINDS.items()}
    work = [errors[name] for kind in list(KINDS)[:3] for name in KINDS[kind]]
    kinds |= {"all but links and memory": np.concatenate(work)}
    kinds |= {"all": np.concatenate(list(errors.values()))}
    return [
        {
            "profile": number, "component": kind, "points": len(found),
            "median": float(np.median(found)), "p90": float(np.quantile(found, 0.9)),
            "worst": float(found.max()), "disturbed": f"{disturbed / samples:.0%}",
            "load": f"{os.getloadavg()[0]:.1f}",
        }
        for kind, found in kinds.items()
    ]  # fmt: skip


def whole_rows(number: int, profile: Profile, lengths: Path, seconds: float) -> list[Cell]:
    """Errors by length file and of all, of microbatches as large as the time allows."""
    header = profile.header
    files = [
        (name, read_lengths(lengths / f"lengths_{name}.parquet").length_tokens) for name in FILES
    ]
    chosen = microbatches(header.model, header.fit, files, seconds)
    kernel = choose_kernel(torch.device("cpu"), getattr(torch, header.model.dtype))
    torch.set_num_threads(1)
    with pinned():
        checks = list(check_whole(header.model, kernel, cpu_device(), header.fit, chosen))
    rows = [_whole(number, name, [c for c in checks if c.lengths == name]) for name in FILES]
    return [*rows, _whole(number, "all", checks)]


def _whole(number: int, name: str, checks: list[WholeCheck]) -> Cell:
    error = np.abs([check.error for check in checks])
    return {
        "profile": number, "lengths": name, "microbatches": len(checks),
        "tokens": f"{min(c.num_tokens for c in checks):,} - {max(c.num_tokens for c in checks):,}",
        "median error": float(np.median(error)), "worst": float(error.max()),
    } | {
        f"{op} predicted / measured": float(np.median(_ratio(checks, index)))
        for index, op in enumerate("FBW")
    }  # fmt: skip


def _ratio(checks: list[WholeCheck], index: int) -> FloatArray:
    return np.array([check.predicted_s[index] / check.measured_s[index] for check in checks])


def agreement(profiles: list[Profile]) -> list[Cell]:
    """Of any two profiles, by coefficient, over the sizes that `profile diff` compares."""
    found: dict[str, list[float]] = {}
    for old, new in combinations(profiles, 2):
        worst: dict[str, float] = {}
        for prediction in drift(old, new).predictions:
            component = prediction.component
            worst[component] = max(worst.get(component, 0.0), prediction.drift)
        for component, value in worst.items():
            found.setdefault(component, []).append(value)
    return [
        {"coefficient": name, "median of pairs": float(np.median(v)), "worst of pairs": max(v)}
        for name, v in found.items()
    ]


if __name__ == "__main__":
    main()
