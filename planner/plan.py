"""Lengths and a profile in, a plan out: check, place batch by batch, order, score."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isnan
from sys import maxsize

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths, digest
from hydraplan.files.profilefile import Profile
from hydraplan.model import PLACE_COLUMNS, BatchPlan, IntArray, Sequences
from hydraplan.planheader import PlanHeader, PlanOptions, reorder_within
from hydraplan.planner.batches import Batches, cut_batches, open_batches
from hydraplan.planner.figures import batch_figures, predicted
from hydraplan.planner.forked import in_order
from hydraplan.planner.open_request import open_request, others
from hydraplan.planner.pipeline.order import ALL_ORDERS, SEARCHED
from hydraplan.planner.pipeline.planned import PLANNED
from hydraplan.planner.pipeline.schedules import OF_PLANS, SCHEDULES, layout_of
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.strategies import STRATEGIES, promised
from hydraplan.planner.placement.window_advice import window_advice
from hydraplan.planner.planned_ops import with_ops
from hydraplan.stages import check_tensor_parallel, split_layers
from hydraplan.version import __version__


def plan(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> tuple[PlanHeader, Iterator[BatchPlan]]:
    """Check the request and return the header and the batches, planned one by one on demand.

    Arguments and errors as `prepare`.
    """
    header, batches = prepare(lengths, profile, options, num_batches)
    numbered = range(len(batches))
    return header, (plan_batch(batches.cost, options, i, batches[i]) for i in numbered)


@contextmanager
def plan_many(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None, workers: int
) -> Iterator[tuple[PlanHeader, Iterator[BatchPlan]]]:
    """As `plan`, on so many processes; the same batches in the same order.

    They are forked on entry and gone on exit. Arguments and errors as `prepare`, and
    `forked.in_order`.
    """
    header, batches = prepare(lengths, profile, options, num_batches)

    def work(index: int) -> BatchPlan:
        return plan_batch(batches.cost, options, index, batches[index])

    with in_order(work, len(batches), workers) as planned:
        yield header, planned


def prepare(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> tuple[PlanHeader, Batches]:
    """Check a request and cut the batches; nothing is placed yet.

    Args:
        num_batches: How many to plan from the start of the file; None for all it holds.

    Raises:
        InputError: An option is wrong, or some batch has nothing to train on.
        Infeasible: A row that no degree can hold, under `on_overlong="error"`.
    """
    if options.pipeline in SCHEDULES and SCHEDULES[options.pipeline].simulated_only:
        raise InputError(
            f"schedule {options.pipeline} is simulated only, no plan can ask for it",
            "see it with hydraplan pipeline, plan with zb-v for one",
        )
    for kind, name, known in (
        ("strategy", options.strategy, STRATEGIES),
        ("pipeline", options.pipeline, (*OF_PLANS, *PLANNED)),
        ("microbatch order", options.microbatch_order, (*ALL_ORDERS, "auto")),
    ):
        if name not in known:
            raise InputError(f"unknown {kind} {name!r}", f"known: {', '.join(known)}")
    model = profile.header.model
    check_tensor_parallel(model, options.tp, profile.header.fit.devices_per_node)
    bounds = cut_batches(lengths.length_tokens, options, num_batches)
    layers = stage_layers(profile, options, lengths.length_tokens)
    header = PlanHeader(
        tool_version=__version__,
        options=options,
        model=model,
        cluster=profile.header.cluster,
        fit=profile.header.fit,
        layers=layers,
        route=layout_of(options.pipeline, options.chunks)[0],
        profile_mode=profile.header.mode,
        profile_digest=profile.digest,
        lengths_digest=digest(lengths.length_tokens),
        lengths_name=lengths.name,
        lengths_unit=lengths.unit,
        invariants=promised(options),
        num_batches=len(bounds),
    )
    return header, open_batches(header.cost_model(), lengths, options, bounds)


def stage_layers(
    profile: Profile, options: PlanOptions, length_tokens: IntArray
) -> tuple[tuple[int, ...], ...]:
    """Layers of every (stage, chunk), so that all of them cost about the same.

    What the ends hold besides, embedding and loss, is counted in layers at the file's mean cost
    of a token; sequences no degree can hold count as what the pool holds.
    """
    model, fit = profile.header.model, profile.header.fit
    route_name, chunks = layout_of(options.pipeline, options.chunks)
    split = partial(split_layers, model.num_layers, options.pp, chunks, route_name=route_name)
    even = tuple(tuple(row) for row in split())
    if options.layers == "even" or options.pp * chunks == 1:
        return even
    cost = CostModel(fit, model, options.tp, options.pp, options.ranks, even, route_name=route_name)
    length = np.minimum(length_tokens, options.max_tokens_per_rank * options.ranks)
    one = np.ones_like(length)
    attention_s = float(cost.attention_s(length, one, one).sum()) / max(1, int(length.sum()))
    row_s = cost.row_s.sum(axis=0)
    layer_s = float((row_s / np.array(even)).min())
    extra = [
        (float(row_s[part]) - even[part[0]][part[1]] * layer_s) / (layer_s + attention_s)
        for part in cost.route.nodes()
    ]
    return tuple(tuple(row) for row in split(extra_layers=extra))


def without_taper(options: PlanOptions, strategies: Sequence[str] = ()) -> str:
    """Why tapered microbatches were asked for and none can be there; "" if they can, or were not.

    Args:
        strategies: Those that plan, if not that of the options alone.

    Source: `search.may_taper`, and `exact`, which makes the fullest slot least.
    """
    if options.microbatch_shape != "tapered":
        return ""
    names = strategies or (options.strategy,)
    reorder = reorder_within(options.reorder, options.batch_sequences or maxsize)
    who = f"strategy {names[0]} builds" if len(names) == 1 else f"{', '.join(names)} build"
    for is_so, reason in (
        ("hydra" not in names, f"{who} none"),
        (options.pp == 1, "one stage has no pipeline to fill"),
        (reorder != "batch", f"--reorder {options.reorder} fixes what is first and last"),
        (
            options.microbatch_order not in ("auto", "as-built", SEARCHED),
            f"--microbatch-order {options.microbatch_order} sorts microbatches",
        ),
    ):
        if is_so:
            return f"--microbatch-shape tapered has no effect: {reason}"
    return ""


def plan_batch(cost: CostModel, options: PlanOptions, batch: int, rows: Sequences) -> BatchPlan:
    """Place one batch by the named strategy and compute its figures."""
    request = open_request(cost, options, rows)
    return finish(request, options, batch, rows, STRATEGIES[options.strategy].place(request))


def finish(
    request: Request, options: PlanOptions, batch: int, rows: Sequences, draft: Draft
) -> BatchPlan:
    """The plan of a draft, or a faster one where its ops are planned only now.

    A placement is searched on a schedule that stands in for such ops. They may gain less from
    tapered microbatches, or more from a placement for another schedule, so these are planned too.
    """
    made = _finished(request, options, batch, rows, draft)
    if options.pipeline not in PLANNED:
        return made
    plans, place = [made], STRATEGIES[options.strategy].place
    for asked in [request, *others(request, options)]:
        if asked is not request:
            plans.append(_finished(asked, options, batch, rows, place(asked)))
        if not isnan(plans[-1].search.taper):
            asked = replace(asked, tapered=False)
            plans.append(_finished(asked, options, batch, rows, place(asked)))
    return min(plans, key=lambda plan: plan.figures["iteration_s"])


def _finished(
    request: Request, options: PlanOptions, batch: int, rows: Sequences, draft: Draft
) -> BatchPlan:
    """The draft with all rows, its op order, and its figures."""
    draft, ops = with_ops(request, options, draft)
    figures, timeline = batch_figures(
        request.cost,
        draft.sequences,
        draft.num_microbatches,
        ops,
        options,
        draft.search.load_target_s,
    )
    start, end = predicted(timeline)
    length, cap = request.sequences.length_tokens, request.cap_tokens
    advice = window_advice(request.cost, request.table, length, cap, request.window)
    return BatchPlan(
        batch=batch,
        sequences=merged(rows, draft.sequences),
        num_microbatches=draft.num_microbatches,
        schedule=ops,
        strategy=options.strategy,
        winner=draft.winner,
        microbatch_order=draft.microbatch_order,
        pipeline=options.pipeline,
        predicted_start_s=start,
        predicted_end_s=end,
        figures=figures,
        search=replace(draft.search, window_advice=advice),
    )


def merged(rows: Sequences, placed: Sequences) -> Sequences:
    """All rows again, those on ranks with their place; `placed` keeps the order of `rows`."""
    on = rows.on_ranks()
    columns = {}
    for name in PLACE_COLUMNS:
        column = getattr(rows, name).copy()
        column[on] = getattr(placed, name)
        columns[name] = column
    return replace(rows, **columns)
