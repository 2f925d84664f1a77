"""The replay of one rank: the executor's own layer in a world that answers at once."""

import pytest
import torch
import torch.distributed as dist

from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.packing import rank_layout
from hydraplan.profiler.measure import Timed
from tests.benchmarks.gpu_scripts import gpu_script
from tests.builders import Place, placed_sequences
from tests.plans import tiny_model

CPU = torch.device("cpu")


@pytest.fixture
def replay(monkeypatch):
    return gpu_script(monkeypatch, "replay")


class Timer:
    """Runs what it times; the n-th call takes n seconds."""

    def __init__(self):
        self.calls = 0

    def __call__(self, run):
        run()
        self.calls += 1
        return Timed(float(self.calls))


def layer_of(replay, timer, dtype="float32"):
    model = tiny_model(8, 2, dtype=dtype)
    return replay.make_layer(model, choose_kernel(CPU, getattr(torch, dtype)), CPU, timer)


@pytest.mark.parametrize(
    "places",
    [
        [Place(37)],
        [Place(64, 0, 4, 1), Place(3, 2)],
        [Place(50, 0, 1, 4), Place(9, 2, 2, 1)],
        [Place(131, 0, 2, 2), Place(3, 0, 4, 1), Place(40, 0, 1, 2), Place(5)],
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_op_of_every_lane_runs_and_leaves_numbers(replay, places, dtype):
    placed = placed_sequences(places)
    with replay.answering_lanes(4) as lanes:
        for lane in range(4):
            layout, layer = rank_layout(placed, 0, lane), layer_of(replay, Timer(), dtype)
            if layout.rows:
                found = replay.replay(layer, layout, lanes, samples=1)
                assert len(found.op_s) == len(replay.OPS)
                assert (found.arrived_bytes > 0) == any(b.degree > 1 for b in layout.buckets)
                for name, weight in layer.stage.weights.items():
                    assert weight.grad is not None, name
                    assert weight.grad.isfinite().all(), name
    assert not dist.is_initialized()


def test_times_are_medians_of_the_samples_after_the_first(replay):
    timer, layout = Timer(), rank_layout(placed_sequences([Place(20)]), 0, 0)
    with replay.answering_lanes(1) as lanes:
        found = replay.replay(layer_of(replay, timer), layout, lanes, samples=3)
    # Five calls a sample: F is 1, 6, 11, 16; the first is left out.
    assert found.op_s == (11.0, 12.0, 13.0, 14.0, 15.0)
    assert found.arrived_bytes == 0
    assert timer.calls == 20


def test_what_arrives_in_a_ring_is_keys_twice_and_gradients_once_a_hop(replay):
    placed = placed_sequences([Place(64, 0, 1, 2)])
    with replay.answering_lanes(2) as lanes:
        layer = layer_of(replay, Timer())
        found = replay.replay(layer, rank_layout(placed, 0, 0), lanes, samples=1)
    keys_and_values = 32 * 2 * 2 * 8 * 4  # rows, k and v, heads, head_dim, bytes
    assert found.arrived_bytes == (1 + 1 + 2) * keys_and_values


def test_a_layer_has_neither_embedding_nor_head(replay):
    weights = layer_of(replay, Timer()).stage.weights
    assert {name.split(".")[0] for name in weights} == {"layers"}
    assert all(weight.requires_grad for weight in weights.values())
