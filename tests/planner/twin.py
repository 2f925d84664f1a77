"""What compiled and plain Python runs are compared on; as a program it plans in plain Python.

Run with `python -m tests.planner.twin` it never compiles anything, and reports which of the
functions that would be compiled have run.
"""

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

PLACED = ("microbatch", "order", "first_rank", "degree", "ulysses_size", "ring_size")
STRATEGIES = ("hydra", "memory-ffd", "static-cp", "token-balance", "mcore-main", "mcore-v1",
              "mcore-v2")  # fmt: skip


def plans() -> dict[str, Any]:
    """Plans of every strategy with their figures, slow lanes and kept orders among them."""
    from hydraplan.files.lengths import Lengths  # noqa: PLC0415
    from hydraplan.planner.plan import plan_batch, prepare  # noqa: PLC0415
    from tests.planner.cases import long_tailed, options, profile  # noqa: PLC0415

    found: dict[str, Any] = {}
    for seed, (strategy, changes) in enumerate((
        *((name, {"ranks": 4}) for name in STRATEGIES),
        ("hydra", {"ranks": 8, "engine": "ring", "min_degree": 2}),
        ("hydra", {"ranks": 6, "rank_speed": (1.0, 0.5, 1.0, 1.0, 0.8, 1.0)}),
        ("hydra", {"ranks": 5, "reorder": "window:12", "tp": 2}),
    )):  # fmt: skip
        length = long_tailed(24, seed, longest=4000 * changes["ranks"])  # type: ignore[operator]
        asked = options(batch_sequences=24, strategy=strategy, **changes)
        _, batches = prepare(Lengths("t", "sequences", length), profile(), asked, 1)
        plan = plan_batch(batches.cost, asked, 0, batches[0])
        columns = {name: getattr(plan.sequences, name).tolist() for name in PLACED}
        found[f"{strategy} {changes}"] = columns, plan.figures, plan.search.load_target_s
    return found


def structures() -> dict[str, Any]:
    """Placements of each structure, pools of any size, with and without a cap that binds."""
    from hydraplan.layout import legal_degrees  # noqa: PLC0415
    from hydraplan.planner.placement.forest import filled_forest  # noqa: PLC0415
    from hydraplan.planner.placement.lazy_heaps import place_lazy_heaps  # noqa: PLC0415
    from hydraplan.planner.placement.lazy_split import place_lazy_split  # noqa: PLC0415
    from hydraplan.planner.placement.min_max_forest import place_forest  # noqa: PLC0415
    from hydraplan.planner.placement.repair import Options, repair  # noqa: PLC0415
    from hydraplan.planner.placement.sibling_swap import swapped  # noqa: PLC0415

    found: dict[str, Any] = {}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        ranks, count, m = int(rng.integers(1, 20)), int(rng.integers(1, 50)), seed % 3 + 1
        degrees = legal_degrees(ranks)
        level = rng.integers(0, len(degrees), count)
        rows, load_s = rng.integers(1, 60, count), rng.lognormal(0, 1, count)
        cap = int(rng.choice([150, 400, 1 << 40]))
        asked = load_s, rows, level, ranks, m, cap
        slow = rng.choice([1.0, 1.5], ranks) if seed % 2 else None
        for place in (place_lazy_heaps, place_lazy_split):
            placed = place(*asked)
            found[f"{place.__name__} {seed}"] = placed and [a.tolist() for a in placed]
        filled = place_forest(*asked, slow)
        if filled is None:
            continue
        forest, microbatch, node = filled
        found[f"forest {seed}"] = [microbatch.tolist(), node.tolist()]
        table = load_s[:, None] * (degrees[level] / 0.9**level)[:, None]
        table = table * 0.9 ** np.arange(len(degrees)) / degrees
        options = Options(np.arange(count), table, rows * degrees[level], degrees, cap)
        counters = repair(forest, options, microbatch, node, level, load_s, rows, 0.1, 50)
        after = microbatch, node, level, load_s, rows
        found[f"repair {seed}"] = [list(counters), *(a.tolist() for a in after)]
        again = filled_forest(ranks, m, microbatch, node, load_s, rows, slow)
        found[f"filled {seed}"] = [again.best.tolist(), again.leads.tolist()]
        found[f"swapped {seed}"] = swapped(again.added, ranks, microbatch, node).tolist()
    return found


def noisy() -> dict[str, Any]:
    """Trials under every kind of noise, joined passes and connected lanes among them."""
    from hydraplan.planner.pipeline.noise import parse_noise  # noqa: PLC0415
    from hydraplan.planner.pipeline.noisy_run import noisy_run  # noqa: PLC0415
    from hydraplan.planner.pipeline.schedules import SCHEDULES  # noqa: PLC0415
    from hydraplan.route import route  # noqa: PLC0415
    from hydraplan.slots import SlotTimes  # noqa: PLC0415

    found: dict[str, Any] = {}
    everything = (
        "jitter=0.3,straggler=1.4,moving=1.4,transient=2,heavytail=0.3,link=0.2,preempt=0.3"
    )
    for name in ("1f1b", "zb-v", "dualpipe"):
        pipeline, rng = SCHEDULES[name], np.random.default_rng(5)
        chunks, lanes, m = pipeline.chunks or 2, 3, 8
        slots = SlotTimes(
            op_s=rng.uniform(0.5, 2, (3, 4, chunks, lanes, m)),
            rows=rng.integers(0, 5, (lanes, m)),
            component=np.tile([[0], [0], [2]], m),
            boundary_s=rng.uniform(0, 0.5, (lanes, m)),
            grad_sync_s=rng.uniform(0, 1, 4),
            route=route(pipeline.route, 4, chunks),
            joined=0.8,
            partner=np.tile([[2], [1], [0]], (1, 4, 1, m)),
        )
        for text in ("none", everything):
            run = noisy_run(slots, pipeline.make(4, m, chunks), parse_noise(text), trials=2)
            lost_s = {cause: seconds.tolist() for cause, seconds in run.lost_s.items()}
            found[f"{name} {text}"] = run.iteration_s.tolist(), lost_s
    return found


def orders() -> dict[str, Any]:
    """Op orders of the portfolio, down and up the stages or down alone; a joint search.

    Of the rules only some, of the search one round: plain Python takes seconds for all of them.
    """
    from hydraplan.planner.pipeline import joint_search, portfolio, scenarios  # noqa: PLC0415
    from hydraplan.planner.pipeline.memory import Memory  # noqa: PLC0415
    from hydraplan.planner.policy import policy_order  # noqa: PLC0415
    from hydraplan.route import RouteName, route  # noqa: PLC0415
    from hydraplan.slots import SlotTimes  # noqa: PLC0415

    found: dict[str, Any] = {}
    ways: tuple[tuple[RouteName, int], ...] = (("loop", 1), ("v", 2))
    rules = portfolio.rules
    with (
        patch.object(portfolio, "rules", lambda chunks: rules(chunks)[::10]),
        patch.multiple(portfolio, FINALISTS=1, EVENED=(0.5,)),
        patch.multiple(scenarios, JITTERS=2, STRAGGLERS=1),
        patch.multiple(joint_search, ROUNDS=1, NEIGHBOURS=4),
        patch.object(policy_order, "SAMPLES", 2),
    ):
        for name, chunks in ways:
            rng, m = np.random.default_rng(5), 3
            times = SlotTimes(
                op_s=rng.uniform(0.5, 2, (3, 2, chunks, 1, m)),
                rows=np.ones((1, m), np.int64),
                component=np.zeros((1, m), np.int64),
                boundary_s=rng.uniform(0, 0.5, (1, m)),
                grad_sync_s=np.zeros(2),
                route=route(name, 2, chunks),
            )
            memory = Memory(2.0, np.ones(m))
            if chunks == 1:
                found["policy"] = policy_order.policy_order(times, memory, turns=5)
            best = joint_search.joint_order(times, memory, ops=1).tolist()
            found[name] = portfolio.portfolio(times, memory), best
    return found


def episodes() -> dict[str, Any]:
    """Episodes of a policy's environment side by side, windows and a tight limit among them."""
    from hydraplan.planner.pipeline.memory import Memory  # noqa: PLC0415
    from hydraplan.planner.pipeline.spells import sorted_spells  # noqa: PLC0415
    from hydraplan.planner.policy import env  # noqa: PLC0415
    from hydraplan.planner.policy.world import Instance  # noqa: PLC0415
    from tests.planner.lanes import lane_times  # noqa: PLC0415

    rng, cases = np.random.default_rng(5), []
    for p, m in ((1, 3), (2, 5), (4, 6)):
        live, where = rng.uniform(0.5, 1.5, m), rng.integers(0, p, 2)
        begin_s, speed, source = rng.uniform(0, m, 2), np.full(2, 0.5), np.zeros(2, np.int64)
        cases.append(Instance(
            lane_times(rng.lognormal(0, 0.5, (3, p, m)), 0.1),
            Memory(0.8 * p + 1, live, 0.3),
            rng.uniform(1, 2, p),
            sorted_spells(p, where, begin_s, begin_s + m, speed, source),
        ))  # fmt: skip
    played = env.env_of(cases)
    found: dict[str, Any] = {}
    for name in ("template", "drawn"):
        env.reset(played)
        seen: list[Any] = []
        while not played.ended.all():
            actions = env.template_actions(played)
            if name == "drawn":
                actions = np.array([rng.choice(np.flatnonzero(m)) if any(m) else 0
                                    for m in played.masks])  # fmt: skip
            seen += [played.features.tolist(), played.masks.tolist()]
            env.step(played, actions)
        orders = [env.schedule_of(played, n) for n in range(len(cases))]
        found[name] = seen, env.makespan_s(played).tolist(), orders
    return found


def results() -> dict[str, Any]:
    """Everything, as JSON holds it: floats to the last bit."""
    makers = {"plans": plans, "structures": structures, "noisy": noisy, "orders": orders}
    found = {name: make() for name, make in {**makers, "episodes": episodes}.items()}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def main() -> None:
    """Print the results of plain Python, and the functions by whether they have run."""
    assert os.environ["NUMBA_DISABLE_JIT"] == "1"
    import hydraplan.planner.compiled as compiler  # noqa: PLC0415

    ran: dict[str, bool] = {}

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{function.__module__}.{function.__qualname__}"
        ran[name] = False

        @functools.wraps(function)
        def noted(*arguments: Any) -> Any:
            ran[name] = True
            return function(*arguments)

        return noted

    compiler.compiled = plain  # type: ignore[assignment]
    json.dump({"results": results(), "ran": ran}, sys.stdout)


if __name__ == "__main__":
    main()
