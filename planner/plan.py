"""Lengths and a profile in, a plan out: check, place batch by batch, order, score."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf, isnan
from sys import maxsize

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.model import PLACE_COLUMNS, BatchPlan, Sequences
from hydraplan.planheader import PlanHeader, PlanOptions, reorder_within
from hydraplan.planner.batches import Batches
from hydraplan.planner.figures import batch_figures, predicted
from hydraplan.planner.forked import in_order
from hydraplan.planner.layouts import Laid, on_layouts
from hydraplan.planner.open_request import open_request, others
from hydraplan.planner.pipeline.order import SEARCHED
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.placement.window_advice import window_advice
from hydraplan.planner.planned import PLANNED, fastest_of
from hydraplan.planner.planned_ops import with_ops


def plan(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> tuple[PlanHeader, Iterator[BatchPlan]]:
    """Check the request and return the header and the batches, planned one by one on demand.

    Arguments and errors as `prepare`.
    """
    layouts = on_layouts(lengths, profile, options, num_batches)
    (header, batches), first = fastest_layout(options, layouts)
    return header, (_planned(batches, options, i, first) for i in range(len(batches)))


@contextmanager
def plan_many(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None, workers: int
) -> Iterator[tuple[PlanHeader, Iterator[BatchPlan]]]:
    """As `plan`, on so many processes; the same batches in the same order.

    They are forked on entry and gone on exit. Arguments and errors as `prepare`, and
    `forked.in_order`.
    """
    layouts = on_layouts(lengths, profile, options, num_batches)
    (header, batches), first = fastest_layout(options, layouts)

    def work(index: int) -> BatchPlan:
        return _planned(batches, options, index, first)

    with in_order(work, len(batches), workers) as planned:
        yield header, planned


def prepare(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> tuple[PlanHeader, Batches]:
    """Check a request and cut the batches, for the layout of the model that they run on.

    Args:
        num_batches: How many to plan from the start of the file; None for all it holds.

    Raises:
        InputError: An option is wrong, or some batch has nothing to train on.
        Infeasible: A row that no degree can hold, under `on_overlong="error"`.
    """
    return fastest_layout(options, on_layouts(lengths, profile, options, num_batches))[0]


def _planned(
    batches: Batches, options: PlanOptions, index: int, first: BatchPlan | None
) -> BatchPlan:
    """A batch placed; the first may be known since its layout was chosen."""
    if index == 0 and first is not None:
        return first
    return plan_batch(batches.cost, options, index, batches[index])


def fastest_layout(options: PlanOptions, choices: list[Laid]) -> tuple[Laid, BatchPlan | None]:
    """The one on which the first batch ends first, of those that can hold it.

    Of those as fast but for rounding it is the one on which a rank holds least. Every batch of a
    run has the layout of the first: weights stay where they are. The plan of the first batch comes
    with it, None where there was nothing to choose or no layout holds it.
    """

    def first_batch(laid: Laid) -> BatchPlan | None:
        try:
            return plan_batch(laid[1].cost, options, 0, laid[1][0])
        except Infeasible:
            return None

    if len(choices) == 1:
        return choices[0], None
    made = list(map(first_batch, choices))
    taken_s = [inf if plan is None else plan.figures["iteration_s"] for plan in made]
    held = [inf if plan is None else plan.figures["peak_live_tokens"] for plan in made]
    best = fastest_of(range(len(made)), taken_s, lambda i: held[i])
    return choices[best], made[best]


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
