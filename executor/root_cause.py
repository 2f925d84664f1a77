"""Of all that went wrong on the workers of a run, what came first.

Each worker that raised leaves a note (JSON) in a folder. The cause is a process that was killed,
else the first that failed by itself, else the first that waited too long for a peer (that ends its
connections, which others may see before it tells), else the first that lost one.
"""

import json
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hydraplan import errors
from hydraplan.errors import HydraplanError, RunFailed, WorkerLost
from hydraplan.executor.groups import World

MEMORY_HINT = "plan with a smaller --max-tokens-per-rank, or run with --recompute full"


def is_symptom(error: Exception) -> bool:
    """Whether an error says no more than that a peer was lost or did not come in time."""
    if _is_out_of_memory(error):
        return False
    return isinstance(error, RuntimeError) or isinstance(error.__cause__, RuntimeError | RunFailed)


def leave_note(notes: Path, rank: int, error: Exception) -> None:
    """Write what a worker failed of, whole or not at all."""
    note = {
        "time_s": time.monotonic(),
        "lost_peer": is_symptom(error),
        "kind": type(error).__name__,
        "message": str(error),
        "hint": MEMORY_HINT if _is_out_of_memory(error) else getattr(error, "hint", ""),
        "traceback": traceback.format_exc(),
    }
    path = notes / f"note-{rank}.json"
    path.with_suffix(".tmp").write_text(json.dumps(note))
    path.with_suffix(".tmp").rename(path)


def root_cause(failures: dict[int, ProcessFailure], notes: Path, world: World) -> HydraplanError:
    """The error to raise in the parent; its note holds the worker's traceback for --debug."""
    for rank, failure in sorted(failures.items()):
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            return WorkerLost(
                f"worker {world.describe(rank)} was killed by {name}",
                "if nobody killed it, the machine ran out of memory or the worker crashed",
            )
    told: list[tuple[bool, bool, float, int, dict[str, Any]]] = []
    for path in notes.glob("note-*.json"):
        note = json.loads(path.read_text())
        in_time = "imed out" not in note["message"]
        rank = int(path.stem.split("-")[1])
        told.append((note["lost_peer"], in_time, note["time_s"], rank, note))
    if not told:
        rank, failure = next(iter(failures.items()))
        return WorkerLost(
            f"worker {world.describe(rank)} exited with code {failure.exitcode}"
            f" before it could say why: {failure.message}"
        )
    _, in_time, _, rank, note = min(told, key=lambda entry: entry[:4])
    shape = getattr(errors, note["kind"], None)
    where = f"worker {world.describe(rank)}"
    silent = sorted(set(range(world.pp * world.ranks)) - {entry[3] for entry in told})
    if note["lost_peer"] and silent and not in_time:
        where = f"no word from {', '.join(map(world.describe, silent))}; {where}"
    if shape is RunFailed:
        kind = WorkerLost if note["lost_peer"] else RunFailed
        cause: HydraplanError = kind(f"{where}: {note['message']}", note["hint"])
    elif isinstance(shape, type) and issubclass(shape, HydraplanError):
        cause = shape(note["message"], note["hint"])
    else:
        text = note["message"].strip().splitlines()
        cause = RunFailed(
            f"{where} failed: {note['kind']}: {text[0] if text else ''}",
            "run again with --debug for the worker's traceback",
        )
    cause.add_note(note["traceback"])
    return cause


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU had too little memory, whatever was said on the way up."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, torch.OutOfMemoryError)
