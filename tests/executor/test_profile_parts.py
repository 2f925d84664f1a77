"""What the executor brings to a profile: its points are charged what they compute."""

import weakref
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from hydraplan.config import load_cluster, load_model  # noqa: E402
from hydraplan.executor import decoder, profile_parts  # noqa: E402
from hydraplan.executor import end_points as end_module  # noqa: E402
from hydraplan.executor.end_points import end_points  # noqa: E402
from hydraplan.executor.layer_points import layer_points  # noqa: E402
from hydraplan.executor.profile_parts import bundled_lengths, check  # noqa: E402
from hydraplan.executor.whole import (  # noqa: E402
    Microbatch,
    check_whole,
    microbatches,
    packed,
    predicted_s,
)
from hydraplan.files.profilefile import WholeCheck  # noqa: E402
from hydraplan.kernels.attention import choose_kernel  # noqa: E402
from hydraplan.profiler.analytic import analytic_fit  # noqa: E402
from hydraplan.profiler.measure import Point, Timed, cpu_device  # noqa: E402

CPU = torch.device("cpu")
TINY = load_model("tiny")
KERNEL = choose_kernel(CPU, torch.float32)
FIT = analytic_fit(load_cluster("h100-sxm"))


def counted_flops(point: Point) -> dict[tuple[str, str], tuple[float, float]]:
    """Flops that each call computes, and those it is charged."""
    found = {}
    for call in point.prepare():
        if call.before is not None:
            call.before()
        with FlopCounterMode(display=False) as counter:
            call.run()
        key = call.row.component, call.row.direction
        found[key] = float(counter.get_total_flops()), call.row.flops
    return found


def test_each_pass_of_a_layer_without_attention_computes_the_flops_it_is_charged() -> None:
    found = counted_flops(layer_points(TINY, CPU, (16,))[0])
    charged = 2.0 * 16 * TINY.layer_parameters
    assert found == {
        ("linear", direction): (charged, charged) for direction in ("forward", "input", "weight")
    }


def test_no_pass_of_the_loss_is_charged_for_freeing_the_logits_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def loss_sum(*args: Any) -> torch.Tensor:
        assert [ref() for ref in made if ref() is not None] == []
        found = decoder.loss_sum(*args)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(end_module, "loss_sum", loss_sum)
    point = next(point for point in end_points(TINY, CPU) if point.component == "loss")
    for call in point.prepare():
        for _ in range(2):
            assert call.before is not None
            call.before()
            call.run()
    assert len(made) == 6


def test_each_pass_of_the_loss_computes_the_head_once() -> None:
    points = [point for point in end_points(TINY, CPU) if point.component == "loss"]
    charged = 2.0 * 64 * TINY.hidden_size * TINY.vocab_size
    assert counted_flops(points[0]) == {
        ("loss", direction): (charged, charged) for direction in ("forward", "input", "weight")
    }


def test_where_no_logits_are_kept_b_makes_them_again_and_w_has_nothing_to_do() -> None:
    wide = TINY.model_copy(update={"vocab_size": 2**17})
    points = [point for point in end_points(wide, CPU) if point.component == "loss"]
    found = counted_flops(points[0])
    charged = 2.0 * 64 * wide.hidden_size * wide.vocab_size
    assert found["loss", "input"][0] == 3 * charged
    assert found["loss", "weight"][0] == 0


def test_no_point_of_the_loss_is_beyond_the_rows_whose_logits_are_kept() -> None:
    rows = [p.work for p in end_points(TINY, CPU) if p.component == "loss"]
    assert max(rows) == 2.0 * 8192 * TINY.hidden_size * TINY.vocab_size


def test_every_end_is_there_and_can_be_timed_again() -> None:
    found = {}
    for point in end_points(TINY, CPU)[::4]:
        for call in point.prepare():
            for _ in range(2):
                if call.before is not None:
                    call.before()
                call.run()
            found[call.row.component, call.row.direction] = call.row.bytes
    assert found.keys() == {
        ("embedding", "forward"),
        ("embedding", "weight"),
        ("loss", "forward"),
        ("loss", "input"),
        ("loss", "weight"),
        ("optimizer", "step"),
    }
    assert found["embedding", "forward"] % (4 * TINY.hidden_size) == 0


def test_lengths_are_drawn_until_they_fill_the_rows() -> None:
    found = packed(np.array([5, 7]), 40, np.random.default_rng(0))
    assert found.sum() == 40
    assert set(found[:-1].tolist()) <= {5, 7}
    assert 1 <= found[-1] <= 7


def test_the_bundled_lengths_are_of_two_kinds() -> None:
    names = [name for name, lengths in bundled_lengths() if lengths.min() > 0]
    assert names == ["lengths_cpython_stdlib.parquet", "synthetic:wikipedia(rows=2000,seed=0)"]


def test_microbatches_grow_with_the_budget_and_there_are_none_without() -> None:
    files = bundled_lengths()
    assert microbatches(TINY, FIT, files, 0.0) == []
    few = microbatches(TINY, FIT, files, 0.05)
    many = microbatches(TINY, FIT, files, 60.0)
    for found in (few, many):
        rows = [int(m.length_tokens.sum()) for m in found]
        assert rows == [rows[0], rows[0] // 2, rows[0] // 4] * 2
    assert few[0].length_tokens.sum() < many[0].length_tokens.sum() == 1 << 16


def test_a_check_holds_what_was_measured_beside_what_is_predicted() -> None:
    device = cpu_device()._replace(timer=lambda run: (run(), Timed(0.5))[1])
    microbatch = Microbatch("mine", np.array([40, 24]))
    (found,) = check_whole(TINY, KERNEL, device, FIT, [microbatch])
    assert found.measured_s == (0.5, 0.5, 0.5)
    assert found.predicted_s == tuple(predicted_s(FIT, TINY, microbatch).tolist())
    assert (found.num_tokens, found.longest_tokens, found.num_layers) == (64, 40, 4)
    assert found.error == sum(found.predicted_s) / 1.5 - 1


def test_a_check_that_took_no_time_is_none() -> None:
    sizes = {"num_sequences": 1, "num_tokens": 8, "longest_tokens": 8, "num_layers": 1}
    with pytest.raises(ValidationError, match="measured_s of mine add up to 0"):
        WholeCheck(lengths="mine", **sizes, predicted_s=(1.0, 1.0, 1.0), measured_s=(0.0, 0.0, 0.0))


def test_without_time_nothing_is_built_and_nothing_checked() -> None:
    huge = TINY.model_copy(update={"hidden_size": 1 << 30})
    assert check(huge, KERNEL, cpu_device(), FIT, 1e-9) == []


def test_a_fit_far_too_fast_ends_the_check_with_what_is_done(monkeypatch) -> None:
    three = [Microbatch(name, np.array([9, 7])) for name in "abc"]
    monkeypatch.setattr(profile_parts, "microbatches", lambda *asked: three)
    assert len(check(TINY, KERNEL, cpu_device(), FIT, 60.0)) == 3
    assert len(check(TINY, KERNEL, cpu_device(), FIT, 1e-9)) == 1
