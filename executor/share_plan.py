"""Under torchrun rank 0 alone reads and checks the batches of a plan, and sends them to all others.

So thousands of workers do not read and prove the same files at once, and no two hosts can hold
different ones: the others take what they run from rank 0 (`plan_wire`). That it arrived as it was
read is proven before every step (`same_step`). What rank 0 refuses ends the run before anything is
sent.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from hydraplan.errors import RunFailed, StalePlan
from hydraplan.executor.data import check_ids
from hydraplan.executor.groups import World
from hydraplan.executor.plan_wire import decode_batch, encode_batch
from hydraplan.executor.prepare import Job
from hydraplan.executor.transport import reason
from hydraplan.executor.valid import lower_batch
from hydraplan.model import Sequences

DIGEST_BYTES = 32
"""Of SHA-256; one of the plan goes before the batches, and one of its footer."""


def share_plan(world: World, job: Job) -> Job:
    """The job of rank 0, on all workers; collective. Ids of rows that this lane holds are checked.

    Raises:
        StalePlan: The plan folder of this host has another footer than that of rank 0.
        InputError: The dataset of this host holds ids beyond the vocabulary.
        RunFailed: A worker died, or did not come in time.
    """
    sent = [encode_batch(batch) for batch in job.batches]
    footer = hashlib.sha256(job.header.model_dump_json().encode()).digest()
    digests = np.frombuffer(bytes.fromhex(job.digest) + footer, np.uint8)
    count = _told(torch.tensor([len(sent)]))
    sizes = _told(torch.tensor([len(raw) for raw in sent] or [0] * int(count)))
    whole = np.frombuffer(b"".join(sent), np.uint8)
    packet = torch.zeros(2 * DIGEST_BYTES + int(sizes.sum()), dtype=torch.uint8)
    if world.rank == 0:
        packet = torch.from_numpy(np.concatenate([digests, whole]))
    raw = _told(packet).numpy().tobytes()
    if world.rank == 0:
        return job
    if raw[DIGEST_BYTES : 2 * DIGEST_BYTES] != footer:
        raise StalePlan(
            f"the plan folder of {world.describe(world.rank)} has another footer than rank 0's",
            "start every host with the same plan folder",
        )
    ends = np.cumsum([2 * DIGEST_BYTES, *sizes.tolist()]).tolist()
    batches = tuple(decode_batch(raw[a:b]) for a, b in pairwise(ends))
    check_held(world, job, (batch.sequences for batch in batches))
    return replace(
        job,
        digest=raw[:DIGEST_BYTES].hex(),
        batches=batches,
        steps={b.batch: lower_batch(Path("the plan of rank 0"), job.header, b) for b in batches},
    )


def check_held(world: World, job: Job, batches: Iterable[Sequences]) -> None:
    """Refuse ids beyond the vocabulary in rows that this lane holds, of a dataset on this host.

    Raises:
        InputError: There is one; sequence and value are named.
    """
    if job.data == "generated":
        return
    held = []
    for sequences in batches:
        placed = sequences.placed()
        first = placed.first_rank
        here = (first <= world.lane) & (world.lane < first + placed.degree)
        held.append(placed.take(np.flatnonzero(here)))
    path = Path(job.data).with_suffix(".bin")
    check_ids(job.tokens, held, job.header.model.vocab_size, path)


def _told(tensor: torch.Tensor) -> torch.Tensor:
    """What rank 0 holds, in a tensor that has its shape everywhere."""
    try:
        dist.broadcast(tensor, 0)
    except RuntimeError as error:
        raise RunFailed(f"plan from rank 0: {reason(error)}") from error
    return tensor
