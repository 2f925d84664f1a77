"""Start the workers of a run, or be one, and turn whatever ends them early into one line.

Without torchrun, pp x ranks processes are forked by torch's elastic launcher on this machine:
torch is imported once, in the parent, which must not have worked on several threads. A worker
dies with its parent. When one fails, the launcher ends the others; each worker that raised
left a note (JSON) in a folder, and the parent raises the root cause: a process that was
killed, else the first that failed by itself, else the first that lost a peer. A worker that
only lost a peer waits a moment before it exits, so that the peer is seen first.

Under torchrun (RANK and WORLD_SIZE set) this process is a worker and torchrun is in charge.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hydraplan import errors
from hydraplan.errors import HydraplanError, RunFailed, StalePlan
from hydraplan.executor.groups import World
from hydraplan.executor.transport import reason

DEFAULT_TIMEOUT_S = 120.0
"""Longest wait for a message or a collective before a worker gives up."""

SYMPTOM_WAIT_S = 5.0
"""How long a worker that lost a peer stays, so that the launcher meets the cause first."""

SHUTDOWN_S = 5
"""Time between the launcher's SIGTERM and SIGKILL."""

TAKEN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals the launcher handles; it passes them on to the workers, which simply end."""

_PR_SET_PDEATHSIG = 1

Entry = Callable[[World], None]


def under_torchrun() -> bool:
    """Whether somebody else started this process as one worker of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_workers(entry: Entry, pp: int, ranks: int, timeout_s: float) -> bool:
    """Run `entry` on every worker; True where the result is to be reported.

    Raises:
        StalePlan: torchrun started another number of workers than the plan is for.
        RunFailed: A worker died, raised or timed out.
        KeyboardInterrupt: SIGINT; all workers are gone.
    """
    if not under_torchrun():
        _run_local(entry, pp, ranks, timeout_s)
        return True
    size = int(os.environ["WORLD_SIZE"])
    if size != pp * ranks:
        raise StalePlan(
            f"torchrun started {size} workers, the plan is for pp {pp} x ranks {ranks}"
            f" = {pp * ranks}",
            f"start {pp * ranks} workers, or plan for {size}",
        )
    world = World(int(os.environ["RANK"]), pp, ranks)
    try:
        _join_world(entry, world, timeout_s)
    except (RunFailed, RuntimeError) as error:
        text = f"worker {world.describe(world.rank)}: {reason(error)}"
        raise RunFailed(text, getattr(error, "hint", "")) from error
    return world.rank == 0


def _join_world(entry: Entry, world: World, timeout_s: float) -> None:
    """The life of a worker."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    entry(world)
    dist.barrier()
    dist.destroy_process_group()


def _run_local(entry: Entry, pp: int, ranks: int, timeout_s: float) -> None:
    import_module("torch._dynamo")  # checkpoint and AdamW would import it late, in every worker
    with tempfile.TemporaryDirectory(prefix="hydraplan-") as folder, _quiet():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=pp * ranks,
            run_id=uuid.uuid4().hex,
            role="rank",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            start_method="fork",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            shutdown_timeout=SHUTDOWN_S,
        )
        notes = Path(folder)
        try:
            elastic_launch(config, _local_worker)(entry, pp, ranks, timeout_s, notes, os.getpid())
        except ChildFailedError as error:
            if any(f.exitcode == -signal.SIGINT for f in error.failures.values()):
                raise KeyboardInterrupt from None
            raise _root_cause(error.failures, notes, World(0, pp, ranks)) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            sys.exit(128 + error.sigval)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the launcher's log and give back the signal handlers it takes."""
    handlers = [signal.getsignal(s) for s in TAKEN_SIGNALS]
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        for number, handler in zip(TAKEN_SIGNALS, handlers, strict=True):
            signal.signal(number, handler or signal.SIG_DFL)


def _local_worker(
    entry: Entry, pp: int, ranks: int, timeout_s: float, notes: Path, parent: int
) -> None:
    """Body of a forked worker: never outlives the parent, leaves a note if it fails."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number in TAKEN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    world = World(int(os.environ["RANK"]), pp, ranks)
    if world.rank == 0:
        logging.disable(logging.NOTSET)
    try:
        _join_world(entry, world, timeout_s)
    except Exception as error:
        lost_peer = isinstance(error, RuntimeError) or isinstance(
            error.__cause__, RuntimeError | RunFailed
        )
        note = {
            "time_s": time.monotonic(),
            "lost_peer": lost_peer,
            "kind": type(error).__name__,
            "message": str(error),
            "hint": getattr(error, "hint", ""),
            "traceback": traceback.format_exc(),
        }
        path = notes / f"note-{world.rank}.json"
        path.with_suffix(".tmp").write_text(json.dumps(note))
        path.with_suffix(".tmp").rename(path)
        if lost_peer:
            time.sleep(SYMPTOM_WAIT_S)
        os._exit(1)


def _root_cause(failures: dict[int, ProcessFailure], notes: Path, world: World) -> HydraplanError:
    """The error to raise in the parent; its note holds the worker's traceback for --debug."""
    for rank, failure in sorted(failures.items()):
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            return RunFailed(
                f"worker {world.describe(rank)} was killed by {name}",
                "if nobody killed it, the machine ran out of memory or the worker crashed",
            )
    told: list[tuple[bool, float, int, dict[str, Any]]] = []
    for path in notes.glob("note-*.json"):
        note = json.loads(path.read_text())
        told.append((note["lost_peer"], note["time_s"], int(path.stem.split("-")[1]), note))
    if not told:
        rank, failure = next(iter(failures.items()))
        return RunFailed(
            f"worker {world.describe(rank)} exited with code {failure.exitcode}"
            f" before it could say why: {failure.message}"
        )
    _, _, rank, note = min(told, key=lambda entry: entry[:3])
    shape = getattr(errors, note["kind"], None)
    where = f"worker {world.describe(rank)}"
    if shape is RunFailed:
        cause: HydraplanError = RunFailed(f"{where}: {note['message']}", note["hint"])
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
