from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import HydraplanError, RunFailed
from hydraplan.executor import worker
from hydraplan.executor.groups import World
from hydraplan.executor.same_step import (
    batch_hash,
    check_same_step,
    lane_hashes,
    planned_hashes,
)
from hydraplan.executor.settings import Settings
from hydraplan.executor.verify import verify
from hydraplan.kernels.packing import rank_layout
from hydraplan.migration import NO_MOVES, Moves, RowMove
from tests.builders import Place, placed_sequences
from tests.plans import batch_plan, batch_rows, write_test_plan
from tests.processes import run_ranks

RANKS = 8


@st.composite
def places(draw):
    """A few sequences on aligned groups of 8 lanes, two microbatches."""
    u, r = (draw(st.sampled_from([1, 2, 4])) for _ in range(2))
    degree = min(u * r, RANKS)
    r = degree // u
    first = draw(st.integers(0, RANKS // degree - 1)) * degree
    return Place(draw(st.integers(1, 9)), first, u, r, draw(st.integers(0, 1)))


@given(st.lists(places(), min_size=1, max_size=8))
def test_what_lanes_say_of_their_layouts_is_what_the_plan_wants(chosen):
    placed = placed_sequences(chosen)
    wanted = planned_hashes(placed, 2, RANKS)
    for lane in range(RANKS):
        layouts = [rank_layout(placed, m, lane) for m in range(2)]
        assert lane_hashes(layouts).tolist() == wanted[lane].tolist()
        for m, layout in enumerate(layouts):
            if len(layout.buckets) > 1:
                crossed = replace(layout, buckets=layout.buckets[::-1])
                assert lane_hashes([crossed])[0] != wanted[lane, m]


PLACES = [Place(9, 0, 2, 1), Place(5, 0, 1, 2), Place(4, 1, 1, 1, 1)]


def test_a_batch_has_another_hash_if_anything_a_worker_does_would_change():
    batch = batch_plan(0, batch_rows(PLACES), 2, 2)
    rows, hashes = batch.sequences, [batch_hash(batch)]
    for name, value in (
        ("sequence_id", rows.sequence_id + 1),
        ("length_tokens", rows.length_tokens + 1),
        ("valid_tokens", rows.valid_tokens - 1),
        ("first_rank", rows.first_rank * 0),
        ("microbatch", rows.microbatch * 0),
        ("order", rows.order[[1, 0, 2]]),
        ("ring_size", rows.ulysses_size),
    ):
        hashes.append(batch_hash(replace(batch, sequences=replace(rows, **{name: value}))))
    hashes.append(batch_hash(replace(batch, schedule=batch.schedule[::-1])))
    assert len(set(hashes)) == len(hashes)
    seconds = replace(rows, predicted_s=rows.predicted_s + 1)
    assert batch_hash(replace(batch, sequences=seconds)) == hashes[0]


@pytest.mark.dist
def test_all_workers_refuse_together_what_one_of_them_would_run_otherwise():
    batch = batch_plan(3, batch_rows(PLACES), 2, 2)
    longer = replace(batch.sequences, length_tokens=batch.sequences.length_tokens + 1)

    def said(world, held, layouts, moves=NO_MOVES):
        try:
            check_same_step(world, held, layouts, moves)
        except HydraplanError as error:
            return str(error)
        return ""

    def worker(rank):
        world, placed = World(rank, 2, 2), batch.sequences.placed()
        layouts = [rank_layout(placed, m, world.lane) for m in range(2)]
        crossed = [replace(x, buckets=x.buckets[::-1]) if rank == 2 else x for x in layouts]
        other = replace(batch, sequences=longer) if rank == 3 else batch
        moves = Moves(rows=(RowMove(0, 0, 0, 1, 4 + rank // 3),))
        steps = (batch, layouts), (batch, crossed), (other, layouts), (batch, layouts, moves)
        return [said(world, *x) for x in steps]

    found = run_ranks(worker, 4, timeout_s=60.0)
    assert found == found[:1] * 4
    assert found[0] == [
        "",
        "rank 2 (stage 1, lane 0) runs the exchanges of microbatch 0 of batch 3 in another order"
        " than the plan has them",
        "rank 3 (stage 1, lane 1) holds another batch 3 than rank 0",
        "rank 3 (stage 1, lane 1) holds other moves for batch 3 than rank 0",
    ]


@pytest.mark.dist
def test_a_crossed_order_of_buckets_ends_a_run_before_its_step(tmp_path, monkeypatch):
    plan = write_test_plan(tmp_path / "x.plan", [PLACES], pp=1, ranks=2)

    def crossed(placed, microbatch, lane, splits):
        found = rank_layout(placed, microbatch, lane, splits)
        return replace(found, buckets=found.buckets[::-1]) if lane else found

    monkeypatch.setattr(worker, "rank_layout", crossed)
    with pytest.raises(RunFailed, match=r"rank 1 \(stage 0, lane 1\) runs the exchanges of micro"):
        verify(plan, 0, Settings(dtype="float64", timeout_s=60.0))
