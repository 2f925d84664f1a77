"""Bytes a stage: closed forms on small models, and what torch's allocator once held."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.activations import forward_bytes, waiting_bytes
from hydraplan.config import ModelShape, load_model
from hydraplan.cost import CostModel
from hydraplan.memory import (
    COMMUNICATOR_BYTES,
    TERMS,
    group_bytes,
    layer_work_bytes,
    loss_bytes,
    stage_bytes,
    state_bytes,
    weight_elements,
)
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.traffic import stage_parameters
from tests.builders import Place, placed_sequences
from tests.plans import plan_header

MODEL = ModelShape(
    name="test", num_layers=4, hidden_size=128, num_heads=8, num_kv_heads=2, head_dim=16,
    ffn_hidden_size=320, vocab_size=512, dtype="float32",
)  # fmt: skip


def cost_of(model: ModelShape = MODEL, pp: int = 2, ranks: int = 1, recompute="none") -> CostModel:
    """A model cut into stages; costs do not matter here."""
    header = plan_header(model, pp, ranks, 1)
    options = header.options.model_copy(update={"recompute": recompute})
    return header.model_copy(update={"options": options}).cost_model()


def terms(cost: CostModel, pipeline: str, rows: np.ndarray, **more) -> dict[str, list[int]]:
    found = stage_bytes(cost, SCHEDULES[pipeline].make(cost.pp, rows.shape[1]), rows, **more)
    return dict(zip(TERMS, found.tolist(), strict=True))


def test_weights_are_those_that_traffic_counts() -> None:
    for pp, ranks in ((1, 1), (2, 3), (4, 1)):
        cost = cost_of(pp=pp, ranks=ranks)
        counted = [sum(map(sum, chunks)) for chunks in weight_elements(cost)]
        assert counted == stage_parameters(cost).tolist()


def test_one_rank_holds_weights_gradients_and_two_moments_of_each() -> None:
    layer = 2 * 128 + 2 * 128 * 128 + 2 * 128 * 32 + 3 * 128 * 320
    first, last = 2 * layer + 512 * 128, 2 * layer + 128 + 512 * 128
    assert state_bytes(cost_of()).tolist() == [
        [4 * first, 4 * last], [4 * first, 4 * last], [8 * first, 8 * last],
    ]  # fmt: skip


def test_whole_weights_are_dealt_out_to_the_emptiest_lane() -> None:
    """Three SwiGLU matrices weigh most, on three lanes one each; then the attention's go on top."""
    model = MODEL.model_copy(update={"num_layers": 1, "vocab_size": 1})
    # Two get one of 16,384 besides; the third both of 4,096 and all that is small.
    assert state_bytes(cost_of(model, 1, 3))[2].tolist() == [8 * (40_960 + 16_384)]


@pytest.mark.parametrize(
    ("dtype", "fixed", "shared"), [("bfloat16", 6, 12), ("float16", 6, 12), ("float32", 8, 8)]
)
def test_megatron_holds_what_its_guide_states(dtype: str, fixed: int, shared: int) -> None:
    cost = cost_of(load_model("llama-8b").model_copy(update={"dtype": dtype}), 4, 16)
    parameters = stage_parameters(cost)
    found = state_bytes(cost, "megatron").sum(axis=0)
    assert found == pytest.approx((fixed + shared / 16) * parameters, rel=1e-9)


def test_a_stage_of_1f1b_holds_what_torch_held() -> None:
    """Measured 28,729,456 and 20,795,584 bytes, pp 2 on one lane, tests/executor."""
    found = terms(cost_of(), "1f1b", np.full((1, 4), 512))
    total = np.sum(list(found.values()), axis=0)
    assert total.tolist() == [28_729_344, 20_795_392]
    live, angles = 2 * 512 * 2 * forward_bytes(MODEL), 2 * 512 * 4 * 16
    assert found["activations"] == [live + angles, (live + angles) // 2]
    # An activation sent for each of two microbatches, three gradients to come, then the reverse.
    assert found["messages"] == [5 * 512 * 128 * 4, 3 * 512 * 128 * 4]
    assert found["logits"] == [0, 512 * 4 * (3 * 128 + 1 + 512)]
    assert found["working"] == [512 * 4 * (128 + 2 * 320), 512 * 4 * 2 * 512]


def test_what_w_waits_for_is_held_where_b_and_w_are_apart() -> None:
    found = terms(cost_of(pp=4), "zb-h1", np.full((1, 8), 512))
    split, joined = found["activations"][3], terms(cost_of(pp=4), "1f1b", np.full((1, 8), 512))
    assert split > joined["activations"][3] + 512 * waiting_bytes(MODEL)


def test_less_is_held_the_more_is_made_again() -> None:
    rows = np.full((1, 8), 4096)
    none, selective, full = (
        terms(cost_of(pp=4, recompute=recompute), "1f1b", rows)["activations"][0]
        for recompute in ("none", "selective", "full")
    )
    assert none > 1.9 * selective
    assert selective > 5 * full
    assert layer_work_bytes(MODEL, "full", False)[0] == forward_bytes(MODEL)


def test_many_logits_are_made_in_chunks_and_few_are_kept() -> None:
    cost = cost_of(MODEL.model_copy(update={"vocab_size": 16_384}))
    few, many = (loss_bytes(cost, np.array([rows])) for rows in (256, 257))
    assert few.kept[0] == 256 * 4 * (3 * 128 + 1 + 16_384)
    assert many.kept[0] == 257 * 4 * 128
    assert many.in_backward[0] > 4 * 128 * 16_384  # a gradient of the head beside the sum


def test_an_inner_group_keeps_its_output_twice_and_copies_of_kv_heads() -> None:
    placed = placed_sequences([Place(800, 0, 4, 1, 0), Place(100, 0, 1, 1, 0)])
    kept, exchanged = group_bytes(cost_of(pp=1, ranks=4), placed, 1)
    query, key = 4 * 128, 4 * 2 * 32
    assert kept[:, 0].tolist() == [200 * (query + key)] * 4
    assert exchanged[:, 0].tolist() == [200 * 2 * (2 * query + 2 * key)] * 4


def test_gradients_are_there_twice_where_lanes_sum_them() -> None:
    found = terms(cost_of(ranks=2), "1f1b", np.full((2, 4), 1))
    assert found["messages"] == found["gradients"]
    assert found["activations"] == [0, 0]


def test_communicators_are_counted_one_by_one() -> None:
    found = terms(cost_of(), "1f1b", np.full((1, 2), 8), num_communicators=3)
    assert found["communicators"] == [3 * COMMUNICATOR_BYTES] * 2


@given(
    rows=st.lists(st.integers(0, 3000), min_size=4, max_size=4),
    pipeline=st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-h2"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    engine=st.sampled_from(["hydraplan", "megatron"]),
)
def test_a_longer_slot_never_takes_less(rows, pipeline, recompute, engine) -> None:
    cost = cost_of(recompute=recompute)
    less = np.array([rows])
    totals = [
        np.sum(list(terms(cost, pipeline, held, engine=engine).values()), axis=0)
        for held in (less, less + np.array([[0, 7, 0, 0]]))
    ]
    assert (totals[0] <= totals[1]).all()
