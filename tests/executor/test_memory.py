import pytest

from hydraplan.errors import Infeasible
from hydraplan.executor.memory import (
    PROCESS_BYTES,
    check_device_memory,
    check_memory,
    needed_bytes,
)
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
