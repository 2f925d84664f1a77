"""Several strategies on the same batches: figures side by side, and what planning cost.

Planning is timed in CPU seconds of its process, after one batch has warmed up the compiled
code: `planning_s` the whole way from lengths to a scored plan, cost table and search included;
`plan_s` only choosing degrees and placing them once, at the point that was found.
"""

import time
from collections.abc import Iterator

from hydraplan.errors import Infeasible, InputError, MissingDependency
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.invariants import CAPS
from hydraplan.memory_limit import check_fits, planned_bytes
from hydraplan.metrics import mean_figures
from hydraplan.model import BatchSummary, Comparison, IntArray, LeftOut
from hydraplan.planheader import PlanHeader, PlanOptions
from hydraplan.planner.batches import Batches
from hydraplan.planner.forked import in_order
from hydraplan.planner.layouts import on_layouts
from hydraplan.planner.open_request import open_request
from hydraplan.planner.pipeline.order import ORDERS
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.plan import fastest_layout, finish


def compare(
    lengths: Lengths,
    profile: Profile,
    options: PlanOptions,
    num_batches: int | None,
    strategies: list[str],
    workers: int = 1,
) -> Iterator[Comparison | LeftOut]:
    """Plan every batch with every strategy; each in the microbatch orders that make sense.

    hydra chooses its own order; a baseline is shown in all, since sorting a memory-sized
    plan's microbatches removes most of its bubble. A strategy that cannot plan some batch, or
    knows no option that was asked for, is left out with its reason. Batches are planned by so many
    processes; rows do not depend on their number, the times only as far as they share cores.
    """
    for name in strategies:
        if name not in STRATEGIES:
            raise InputError(f"unknown strategy {name!r}", f"known: {', '.join(STRATEGIES)}")
    layouts = on_layouts(lengths, profile, options, num_batches)
    for name in strategies:
        strategy = STRATEGIES[name]
        orders = ("auto",) if strategy.default_order == "auto" else ORDERS
        try:
            for order in orders:
                asked = options.model_copy(update={"strategy": name, "microbatch_order": order})
                (header, batches), _ = fastest_layout(asked, layouts)
                strategy.place(open_request(batches.cost, asked, batches[0]))
                yield _row(header, asked, batches, workers)
        except (Infeasible, MissingDependency) as error:
            yield LeftOut(name, str(error))


def _row(header: PlanHeader, options: PlanOptions, batches: Batches, workers: int) -> Comparison:
    strategy = STRATEGIES[options.strategy]

    def work(index: int) -> tuple[BatchSummary, IntArray, float, float]:
        """The plan of a batch, what it needs, and CPU seconds of one placement and of the search.

        Raises:
            Infeasible: It needs more than a device has.
        """
        rows = batches[index]
        began_s = time.process_time()
        request = open_request(batches.cost, options, rows)
        draft = strategy.place(request)
        searched_s = time.process_time()
        strategy.place_once(request, draft)
        placed_s = time.process_time()
        plan = finish(request, options, index, rows, draft)
        held = planned_bytes(header, plan)
        check_fits(held, options.memory_bytes, index)
        return plan.summary(), held, placed_s - searched_s, searched_s - began_s

    with in_order(work, len(batches), workers) as found:
        plans, held, plan_s, planning_s = zip(*found, strict=True)
    return Comparison(
        strategy=options.strategy,
        microbatch_order=options.microbatch_order,
        num_chunks=len(header.layers[0]),
        route=header.route,
        batches=plans,
        figures=mean_figures([p.figures for p in plans]),
        cap=next(name for name in strategy.invariants if name in CAPS),
        needed_bytes=max(held, key=lambda each: int(each.sum(axis=0).max())),
        plan_s=sum(plan_s) / len(plans),
        planning_s=sum(planning_s) / len(plans),
    )
