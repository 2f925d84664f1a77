"""Weights and optimizer state of all workers, to a checkpoint and back, by the name of the weight.

Lanes of a stage hold the same weights, so each saves those that it updates; names, not places, say
what is what, so a run can go on with other stages and lanes. What is saved of a weight: itself, and
what AdamW keeps of it (`NAME/exp_avg`, `NAME/exp_avg_sq`, `NAME/step`). The bits stay the same.

torch.distributed.checkpoint is not used: docs/resume.md says why.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from hydraplan.errors import InputError, RunFailed, many
from hydraplan.executor.decoder import Weights
from hydraplan.executor.groups import World
from hydraplan.executor.transport import reason
from hydraplan.files.checkpointfile import (
    Checkpoint,
    Saved,
    SavedFile,
    begin_checkpoint,
    publish_checkpoint,
    spare_folder,
    worker_file,
)
from hydraplan.files.tensorfile import DAMAGED, Array, read_tensors, tensor_names, write_tensors

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps of a weight; the first a scalar, the others of its shape."""


def share(weights: Weights, optimizer: Optimizer) -> dict[str, Tensor]:
    """What this worker saves: the weights that it updates, with what AdamW keeps of them."""
    local, found = _local(optimizer), {}
    updated = set(local.param_groups[0]["params"])
    for name, weight in weights.items():
        if weight in updated:
            found[name] = weight.detach()
            found |= {f"{name}/{key}": local.state[weight][key] for key in MOMENTS}
    return found


def save(
    world: World, run: Path, steps: int, tensors: dict[str, Tensor], plan_digest: str,
    ledger_digest: str, keep: int,
) -> None:  # fmt: skip
    """Write a checkpoint of all workers, of which the last `keep` stay; collective.

    Args:
        steps: How many are done; the ledger on the disk holds them all.
        ledger_digest: Of these steps, on rank 0.

    Raises:
        RunFailed: The disk refused, or a peer was lost; the checkpoint before stays the newest.
    """
    try:
        if world.rank == 0:
            begin_checkpoint(run, steps)
        dist.barrier()
        path = spare_folder(run, steps) / worker_file(world.stage, world.lane)
        sha256 = write_tensors(path, {n: t.cpu().numpy() for n, t in tensors.items()})
        told = torch.tensor([path.stat().st_size, *bytes.fromhex(sha256)])
        received = [torch.empty_like(told) for _ in range(world.pp * world.ranks)]
        dist.gather(told, received if world.rank == 0 else None)
        if world.rank == 0:
            files = {
                worker_file(*divmod(rank, world.ranks)): SavedFile(
                    size_bytes=numbers[0], sha256=bytes(numbers[1:]).hex()
                )
                for rank, numbers in enumerate(t.tolist() for t in received)
            }
            about = Checkpoint(
                steps=steps,
                plan_digest=plan_digest,
                pp=world.pp,
                ranks=world.ranks,
                ledger_digest=ledger_digest,
                files=files,
            )
            publish_checkpoint(run, about, keep)
    except OSError as error:
        where = error.filename or spare_folder(run, steps)  # a write names no file
        text = f"checkpoint after step {steps}: {where}: {error.strerror}"
        raise RunFailed(text, "make room on the disk, then go on with --resume") from None
    except RuntimeError as error:
        raise RunFailed(f"checkpoint after step {steps}: {reason(error)}") from error


def load(saved: Saved, weights: Weights, optimizer: Optimizer) -> None:
    """Set the weights of a stage, and what the optimizer keeps of those it updates here.

    Returns on all workers or on none; collective.

    Raises:
        InputError: A file is damaged, or a weight is absent or of another shape or type.
        RunFailed: A peer was lost, or refused its files.
    """
    local = _local(optimizer)
    updated = set(local.param_groups[0]["params"])
    likes: dict[str, Tensor] = dict(weights)
    for name, weight in weights.items():
        if weight in updated:
            likes |= {f"{name}/{key}": weight for key in MOMENTS[1:]}
            likes[f"{name}/{MOMENTS[0]}"] = torch.tensor(0.0)
    found = _read(saved, likes)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(found[name])
            if weight in updated:
                local.state[weight] = {key: found[f"{name}/{key}"] for key in MOMENTS}
    try:
        dist.barrier()
    except RuntimeError as error:
        raise RunFailed(f"reading {saved.path}: {reason(error)}") from error


def _local(optimizer: Optimizer) -> Optimizer:
    """The optimizer of the weights that this worker updates, where lanes share them out."""
    return getattr(optimizer, "optim", optimizer)


def _read(saved: Saved, likes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a checkpoint, of the shape, type and device of `likes`; other files stay shut."""
    where = _files_of(saved)
    absent = [name for name in likes if name not in where]
    if absent:
        raise InputError(
            f"{saved.path} lacks {many(len(absent), 'tensor')} of this model, {absent[0]} is one",
            DAMAGED,
        )
    found = {}
    for file in sorted({where[name] for name in likes}):
        arrays = read_tensors(saved.path / file, saved.about.files[file].sha256)
        for name in (n for n in arrays if n in likes):
            found[name] = _tensor(saved, name, arrays[name], likes[name])
    return found


def _files_of(saved: Saved) -> dict[str, str]:
    """The file of every tensor of a checkpoint."""
    where: dict[str, str] = {}
    for file in saved.about.files:
        for name in tensor_names(saved.path / file):
            if name in where:
                raise InputError(f"{saved.path}: {name} is in {where[name]} and {file}", DAMAGED)
            where[name] = file
    return where


def _tensor(saved: Saved, name: str, array: Array, like: Tensor) -> Tensor:
    value = torch.from_numpy(array.copy())
    if (value.shape, value.dtype) != (like.shape, like.dtype):
        raise InputError(
            f"{saved.path}: {name} is {value.dtype} of shape {tuple(value.shape)}, the run has"
            f" {like.dtype} of {tuple(like.shape)}",
            DAMAGED,
        )
    return value.to(like.device)
