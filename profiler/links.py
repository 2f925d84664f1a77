"""Links on this machine: gloo all-to-all and point-to-point between two forked processes.

Both ranks send and receive at once, as a ring hop and an all-to-all do. Rank 0 holds the
clock and decides how often each size is repeated, and tells rank 1, so both always make the
same calls. Bytes are those that leave a rank: half the buffer of an all-to-all over two.

Processes of one machine talk over loopback, so this says nothing about a network. Children
are forked with torch imported; what they report travels as JSON through a pipe.
"""

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from hydraplan.errors import RunFailed, first_line
from hydraplan.files.profilefile import Measurement
from hydraplan.host import begin_as_child
from hydraplan.profiler.measure import MIN_REPEATS, Timed, wall_timer, wants_more, with_times

GROWTH = 4
SENT_BYTES = tuple(GROWTH**power for power in range(5, 14))
NUM_REQUIRED = 6
"""Sizes measured on any machine, up to 1 MiB: below that there is only latency to see."""

ROUNDS = 3

BATCH = 5
"""Exchanges between two questions whether to go on; asking costs a message."""

START_S = 60.0
"""Longest that starting two processes, or one exchange between them, may take."""


def measure_links(budget_s: float) -> list[Measurement]:
    """Time both kinds of exchange over growing sizes, for about `budget_s` seconds.

    Raises:
        RunFailed: A process died, did not answer in time, or gloo refused.
    """
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        ranks = [
            context.Process(
                target=_run_rank, args=(rank, store, budget_s, writer, os.getpid()), daemon=True
            )
            for rank in range(2)
        ]
        try:
            for process in ranks:
                process.start()
            writer.close()
            if not reader.poll(budget_s + 2 * START_S):
                raise RunFailed(f"link measurement did not end in {budget_s + 2 * START_S:.0f} s")
            answer = json.loads(reader.recv_bytes())
        except EOFError:
            raise RunFailed("a process of the link measurement died") from None
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.join(1.0)
                    process.kill()
                    process.join()
            reader.close()
    if "error" in answer:
        raise RunFailed(f"link measurement failed: {answer['error']}")
    return [Measurement(**row) for row in answer["rows"]]


def _run_rank(rank: int, store: Path, budget_s: float, writer: Connection, parent: int) -> None:
    """Body of one child: measure, and let rank 0 answer. An interrupt is the parent's to see."""
    begin_as_child(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=START_S),
        )
        rows = _exchange_sizes("all_to_all", budget_s / 2)
        rows += _exchange_sizes("p2p", budget_s / 2)
        answer: dict[str, object] = {"rows": [row._asdict() for row in rows]}
        dist.destroy_process_group()
    except RuntimeError as error:
        answer = {"error": first_line(error)}
    if rank == 0 or "error" in answer:
        writer.send_bytes(json.dumps(answer).encode())
    writer.close()


def _exchange_sizes(component: str, budget_s: float) -> list[Measurement]:
    """Time one kind of exchange; both ranks run this, the times of rank 0 count.

    In rounds over all sizes, so that a slow phase of the machine spoils no size.
    """
    began, last_s = time.perf_counter(), 0.0
    samples: dict[int, list[Timed]] = {}
    for part in range(ROUNDS):
        for index, size in enumerate(SENT_BYTES):
            left_s = (part + 1) / ROUNDS * budget_s - (time.perf_counter() - began)
            is_known = part > 0 and size in samples
            fits = part == 0 and GROWTH * last_s * (MIN_REPEATS + 1) < left_s
            if not _from_rank_0(is_known or index < NUM_REQUIRED or fits):
                break
            exchange = _all_to_all(size) if component == "all_to_all" else _p2p(size)
            exchange()
            slice_s = left_s / (len(SENT_BYTES) - index)
            new: list[Timed] = []
            while _from_rank_0(wants_more(len(new), sum(s.seconds for s in new), slice_s)):
                new += [wall_timer(exchange) for _ in range(BATCH)]
            samples.setdefault(size, []).extend(new)
            last_s = float(np.median([s.seconds for s in new]))
    return [with_times(_row(component, size), found) for size, found in samples.items()]


def _from_rank_0(answer: bool) -> bool:
    told = torch.tensor([answer])
    dist.broadcast(told, 0)
    return bool(told.item())


def _all_to_all(sent_bytes: int) -> Callable[[], object]:
    sent = torch.zeros(2 * sent_bytes, dtype=torch.uint8)
    received = torch.empty_like(sent)
    return lambda: dist.all_to_all_single(received, sent)


def _p2p(sent_bytes: int) -> Callable[[], object]:
    peer = 1 - dist.get_rank()
    sent = torch.zeros(sent_bytes, dtype=torch.uint8)
    received = torch.empty_like(sent)

    def exchange() -> None:
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
        )
        for work in works:
            work.wait()

    return exchange


def _row(component: str, sent_bytes: int) -> Measurement:
    name: Literal["all_to_all", "p2p"] = "all_to_all" if component == "all_to_all" else "p2p"
    return Measurement(name, "send", dtype="uint8", kernel="gloo", bytes=float(sent_bytes), ranks=2)
