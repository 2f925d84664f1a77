"""Lowered lists in PyTorch's words: legal by our own strict reader, and PyTorch's own parser."""

import pytest

from hydraplan.files.pytorch_csv import csv_text, parse
from hydraplan.planner.pipeline.lowering import lower
from hydraplan.planner.pipeline.pytorch_form import loss_note, lowered_rows
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.route import route
from tests.planner.orders import made

NAMES = [name for name, pipeline in SCHEDULES.items() if pipeline.route != "both"]


def test_1f1b_of_two_ranks_written_down():
    schedule = SCHEDULES["1f1b"].make(2, 2, 1)
    way = route("loop", 2, 1)
    assert csv_text(lowered_rows(lower(schedule, way, 2), way)) == (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stages", "count"), [(1, 2), (2, 1), (4, 3), (4, 9)])
def test_what_is_lowered_is_read_back_and_lowers_to_the_same_bytes(name, stages, count):
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    way = route(pipeline.route, stages, chunks)
    schedule = pipeline.make(stages, count, chunks)
    text = csv_text(lowered_rows(lower(schedule, way, count), way))
    found = parse(text, "x.csv")
    assert found.schedule == schedule
    assert csv_text(found.rows) == text
    way = route(found.route, stages, found.num_chunks)
    assert csv_text(lowered_rows(lower(found.schedule, way, count), way)) == text


@pytest.mark.parametrize("name", NAMES)
def test_losses_of_every_schedule_come_in_the_order_pytorch_takes_them(name):
    schedule, way = made(name, 4, 6)
    assert loss_note(schedule, way) == ""


@pytest.mark.parametrize(("name", "last"), [("1f1b", 2), ("zb-v", 0)])
def test_an_order_whose_last_forwards_change_places_is_noted(name, last):
    """The last stage is the first rank's on a V."""
    schedule, way = made(name, 3, 4)
    changed = [ops[:] for ops in schedule]
    places = {1: 2, 2: 1}
    changed[last] = tuple(op._replace(microbatch=places.get(op.microbatch, op.microbatch))
                          for op in schedule[last])  # fmt: skip
    assert "number 1 is microbatch 2 here" in loss_note(tuple(changed), way)
