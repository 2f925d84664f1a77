"""Start the workers of a run, or be one, and turn whatever ends them early into one line.

Without torchrun, pp x ranks processes are forked by torch's elastic launcher on this machine:
torch is imported once, in the parent, which must not have worked on several threads. No worker
talks to the parent before all are forked: the thread that answers there looks up names, and a
fork in the middle of that leaves the child a resolver that is locked for ever. A worker dies
with its parent. When one fails, the launcher ends the others, and the parent raises the cause
(`root_cause`). A worker that only lost a peer waits a moment before it exits, so that the peer is
seen first. One that is stopped holds up the end for 30 s, after which the launcher kills it.

Under torchrun (RANK and WORLD_SIZE set) this process is a worker and torchrun is in charge.
"""

import gc
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.rendezvous import rendezvous

from hydraplan.errors import (
    InputError,
    MissingDependency,
    RunFailed,
    StalePlan,
)
from hydraplan.executor.device import BACKENDS, take_device
from hydraplan.executor.groups import World
from hydraplan.executor.root_cause import is_symptom, leave_note, root_cause
from hydraplan.executor.settings import DeviceName
from hydraplan.executor.transport import reason
from hydraplan.host import begin_as_child

SYMPTOM_WAIT_S = 5.0
"""How long a worker that lost a peer stays, so that the launcher meets the cause first."""

SHUTDOWN_S = 5
"""Time between the launcher's SIGTERM and SIGKILL."""

TAKEN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals the launcher handles; it passes them on to the workers, which simply end. One that the
command was started to ignore, as nohup has it, ends nobody."""

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started the workers again, in their environment."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

FILES_BASE, FILES_A_WORKER = 48, 6
"""Files a process has open beyond those it was started with: a bit above what was counted for
1 to 32 workers with all their groups."""

Entry = Callable[[World], None]
Gate = tuple[tuple[int, int], tuple[int, int]]


def under_torchrun() -> bool:
    """Whether somebody else started this process as one worker of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_workers(
    entry: Entry, pp: int, ranks: int, timeout_s: float, device: DeviceName = "cpu"
) -> bool:
    """Run `entry` on every worker; True where the result is to be reported.

    Raises:
        StalePlan: torchrun started another number of workers than the plan is for.
        RunFailed: A worker died, raised or timed out.
        KeyboardInterrupt: SIGINT; all workers are gone.
    """
    if not under_torchrun():
        _run_local(entry, pp, ranks, timeout_s, device)
        return True
    rank, size = torchrun_place()
    if size != pp * ranks:
        raise StalePlan(
            f"torchrun started {size} workers, the plan is for pp {pp} x ranks {ranks}"
            f" = {pp * ranks}",
            f"start {pp * ranks} workers, or plan for {size}",
        )
    world = World(rank, pp, ranks, device)
    try:
        _join_world(entry, world, timeout_s)
    except (RunFailed, RuntimeError) as error:
        text = f"worker {world.describe(world.rank)}: {reason(error)}"
        raise RunFailed(text, getattr(error, "hint", "")) from error
    return world.rank == 0


def torchrun_place() -> tuple[int, int]:
    """RANK and WORLD_SIZE, and the proof that the rest of torchrun's environment is there."""
    found = {name: os.environ.get(name, "") for name in TORCHRUN_VARIABLES}
    wrong = [n for n, v in found.items() if not (v and (n == "MASTER_ADDR" or v.isdecimal()))]
    rank, size = found["RANK"], found["WORLD_SIZE"]
    if wrong or int(rank) >= int(size):
        name = wrong[0] if wrong else "RANK"
        raise InputError(
            f"RANK={rank} and WORLD_SIZE={size} say that torchrun started this worker, but"
            f" {name}={found[name]} is not what it sets",
            "start it with torchrun; or unset RANK and WORLD_SIZE, to start local workers",
        )
    return int(rank), int(size)


def _join_world(entry: Entry, world: World, timeout_s: float) -> None:
    """The life of a worker.

    torchrun gives the workers that it restarts the store of those before, addresses of the dead
    included (torch 2.13), so each start has keys of its own.
    """
    timeout = timedelta(seconds=timeout_s)
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    ours = PrefixStore(f"start-{os.environ.get(RESTARTS, '0')}", store)
    take_device(world.device)
    carried = BACKENDS[world.device]
    dist.init_process_group(carried, store=ours, rank=rank, world_size=size, timeout=timeout)
    entry(world)
    dist.barrier()
    dist.destroy_process_group()


def _run_local(entry: Entry, pp: int, ranks: int, timeout_s: float, device: DeviceName) -> None:
    _allow_open_files(pp * ranks)
    _check_loopback()
    gc.collect()  # here, where the threads that garbage may own still are
    import_module("torch._dynamo")  # checkpoint and AdamW would import it late, in every worker
    with tempfile.TemporaryDirectory(prefix="hydraplan-") as folder, _quiet():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=pp * ranks,
            run_id=uuid.uuid4().hex,
            role="rank",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            start_method="fork",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            shutdown_timeout=SHUTDOWN_S,
            signals_to_handle=",".join(number.name for number in heeded_signals()),
        )
        notes = Path(folder)
        try:
            with _gate() as gate:
                start = elastic_launch(config, _local_worker)
                start(entry, World(0, pp, ranks, device), timeout_s, notes, os.getpid(), gate)
        except ChildFailedError as error:
            if any(f.exitcode == -signal.SIGINT for f in error.failures.values()):
                raise KeyboardInterrupt from None
            raise root_cause(error.failures, notes, World(0, pp, ranks)) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            sys.exit(128 + error.sigval)


def heeded_signals() -> list[signal.Signals]:
    """Those of the taken signals that this process was not started to ignore."""
    return [s for s in TAKEN_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]


def _allow_open_files(count: int) -> None:
    """Raise the soft limit on open files to what `count` workers need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + FILES_BASE + FILES_A_WORKER * count
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise MissingDependency(
            f"{count} workers need {needed} open files each, the limit is {hard}",
            f"raise it: ulimit -n {needed}",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _check_loopback() -> None:
    """Workers talk over 127.0.0.1; without it the launcher would try for minutes."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError as error:
        raise MissingDependency(
            f"local workers cannot talk over 127.0.0.1: {error.strerror or error}",
            "bring the loopback interface up: ip link set lo up",
        ) from None


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


@contextmanager
def _gate() -> Iterator[Gate]:
    """Two pipes for `_wait_for_all`."""
    arrived, passed = os.pipe(), os.pipe()
    try:
        yield arrived, passed
    finally:
        for end in (*arrived, *passed):
            os.close(end)


def _wait_for_all(rank: int, count: int, gate: Gate) -> None:
    """Return once all `count` workers of this machine have been forked and called this."""
    (arrivals, arrive), (passes, let_pass) = gate
    os.write(arrive, b"x")
    if rank == 0:
        here = 0
        while here < count:
            here += len(os.read(arrivals, count - here))
        os.write(let_pass, b"x" * count)
    os.read(passes, 1)


def _local_worker(
    entry: Entry, first: World, timeout_s: float, notes: Path, parent: int, gate: Gate
) -> None:
    """Body of a forked worker: never outlives the parent, leaves a note if it fails.

    `first` is the place of rank 0.
    """
    begin_as_child(parent)
    for number in heeded_signals():
        signal.signal(number, signal.SIG_DFL)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    world = replace(first, rank=int(os.environ["RANK"]))
    _wait_for_all(world.rank, world.pp * world.ranks, gate)
    if world.rank == 0:
        logging.disable(logging.NOTSET)
    try:
        _join_world(entry, world, timeout_s)
    except Exception as error:
        leave_note(notes, world.rank, error)
        if is_symptom(error):
            time.sleep(SYMPTOM_WAIT_S)
        os._exit(1)
