"""What a plan claims of its search and of rows left out, held against itself.

The search is not run again. What can be told without it: which figures a strategy has at all,
their ranges, which of them go together, and that no candidate is faster than possible or than
the one that was returned.
"""

from collections.abc import Iterator
from math import isclose, isnan

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import InputError, many
from hydraplan.layout import legal_degrees
from hydraplan.model import CHOOSING, WINNERS, BatchPlan, FloatArray, Search, Sequences
from hydraplan.planheader import LIVE_STAGES, PlanHeader, PlanOptions, reorder_within
from hydraplan.planner.batches import most_tokens, too_long
from hydraplan.planner.pipeline.order import ALL_ORDERS, SEARCHED, microbatch_order
from hydraplan.planner.pipeline.schedules import OF_PLANS, Layout, layouts_of
from hydraplan.planner.placement.degrees import offered_levels
from hydraplan.planner.placement.draft import Request
from hydraplan.planner.placement.hydra import MOST_CANDIDATES
from hydraplan.planner.placement.memory_candidate import memory_times_s
from hydraplan.planner.placement.one_degree import most_packed
from hydraplan.planner.placement.strategies import LATER, STRATEGIES, promised
from hydraplan.planner.planned import PLANNED
from hydraplan.stages import split_layers

POINT = ("load_target_s", "theta", "eta", "slack", "taper")
"""Where in the search the plan was found."""
LOAD_DRIVEN = ("load_driven_s", "load_driven_slot_imbalance", "fastest_load_driven_s")
CANDIDATES = (*LOAD_DRIVEN, "memory_s")
"""What is known of the candidates."""
TOLERANCE = 1e-9
"""Relative difference that rounding may cause."""


def header_claims(header: PlanHeader, batch: BatchPlan) -> Iterator[str]:
    """Sentences about names, layers and promises that do not go with the options.

    Nothing else can be computed where there are any.
    """
    options = header.options
    for name, found, known in (
        ("strategy", options.strategy, tuple(STRATEGIES)),
        ("pipeline", options.pipeline, (*OF_PLANS, *PLANNED)),
        ("microbatch_order", options.microbatch_order, (*ALL_ORDERS, "auto")),
        ("strategy", batch.strategy, (options.strategy,)),
        ("pipeline", batch.pipeline, (options.pipeline,)),
        ("winner", batch.winner, WINNERS),
    ):
        if found not in known:
            yield f"{name} is {found!r}, not {' or '.join(known)}"
            return
    if (options.batch_sequences is None) == (options.batch_tokens is None):
        yield "exactly one of --batch-sequences and --batch-tokens says how large batches are"
    for name in sorted(set(promised(options)) - set(header.invariants) - LATER):
        yield f"the plan does not promise {name}, as every plan of {options.strategy} does"
    if options.microbatches not in (None, batch.num_microbatches):
        yield (
            f"{many(batch.num_microbatches, 'microbatch')}, --microbatches asks"
            f" {options.microbatches}"
        )
    layout = Layout(header.route, len(header.layers[0]))
    try:
        allowed = layouts_of(options.pipeline, options.chunks)
    except InputError as error:
        yield str(error)
        return
    if layout not in allowed:
        told = " or ".join(f"{chunks} on route {way}" for way, chunks in allowed)
        yield (
            f"stages have {many(layout.chunks, 'chunk')} on route {layout.route}, those of"
            f" {options.pipeline} have {told}"
        )
    elif options.layers == "even":
        layers = split_layers(
            header.model.num_layers, options.pp, layout.chunks, route_name=layout.route
        )
        if header.layers != tuple(map(tuple, layers)):
            yield f"layers of the stages are {header.layers}, --layers even asks for {layers}"


def search_claims(
    options: PlanOptions, batch: BatchPlan, figures: dict[str, float]
) -> Iterator[str]:
    """Sentences about figures of the search that cannot be; `figures` are those of the plan."""
    search = batch.search
    if not 0 <= search.num_rejected < search.num_candidates:
        yield (
            f"num_rejected is {search.num_rejected} of num_candidates {search.num_candidates};"
            " at least the plan itself was not rejected"
        )
    if search.num_candidates > most_candidates(options):
        yield (
            f"num_candidates is {search.num_candidates}, {options.strategy} tries at most"
            f" {most_candidates(options)}"
        )
    values = {name: float(getattr(search, name)) for name in (*POINT, *CANDIDATES)}
    known = {name for name, value in values.items() if not isnan(value)}
    if batch.strategy not in CHOOSING:
        if batch.winner != "memory":
            yield f"winner is {batch.winner}, plans of {batch.strategy} are memory-sized"
        for name in sorted(known):
            yield f"{name} is {values[name]:.9g}, but strategy {batch.strategy} does not search"
        return
    out = [text for name in sorted(known) for text in _out_of_range(name, values[name], figures)]
    yield from out
    yield from _together(options, batch, known)
    if batch.winner == "one-degree":
        yield from _one_degree(options, batch)
    if not out and not _ops_came_later(options):
        yield from _against_the_plan(batch, search, figures)


def _one_degree(options: PlanOptions, batch: BatchPlan) -> Iterator[str]:
    degrees = sorted(set(batch.sequences.placed().degree.tolist()))
    if len(degrees) > 1:
        yield f"winner is one-degree, the plan has degrees {', '.join(map(str, degrees))}"
    if reorder_within(options.reorder, len(batch.sequences)) != "batch":
        yield f"winner is one-degree, which is not tried with --reorder {options.reorder}"


def most_candidates(options: PlanOptions) -> int:
    """What a strategy tries at the most: one that does not search, every degree in some ways."""
    if options.strategy in ("static-cp", "token-balance"):
        return most_packed(options.ranks)
    if options.strategy not in CHOOSING:
        return len(legal_degrees(options.ranks))
    return MOST_CANDIDATES + (options.strategy == "exact")


def order_claims(
    options: PlanOptions, orders: tuple[str, ...], name: str, load_s: FloatArray
) -> Iterator[str]:
    """Sentences about a microbatch order that was not open, or is not that of the loads.

    Args:
        orders: Those the request leaves open.
        load_s: Slot loads in the order that is called by this name, (lanes, microbatches).
    """
    if len(orders) > 1 and _ops_came_later(options):
        orders = (*orders, SEARCHED)
    if name not in orders or name not in ALL_ORDERS:
        yield f"microbatch_order is {name!r}, these options leave {' or '.join(orders)}"
    elif name != SEARCHED:
        busiest_s = load_s.max(axis=0)
        wanted_s = busiest_s[microbatch_order(name, load_s)]
        for m in np.flatnonzero(~np.isclose(busiest_s, wanted_s, rtol=TOLERANCE, atol=0))[:1]:
            yield (
                f"microbatch_order is {name!r}, but the fullest slot of microbatch {m} has"
                f" {busiest_s[m]:.9g} s, in that order it has {wanted_s[m]:.9g} s"
            )


def _ops_came_later(options: PlanOptions) -> bool:
    """Whether ops or order were planned once the search had ended, on another schedule's times."""
    return options.pipeline in LIVE_STAGES or options.microbatch_order == SEARCHED


def _out_of_range(name: str, value: float, figures: dict[str, float]) -> Iterator[str]:
    least = float(np.nextafter(0, 1))
    if name in CANDIDATES:
        least = 1.0 if name == "load_driven_slot_imbalance" else figures["lower_bound_s"]
    elif name in ("eta", "slack"):
        least = 0.0 if name == "eta" else -1.0
    most = 1.0 if name in ("theta", "taper") else float(np.finfo(float).max)
    if not least - TOLERANCE * abs(least) <= value <= most:
        yield f"{name} is {value:.9g}, it lies between {least:.9g} and {most:.9g}"


def _together(options: PlanOptions, batch: BatchPlan, known: set[str]) -> Iterator[str]:
    """Which figures of a search go together."""
    some = [name for name in LOAD_DRIVEN if name in known]
    if some and len(some) < len(LOAD_DRIVEN):
        yield f"{' and '.join(some)} without the rest of {', '.join(LOAD_DRIVEN)}"
    if batch.winner == "load-driven" and not some:
        yield "a load-driven plan won, but load_driven_s is nan"
    search, timed = batch.search, bool(some) + ("memory_s" in known)
    if search.num_candidates - search.num_rejected < timed:
        yield (
            f"num_rejected is {search.num_rejected} of num_candidates {search.num_candidates},"
            " but a load-driven and a memory-sized candidate have times"
        )
    if "memory_s" not in known and not search.num_rejected:
        yield "memory_s is nan, but num_rejected is 0"
    point = {name for name in POINT if name in known}
    ways: list[set[str]] = [{"load_target_s", "theta", "eta"}, {"load_target_s", "slack"}]
    if options.microbatch_shape == "tapered":
        ways.append({"load_target_s", "slack", "taper"})
    if batch.winner != "load-driven":
        ways = [set()]
    elif batch.strategy == "exact":
        ways.append(set())
    if point not in ways:
        yield (
            f"a {batch.winner} plan was found at {', '.join(sorted(point)) or 'no point'},"
            f" not at {' or '.join(', '.join(sorted(way)) or 'none' for way in ways)}"
        )


def _against_the_plan(batch: BatchPlan, search: Search, figures: dict[str, float]) -> Iterator[str]:
    """No candidate is faster than the plan, and the one that won has its time and balance."""
    at_most = 1 + TOLERANCE
    if search.fastest_load_driven_s > search.load_driven_s * at_most:
        yield (
            f"fastest_load_driven_s is {search.fastest_load_driven_s:.9g}, slower than"
            f" load_driven_s {search.load_driven_s:.9g}"
        )
    time_s, load_driven = figures["iteration_s"], batch.winner == "load-driven"
    if load_driven and isnan(search.load_target_s):
        return  # solved exactly, for the fullest slot and not for time
    if search.memory_s * at_most < time_s:
        yield (
            f"the memory-sized candidate is stored with {search.memory_s:.9g} s, faster than"
            f" this plan's {time_s:.9g} s"
        )
    if not load_driven:
        memory_won = batch.winner == "memory"
        if memory_won and not isclose(search.memory_s, time_s, rel_tol=TOLERANCE):
            yield f"memory_s is {search.memory_s:.9g}, the memory plan that won has {time_s:.9g}"
        if batch.winner == "one-degree" and search.memory_s <= time_s * at_most:
            yield f"memory_s is {search.memory_s:.9g}, no slower than the one-degree plan that won"
        if search.fastest_load_driven_s * at_most < time_s:
            yield (
                f"fastest_load_driven_s is {search.fastest_load_driven_s:.9g}, faster than the"
                f" {batch.winner} plan that won with {time_s:.9g}"
            )
    elif search.fastest_load_driven_s > time_s * at_most:
        yield (
            f"fastest_load_driven_s is {search.fastest_load_driven_s:.9g}, slower than this"
            f" load-driven plan with {time_s:.9g}"
        )
    elif isnan(search.taper) and isclose(search.load_driven_s, time_s, rel_tol=TOLERANCE):
        imbalance = search.load_driven_slot_imbalance
        if not isclose(imbalance, figures["slot_imbalance"], rel_tol=TOLERANCE):
            yield (
                f"load_driven_slot_imbalance is {imbalance:.9g}, the plan that took load_driven_s"
                f" has {figures['slot_imbalance']:.9g}"
            )


def memory_claims(request: Request, search: Search) -> Iterator[str]:
    """Sentences about the memory-sized candidate, which is placed and run again."""
    known = memory_times_s(request, alone=isnan(search.load_driven_s))
    if not np.isclose(search.memory_s, list(known), rtol=TOLERANCE, atol=0, equal_nan=True).any():
        times = " or ".join(f"{time_s:.9g}" for time_s in sorted(known))
        yield f"memory_s is stored as {search.memory_s:.9g}, this batch has {times}"


def row_claims(cost: CostModel, options: PlanOptions, rows: Sequences) -> Iterator[str]:
    """Sentences about rows called too long that are not, or that were to be treated otherwise."""
    cap = options.max_tokens_per_rank
    offered = offered_levels(cost.ranks, options.min_degree, options.max_groups)
    most = most_tokens(cost, cap, offered)
    overlong = too_long(cost, rows.length_tokens, cap, offered)
    for i, status in enumerate(rows.status):
        row, length = f"sequence {rows.sequence_id[i]}", int(rows.length_tokens[i])
        if status == "truncated" and length != most:
            yield f"{row} is truncated to {length} tokens, the longest that fits has {most}"
        if status == "overlong" and not overlong[i]:
            yield f"{row} of {length} tokens is overlong, but up to {most} fit"
        asked = {"truncated": "truncate", "overlong": "skip"}.get(status, options.on_overlong)
        if asked != options.on_overlong:
            yield f"{row} is {status}, --on-overlong asks to {options.on_overlong}"
