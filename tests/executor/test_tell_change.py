"""What rank 0 decides arrives whole on all workers, once, and what does not is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from hydraplan.errors import InputError, RunFailed
from hydraplan.executor import tell_change
from hydraplan.executor.groups import World
from hydraplan.executor.tell_change import Known
from hydraplan.files.decisionsfile import Change
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.migration import Moves, RowMove
from hydraplan.places import places_of
from hydraplan.planner.pipeline.schedules import SCHEDULES
from tests.builders import Place
from tests.plans import write_test_plan
from tests.processes import run_ranks

pytestmark = pytest.mark.dist

BATCH = [Place(40 + lane, lane, 1, 1, m) for m in range(3) for lane in range(2)]
ORDER = SCHEDULES["zb-h1"].make(1, 3, 1)
CHANGES = (
    Change(),
    Change(ORDER, Moves(rows=(RowMove(0, 1, 0, 1, 16),))),
    Change(ORDER, Moves(rows=(RowMove(0, 1, 0, 1, 16),))),
    Change(),
    Change(ORDER),
)


@pytest.fixture
def plan(tmp_path):
    return open_plan(write_test_plan(tmp_path / "x.plan", [BATCH], pp=1, ranks=2))


def known(plan, rank):
    job = SimpleNamespace(header=plan.header, cost=plan.header.cost_model(), is_shared=False)
    return Known(World(rank, 1, 2), job)


def test_all_workers_hold_what_rank_0_told_last_and_only_new_bodies_travel(plan, monkeypatch):
    def told(rank):
        batch, state, sizes = read_batch(plan, 0), known(plan, rank), []
        sent = tell_change._told
        monkeypatch.setattr(
            tell_change, "_told", lambda raw: (sizes.append(len(raw)), sent(raw))[1]
        )
        found = [state.tell(batch, change if rank == 0 else None) for change in CHANGES]
        for (now, steps, moves), change in zip(found, CHANGES, strict=True):
            assert now.schedule == (change.schedule or batch.schedule)
            assert moves == change.moves
            assert len(steps) == 1
        assert len(state.changed) == 1
        return sizes

    first, second = run_ranks(told, 2)
    bodies = [len(change.to_text()) for change in CHANGES]
    assert first == second == [40, bodies[0], 40, bodies[1], 40, 40, bodies[3], 40, bodies[4]]


def test_a_change_that_is_not_as_it_was_made_or_does_not_fit_is_refused_by_each_worker(
    plan, monkeypatch
):
    def told(rank):
        sent, said = tell_change._told, []

        def damaged(raw):
            found = sent(raw).copy()
            if rank == 1 and len(found) == len(CHANGES[1].to_text()):
                found[-1] ^= 1
            return found

        monkeypatch.setattr(tell_change, "_told", damaged)
        for change in (CHANGES[1], Change((ORDER[0][:-1],))):
            try:
                known(plan, rank).tell(read_batch(plan, 0), change if rank == 0 else None)
            except (InputError, RunFailed) as error:
                said.append(str(error))
        return said

    first, second = run_ranks(told, 2)
    unfit = "the decision of rank 0, batch 0: stage 0: microbatch 2, chunk 0 runs only F, B;"
    assert [text[: len(unfit)] for text in (*first, second[1])] == [unfit] * 2
    assert second[0] == (
        "rank 1 (stage 0, lane 1) was told another change of batch 0 than rank 0 made"
    )


def test_rows_that_come_to_a_lane_are_checked_there_as_its_own_were(plan):
    """Under torchrun a host checks its own rows alone when a run begins; sequence 1 is lane 1's."""

    def told(rank):
        batch = read_batch(plan, 0)
        places = places_of(batch.sequences)
        swapped = places._replace(first_rank=tuple(1 - lane for lane in places.first_rank))
        about = {"is_shared": True, "data": "x.idx", "header": plan.header}
        about["cost"] = plan.header.cost_model()
        job = SimpleNamespace(tokens=lambda i, n: np.full(n, 64 if i == 1 else 3), **about)
        state = Known(World(rank, 1, 2), job)
        try:
            state.tell(batch, Change(places=swapped) if rank == 0 else None)
        except InputError as error:
            return str(error)
        return ""

    said = "x.bin: sequence 1 holds id 64 at position 0, the model's vocabulary is 0..63"
    assert run_ranks(told, 2) == [said, ""]
