"""Bytes that the stages of a plan need, and what takes most of them."""

from collections.abc import Sequence

import numpy as np

from hydraplan.errors import printable
from hydraplan.host import GIB
from hydraplan.memory import COMMUNICATOR_BYTES, TERMS
from hydraplan.memory_limit import largest_term
from hydraplan.model import IntArray
from hydraplan.planheader import PlanHeader, PlanOptions
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


def derived_text(options: PlanOptions) -> str:
    """What a derived cap was derived from, after the cap; "" for one that was given."""
    if not options.cap_is_derived:
        return ""
    return f"\n(auto: the most that fits {options.memory_gib:.2f} GiB a device)"


def beyond_note(header: PlanHeader, batches: Sequence[IntArray]) -> str:
    """That a plan without a limit needs more than the devices of its cluster have; "" if not.

    A note only: another engine than ours may hold other states.
    """
    if header.cluster is None or header.options.memory_bytes is not None:
        return ""
    held = max(batches, key=_most)
    if _most(held) <= header.cluster.memory_bytes:
        return ""
    stage = int(held.sum(axis=0).argmax())
    return (
        f"note: stage {stage} needs {_most(held) / GIB:.2f} GiB, most of it"
        f" {largest_term(held, stage)}, a device of {printable(header.cluster.name)} has"
        f" {header.cluster.memory_bytes / GIB:.2f}; --memory-gib refuses such plans,"
        " --max-tokens-per-rank auto makes one that fits"
    )


def print_bytes(batches: Sequence[IntArray], limit_bytes: int | None) -> None:
    """A row a stage, of the batch that needs most on it."""
    totals = np.stack([held.sum(axis=0) for held in batches])
    fullest = totals.argmax(axis=0).tolist()
    _print_table(
        ["stage"],
        [([stage], batches[batch], stage) for stage, batch in enumerate(fullest)],
        limit_bytes,
        "memory: what the fullest rank of a stage needs, predicted",
    )
    console.emit()


def print_needed(plans: Sequence[tuple[str, str, IntArray]], limit_bytes: int | None) -> None:
    """A row a strategy and order, of its fullest stage."""
    _print_table(
        ["strategy", "order", "stage"],
        [
            ([strategy, order, stage], held, stage)
            for strategy, order, held in plans
            for stage in [int(held.sum(axis=0).argmax())]
        ],
        limit_bytes,
        "memory: what the fullest rank of the fullest stage needs, predicted",
    )


def _print_table(
    names: list[str],
    rows: Sequence[tuple[list[object], IntArray, int]],
    limit_bytes: int | None,
    title: str,
) -> None:
    """Rows of (what stands under the names, bytes of a batch, stage)."""
    cells = []
    for first, held, stage in rows:
        total, term = held[:, stage].sum(), largest_term(held, stage)
        share = [] if limit_bytes is None else [f"{total / limit_bytes:.1%}"]
        most = held[TERMS.index(term), stage]
        cells.append([*first, f"{total / GIB:.3f}", *share, term, f"{most / GIB:.3f}"])
    of_limit = [] if limit_bytes is None else [f"of {limit_bytes / GIB:.2f}"]
    console.print_table(
        [*names, "GiB", *of_limit, "largest term", "of it GiB"],
        cells,
        title=title,
        caption=ASSUMED if any(held[-1].any() for _, held, _ in rows) else "",
    )


def _most(held: IntArray) -> int:
    return int(held.sum(axis=0).max())
