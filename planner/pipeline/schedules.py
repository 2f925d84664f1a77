"""Op orders of the pipeline schedules, each a short function; any number of microbatches.

The table names those that need no costs. Orders made for given costs are in `planned`.
"""

from collections.abc import Callable
from typing import NamedTuple

from hydraplan.errors import InputError, many
from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.dualpipe import dualpipe, dualpipe_v
from hydraplan.planner.pipeline.interleaved import interleaved
from hydraplan.planner.pipeline.zb_v import zb_v
from hydraplan.route import RouteName


class Pipeline(NamedTuple):
    """A schedule as commands know it.

    `make(stages, microbatches, chunks)` gives the op order. `route`: the way through the chunks.
    `chunks`: how many a stage has, None for any number. `simulated_only`: no plan may ask for it.
    """

    make: Callable[[int, int, int], Schedule]
    route: RouteName = "loop"
    chunks: int | None = 1
    simulated_only: bool = False


def gpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """GPipe: all forwards, then all backwards, in the same order.

    A stage holds every microbatch at once. Source: standard; the paper does not say in which
    order backwards run, first in first out is our choice.
    """
    forward = [Op("F", m) for m in range(num_microbatches)]
    backward = [Op("BW", m) for m in range(num_microbatches)]
    return (tuple(forward + backward),) * num_stages


def one_f_one_b(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """1F1B: stage s runs P - 1 - s forwards, then alternates, then drains the backwards.

    With fewer microbatches than stages the warm-up ends early, nothing else changes. Stage s
    holds min(M, P - s) microbatches. Source: standard (PipeDream-flush).
    """
    stages = []
    for stage in range(num_stages):
        warm_up = min(num_stages - 1 - stage, num_microbatches)
        ops = [Op("F", m) for m in range(warm_up)]
        for m in range(warm_up, num_microbatches):
            ops += [Op("F", m), Op("BW", m - warm_up)]
        ops += [Op("BW", m) for m in range(num_microbatches - warm_up, num_microbatches)]
        stages.append(tuple(ops))
    return tuple(stages)


def zb_h1(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """ZB-H1: forwards and input gradients as 1F1B, weight gradients s microbatches later.

    No stage holds more than P microbatches, those that only wait for W included; alike costs
    leave (P - 1)(F + B - min(F, W)) idle. Source: the bubble (for W <= F) and the memory are the
    Zero Bubble paper's; how far W is put off is derived from both.
    """
    return _put_off(num_stages, num_microbatches, 1)


def zb_h2(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """ZB-H2: twice the forwards ahead of ZB-H1, and weight gradients 2 s microbatches later.

    No stage holds more than 2 P - 1 microbatches; alike costs leave
    (P - 1) max(0, F + B - 2 min(F, W)) idle. Source: as `zb_h1`.
    """
    return _put_off(num_stages, num_microbatches, 2)


def _put_off(num_stages: int, num_microbatches: int, pace: int) -> Schedule:
    """Stage s has `pace` (P - 1 - s) forwards of warm-up, and W comes `pace` s microbatches late.

    In the steady state every stage runs F, B, W. What the last stage saves by leaving out its
    first weight gradients, it hands to the first stage as earlier backwards.
    """
    stages = []
    for stage in range(num_stages):
        ahead, late = pace * (num_stages - 1 - stage), pace * stage
        ops = [Op("F", m) for m in range(min(ahead, num_microbatches))]
        for m in range(num_microbatches):
            if m + ahead < num_microbatches:
                ops.append(Op("F", m + ahead))
            ops.append(Op("B", m))
            if m >= late:
                ops.append(Op("W", m - late))
        first = max(0, num_microbatches - late)
        ops += [Op("W", m) for m in range(first, num_microbatches)]
        stages.append(tuple(ops))
    return tuple(stages)


FREE_CHUNKS = 2
"""Chunks of a stage where the schedule takes any number and nobody says how many."""


class Layout(NamedTuple):
    """How the model lies on the stages: its way through the chunks, and how many a stage has."""

    route: RouteName
    chunks: int


PLANNED_LAYOUTS = {
    "zb-1p": (Layout("loop", 1),),
    "zb-2p": (Layout("loop", 1),),
    "portfolio": (Layout("loop", 1),),
    "exact": (Layout("loop", 1),),
    "policy": (Layout("loop", 1),),
    "auto": (Layout("loop", 1), Layout("v", 2), Layout("loop", 2)),
}
"""Where orders that are planned for given costs lie; one that has several takes the fastest."""
ANY_CHUNKS = ("portfolio", "exact", "auto")
"""Those of them that can have any number of chunks."""


def layouts_of(name: str, asked: int | None) -> tuple[Layout, ...]:
    """Layouts that a schedule, or an order that is planned, can have with so many chunks a stage.

    Args:
        name: Of `SCHEDULES` or `PLANNED_LAYOUTS`.
        asked: Chunks of a stage; None leaves them open.

    Raises:
        InputError: The schedule cannot have so many chunks as are asked for.
    """
    if name in SCHEDULES:
        pipeline = SCHEDULES[name]
        known: tuple[Layout, ...] = (Layout(pipeline.route, pipeline.chunks or FREE_CHUNKS),)
        takes_any = pipeline.chunks is None
    else:
        known, takes_any = PLANNED_LAYOUTS[name], name in ANY_CHUNKS
    if asked is None:
        return known
    if found := tuple(layout for layout in known if layout.chunks == asked):
        return found
    if not takes_any:
        raise InputError(
            f"schedule {name} has {many(known[0].chunks, 'chunk')} a stage, not {asked}",
            "leave --chunks out, or use interleaved or auto",
        )
    return (Layout("loop", asked),)


SCHEDULES: dict[str, Pipeline] = {
    "gpipe": Pipeline(gpipe),
    "1f1b": Pipeline(one_f_one_b),
    "interleaved": Pipeline(interleaved, chunks=None),
    "zb-h1": Pipeline(zb_h1),
    "zb-h2": Pipeline(zb_h2),
    "zb-v": Pipeline(zb_v, route="v", chunks=2),
    "dualpipe": Pipeline(dualpipe, route="both", chunks=2, simulated_only=True),
    "dualpipe-v": Pipeline(dualpipe_v, route="v", chunks=2, simulated_only=True),
}
"""Every schedule that needs no costs, by the name that `--pipeline` takes."""

OF_PLANS = tuple(name for name, pipeline in SCHEDULES.items() if not pipeline.simulated_only)
"""Those of them that a plan may ask for."""
