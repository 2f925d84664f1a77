"""Bytes that the stages of a plan need, and what takes most of them."""

from collections.abc import Sequence

import numpy as np

from hydraplan.host import GIB
from hydraplan.memory import COMMUNICATOR_BYTES, TERMS
from hydraplan.memory_limit import largest_term
from hydraplan.model import IntArray
from hydraplan.views import console

ASSUMED = f"with {COMMUNICATOR_BYTES >> 20} MiB a communicator, which is assumed"


def bytes_object(held: IntArray) -> dict[str, object]:
    """A batch's bytes for `--json`, one object a stage; `held` as `batch_bytes` gives it."""
    stages = [
        {
            "stage": stage,
            "needed_bytes": int(held[:, stage].sum()),
            "largest_term": largest_term(held, stage),
            "terms": dict(zip(TERMS, held[:, stage].tolist(), strict=True)),
        }
        for stage in range(held.shape[1])
    ]
    return {"memory": stages}


def print_bytes(batches: Sequence[IntArray]) -> None:
    """A row a stage, of the batch that needs most on it."""
    totals = np.stack([held.sum(axis=0) for held in batches])
    rows = []
    for stage, fullest in enumerate(totals.argmax(axis=0).tolist()):
        held, term = batches[fullest], largest_term(batches[fullest], stage)
        most = held[TERMS.index(term), stage]
        rows.append([stage, f"{totals[fullest, stage] / GIB:.3f}", term, f"{most / GIB:.3f}"])
    console.print_table(
        ["stage", "GiB", "largest term", "of it GiB"],
        rows,
        title="memory: what the fullest rank of a stage needs, predicted",
        caption=ASSUMED if any(held[-1].any() for held in batches) else "",
    )
    console.emit()
