"""Links on this machine: gloo all-to-all and point-to-point between two forked processes.

Processes of one machine talk over loopback, so this says nothing about a network. Children
are forked with torch imported; what they report travels as JSON through a pipe.
"""

import json
import multiprocessing
import os
import signal
import tempfile
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from hydraplan.errors import RunFailed, first_line
from hydraplan.files.profilefile import Measurement
from hydraplan.host import begin_as_child
from hydraplan.profiler.exchanges import Place, measure_exchanges

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
        rows = measure_exchanges(Place(rank, 2, 2, torch.device("cpu")), budget_s)
        answer: dict[str, object] = {"rows": [row._asdict() for row in rows]}
        dist.destroy_process_group()
    except RuntimeError as error:
        answer = {"error": first_line(error)}
    if rank == 0 or "error" in answer:
        writer.send_bytes(json.dumps(answer).encode())
    writer.close()
