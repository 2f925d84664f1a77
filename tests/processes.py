"""Run one function on N forked gloo ranks and bring back what each said, as JSON text.

Children are forked, so the function may be a closure and torch is imported once. Each child
has one thread, joins a gloo group on the loopback interface through a file store, calls
`function(rank, *arguments)` and sends its return value (JSON) or its traceback (text) through
a pipe. Nothing is pickled. What the parent must not do before: run torch work on several
threads, since threads do not survive a fork (`tests/conftest.py` sets one thread).
"""

import gc
import json
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

GRACE_S = 3.0
"""Time the other ranks have to say why they failed, once one has failed."""


class RankFailed(AssertionError):
    """One or more ranks raised, died or did not end in time; holds their tracebacks."""


def run_ranks(
    function: Callable[..., object],
    world_size: int,
    *arguments: object,
    timeout_s: float = 60.0,
) -> list[Any]:
    """Call `function(rank, *arguments)` on `world_size` forked ranks; their results in rank order.

    Results must be JSON (numbers, text, lists, dicts with text keys). A collective that waits
    for longer than `timeout_s` raises on its rank, and after `timeout_s` plus the grace time
    every child still there is killed.

    Raises:
        RankFailed: A rank raised, died or did not end in time.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        readers: list[Connection] = []
        children = []
        for rank in range(world_size):
            reader, writer = context.Pipe(duplex=False)
            child = context.Process(
                target=_child,
                args=(writer, rank, world_size, folder, timeout_s, function, arguments),
                daemon=True,
            )
            child.start()
            writer.close()
            readers.append(reader)
            children.append(child)
        answers: dict[int, tuple[str, str]] = {}
        try:
            _collect(readers, timeout_s + GRACE_S, answers)
        finally:
            for rank, child in enumerate(children):
                if rank in answers:
                    child.join(GRACE_S)
                child.kill()
                child.join()
            for reader in readers:
                reader.close()
    bad = [
        f"rank {rank}: {answers.get(rank, ('silent', 'did not end in time'))[1]}"
        for rank in range(world_size)
        if answers.get(rank, ("silent",))[0] != "ok"
    ]
    if bad:
        raise RankFailed("\n".join(bad))
    return [json.loads(answers[rank][1]) for rank in range(world_size)]


def _collect(
    readers: list[Connection], timeout_s: float, answers: dict[int, tuple[str, str]]
) -> None:
    """Fill in (verdict, text) of each rank; end early, after the grace time, once one failed."""
    waiting: dict[Any, int] = {reader: rank for rank, reader in enumerate(readers)}
    deadline = time.monotonic() + timeout_s
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for reader in ready:
            rank = waiting.pop(reader)
            try:
                verdict, text = json.loads(reader.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                verdict, text = "died", "died without a word"
            answers[rank] = (verdict, text)
            if verdict != "ok":
                deadline = min(deadline, time.monotonic() + GRACE_S)


def _child(
    writer: Connection,
    rank: int,
    world_size: int,
    folder: str,
    timeout_s: float,
    function: Callable[..., object],
    arguments: tuple[object, ...],
) -> None:
    gc.freeze()  # garbage of the parent may own threads that are not here
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        answer = ("ok", json.dumps(function(rank, *arguments)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answer = ("raised", traceback.format_exc())
    writer.send_bytes(json.dumps(answer).encode())
    writer.close()
