"""Costs learnt from a run: what its ops took tells how far the plan's coefficients are off.

Every op's seconds are a sum of terms, one a coefficient (`hydraplan.cost_terms`). Multipliers of
terms are found from all ops (`multipliers`), as few as predict held-out slots as well as
more do. Ranks that take longer than others for the same work are devices, not costs: what is left
of a rank's ops over all ops of its stage is taken out if it is beyond `LEAST_SLOW` and what noise
explains, and multipliers are found again. If all ops are alike, one multiplier for everything is
all that can be told. What is not told, links and shapes of formulas (`half_rows`, blocks), stays.

Source: ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hydraplan.cost_terms import LADDER, Rung, Term, group_name, scaled, terms
from hydraplan.costfit import CostFit
from hydraplan.files.planfile import Plan
from hydraplan.files.profilefile import ProfileHeader
from hydraplan.files.runfile import Run
from hydraplan.metrics import balance
from hydraplan.model import FloatArray
from hydraplan.profiler.multipliers import Learned, fewest, held_out_error, learn, times
from hydraplan.profiler.run_ops import Factor, RunOps, read_run_ops
from hydraplan.version import __version__

LEAST_SLOW = 0.1
"""Logarithm by which a rank has to be beside its stage to be taken for another device."""

SURE = 4.0
"""Standard errors that this has to be, too."""

ROUNDS = 3
"""Times that slow ranks are looked for and taken out."""


@dataclass(frozen=True, slots=True, eq=False)
class Refit:
    """What a run says of the costs of its plan.

    `ops` at nominal speed: what `slow` ranks took is divided by their factor. `rung` of the ladder
    that was taken, `held_out` the error of each in its order (NaN where no slot could be held out).
    `times`: multiplier of every term, in the order of `terms(old)`.
    """

    old: CostFit
    new: CostFit
    ops: RunOps
    rung: Rung
    held_out: tuple[float, ...]
    learned: Learned
    times: FloatArray
    slow: dict[tuple[int, int], float]

    @property
    def old_s(self) -> FloatArray:
        """Seconds of every op by the old costs, (ops,)."""
        result: FloatArray = self.ops.term_s.sum(axis=0)
        return result

    @property
    def new_s(self) -> FloatArray:
        """Seconds of every op by the new costs, (ops,)."""
        result: FloatArray = self.times @ self.ops.term_s
        return result

    def share(self, members: Sequence[int]) -> float:
        """Part of all op time that some terms take, by the new costs."""
        part_s = (self.times[:, None] * self.ops.term_s)[list(members)].sum()
        return float(part_s / self.new_s.sum())

    def slot_imbalance(self, seconds: FloatArray) -> float:
        """`slot_imbalance` of seconds of the ops, mean over the batches; NaN if ops are missing.

        A slot counts with its costliest stage, slots without rows as empty.
        """
        ops = self.ops
        if not ops.is_whole:
            return float("nan")
        found = []
        for batch in np.unique(ops.batch):
            of = np.flatnonzero(ops.batch == batch)
            microbatch = ops.microbatch[of] - ops.microbatch[of].min()
            shape = int(ops.stage.max()) + 1, ops.lanes, int(microbatch.max()) + 1
            load_s = np.zeros(shape)
            np.add.at(load_s, (ops.stage[of], ops.lane[of], microbatch), seconds[of])
            found.append(balance(load_s.max(axis=0), float("nan"))["slot_imbalance"])
        return float(np.mean(found))


def refit(run: Run, plan: Plan, factor: Factor) -> Refit:
    """Learn costs from a measured run.

    Args:
        factor: What is known of devices, such as what was slow on purpose.

    Raises:
        InputError: The run tells nothing of costs (`run_ops`), or its files are damaged.
    """
    return refit_ops(run.header.plan.fit, read_run_ops(run, plan, factor))


def refit_ops(fit: CostFit, ops: RunOps) -> Refit:
    """Learn costs from ops whose `term_s` are by `fit`."""
    known = terms(fit)
    groups = [_groups(known, rung) for rung in LADDER]
    ops, slow = _at_nominal_speed(ops, groups[-1])
    errors = [np.full(2, np.nan)] * len(LADDER)
    place = 0
    slots = ops.microbatch * ops.lanes + ops.lane
    slot = np.unique(slots, return_inverse=True)[1].reshape(-1)
    if slot.max() > 0:
        given = ops.term_s, ops.taken_s, ops.batch, slot
        errors = [held_out_error(*given, each) for each in groups]
        place = fewest(errors)
    learned = learn(ops.term_s, ops.taken_s, ops.batch, groups[place])
    multiplier = times(learned, len(known))
    new = scaled(fit, dict(zip(known, multiplier.tolist(), strict=True)))
    left = float(np.median(np.abs(multiplier @ ops.term_s / ops.taken_s - 1)))
    return Refit(
        old=fit,
        new=_with_error(new, left),
        ops=ops,
        rung=LADDER[place],
        held_out=tuple(float(error.mean()) for error in errors),
        learned=learned,
        times=multiplier,
        slow=slow,
    )


def _groups(known: Sequence[Term], rung: Rung) -> dict[str, list[int]]:
    """Places of the terms of every set of a rung."""
    found: dict[str, list[int]] = {}
    for place, term in enumerate(known):
        found.setdefault(group_name(term, rung), []).append(place)
    return found


def _at_nominal_speed(
    ops: RunOps, groups: dict[str, list[int]]
) -> tuple[RunOps, dict[tuple[int, int], float]]:
    """The ops as if all ranks were of one speed, and how slow those are that are not."""
    total: dict[tuple[int, int], float] = {}
    for _ in range(ROUNDS):
        taken_over_fit = -learn(ops.term_s, ops.taken_s, ops.batch, groups).residual
        found = _slow_ranks(ops, taken_over_fit)
        if not found:
            break
        log_factor = np.zeros(len(ops.taken_s))
        for (stage, lane), log_slow in found.items():
            log_factor[(ops.stage == stage) & (ops.lane == lane)] = log_slow
            total[stage, lane] = total.get((stage, lane), 0.0) + log_slow
        ops = ops._replace(taken_s=ops.taken_s / np.exp(log_factor))
    return ops, {rank: float(np.exp(slow)) for rank, slow in sorted(total.items())}


def _slow_ranks(ops: RunOps, left: FloatArray) -> dict[tuple[int, int], float]:
    """Ranks whose ops are beside those of their stage, and the logarithm of how much.

    What all ranks of a stage share is no device. Beside the middle of its stage, or of two ranks
    beside the one that is nearer to all others.
    """
    found = {}
    overall = float(np.median(left))
    sigma = 1.4826 * float(np.median(np.abs(left - np.median(left))))
    for stage in np.unique(ops.stage).tolist():
        here = ops.stage == stage
        lanes = np.unique(ops.lane[here]).tolist()
        middles = {lane: float(np.median(left[here & (ops.lane == lane)])) for lane in lanes}
        of_stage = float(np.median(list(middles.values())))
        if len(lanes) == 2:
            of_stage = min(middles.values(), key=lambda m: (round(abs(m - overall), 6), m))
        for lane, middle in middles.items():
            count = int((here & (ops.lane == lane)).sum())
            least = max(LEAST_SLOW, SURE * sigma / count**0.5)
            if abs(middle - of_stage) > least:
                found[stage, lane] = middle - of_stage
    return found


def _with_error(fit: CostFit, error: float) -> CostFit:
    """The fit, with the error that the ops have, in all coefficients that are learnt."""
    told = {
        term.field: getattr(fit, term.field).model_copy(update={"relative_error": error})
        for term in terms(fit)
        if term.factor != "rate"
    }
    return CostFit.model_validate(fit.model_copy(update=told).model_dump())


def header_of(run: Run, found: Refit) -> ProfileHeader:
    """Footer of the profile with the new costs; it says what they were learnt from."""
    plan = run.header.plan
    apart = "one multiplier" if found.rung == "one" else ", ".join(found.learned.names)
    return ProfileHeader(
        tool_version=__version__,
        mode=plan.profile_mode,
        device=f"{run.header.device}, costs of plan {run.header.plan_name} refitted from"
        f" {run.path.name}, {found.ops.steps} steps: learned {apart}; links kept",
        versions={"hydraplan": __version__},
        model=plan.model,
        cluster=plan.cluster,
        fit=found.new,
    )
