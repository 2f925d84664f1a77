import numpy as np
import pytest

from hydraplan.errors import Infeasible, InputError
from hydraplan.files.lengths import Lengths
from hydraplan.planheader import Resumed
from hydraplan.planner.batches import cut_batches, open_batches
from tests.plans import plan_header, tiny_model

LENGTHS = Lengths("x", "sequences", np.array([5000, 3, 4, 5, 6]))


def request(first_row):
    """Two rows a batch under a cap of 100 on two ranks, from a row on."""
    header = plan_header(tiny_model(), 1, 2, 1)
    resumes = Resumed(plan_digest="a" * 64, steps=1, first_row=first_row)
    changes = {"max_tokens_per_rank": 100, "batch_sequences": 2, "batch_tokens": None}
    options = header.options.model_copy(update=changes | {"resumes": resumes})
    return header.cost_model(), options


@pytest.mark.parametrize(
    ("first_row", "bounds"), [(0, [(0, 2), (2, 4), (4, 5)]), (1, [(1, 3), (3, 5)]), (4, [(4, 5)])]
)
def test_batches_begin_at_the_first_row_that_remains(first_row, bounds):
    assert cut_batches(LENGTHS.length_tokens, request(first_row)[1], None) == bounds


def test_more_batches_than_the_remaining_rows_fill_are_refused():
    with pytest.raises(InputError, match="the file's 4 rows fill 2 batches, --num-batches asks 3"):
        cut_batches(LENGTHS.length_tokens, request(1)[1], 3)


def test_a_row_that_is_trained_may_be_too_long_for_the_ranks_that_remain():
    cost, options = request(1)
    opened = open_batches(cost, LENGTHS, options, [(1, 3), (3, 5)])
    assert [opened[i].sequence_id.tolist() for i in range(2)] == [[1, 2], [3, 4]]
    with pytest.raises(Infeasible, match="sequence 0 of 5000 tokens"):
        open_batches(cost, LENGTHS, request(0)[1], [(0, 2), (2, 4)])
