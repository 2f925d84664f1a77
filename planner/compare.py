"""Several strategies on the same batches: figures side by side, and what planning cost.

Planning is timed in CPU seconds of this process, after one batch has warmed up the compiled
code: `planning_s` the whole way from lengths to a scored plan, cost table and search included;
`plan_s` only choosing degrees and placing them once, at the point that was found.
"""

import time
from collections.abc import Iterator

from hydraplan.errors import Infeasible, InputError, MissingDependency
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.metrics import mean_figures
from hydraplan.model import BatchSummary, Comparison, LeftOut
from hydraplan.planheader import PlanOptions
from hydraplan.planner.batches import Batches
from hydraplan.planner.pipeline.order import ORDERS
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.plan import finish, open_request, prepare


def compare(
    lengths: Lengths,
    profile: Profile,
    options: PlanOptions,
    num_batches: int | None,
    strategies: list[str],
) -> Iterator[Comparison | LeftOut]:
    """Plan every batch with every strategy; each in the microbatch orders that make sense.

    hydra chooses its own order; a baseline is shown in all, since sorting a memory-sized
    plan's microbatches removes most of its bubble. A strategy that cannot plan some batch, or
    knows no option that was asked for, is left out with its reason.
    """
    for name in strategies:
        if name not in STRATEGIES:
            raise InputError(f"unknown strategy {name!r}", f"known: {', '.join(STRATEGIES)}")
    _, batches = prepare(lengths, profile, options, num_batches)
    for name in strategies:
        strategy = STRATEGIES[name]
        orders = ("auto",) if strategy.default_order == "auto" else ORDERS
        try:
            for order in orders:
                asked = options.model_copy(update={"strategy": name, "microbatch_order": order})
                strategy.place(open_request(batches.cost, asked, batches[0]))
                yield _row(asked, batches)
        except (Infeasible, MissingDependency) as error:
            yield LeftOut(name, str(error))


def _row(options: PlanOptions, batches: Batches) -> Comparison:
    strategy = STRATEGIES[options.strategy]
    plans: list[BatchSummary] = []
    plan_s = planning_s = 0.0
    for index in range(len(batches)):
        rows = batches[index]
        began_s = time.process_time()
        request = open_request(batches.cost, options, rows)
        draft = strategy.place(request)
        planning_s += time.process_time() - began_s
        began_s = time.process_time()
        strategy.place_once(request, draft)
        plan_s += time.process_time() - began_s
        plans.append(finish(request, options, index, rows, draft).summary())
    return Comparison(
        strategy=options.strategy,
        microbatch_order=options.microbatch_order,
        batches=tuple(plans),
        figures=mean_figures([p.figures for p in plans]),
        plan_s=plan_s / len(plans),
        planning_s=planning_s / len(plans),
    )
