import pytest
import torch

from hydraplan.executor.message_header import difference, header
from hydraplan.planner.pipeline.lowering import Message

MESSAGE = Message("forward", 2, 1, 0, 1)
PLAN = "0123456789abcdef" * 4


def said_by(message=MESSAGE, rows=5, hidden_size=8, dtype=torch.float32, plan=PLAN):
    return header(message, rows, hidden_size, dtype, plan)


def test_a_header_of_the_message_waited_for_says_nothing_else():
    assert difference(said_by(), said_by()) == ""
    assert difference(said_by(plan=PLAN[:15] + "9" * 49), said_by()) == ""  # 60 bits tell


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"message": MESSAGE._replace(way="backward")}, "its way is backward, forward was"),
        ({"message": MESSAGE._replace(microbatch=7)}, "its microbatch is 7, 2 was"),
        ({"message": MESSAGE._replace(to_chunk=0)}, "its chunk is 0, 1 was"),
        ({"rows": 4}, "its rows is 4, 5 was"),
        ({"hidden_size": 6}, "its hidden size is 6, 8 was"),
        ({"dtype": torch.bfloat16}, "its dtype is bfloat16, float32 was"),
        ({"plan": "f" * 64}, "its plan is fffffffffffffff, 0123456789abcde was"),
    ],
)
def test_whatever_a_header_says_of_another_message_is_named_with_both_values(change, said):
    assert difference(said_by(**change), said_by()) == f"{said} waited for"


def test_what_is_no_header_of_ours_is_told_in_numbers():
    odd = torch.full((7,), 99)
    assert difference(odd, said_by()).startswith("its way is 99, forward was waited for; ")
