"""Which of the placements that were run is the plan: balance first where it is open, then time.

Where the window is open, a balanced placement comes before a somewhat faster one with a
straggling slot: such a straggler hides in the pipeline only as long as nothing else is late. It
may cost at most `BALANCE_WORTH` over the fastest. Among equals, time at right and at wrong costs
together decides. Small batches are filled so many times that balance is found under an empty
window too, and counts alike.

They get more candidates than the search finds by itself; those are let in only where the plan
becomes no slower by them, or balanced at no more than that.

Source: our own.
"""

from math import inf

from hydraplan.planner.placement.draft import Draft, Request, right_and_wrong_s
from hydraplan.planner.placement.search import BALANCED
from hydraplan.planner.placement.tight_fill import is_small
from hydraplan.planner.placement.trial import Finalist, best_order_s, both_s, time_s

BALANCE_WORTH = 0.025
"""What a balanced plan may cost over the fastest, as a share of its time. Our choice."""


def choice(
    request: Request, runs: list[Finalist]
) -> tuple[Finalist | None, Finalist | None, Finalist | None]:
    """The best by balance and time, the fastest, and the one of them that is worth its time."""
    best = min(runs, key=lambda run: _rank(request, run), default=None)
    fastest = min(runs, key=time_s, default=None)
    if best and fastest and time_s(best) > time_s(fastest) * (1 + BALANCE_WORTH):
        return best, fastest, fastest
    return best, fastest, best


def straggles(request: Request, imbalance: float) -> bool:
    """Whether a slot imbalance is larger than one that the window, or smallness, leaves open."""
    return imbalance > BALANCED and (not request.window.is_empty or is_small(request))


def _rank(request: Request, run: Finalist) -> tuple[bool, float]:
    """Smaller is better: balance first where it is open, then time, right and wrong."""
    return straggles(request, run.built.slot_imbalance), both_s(run)


def no_slower(
    request: Request, runs: list[Finalist], memory: Draft | None, more: list[Finalist]
) -> list[Finalist]:
    """Those of `more` that are no slower than the plan would be without them, in any order.

    Or that are balanced where it is not, and slower by no more than that is worth.
    """
    _, fastest, chosen = choice(request, runs)
    limit_s = best_order_s(request, chosen) if more and chosen else inf
    if memory and fastest and limit_s > memory.iteration_s:
        limit_s = min(memory.iteration_s, best_order_s(request, fastest))
    uneven = chosen is not None and straggles(request, chosen.built.slot_imbalance)

    def worth(run: Finalist) -> float:
        balances = uneven and not straggles(request, run.built.slot_imbalance)
        return 1 + BALANCE_WORTH if balances else 1

    return [run for run in more if time_s(run) <= limit_s * worth(run)]


def unbeaten(request: Request, runs: list[Finalist], plan: Finalist) -> list[Finalist]:
    """A plan, and what is no slower than it in any order, or balanced where the plan is not."""
    uneven = straggles(request, plan.built.slot_imbalance)
    return [plan] + [
        run
        for run in runs
        if (uneven and not straggles(request, run.built.slot_imbalance))
        or best_order_s(request, run) <= time_s(plan)
    ]


def outbalanced(request: Request, plan: Draft, chosen: Finalist | None) -> bool:
    """Whether a plan straggles, and the chosen one does not and is worth its time against it."""
    return (
        chosen is not None
        and straggles(request, plan.slot_imbalance)
        and not straggles(request, chosen.built.slot_imbalance)
        and time_s(chosen) <= plan.iteration_s * (1 + BALANCE_WORTH)
    )


def clearly_faster(request: Request, plan: Draft, other: Draft) -> bool:
    """Whether a plan with one degree is faster, by more than balance is worth with wrong costs too.

    Its slots carry more work, which noise makes longer: it is not taken for less.
    """
    times_s = [right_and_wrong_s(request, draft) for draft in (plan, other)]
    return plan.iteration_s < other.iteration_s and times_s[0] * (1 + BALANCE_WORTH) < times_s[1]
