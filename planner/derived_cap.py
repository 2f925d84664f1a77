"""The cap that `auto` stands for: the most tokens of a rank that fit the memory of a device.

What a stage holds follows from the schedule. A static one is taken with as many microbatches as it
takes to fill it, or as were asked for; for ops planned later stands all that their limit allows
(`hydraplan.memory_cap.holding`). Of several layouts the smallest cap holds for all.

Source: ours.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.host import GIB
from hydraplan.memory import MESSAGES_AHEAD
from hydraplan.memory_cap import MISSED, Held, fullest, holding, largest_cap
from hydraplan.model import IntArray
from hydraplan.planheader import PlanOptions
from hydraplan.planner.batches import cut_batches
from hydraplan.planner.layouts import asked_layouts, stage_layers
from hydraplan.planner.pipeline.schedules import SCHEDULES, Layout

OPEN_TOKENS = 1 << 40
"""A cap that cuts no row."""

Fewest = Callable[[int], int]


def with_derived_cap(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> PlanOptions:
    """The request with its cap, and with the memory it was derived from.

    Raises:
        InputError: No memory is known, or the schedule holds every microbatch and nobody says how
            many; or as `layouts.asked_layouts` and `batches.cut_batches`.
        Infeasible: Not even one token a rank fits.
    """
    cluster = profile.header.cluster
    if options.memory_gib is None:
        if cluster is None:
            raise InputError(
                "--max-tokens-per-rank auto: a measured profile does not tell a device's memory",
                "give --memory-gib",
            )
        options = options.model_copy(update={"memory_gib": cluster.memory_bytes / GIB})
    if options.pipeline == "gpipe" and options.microbatches is None:
        raise InputError(
            "--max-tokens-per-rank auto: gpipe holds all microbatches, whose number is open",
            "give --microbatches, or use --pipeline 1f1b",
        )
    layouts = asked_layouts(profile, options)
    bounds = cut_batches(lengths.length_tokens, options, num_batches)
    fewest = partial(_fewest, options, lengths.length_tokens, bounds)
    caps = [_cap(profile, options, each, lengths.length_tokens, fewest) for each in layouts]
    return options.model_copy(update={"max_tokens_per_rank": min(caps), "cap_is_derived": True})


def _enough(pp: int) -> int:
    """Microbatches with which stages hold as much as with any more, messages included."""
    return 3 * pp + 2 * MESSAGES_AHEAD


def _fewest(
    options: PlanOptions, length_tokens: IntArray, bounds: list[tuple[int, int]], cap: int
) -> int:
    """Fewest microbatches that any batch can have under a cap."""
    first, pool_tokens = bounds[0][0], cap * options.ranks
    length = length_tokens[first : bounds[-1][1]]
    left = pool_tokens if options.on_overlong == "truncate" else 0
    trained = np.where(length > pool_tokens, left, length)
    tokens = np.add.reduceat(trained, [start - first for start, _ in bounds])
    return max(1, -(-int(tokens.min()) // pool_tokens))


def _cap(
    profile: Profile, options: PlanOptions, layout: Layout, length_tokens: IntArray, fewest: Fewest
) -> int:
    """The largest cap on one layout.

    It decides which rows are cut, and so a little of the layers, and how few microbatches there
    can be; these decide on the cap, so it is derived again until they stay.
    """
    assert options.memory_bytes is not None
    header, longest = profile.header, int(length_tokens.max())
    limit, on_gpu = (1 - MISSED) * options.memory_bytes, header.cluster is not None
    cap, count, asked = OPEN_TOKENS, _enough(options.pp), (0, 0)
    while (now := (min(cap * options.ranks, longest), count)) != asked:
        asked, cut = now, options.model_copy(update={"max_tokens_per_rank": cap})
        cost = CostModel(
            header.fit, header.model, options.tp, options.pp, options.ranks,
            stage_layers(profile, cut, layout, length_tokens),
            options.engine, options.rank_speed, layout.route, options.recompute,
        )  # fmt: skip
        cap = min(cap, largest_cap(cost, _held(cost, options, count), limit, on_gpu))
        count = min(_enough(options.pp), fewest(cap))
    return cap


def _held(cost: CostModel, options: PlanOptions, fewest: int) -> Held:
    """What stages hold under the schedule of a request, or under all that it may come to.

    Of interleaved schedules those of few microbatches hold most, or of no multiple of the stages.
    """
    if options.pipeline not in SCHEDULES:
        assert options.live_microbatches is not None  # every planned schedule has a default
        return holding(cost, options.live_microbatches)
    pipeline, pp, chunks = SCHEDULES[options.pipeline], cost.pp, cost.route.num_chunks
    enough = _enough(pp)
    counts = [options.microbatches or enough]
    if pipeline.chunks is None and options.microbatches is None:
        step = options.microbatch_multiple
        counts = list(range(-(-fewest // step) * step, enough + step * pp, step))
    return fullest(cost, [pipeline.make(pp, count, chunks) for count in counts])
