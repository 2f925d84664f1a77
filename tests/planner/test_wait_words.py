"""What people read of lists that get stuck: the circle rank by rank, or what a list lacks."""

from typing import Any

import pytest

from hydraplan.model import Op
from hydraplan.planner.pipeline.deadlock import deadlock_of_batch, find_deadlock
from hydraplan.planner.pipeline.lowering import Step, lower
from hydraplan.planner.pipeline.schedules import one_f_one_b
from hydraplan.planner.pipeline.wait_graph import Exchange
from hydraplan.route import route
from tests.planner.orders import made, swapped

TWO = route("loop", 2, 1)


def test_a_crossed_pair_is_told_rank_by_rank() -> None:
    steps = lower(one_f_one_b(2, 3), TWO, 3)
    assert [s.kind for s in steps[1]][2:6] == ["compute", "receive", "send", "compute"]
    crossed = swapped(steps, 1, 3, 4)
    assert find_deadlock({0: crossed}, TWO, "fifo", 1) == ""
    assert find_deadlock({0: crossed}, TWO, "ordered", 1).splitlines() == [
        "ranks wait for each other in a circle"
        " (ordered: one message of a rank after the other, as NCCL on one stream):",
        "  rank 1 (stage 1, lane 0) receives the activations of microbatch 1 from rank 0"
        " only after it has sent the gradients of microbatch 0 to rank 0",
        "  rank 0 (stage 0, lane 0) receives the gradients of microbatch 0 from rank 1"
        " only after it has sent the activations of microbatch 1 to rank 1",
    ]


def test_crossed_collectives_of_two_lanes_are_told_with_lanes_and_sequences() -> None:
    pair, other = Exchange(0, 0, 2, 7), Exchange(0, 0, 2, 9)
    steps = lower(one_f_one_b(1, 1), route("loop", 1, 1), 1)
    meetings = {(0, 0): (pair, other), (1, 0): (other, pair)}
    found = find_deadlock({0: steps, 1: steps}, route("loop", 1, 1), "tagged", 2, meetings)
    assert found.splitlines() == [
        "ranks wait for each other in a circle (tagged: non-blocking with tags, as gloo):",
        "  rank 1 (stage 0, lane 1) meets lanes 0..1 for sequence 7 in F of microbatch 0"
        " only after it has met lanes 0..1 for sequence 9 in F of microbatch 0",
        "  rank 0 (stage 0, lane 0) meets lanes 0..1 for sequence 9 in F of microbatch 0"
        " only after it has met lanes 0..1 for sequence 7 in F of microbatch 0",
    ]


def test_lanes_in_another_microbatch_order_are_caught_at_the_first_crossed_collective() -> None:
    """A trial on gloo that aborted: one lane in another order."""
    way = route("loop", 1, 1)
    orders = [(Op("F", 0), Op("F", 1)), (Op("F", 1), Op("F", 0))]
    lanes = {
        lane: (tuple(Step("compute", op=op) for op in ops),) for lane, ops in enumerate(orders)
    }
    meetings = {(lane, m): (Exchange(m, 0, 2, m),) for lane in range(2) for m in range(2)}
    assert find_deadlock(lanes, way, "tagged", 2, meetings).splitlines()[1:] == [
        "  rank 1 (stage 0, lane 1) meets lanes 0..1 for sequence 0 in F of microbatch 0"
        " only after it has met lanes 0..1 for sequence 1 in F of microbatch 1",
        "  rank 0 (stage 0, lane 0) meets lanes 0..1 for sequence 1 in F of microbatch 1"
        " only after it has met lanes 0..1 for sequence 0 in F of microbatch 0",
    ]


def test_an_order_that_is_not_legal_is_told_by_stage() -> None:
    crossed = (
        (Op("F", 1), Op("BW", 1), Op("F", 0), Op("BW", 0)),
        (Op("F", 0), Op("BW", 0), Op("F", 1), Op("BW", 1)),
    )
    assert deadlock_of_batch(crossed, TWO, 2, 4, {}).splitlines() == [
        "no transport gets through this order of ops; ranks wait for each other in a circle"
        " (tagged: non-blocking with tags, as gloo):",
        "  stage 1 (ranks 4..7) sends the gradients of microbatch 1 to stage 0"
        " only after it has received the activations of microbatch 0 from stage 0",
        "  stage 0 (ranks 0..3) sends the activations of microbatch 0 to stage 1"
        " only after it has received the gradients of microbatch 1 from stage 1",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: ((*s[0][:1], *s[0][2:]), s[1]), "never sends them"),
        (lambda s: (s[0], s[1][1:]), "never receives them"),
        (lambda s: swapped(s, 0, 0, 1), "without having computed them"),
        (lambda s: swapped(s, 1, 0, 1), "too late for their use"),
        (lambda s: ((*s[0][:2], *s[0][1:]), s[1]), "of microbatch 0 again"),
        (lambda s: ((s[0][0], s[1][0], *s[0][1:]), s[1]), "though it is not its own"),
        (lambda s: (s[0][1:], s[1]), "but never F of microbatch 0"),
    ],
)
def test_a_list_that_is_not_whole_is_told_in_words(change: Any, said: str) -> None:
    steps = lower(one_f_one_b(2, 1), TWO, 1)
    found = find_deadlock({0: change(steps)}, TWO, "tagged", 1)
    assert found.startswith("lists of steps that cannot finish:\n  rank ")
    assert said in found


def test_an_op_before_what_it_is_computed_from_is_told_on_its_own_stage() -> None:
    """ZB-V turns round on the last stage, where nothing is sent between its chunks."""
    schedule, way = made("zb-v", 3, 2)
    last = list(schedule[2])
    i, j = last.index(Op("F", 0, 0)), last.index(Op("F", 0, 1))
    last[i], last[j] = last[j], last[i]
    found = deadlock_of_batch((*schedule[:2], tuple(last)), way, 2, 1, {})
    assert found.splitlines()[1:] == [
        "  stage 2 (rank 2) runs F of microbatch 0, chunk 0"
        " only after it has run F of microbatch 0, chunk 1",
        "  stage 2 (rank 2) runs F of microbatch 0, chunk 1"
        " only after it has run F of microbatch 0, chunk 0, which it is computed from",
    ]
