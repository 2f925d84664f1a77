"""Before a step rank 0 tells all workers what its batch runs; each checks that before it runs it.

Length and digest of the change go first, and the change itself only where it is another than the
batch ran last: all keep that, so all know alike what is new. Each decodes the same bytes, compares
their digest and proves the change fit for itself (`hydraplan.executor.change`); that all are about
to run the same is proven once more with the batch (`same_step`).
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hydraplan.errors import RunFailed
from hydraplan.executor.change import Changed, checked
from hydraplan.executor.groups import World
from hydraplan.executor.prepare import Job
from hydraplan.executor.share_plan import check_held
from hydraplan.executor.transport import reason
from hydraplan.files.decisionsfile import Change, change_of
from hydraplan.model import BatchPlan

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Known:
    """What a worker was told of every batch last, and the digest of that."""

    world: World
    job: Job
    changed: dict[int, tuple[bytes, Changed]] = field(default_factory=dict)

    def tell(self, batch: BatchPlan, change: Change | None) -> Changed:
        """The batch as all workers are about to run it; `change` is given on rank 0; collective.

        Raises:
            InputError: The change does not fit the batch, or it brings rows with ids beyond the
                vocabulary.
            RunFailed: It did not arrive as rank 0 sent it, or a worker died.
        """
        raw = b"" if change is None else change.to_text().encode()
        head = np.frombuffer(len(raw).to_bytes(8, "little") + _digest(raw), np.uint8)
        head = _told(head.copy())
        size, digest = int.from_bytes(head[:8].tobytes(), "little"), head[8:].tobytes()
        last, changed = self.changed.get(batch.batch, (b"", None))
        if changed is None or last != digest:
            body = np.frombuffer(raw, np.uint8) if change is not None else np.zeros(size, np.uint8)
            raw = _told(body.copy()).tobytes()
            if _digest(raw) != digest:
                raise RunFailed(
                    f"{self.world.describe(self.world.rank)} was told another change of batch"
                    f" {batch.batch} than rank 0 made"
                )
            found = change_of(raw.decode())
            job, of = self.job, "the decision of rank 0"
            changed = checked(job.header, batch, found, of, job.cost)
            if found.places is not None and job.is_shared:  # rows that were not its own yet
                check_held(self.world, job, [changed.batch.sequences])
            self.changed[batch.batch] = digest, changed
        return changed


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def _told(mine: Bytes) -> Bytes:
    """What rank 0 holds, in an array that has its shape everywhere."""
    tensor = torch.from_numpy(mine)
    try:
        dist.broadcast(tensor, 0)
    except RuntimeError as error:
        raise RunFailed(f"what the step runs, from rank 0: {reason(error)}") from error
    return tensor.numpy()
