"""Loss and gradients of one planned batch against one plain float64 process.

The workers run the very code of `execute` for one forward and backward; lane 0 of each stage
leaves its summed gradients as `.npy` files. The other side is the whole model in this
process: one sequence at a time, naive attention, labels by shifting, no packing, no stages,
no groups. Both start from the same weights, rounded to the workers' precision.
"""

import math
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from hydraplan.errors import InputError
from hydraplan.executor.data import count_labels
from hydraplan.executor.decoder import (
    Weights,
    decoder_layer,
    embed,
    head_logits,
    initial_weights,
    rotary_angles,
    weight_shapes,
)
from hydraplan.executor.groups import World
from hydraplan.executor.launch import run_workers, under_torchrun
from hydraplan.executor.prepare import Job, prepare
from hydraplan.executor.settings import Settings
from hydraplan.executor.worker import run_step, set_up
from hydraplan.files.memoryfile import Peaks
from hydraplan.kernels.reference import reference_attention
from hydraplan.metrics import planned_live_peaks
from hydraplan.model import FloatArray, Sequences
from hydraplan.views.memory_text import peaks_json

LIMITS = {"float64": 1e-10, "float32": 2e-5}
"""Largest loss and gradient error that counts as equal, by compute dtype."""

ZERO_SHARE = 1e-12
"""A reference gradient below this share of the whole gradient's norm is zero but for rounding."""

Gradients = dict[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` says; errors are relative, to 1 where the reference is 0.

    `peaks`: most tokens whose activations each worker held, and what was predicted, shape
    (stages, lanes). `degrees` counts sequences by degree.
    """

    loss: float
    reference_loss: float
    loss_error: float
    max_gradient_error: float
    worst_parameter: str
    limit: float
    dtype: str
    recompute: str
    batch: int
    pipeline: str
    num_sequences: int
    peaks: Peaks
    degrees: dict[int, int]

    @property
    def is_within(self) -> bool:
        """Whether both errors are within the limit; what is not finite is not."""
        return self.loss_error <= self.limit and self.max_gradient_error <= self.limit

    def as_dict(self) -> dict[str, object]:
        """What `--json` prints."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "peaks"}
        verdict = {"within": self.is_within, "holds_as_predicted": self.holds_as_predicted}
        return {**plain, **peaks_json(self.peaks), **verdict}

    @property
    def holds_as_predicted(self) -> bool:
        """Whether every worker held as many tokens as predicted."""
        return not self.peaks.differ()


def verify(path: Path, batch: int, settings: Settings) -> Verdict:
    """Run one batch of a plan on its workers and compare with the reference.

    Raises:
        HydraplanError: What `prepare` refuses, or `RunFailed` when a worker ends early.
    """
    if under_torchrun():
        raise InputError("verify starts its own workers", "run it without torchrun")
    job = prepare(path, [batch], settings)
    loss, held, gradients = planned_gradients(job)
    planned = job.batches[0]
    placed = planned.sequences.placed()
    reference_loss, reference = reference_gradients(job, placed)
    errors = gradient_errors(gradients, reference)
    worst = max(errors, key=lambda name: errors[name])
    sizes, counts = np.unique(placed.degree, return_counts=True)
    return Verdict(
        loss=loss,
        reference_loss=reference_loss,
        loss_error=abs(loss - reference_loss) / (abs(reference_loss) or 1.0),
        max_gradient_error=errors[worst],
        worst_parameter=worst,
        limit=LIMITS[job.dtype],
        dtype=job.dtype,
        recompute=job.recompute,
        batch=batch,
        pipeline=planned.pipeline,
        num_sequences=len(placed),
        peaks=Peaks(held, planned_live_peaks(job.cost, planned)),
        degrees=dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
    )


def planned_gradients(job: Job) -> tuple[float, FloatArray, Gradients]:
    """Loss, most tokens each worker held (stages, lanes), and summed gradients.

    All of the job's first batch, from its workers.
    """
    with tempfile.TemporaryDirectory(prefix="hydraplan-") as name:
        folder = Path(name)

        def entry(world: World) -> None:
            worker = set_up(world, job)
            measured = run_step(worker, job, job.batches[0])
            if measured is not None:
                np.save(folder / "loss.npy", np.array(measured.loss), allow_pickle=False)
                np.save(folder / "peak.npy", measured.peak_live_tokens, allow_pickle=False)
            if world.lane == 0:
                for weight_name, weight in worker.stage.weights.items():
                    assert weight.grad is not None
                    array = weight.grad.cpu().numpy()
                    np.save(folder / f"{weight_name}.grad.npy", array, allow_pickle=False)

        options = job.header.options
        run_workers(entry, options.pp, options.ranks, job.settings.timeout_s, job.device)
        loss = float(np.load(folder / "loss.npy", allow_pickle=False))
        peak_live_tokens = np.load(folder / "peak.npy", allow_pickle=False)
        gradients = {
            file.name.removesuffix(".grad.npy"): np.load(file, allow_pickle=False).astype(float)
            for file in sorted(folder.glob("*.grad.npy"))
        }
    return loss, peak_live_tokens, gradients


def reference_gradients(job: Job, placed: Sequences) -> tuple[float, Gradients]:
    """Loss and gradients of the whole model in this process, in float64."""
    model = job.header.model
    shapes = weight_shapes(model, range(model.num_layers), True, True)
    drawn = initial_weights(shapes, job.seed, getattr(torch, job.dtype))
    weights = {n: w.detach().double().requires_grad_() for n, w in drawn.items()}
    total = count_labels(placed, job.batches[0].batch)
    losses = []
    for sequence_id, length in zip(placed.sequence_id, placed.length_tokens, strict=True):
        if length > 1:
            ids = torch.from_numpy(job.tokens(int(sequence_id), int(length)))
            loss = _sequence_loss(job, weights, ids) / total
            loss.backward()
            losses.append(float(loss.detach()))
    gradients = {n: w.grad.numpy() for n, w in weights.items() if w.grad is not None}
    return math.fsum(losses), gradients


def _sequence_loss(job: Job, weights: Weights, ids_T: torch.Tensor) -> torch.Tensor:
    """Sum of cross entropies of one whole sequence: row t predicts id t + 1."""
    model = job.header.model
    x_TC = embed(weights, ids_T, torch.float64)
    rotary = rotary_angles(model, torch.arange(len(ids_T)), torch.float64)
    for layer in range(model.num_layers):
        x_TC = decoder_layer(weights, layer, model, x_TC, rotary, reference_attention)
    logits = head_logits(weights, x_TC[:-1])
    return functional.cross_entropy(logits, ids_T[1:], reduction="sum")


def gradient_errors(gradients: Gradients, reference: Gradients) -> dict[str, float]:
    """||g - g0|| / ||g0|| of every parameter.

    A g0 that is zero but for rounding (`ZERO_SHARE`; queries and keys of one-token sequences
    have such gradients) has no direction to compare with; its error is taken relative to the
    norm of the whole reference gradient, or to 1 where all of that is zero. What is not finite
    counts as infinite.
    """
    assert gradients.keys() == reference.keys(), gradients.keys() ^ reference.keys()
    norms = {name: float(np.linalg.norm(g0)) for name, g0 in reference.items()}
    whole = math.hypot(*norms.values()) or 1.0
    errors = {}
    for name, g0 in reference.items():
        scale = norms[name] if norms[name] > ZERO_SHARE * whole else whole
        error = float(np.linalg.norm(gradients[name] - g0))
        errors[name] = error / scale if error else 0.0
        if not math.isfinite(errors[name]):  # a NaN would slip through every comparison
            errors[name] = math.inf
    return errors
