"""Conductor's claim beside ours: 16 ranks, a model of 14.6B, four baselines, its noise.

    python benchmarks/policy/conductor.py [--trials 200] [--readme]

The paper states 5-14% over static schedules on up to 16 A100, for migration; its agent ran in a
simulator. Its tables are not public: settings are ours. A GPT-3 of 14.6B as in the Zero Bubble
paper (46 layers, hidden 5,120, 40 heads; our MLP has three matrices, so its width keeps the
count), sequences of 2,048 tokens, analytic profile of a100-sxm, 48 sequences a lane. Noise is
uniform +-x on every op in Conductor's release; here it is log-normal with the same deviation.
In the last rows one rank takes 1.5 times as long, another one in each trial. All simulated,
noise of the ops drawn anew in each trial, gain over 1F1B's mean time in percent.

`policy`: `--pipeline policy`, at most as many activations as ZB-1p. `policy, moves`: the slow rank
is known (it has been there for some steps) and gives work to the other lanes of its stage; one
lane has none. 46 layers do not cut evenly into 32 chunks, hence `interleaved` on 16 stages.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "planner"))

from tables import Cell, Table, progress, reported  # noqa: E402

from hydraplan.config import load_cluster, load_model  # noqa: E402
from hydraplan.cost import CostModel  # noqa: E402
from hydraplan.files.lengths import Lengths  # noqa: E402
from hydraplan.files.profilefile import Profile  # noqa: E402
from hydraplan.model import BatchPlan, FloatArray  # noqa: E402
from hydraplan.planheader import PlanOptions  # noqa: E402
from hydraplan.planner.pipeline.noise import draw, parse_noise, shape_of  # noqa: E402
from hydraplan.planner.pipeline.noisy_run import trial_s  # noqa: E402
from hydraplan.planner.plan import plan_batch, prepare  # noqa: E402
from hydraplan.planner.planned_ops import memory_of  # noqa: E402
from hydraplan.planner.policy.choose_moves import FORMS, choose_moves  # noqa: E402
from hydraplan.planner.policy.decide import room  # noqa: E402
from hydraplan.planner.policy.moved import moved_slots  # noqa: E402
from hydraplan.planner.policy.policy_order import policy_order  # noqa: E402
from hydraplan.planner.policy.rated import rated, with_factors  # noqa: E402
from hydraplan.profiler.analytic import analytic_header  # noqa: E402
from hydraplan.slots import slot_times  # noqa: E402

GPT = load_model("gpt3-14.6b")
TOKENS, A_LANE, SEED, SLOW = 2_048, 48, 5, 1.5
LAYOUTS = ((16, 1), (8, 2), (4, 4))
"""Stages and lanes of 16 ranks."""
UNIFORM = (0.0, 0.1, 0.2, 0.3)
BASELINES = ("1f1b", "interleaved", "zb-1p", "zb-2p")


def main() -> None:
    """All layouts under all noise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()
    cells = [one for layout in LAYOUTS for one in on(*layout, args.trials)]
    columns = [
        "pp",
        "lanes",
        "noise",
        *BASELINES,
        "policy",
        "policy, moves",
        "live, policy",
        "live, zb-2p",
    ]
    title = (
        f"Gain over 1F1B on 16 ranks, %; {args.trials} trials; Conductor: 5-14% over its baselines"
    )
    reported(
        args.json,
        {"cells": cells},
        [Table(title, columns, 2).of(cells)],
        args.readme,
        HERE / "README.md",
    )


def on(pp: int, lanes: int, trials: int) -> list[Cell]:
    """Rows of one layout."""
    made = {name: planned(pp, lanes, name) for name in (*BASELINES, "policy")}
    live = {
        f"live, {name}": made[name][1].figures["peak_live_tokens"] / TOKENS
        for name in ("policy", "zb-2p")
    }
    rows = []
    for x in UNIFORM:
        noise = "none" if x == 0 else f"jitter={x / 3**0.5:.4f}"
        times = {name: times_of(*plan, noise, trials) for name, plan in made.items()}
        rows.append({"pp": pp, "lanes": lanes, "noise": f"+-{x:.0%}"} | gains(times) | live)
        progress(f"{pp} x {lanes} {x}")
    for x in UNIFORM[:2]:
        noise = f"straggler={SLOW}" + (f",jitter={x / 3**0.5:.4f}" if x else "")
        times = {name: times_of(*plan, noise, trials) for name, plan in made.items()}
        times["policy, moves"] = corrected(*made["policy"], noise, trials)
        rows.append(
            {"pp": pp, "lanes": lanes, "noise": f"+-{x:.0%}, one rank x {SLOW}"}
            | gains(times)
            | live
        )
        progress(f"{pp} x {lanes} {x} slow")
    return rows


def gains(times: dict[str, FloatArray]) -> Cell:
    """Mean gain over 1F1B and half of its 95% interval, paired."""
    found: Cell = {}
    for name, taken_s in times.items():
        gain = 100 * (times["1f1b"] / taken_s - 1)
        half = 1.96 * gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
        found[name] = "0" if name == "1f1b" else f"{gain.mean():+.1f} +- {half:.1f}"
    return found


def planned(pp: int, lanes: int, pipeline: str) -> tuple[CostModel, BatchPlan, PlanOptions]:
    """Sequences of one length, one in each slot."""
    count = A_LANE * lanes
    options = PlanOptions(
        pp=pp, ranks=lanes, tp=1, max_tokens_per_rank=TOKENS, batch_sequences=count,
        batch_tokens=None, strategy="token-balance", pipeline=pipeline, microbatches=A_LANE,
        microbatch_order="as-built", on_overlong="error", seed=0,
    )  # fmt: skip
    profile = Profile(analytic_header(load_cluster("a100-sxm"), GPT), "0" * 64)
    lengths = Lengths("2,048", "sequences", np.full(count, TOKENS, np.int64))
    _, batches = prepare(lengths, profile, options, 1)
    plan = plan_batch(batches.cost, options, 0, batches[0])
    assert (plan.sequences.degree == 1).all()
    return batches.cost, plan, options


def times_of(
    cost: CostModel, plan: BatchPlan, options: PlanOptions, noise: str, trials: int
) -> FloatArray:
    """Iteration time of every trial."""
    slots = slot_times(cost, plan.sequences.placed(), plan.num_microbatches)
    nominal_s = plan.figures["iteration_s"]
    if noise == "none":
        return np.full(1, nominal_s)
    draws = draw(parse_noise(noise), shape_of(slots), nominal_s, range(trials), SEED, 0)
    return trial_s(slots, plan.schedule, draws)


def corrected(
    cost: CostModel, plan: BatchPlan, options: PlanOptions, noise: str, trials: int
) -> FloatArray:
    """The same with moves and an order for the slow rank of each trial."""
    placed, count = plan.sequences.placed(), plan.num_microbatches
    slots = slot_times(cost, placed, count)
    found, known = np.zeros(trials), {}
    for trial in range(trials):
        draws = draw(parse_noise(noise), shape_of(slots), plan.figures["iteration_s"],
                     range(trial, trial + 1), SEED, 0)  # fmt: skip
        slow = int(np.flatnonzero(np.diff(draws.spells.first))[0])
        if slow not in known:
            factor = np.ones((cost.pp, cost.ranks))
            factor[divmod(slow, cost.ranks)] = SLOW
            batch = rated(cost, placed, count, factor)
            moved = moved_slots(batch, choose_moves(batch, FORMS, room(cost, plan)))
            memory = memory_of(cost, options, slots)
            known[slow] = moved, policy_order(with_factors(moved, factor), memory).schedule
        moved, order = known[slow]
        found[trial] = trial_s(moved, order, draws)[0]
    return found


if __name__ == "__main__":
    main()
