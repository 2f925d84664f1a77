"""One cell of the evaluation: lengths on a pool, placed by a strategy, all within this process.

The same functions as the command line uses, without files in between: a batch, its request
(cost table, window), the strategy, and the figures of what it placed. Costs are those of the
analytic profile of h100-sxm; everything that comes out of them is simulated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import isnan
from typing import Literal
from unittest.mock import patch

from hydraplan.config import load_cluster, load_model
from hydraplan.cost import CostModel
from hydraplan.costfit import CostFit
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.model import BatchPlan, IntArray, Sequences
from hydraplan.planheader import PlanOptions
from hydraplan.planner.open_request import open_request
from hydraplan.planner.placement import memory_candidate
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.hydra import place_hydra
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.plan import finish, prepare
from hydraplan.profiler.analytic import analytic_header

CLUSTER, MODEL = "h100-sxm", "llama-8b"
Engine = Literal["nested", "ring"]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of ranks and the cap on the rows of a slot. `gpus` = tp x pp x ranks."""

    tp: int
    pp: int
    ranks: int
    cap_tokens: int

    @property
    def gpus(self) -> int:
        """Devices of all stages."""
        return self.tp * self.pp * self.ranks


@cache
def profile() -> Profile:
    """The analytic profile, built once."""
    return Profile(analytic_header(load_cluster(CLUSTER), load_model(MODEL)), "0" * 64)


def true_fit() -> CostFit:
    """The coefficients that count as the truth."""
    return profile().header.fit


def options_of(pool: Pool, strategy: str, **changes: object) -> PlanOptions:
    """What a user would ask; `changes` are fields of `PlanOptions`."""
    plain: dict[str, object] = {
        "pp": pool.pp,
        "ranks": pool.ranks,
        "tp": pool.tp,
        "max_tokens_per_rank": pool.cap_tokens,
        "batch_sequences": 1,
        "batch_tokens": None,
        "strategy": strategy,
        "pipeline": "1f1b",
        "microbatches": None,
        "microbatch_order": STRATEGIES[strategy].default_order,
        "on_overlong": "error",
        "seed": 0,
    }
    return PlanOptions.model_validate(plain | changes)


@dataclass(frozen=True, slots=True)
class Asked:
    """A batch that a strategy can be asked to place, and the costs it plans with."""

    cost: CostModel
    options: PlanOptions
    rows: Sequences

    @property
    def true_cost(self) -> CostModel:
        """The same pool and stages at true coefficients."""
        return replace(self.cost, fit=true_fit())

    def request(self) -> Request:
        """Cost table and window, computed anew."""
        return open_request(self.cost, self.options, self.rows)

    def placed(self) -> tuple[Request, Draft]:
        """The whole way: open the request, search."""
        request = self.request()
        return request, STRATEGIES[self.options.strategy].place(request)

    def once(self, request: Request, draft: Draft) -> None:
        """One solve and placement at the point that was found, nothing scored."""
        STRATEGIES[self.options.strategy].place_once(request, draft)

    def planned(self) -> BatchPlan:
        """The plan with all its figures."""
        return self.finished(*self.placed())

    def finished(self, request: Request, draft: Draft) -> BatchPlan:
        """Figures of a draft, and all rows again."""
        return finish(request, self.options, 0, self.rows, draft)

    def load_driven(self, request: Request, draft: Draft) -> Draft | None:
        """The load-driven candidate that the search preferred, also where another plan won.

        None where no load-driven placement kept the cap.
        """
        if draft.iteration_s == draft.search.load_driven_s:
            return draft
        if isnan(draft.search.load_driven_s):
            return None
        with _no_memory_candidate():
            return place_hydra(request)


def ask(
    length_tokens: IntArray,
    pool: Pool,
    strategy: str = "hydra",
    fit: CostFit | None = None,
    **changes: object,
) -> Asked:
    """One batch of all these lengths; `changes` are fields of `PlanOptions`.

    `fit` replaces the coefficients planned with, that is, plans on wrong costs.
    """
    options = options_of(pool, strategy, batch_sequences=len(length_tokens), **changes)
    known = profile()
    if fit is not None:
        known = known._replace(header=known.header.model_copy(update={"fit": fit}))
    lengths = Lengths("evaluation", "sequences", length_tokens)
    _, batches = prepare(lengths, known, options, 1)
    return Asked(batches.cost, options, batches[0])


@contextmanager
def _no_memory_candidate() -> Iterator[None]:
    """Searches inside see no memory-sized plan, so a load-driven one wins."""
    with patch.object(memory_candidate, "memory_candidate", return_value=None):
        yield
