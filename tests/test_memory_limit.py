"""Whether a batch fits, and how a refusal reads."""

import numpy as np
import pytest

from hydraplan.config import load_cluster
from hydraplan.errors import Infeasible
from hydraplan.host import GIB
from hydraplan.memory import COMMUNICATOR_BYTES, TERMS
from hydraplan.memory_limit import (
    check_fits,
    largest_term,
    most_communicators,
    planned_bytes,
)
from tests.builders import Place, placed_sequences
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model

HEADER = plan_header(tiny_model(), 2, 8, 1)


def held_of(**most: float) -> np.ndarray:
    """Two stages that hold nothing, but the second so many GiB of what is named."""
    held = np.zeros((len(TERMS), 2), np.int64)
    for name, gib in most.items():
        held[TERMS.index(name), 1] = int(gib * GIB)
    return held


@pytest.mark.parametrize(
    ("most", "hint"),
    [
        ({"weights": 1.0, "activations": 2.0}, "--max-tokens-per-rank auto or a lower one"),
        ({"optimizer": 2.0, "logits": 1.0}, "more stages"),
    ],
)
def test_a_refusal_names_batch_stage_largest_term_and_limit(most, hint) -> None:
    held, term = held_of(**most), max(most, key=lambda name: most[name])
    assert largest_term(held, 1) == term
    check_fits(held, 3.0 * GIB, 4)
    with pytest.raises(Infeasible, match=rf"batch 4 needs 3\.00 GiB on stage 1.*{term}") as refused:
        check_fits(held, 2.5 * GIB, 4)
    assert "a device has 2.50" in str(refused.value)
    assert hint in refused.value.hint


def test_a_rank_has_a_communicator_for_the_world_its_pool_both_ways_and_each_inner_group() -> None:
    cost = HEADER.cost_model()
    plain = placed_sequences([Place(8)])
    # Lane 4 is in 4..5, in 4..7 and, of a ring of two, in 0..3 or 4..7.
    grouped = placed_sequences(
        [Place(64, 4, 2, 1, 0), Place(64, 0, 4, 2, 1), Place(64, 4, 4, 1, 2)]
    )
    assert most_communicators(cost, plain) == 4
    assert most_communicators(cost, grouped) == 4 + 2


def test_communicators_are_counted_where_a_cluster_is_described() -> None:
    batch = batch_plan(0, batch_rows([Place(64), Place(64, 1, 1, 1, 1)]), 2, 2)
    on_cpu = planned_bytes(HEADER, batch)
    described = HEADER.model_copy(update={"cluster": load_cluster("h100-sxm")})
    on_gpu = planned_bytes(described, batch)
    assert on_cpu[-1].tolist() == [0, 0]
    assert on_gpu[-1].tolist() == [4 * COMMUNICATOR_BYTES] * 2
    assert (on_gpu[:-1] == on_cpu[:-1]).all()
