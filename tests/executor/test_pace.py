import time

import pytest
import torch

from hydraplan.cli.app import run as command
from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from hydraplan.executor import pace as pace_module
from hydraplan.executor.inject import Injected
from hydraplan.executor.pace import Pace
from hydraplan.files.runfile import open_run, read_step_ops
from hydraplan.kernels.attention import KERNELS
from hydraplan.kernels.exchange import Exchanged
from hydraplan.slots import slot_times
from hydraplan.views.run_text import run_json, run_title
from tests import plans
from tests.builders import Place, placed_sequences
from tests.executor.trained import losses, train
from tests.plans import plan_header, tiny_model, write_test_plan

WHOLE = [Place(40), Place(9), Place(23, 1), Place(17, 1, 1, 1, 1), Place(33, 0, 1, 1, 1)]


class Sleeper:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for name in ("perf_counter", "thread_time", "sleep"):
            monkeypatch.setattr(pace_module.time, name, getattr(self, name))

    def perf_counter(self):
        return self.now

    def thread_time(self):
        return 0.0

    def sleep(self, seconds):
        self.now += seconds


def cost():
    return plan_header(tiny_model(), 1, 2, 1).cost_model()


def test_a_part_takes_what_it_should_times_what_the_worker_is_slow(monkeypatch):
    clock, pace = Sleeper(monkeypatch), Pace(cost())
    with pace.part(2.0):
        clock.now += 0.5
    assert clock.now == pace.worked_s == 2.0
    pace.slow = 1.5
    with pace.part(2.0):
        clock.now += 2.5
    assert clock.now == pace.worked_s == 5.0


def test_a_part_that_wakes_up_late_is_made_up_for_unless_the_worker_waited(monkeypatch):
    clock, pace = Sleeper(monkeypatch), Pace(cost())
    waited = Exchanged()
    monkeypatch.setattr(pace_module, "totals", lambda: waited)
    with pace.part(2.0):
        clock.now += 2.7  # for a core
    with pace.part(1.0):
        pass
    assert (clock.now, pace.worked_s) == (3.0, 3.0)
    with pace.part(2.0):
        clock.now += 2.7
    waited.wait_s += 0.5
    with pace.part(1.0):
        pass
    assert (clock.now, pace.worked_s) == (pytest.approx(6.5), 6.0)
    with pace.part(2.0):
        clock.now += 3.0
    pace.begin()
    with pace.part(1.0):
        pass
    assert (clock.now, pace.worked_s) == (pytest.approx(10.5), 9.0)


def test_a_part_whose_arithmetic_takes_longer_counts_with_its_cpu_seconds(monkeypatch):
    Sleeper(monkeypatch)
    pace, used = Pace(cost()), iter([1.0, 8.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(used))
    with pace.part(2.0):
        pass
    assert pace.worked_s == 7.0


def test_products_and_calls_of_whole_sequences_add_up_to_the_slots_of_the_plan(monkeypatch):
    """Embedding and element-wise work of the loss apart, which are not paced."""
    Sleeper(monkeypatch)
    header = plan_header(tiny_model(num_layers=3), 1, 2, 1)
    model, priced = header.model, header.cost_model()
    placed, pace = placed_sequences(WHOLE), Pace(priced)
    slots = slot_times(priced, placed, 2)
    kernel = pace.paced(KERNELS["cpu"])
    shapes = [(32, 64), (32, 16), (32, 16), (64, 32), (32, 48), (32, 48), (48, 32)]
    rows, cu = 49, (0, 40, 49)
    q, dout = (torch.randn(rows, 8, 8) for _ in range(2))
    k, v = (torch.randn(rows, 2, 8) for _ in range(2))
    out, lse = kernel.forward(q, k, v, cu, cu, True, 0.3)
    forward_s, pace.worked_s = pace.worked_s, 0.0
    kernel.backward(dout, q, k, v, out, lse, cu, cu, True, 0.3)
    attention_s = {FORWARD: forward_s, INPUT_GRADIENT: pace.worked_s, WEIGHT_GRADIENT: 0.0}
    assert attention_s[INPUT_GRADIENT] > 1.5 * forward_s > 0
    for way, at_the_ends in ((FORWARD, 2 * 32 * 4 + 3 * 4 * 64), (INPUT_GRADIENT, 3 * 4 * 64),
                             (WEIGHT_GRADIENT, 3 * 32 * 4)):  # fmt: skip
        layer_s = sum(pace.product_s(way, rows, torch.empty(shape)) for shape in shapes)
        found = 3 * (layer_s + attention_s[way])
        head, fit = torch.empty(32, model.vocab_size), priced.fit
        rate = (fit.linear_forward, fit.linear_input, fit.linear_weight)[way]
        found += pace.product_s(way, rows, head)
        found += rate.call_s * (1 - head.numel() / model.layer_parameters)
        found += rows * at_the_ends / fit.memory_bytes_per_s
        assert found == pytest.approx(slots.op_s[way, 0, 0, 0, 0], rel=1e-12)


@pytest.mark.dist
def test_a_paced_run_takes_the_seconds_of_the_plan_and_a_slow_rank_its_factor_more(
    tmp_path, monkeypatch
):
    def slow_header(*about):
        """A device on which parts take milliseconds."""
        header = plan_header(*about)
        rate = header.fit.attention_forward.model_copy(update={"flops_per_s": 2e8})
        rates = [name for name in type(header.fit).model_fields if name.startswith(("att", "lin"))]
        fit = header.fit.model_copy(update=dict.fromkeys(rates, rate))
        return header.model_copy(update={"fit": fit})

    monkeypatch.setattr(plans, "plan_header", slow_header)
    places = [Place(200, 0, 2, 1), Place(60), Place(90, 1)]
    plan = write_test_plan(tmp_path / "x.plan", [places], pp=1, ranks=2)
    options = {"steps": 1, "injected": (Injected(0, 1, 1.5),)}
    run = train(plan, output=tmp_path / "x.run", paced=True, **options)
    assert losses(run) == losses(train(plan, **options))
    kept = open_run(tmp_path / "x.run")
    assert kept.header.paced
    assert "paced by the plan" in run_title(kept)
    assert run_json(kept)["paced"] is True
    timeline, _, predicted = read_step_ops(kept, 0)
    ratio = timeline.busy_s[0].sum(axis=0) / predicted.busy_s[0].sum(axis=0)
    assert ratio == pytest.approx([1, 1.5], rel=0.03)


def test_a_head_of_more_than_one_product_and_a_gpu_are_not_paced(tmp_path, monkeypatch, capsys):
    plan = write_test_plan(tmp_path / "x.plan", [WHOLE], pp=1, ranks=2)
    assert command(["execute", str(plan), "--paced", "--device", "cuda"]) == 2
    assert "a GPU has its own pace" in capsys.readouterr().err
    monkeypatch.setattr("hydraplan.memory.LOSS_CHUNK_ELEMENTS", 64 * 49 - 1)
    assert command(["execute", str(plan), "--paced"]) == 2
    assert "49 rows of batch 0 x 64 ids are more logits" in capsys.readouterr().err
