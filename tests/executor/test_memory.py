import pytest

from hydraplan.errors import Infeasible
from hydraplan.executor.memory import check_memory, needed_bytes
from tests.plans import plan_header, tiny_model


def test_states_of_every_lane_are_counted():
    model = tiny_model()
    one = needed_bytes(plan_header(model, 1, 2, 1, "0"), "float32")
    two = needed_bytes(plan_header(model, 2, 2, 1, "0"), "float32")
    wide = needed_bytes(plan_header(model, 1, 2, 1, "0"), "float64")
    assert two > one
    assert wide > one


def test_a_plan_for_a_cluster_is_refused_on_one_machine_with_both_figures():
    header = plan_header(tiny_model(), 2, 2, 1, "0")
    large = header.model_copy(
        update={"model": header.model.model_copy(update={"ffn_hidden_size": 1 << 30})}
    )
    with pytest.raises(Infeasible, match=r"4 workers of .* need at least .* GiB .* 2.0 GiB are"):
        check_memory(large, "float32", 2 << 30)
    check_memory(header, "float32", 2 << 30)
