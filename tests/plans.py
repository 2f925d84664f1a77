"""Hand-made plan folders for tests: placements written down, everything else filled in."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hydraplan.activations import Recompute
from hydraplan.config import ModelShape
from hydraplan.costfit import CostFit, LinkFit, RateFit
from hydraplan.files.planfile import write_plan
from hydraplan.metrics import FIGURES
from hydraplan.model import UNPLACED, BatchPlan, Schedule, Search, Sequences
from hydraplan.planheader import PlanHeader, PlanOptions
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.route import RouteName
from hydraplan.stages import split_layers
from hydraplan.version import __version__
from tests.builders import Place, placed_sequences

INVARIANTS = ("accounted", "degree", "layout", "inside", "aligned", "cap", "order", "schedule")


def tiny_model(
    num_heads: int = 8, num_kv_heads: int = 2, num_layers: int = 2, dtype: str = "float32"
) -> ModelShape:
    """A decoder of a few thousand weights."""
    return ModelShape(
        name="test",
        num_layers=num_layers,
        hidden_size=32,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=8,
        ffn_hidden_size=48,
        vocab_size=64,
        dtype=dtype,  # type: ignore[arg-type]
    )


def batch_rows(places: Sequence[Place], first_id: int = 0) -> Sequences:
    """Rows of a batch in input order, ids from `first_id`; length 0 is an empty row."""
    empty = np.array([place.length == 0 for place in places])
    held = placed_sequences([place for place in places if place.length])
    ids = np.flatnonzero(~empty)[held.sequence_id]
    zero = np.zeros(len(places), np.int64)
    rows = Sequences(
        sequence_id=np.arange(first_id, first_id + len(places), dtype=np.int64),
        length_tokens=zero.copy(),
        valid_tokens=zero.copy(),
        microbatch=zero + UNPLACED,
        order=zero + UNPLACED,
        first_rank=zero + UNPLACED,
        degree=zero.copy(),
        ulysses_size=zero.copy(),
        ring_size=zero.copy(),
        rank_tokens_max=zero.copy(),
        predicted_s=np.zeros(len(places)),
        status=tuple("empty" if e else "placed" for e in empty),
    )
    for name in Sequences.__dataclass_fields__:
        if name not in ("sequence_id", "status"):
            getattr(rows, name)[ids] = getattr(held, name)
    return rows


def batch_plan(batch: int, rows: Sequences, num_microbatches: int, pp: int) -> BatchPlan:
    """A 1F1B batch whose figures are all zero."""
    schedule = one_f_one_b(pp, num_microbatches)
    return BatchPlan(
        batch=batch,
        sequences=rows,
        num_microbatches=num_microbatches,
        schedule=schedule,
        strategy="by-hand",
        winner="memory",
        microbatch_order="as-built",
        pipeline="1f1b",
        predicted_start_s=tuple(np.zeros(len(ops)) for ops in schedule),
        predicted_end_s=tuple(np.zeros(len(ops)) for ops in schedule),
        figures=dict.fromkeys(FIGURES, 0.0),
        search=Search(0, 0, 0.0, 0.0, 0.0, 1, 0, 0.0, 0.0, 0.0, 0.0),
    )


def plan_header(
    model: ModelShape, pp: int, ranks: int, num_batches: int, lengths_digest: str = "0" * 64
) -> PlanHeader:
    """A header that promises every invariant of a placement."""
    rate = RateFit(call_s=1e-5, flops_per_s=1e10)
    link = LinkFit(bytes_per_s=1e9, latency_s=1e-5)
    return PlanHeader(
        tool_version=__version__,
        cluster=None,
        options=PlanOptions(
            pp=pp,
            ranks=ranks,
            tp=1,
            max_tokens_per_rank=100_000,
            batch_sequences=None,
            batch_tokens=1_000_000,
            strategy="by-hand",
            pipeline="1f1b",
            microbatches=None,
            microbatch_order="as-built",
            on_overlong="error",
            seed=0,
        ),
        model=model,
        fit=CostFit(
            attention_forward=rate,
            attention_backward=rate,
            linear_forward=rate,
            linear_input=rate,
            linear_weight=rate,
            memory_bytes_per_s=1e10,
            node_all_to_all=link,
            node_p2p=link,
            fabric_all_to_all=link,
            fabric_p2p=link,
            devices_per_node=8,
            segments_in_one_call=False,
        ),
        layers=tuple(tuple(row) for row in split_layers(model.num_layers, pp)),
        profile_mode="analytic",
        profile_digest="0" * 64,
        lengths_digest=lengths_digest,
        lengths_name="by-hand",
        lengths_unit="sequences",
        invariants=INVARIANTS,
        num_batches=num_batches,
    )


def write_test_plan(
    path: Path,
    batches: Sequence[Sequence[Place]],
    *,
    pp: int,
    ranks: int,
    model: ModelShape | None = None,
    lengths_digest: str = "0" * 64,
    num_microbatches: int | None = None,
    make: Callable[[int, int], Schedule] = one_f_one_b,
    num_chunks: int = 1,
    route: RouteName = "loop",
    recompute: Recompute = "none",
) -> Path:
    """Write a plan folder of hand-placed batches, numbered on from one to the next.

    `make(stages, microbatches)` gives the op order.
    """
    model, start, made = model or tiny_model(), 0, []
    for index, places in enumerate(batches):
        count = num_microbatches or 1 + max(place.microbatch for place in places)
        plain, ops = batch_plan(index, batch_rows(places, start), count, pp), make(pp, count)
        when = tuple(np.zeros(len(stage)) for stage in ops)
        made.append(replace(plain, schedule=ops, predicted_start_s=when, predicted_end_s=when))
        start += len(places)
    header = plan_header(model, pp, ranks, len(made), lengths_digest)
    layers = split_layers(model.num_layers, pp, num_chunks, route_name=route)
    options = header.options.model_copy(update={"recompute": recompute})
    cut = {
        "layers": tuple(tuple(stage) for stage in layers), "route": route, "options": options,
    }  # fmt: skip
    write_plan(path, header.model_copy(update=cut), made)
    return path
