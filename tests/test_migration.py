import json

import numpy as np
import pytest

from hydraplan.config import load_model
from hydraplan.errors import InputError
from hydraplan.migration import (
    HeadMove,
    HeadShares,
    Moves,
    RowMove,
    busy_rows,
    check_moves,
    moves_of,
)
from hydraplan.slots import slot_times
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model

MODEL = load_model("tiny")
EVEN = (MODEL.num_heads // 2,) * 2
SHARES = HeadShares(1, 0, 0, 2, 1, ((EVEN[0] + 1, EVEN[0] - 1),))
ROWS = RowMove(0, 1, 3, 2, 32)
HEADS = HeadMove(1, 1, 3, 0, 1)
PLACED = placed_sequences(
    [Place(400, 0, ulysses_size=2), Place(300, 2, ring_size=2), Place(90, 3, microbatch=1)]
)
ROWS_LM = slot_times(cost_model(ranks=4, pp=2, model="tiny"), PLACED, 2).rows


def check(*moves: HeadShares | RowMove | HeadMove) -> None:
    forms = [tuple(m for m in moves if type(m) is form) for form in (HeadShares, RowMove, HeadMove)]
    check_moves(Moves(*forms), MODEL.num_heads, PLACED, ROWS_LM, pp=2)


def test_moves_come_back_from_json_as_they_were():
    moves = Moves((SHARES,), (ROWS,), (HEADS,))
    assert moves_of(json.loads(json.dumps(moves.to_json()))) == moves
    assert moves.total == 3
    assert moves
    assert not Moves()


def test_moves_of_the_batch_pass():
    check(SHARES, ROWS, HEADS)


@pytest.mark.parametrize(
    ("moves", "why"),
    [
        ([ROWS._replace(stage=2)], "2 stages"),
        ([ROWS._replace(microbatch=2)], "2 microbatches"),
        ([ROWS._replace(taker=3)], "not two of lanes 0..3"),
        ([ROWS._replace(taker=4)], "not two of lanes 0..3"),
        ([ROWS, ROWS._replace(giver=2, taker=1)], "lane 2 gives or takes twice"),
        ([ROWS._replace(rows=24)], "multiple of 16 from 1 to 90"),
        ([ROWS._replace(rows=96)], "multiple of 16 from 1 to 90"),
        ([HEADS._replace(heads=MODEL.num_heads + 1)], "heads are not from 1"),
        ([HEADS._replace(giver=0, taker=3)], "no unsplit sequence"),
        ([SHARES._replace(first_rank=2)], "no sequence of the microbatch lies so"),
        ([SHARES._replace(counts=(EVEN, EVEN))], "not one of every member"),
        ([SHARES._replace(counts=((EVEN[0], EVEN[0] + 1),))], "of a ring shard are not"),
        ([SHARES, SHARES], "named twice"),
    ],
)
def test_moves_of_another_batch_are_refused(moves, why):
    with pytest.raises(InputError, match=why):
        check(*moves)


@pytest.mark.parametrize(
    "found",
    [
        [],
        {"shares": [], "rows": []},
        {"shares": [], "rows": 3, "heads": []},
        {"shares": [], "rows": [[0, 1, 3, 2]], "heads": []},
        {"shares": [], "rows": [[0, 1, 3, 2, 16.0]], "heads": []},
        {"shares": [], "rows": [[0, 1, 3, 2, True]], "heads": []},
        {"shares": [], "rows": [[0, 1, 3, -2, 16]], "heads": []},
        {"shares": [[0, 0, 0, 2, 1, [3, 1]]], "rows": [], "heads": []},
    ],
)
def test_what_a_file_cannot_mean_is_refused(found):
    with pytest.raises(InputError, match="moves"):
        moves_of(found)


def test_what_a_message_quotes_of_a_file_is_short():
    for entry in (["x" * 10**6] * 5, ["x" * 10**6], [0, 0, 0, 2, 1, "x" * 10**6]):
        for name in ("shares", "rows", "heads"):
            with pytest.raises(InputError) as refused:
                moves_of({"shares": [], "rows": [], "heads": []} | {name: [entry]})
            assert len(str(refused.value)) < 200


def test_the_mlp_of_moved_rows_is_work_of_the_taker():
    moves = Moves(rows=(ROWS,))
    np.testing.assert_array_equal(busy_rows(moves, ROWS_LM, 1), ROWS_LM)
    worked = busy_rows(moves, ROWS_LM, 0)
    assert worked[3, 1] == 90 - 32
    assert worked[2, 1] == 32
    assert worked.sum() == ROWS_LM.sum()
