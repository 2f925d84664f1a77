import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hydraplan.errors import Infeasible
from hydraplan.executor.memory import (
    PROCESS_BYTES,
    check_device_memory,
    check_memory,
    needed_bytes,
)
from hydraplan.executor.record import collect
from hydraplan.executor.step import StepResult, peak_bytes
from hydraplan.model import Op
from tests.plans import plan_header, tiny_model


def test_states_of_every_lane_are_counted():
    model = tiny_model()
    one = needed_bytes(plan_header(model, 1, 2, 1, "0"), "float32")
    two = needed_bytes(plan_header(model, 2, 2, 1, "0"), "float32")
    wide = needed_bytes(plan_header(model, 1, 2, 1, "0"), "float64")
    assert two > one
    assert wide > one


def test_moments_are_there_once_a_pool_weights_and_gradients_on_every_lane():
    model = tiny_model()
    layer = 32 * (2 * 64 + 2 * 16) + 3 * 32 * 48 + 2 * 32
    parameters = 2 * layer + 2 * 64 * 32 + 32
    for ranks, times in ((1, 4), (2, 6), (8, 18)):
        found = needed_bytes(plan_header(model, 1, ranks, 1, "0"), "bfloat16")
        assert found - ranks * PROCESS_BYTES == times * 4 * parameters


def test_a_plan_for_a_cluster_is_refused_on_one_machine_with_both_figures():
    header = plan_header(tiny_model(), 2, 2, 1, "0")
    large = header.model_copy(
        update={"model": header.model.model_copy(update={"ffn_hidden_size": 1 << 30})}
    )
    with pytest.raises(Infeasible, match=r"4 workers of .* need at least .* GiB .* 2.0 GiB are"):
        check_memory(large, "float32", 2 << 30)
    check_memory(header, "float32", 2 << 30)


def test_a_worker_whose_states_do_not_fit_its_gpu_is_refused_with_both_figures():
    """Gradients like weights; two moments that eight lanes share."""
    gib = 1 << 30
    check_device_memory(4 * gib, 8, 5 * gib)
    said = r"beside 4\.0 GiB of weights .* needs 5\.0 GiB .*moments, 4\.9 GiB of its GPU are free"
    with pytest.raises(Infeasible, match=said):
        check_device_memory(4 * gib, 8, int(4.9 * gib))
    with pytest.raises(Infeasible, match=r"needs 12\.0 GiB"):
        check_device_memory(4 * gib, 1, 5 * gib)


def test_a_gpu_tells_the_most_its_allocator_held_and_a_cpu_nothing(monkeypatch):
    held = {torch.device("cuda", 1): 5 << 30}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", held.__getitem__)
    assert peak_bytes(torch.device("cuda", 1)) == 5 << 30
    assert math.isnan(peak_bytes(torch.device("cpu")))


@pytest.mark.parametrize("held", [3.0e9, math.nan])
def test_what_an_allocator_held_comes_to_rank_0(monkeypatch, held):
    monkeypatch.setattr("torch.distributed.gather", lambda sent, received: received[0].copy_(sent))
    mine = StepResult(np.ones((1, 5)), 2.0, 0.5, 7.0, (1, 2, 3), held)
    found = collect(SimpleNamespace(pp=1, ranks=1, rank=0), ((Op("F", 0),),), mine)
    assert (found.loss, found.peak_live_tokens.tolist()) == (0.5, [[7.0]])
    assert found.sent_bytes.ravel().tolist() == [1, 2, 3]
    assert (found.peak_bytes is None) == math.isnan(held)
    assert found.peak_bytes is None or found.peak_bytes.tolist() == [[held]]
