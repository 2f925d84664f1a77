"""Does training by a plan end where one process would: losses of the same steps, three ways.

    python benchmarks/parity/parity.py LENGTHS_FOLDER [--steps 50] [--json FILE] [--readme]

Rows of real length files are drawn with replacement and cut to 1/32 of their length, so that a
machine of two cores trains on them. The same batches are planned twice, by hydra with B and W
apart (`zb-h1`) and memory-sized under `1f1b`, and trained by `hydraplan execute` in float32 on
gloo workers. The third way is a plain loop in this process: whole model, one sequence after
the other, naive attention, `torch.optim.AdamW`, PyTorch's own clipping. All start from the same
weights and see the same token ids. Nothing is timed.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.nn import functional

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from command import told  # noqa: E402
from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.executor.data import count_labels, generated_tokens  # noqa: E402
from hydraplan.executor.decoder import (  # noqa: E402
    decoder_layer,
    embed,
    head_logits,
    initial_weights,
    rotary_angles,
    weight_shapes,
)
from hydraplan.files.lengths import read_lengths  # noqa: E402
from hydraplan.files.planfile import Plan, open_plan, read_batch  # noqa: E402
from hydraplan.files.runfile import open_run  # noqa: E402
from hydraplan.kernels.reference import reference_attention  # noqa: E402
from hydraplan.model import IntArray  # noqa: E402

CELLS = (("lengths_cpython_stdlib", (2, 2)), ("lengths_wikipedia_sample", (2, 4)))
"""Length file and pool: stages, ranks."""

WAYS = {"hydra": ("hydra", "zb-h1"), "memory-sized": ("memory-ffd", "1f1b")}
"""Strategy and schedule of each plan."""

BATCHES, ROWS, SHRINK, LONGEST, CAP = 5, 24, 32, 16_384, 256
LEARNING_RATE, CLIP_GRAD, SEED = 1e-3, 1.0, 0
LIMIT = 1e-6

MODEL = """
num_layers = 4
hidden_size = 32
num_heads = 8
num_kv_heads = 2
head_dim = 8
ffn_hidden_size = 80
vocab_size = 128
dtype = "float32"
"""
CLUSTER = """
devices_per_node = 8
memory_bytes = 1_000_000_000
memory_bytes_per_s = 5e9
attention_forward_flops_per_s = 1e9
attention_forward_half_rows = 8
attention_backward_flops_per_s = 1e9
attention_backward_half_rows = 8
attention_call_s = 1e-5
linear_flops_per_s = 5e9
layer_call_s = 1e-4

[node]
bytes_per_s = 2e9
latency_s = 2e-5

[fabric]
bytes_per_s = 2e9
latency_s = 2e-5
"""
"""A slow device on fast links, so that short sequences, too, ask for degrees above one."""


def main() -> None:
    """All cells, then one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lengths", type=Path, metavar="LENGTHS_FOLDER")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells = [
        cell(drawn(args.lengths / f"{file}.parquet"), file, pool, args.steps)
        for file, pool in CELLS
    ]
    worst = max(max(cell[name] for name in WAYS) for cell in cells)
    title = (
        f"Measured in float32 on gloo workers: {args.steps} steps, largest relative difference of a"
        f" loss {worst:.1e}, limit {LIMIT:.0e}"
    )
    for row in cells:
        row |= {name: f"{row[name]:.1e}" for name in (*WAYS, "hydra to memory-sized")}
    table = Table(title, list(cells[0]), digits=6).of(cells)
    reported(args.json, {"cells": cells, "times": "none"}, [table], args.readme, HERE / "README.md")


def drawn(path: Path) -> IntArray:
    """Lengths of all batches: rows of a file, drawn with replacement, at 1/32 of their size."""
    rows = read_lengths(path).length_tokens
    rows = rows[(rows > 0) & (rows <= LONGEST)]
    found = np.random.default_rng(SEED).choice(rows, BATCHES * ROWS)
    return np.ceil(found / SHRINK).astype(np.int64)


def cell(lengths: IntArray, file: str, pool: tuple[int, int], steps: int) -> Cell:
    """Losses of one draw of lengths on one pool; differences are relative, the largest step's."""
    with TemporaryDirectory(prefix="hydraplan-") as name:
        plans = planned(Path(name), lengths, pool)
        trained = {way: executed(plan, steps) for way, plan in plans.items()}
        alone = one_process(plans["hydra"], steps)
        shown = {way: described(plan) for way, plan in plans.items()}
    ours, theirs = (np.array(trained[way]) for way in WAYS)
    row: Cell = {
        "lengths": file.removeprefix("lengths_"),
        "pp x ranks": f"{pool[0]} x {pool[1]}",
        "tokens of a step": int(lengths.sum()) // BATCHES,
        **{f"{way}: degrees; microbatches": text for way, text in shown.items()},
        "first loss": alone[0],
        "last loss": alone[-1],
        "hydra": apart(ours, alone),
        "memory-sized": apart(theirs, alone),
        "hydra to memory-sized": apart(ours, theirs),
    }
    progress(f"{file} on {row['pp x ranks']}: {row['hydra']:.1e}, {row['memory-sized']:.1e}")
    return row


def planned(folder: Path, lengths: IntArray, pool: tuple[int, int]) -> dict[str, Plan]:
    """The same batches planned in every way."""
    (folder / "model.toml").write_text(MODEL)
    (folder / "cluster.toml").write_text(CLUSTER)
    np.savetxt(folder / "lengths.txt", lengths, "%d")
    profile = folder / "p.profile.parquet"
    told("profile", "--device", "analytic", "--cluster", folder / "cluster.toml",
         "--model", folder / "model.toml", "-o", profile)  # fmt: skip
    for way, (strategy, pipeline) in WAYS.items():
        told("plan", folder / "lengths.txt", "--profile", profile, "--pp", pool[0],
             "--ranks", pool[1], "--max-tokens-per-rank", CAP, "--batch-sequences", ROWS,
             "--num-batches", "all", "--strategy", strategy, "--pipeline", pipeline,
             "--workers", 1, "-o", folder / f"{way}.plan")  # fmt: skip
    return {way: open_plan(folder / f"{way}.plan") for way in WAYS}


def executed(plan: Plan, steps: int) -> list[float]:
    """Losses of a run of a plan."""
    output = plan.path.with_suffix(".run")
    told("execute", plan.path, "--steps", steps, "--dtype", "float32", "--seed", SEED,
         "--learning-rate", LEARNING_RATE, "--clip-grad", CLIP_GRAD, "-o", output)  # fmt: skip
    return [row["loss"] for row in open_run(output).steps]


def one_process(plan: Plan, steps: int) -> list[float]:
    """Losses of the same steps in a plain loop; of the plan only the rows of a batch are used."""
    model = plan.header.model
    shapes = weight_shapes(model, range(model.num_layers), True, True)
    weights = initial_weights(shapes, SEED, torch.float32)
    optimizer = torch.optim.AdamW(weights.values(), lr=LEARNING_RATE)
    tokens, losses = generated_tokens(SEED, model.vocab_size), []
    batches = [read_batch(plan, i) for i in range(plan.header.num_batches)]
    for step in range(steps):
        batch = batches[step % len(batches)]
        placed = batch.sequences.placed()
        total, loss = count_labels(placed, batch.batch), 0.0
        optimizer.zero_grad()
        for sequence_id, length in zip(placed.sequence_id, placed.length_tokens, strict=True):
            ids_T = torch.from_numpy(tokens(int(sequence_id), int(length)))
            x_TC = embed(weights, ids_T, torch.float32)
            rotary = rotary_angles(model, torch.arange(len(ids_T)), torch.float32)
            for layer in range(model.num_layers):
                x_TC = decoder_layer(weights, layer, model, x_TC, rotary, reference_attention)
            logits = head_logits(weights, x_TC[:-1])
            part = functional.cross_entropy(logits, ids_T[1:], reduction="sum") / total
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(weights.values(), CLIP_GRAD)
        optimizer.step()
        losses.append(loss)
    return losses


def apart(ours: object, theirs: object) -> float:
    """Largest relative difference of two losses of the same step."""
    a, b = np.array(ours, float), np.array(theirs, float)
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((np.abs(a - b) / np.abs(b)).max())


def described(plan: Plan) -> str:
    """How many sequences have which degree, and the microbatches of the batches."""
    batches = [read_batch(plan, i) for i in range(plan.header.num_batches)]
    degrees = np.concatenate([batch.sequences.placed().degree for batch in batches])
    sizes, counts = np.unique(degrees, return_counts=True)
    numbers = sorted({batch.num_microbatches for batch in batches})
    text = ", ".join(f"{count} of {size}" for size, count in zip(sizes, counts, strict=True))
    return f"{text}; {'-'.join(map(str, sorted({numbers[0], numbers[-1]})))}"


if __name__ == "__main__":
    main()
