"""A request checked and its batches cut, on every layout of the model that its schedule can have.

How many layers each stage and chunk holds follows from the costs; nothing is placed here.
"""

from functools import partial

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths
from hydraplan.files.lengths import digest as length_digest
from hydraplan.files.profilefile import Profile
from hydraplan.model import IntArray
from hydraplan.planheader import PlanHeader, PlanOptions
from hydraplan.planner.batches import Batches, cut_batches, open_batches
from hydraplan.planner.pipeline.order import ALL_ORDERS
from hydraplan.planner.pipeline.schedules import OF_PLANS, SCHEDULES, Layout, layouts_of
from hydraplan.planner.placement.strategies import STRATEGIES, promised
from hydraplan.planner.planned import PLANNED
from hydraplan.stages import check_tensor_parallel, split_layers
from hydraplan.version import __version__

Laid = tuple[PlanHeader, Batches]
"""Batches on one layout of the model, none of them placed yet."""


def on_layouts(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> list[Laid]:
    """The batches of a request on every layout that its schedule can have.

    Arguments and errors as `plan.prepare`.
    """
    model, layouts = profile.header.model, asked_layouts(profile, options)
    bounds = cut_batches(lengths.length_tokens, options, num_batches)
    sizes = length_digest(lengths.length_tokens)
    found = []
    for layout in layouts:
        header = PlanHeader(
            tool_version=__version__,
            options=options,
            model=model,
            cluster=profile.header.cluster,
            fit=profile.header.fit,
            layers=stage_layers(profile, options, layout, lengths.length_tokens),
            route=layout.route,
            profile_mode=profile.header.mode,
            profile_digest=profile.digest,
            lengths_digest=sizes,
            lengths_name=lengths.name,
            lengths_unit=lengths.unit,
            invariants=promised(options),
            num_batches=len(bounds),
        )
        found.append((header, open_batches(header.cost_model(), lengths, options, bounds)))
    return found


def asked_layouts(profile: Profile, options: PlanOptions) -> tuple[Layout, ...]:
    """Every layout that the schedule of a request can have; the request is checked first.

    Those that the model has layers for, the first in any case; one stage needs no chunks.

    Raises:
        InputError: A name that nothing has, or a model that cannot be divided so.
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
    layouts = layouts_of(options.pipeline, options.chunks)
    others = layouts[1:] if options.pp > 1 else ()
    return (*layouts[:1], *(x for x in others if options.pp * x.chunks <= model.num_layers))


def stage_layers(
    profile: Profile, options: PlanOptions, layout: Layout, length_tokens: IntArray
) -> tuple[tuple[int, ...], ...]:
    """Layers of every (stage, chunk), so that all of them cost about the same.

    What the ends hold besides, embedding and loss, is counted in layers at the file's mean cost
    of a token; sequences no degree can hold count as what the pool holds.
    """
    model, fit = profile.header.model, profile.header.fit
    route_name, chunks = layout
    split = partial(split_layers, model.num_layers, options.pp, chunks, route_name=route_name)
    even = tuple(tuple(row) for row in split())
    if options.layers == "even" or options.pp * chunks == 1:
        return even
    cost = CostModel(
        fit, model, options.tp, options.pp, options.ranks, even, route_name=route_name,
        recompute=options.recompute,
    )  # fmt: skip
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
