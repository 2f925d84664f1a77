from dataclasses import replace

import numpy as np
import pytest
import torch

from hydraplan.activations import held_shares
from hydraplan.executor.data import generated_tokens, load_slot
from hydraplan.executor.launch import run_workers
from hydraplan.executor.prepare import prepare
from hydraplan.executor.record import collect
from hydraplan.executor.settings import Settings
from hydraplan.executor.step import run_batch
from hydraplan.executor.verify import (
    Verdict,
    gradient_errors,
    planned_gradients,
    reference_gradients,
    verify,
)
from hydraplan.executor.worker import set_up
from hydraplan.files.memoryfile import Peaks
from hydraplan.kernels.packing import rank_layout
from tests.builders import Place
from tests.plans import tiny_model, write_test_plan

pytestmark = pytest.mark.dist

LENGTHS = [37, 5, 3, 1, 0, 64, 9, 40, 1, 17, 2, 30, 21]

MIXED = [
    Place(37, 0, 2, 2),
    Place(5, 0, 1, 4),
    Place(3, 0, 4, 1),
    Place(1, 2, 2, 1),
    Place(0),
    Place(64, 2, 1, 2),
    Place(9, 3),
    Place(40, 0, 4, 1, 1),
    Place(1, 1, 1, 1, 1),
    Place(17, 2, 1, 1, 1),
    Place(2, 0, 1, 1, 2),
    Place(30, 0, 1, 1, 3),
    Place(21, 2, 2, 1, 3),
]
"""4 lanes, 4 microbatches; all shapes of degree 1, 2, 4; in microbatch 2 three lanes are idle."""

OTHER = [Place(n, 2 * (i % 2), 1 + i % 2, 1, i % 2) for i, n in enumerate(LENGTHS)]
"""The same lengths in 2 microbatches, degrees 1 and 2 only, lanes 1 and 3 partly idle."""

TIMEOUT_S = 60.0


def plan_of(tmp_path, places, kv_heads=2, pp=2, num_layers=2):
    model = tiny_model(8, kv_heads, num_layers)
    return write_test_plan(tmp_path / "x.plan", [places], pp=pp, ranks=4, model=model)


def settings(seed=0, dtype="float64", **others):
    return Settings(seed, dtype=dtype, timeout_s=TIMEOUT_S, **others)


def check(path, dtype, recompute=None):
    return verify(path, 0, settings(5, dtype, recompute=recompute))


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_float64_agrees_with_one_process_to_1e_10(tmp_path, kv_heads):
    verdict = check(plan_of(tmp_path, MIXED, kv_heads), "float64")
    assert verdict.loss_error <= 1e-10
    assert verdict.max_gradient_error <= 1e-10
    assert verdict.is_within
    assert verdict.degrees == {1: 5, 2: 3, 4: 4}
    assert verdict.num_sequences == 12
    assert 3.0 < verdict.reference_loss < 7.0


@pytest.mark.parametrize("recompute", ["full", pytest.param("selective", marks=pytest.mark.slow)])
def test_what_is_made_again_agrees_as_well_and_is_held_as_predicted(tmp_path, recompute):
    verdict = check(plan_of(tmp_path, MIXED), "float64", recompute)
    assert verdict.is_within
    assert verdict.holds_as_predicted
    assert verdict.recompute == verdict.as_dict()["recompute"] == recompute
    kept = held_shares(tiny_model(8, 2, 2), recompute).after_forward
    rows = verdict.peaks.measured.max() / kept  # 1f1b: whole slots, by the share F keeps of them
    assert rows == pytest.approx(round(rows), rel=1e-9)
    assert rows > 30


@pytest.mark.parametrize(
    "kv_heads", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 1))]
)
def test_float32_agrees_with_one_float64_process_to_2e_5(tmp_path, kv_heads):
    verdict = check(plan_of(tmp_path, MIXED, kv_heads), "float32")
    assert 1e-12 < verdict.max_gradient_error <= 2e-5
    assert verdict.loss_error <= 2e-5


def test_a_whole_pool_that_is_no_power_of_two_agrees_as_well(tmp_path):
    places = [Place(37, 0, 1, 3), Place(4, 0, 1, 3), Place(1, 0, 1, 3), Place(20, 0, 2, 1),
              Place(9, 2), Place(50, 0, 1, 3, 1), Place(6, 1, 1, 1, 1)]  # fmt: skip
    path = write_test_plan(tmp_path / "x.plan", [places], pp=1, ranks=3, model=tiny_model(8, 2, 2))
    verdict = check(path, "float64")
    assert verdict.max_gradient_error <= 1e-10
    assert verdict.loss_error <= 1e-10


def test_two_plans_of_one_batch_give_the_same_loss_and_gradients(tmp_path):
    found = []
    for name, places in (("a", MIXED), ("b", OTHER)):
        (tmp_path / name).mkdir()
        job = prepare(plan_of(tmp_path / name, places), [0], settings(1))
        found.append(planned_gradients(job))
    (loss, _, gradients), (other_loss, _, others) = found
    assert abs(loss - other_loss) <= 1e-10 * loss
    assert max(gradient_errors(gradients, others).values()) <= 1e-10


def test_groups_beyond_the_most_and_single_hops_change_no_bit(tmp_path):
    job = prepare(plan_of(tmp_path, MIXED), [0], settings(1, dtype="float32"))
    options = job.header.options.model_copy(update={"max_groups": 1})
    capped = job.header.model_copy(update={"options": options})
    loss, _, gradients = planned_gradients(job)
    other_loss, _, others = planned_gradients(
        replace(job, header=capped, settings=settings(1, dtype="float32", ring_hops="single"))
    )
    assert loss == other_loss
    assert gradients.keys() == others.keys()
    assert all(np.array_equal(gradients[name], others[name]) for name in gradients)


def test_microbatches_count_by_their_tokens_not_each_the_same(tmp_path):
    """bug_log B14: 1 valid token in one microbatch, 299 in another."""
    path = plan_of(tmp_path, [Place(300, 0, 2, 2, 0), Place(2, 0, 1, 1, 1)])
    verdict = check(path, "float64")
    assert verdict.is_within
    job = prepare(path, [0], settings(5))
    placed = job.batches[0].sequences.placed()
    alone = [reference_gradients(job, placed.take(np.array([i])))[0] for i in range(2)]
    assert verdict.loss == pytest.approx((299 * alone[0] + alone[1]) / 300, rel=1e-12)
    assert abs(verdict.loss - sum(alone) / 2) > 1e-3


def test_another_sequences_content_does_not_move_a_sequences_loss(tmp_path):
    """bug_log B23: every one of three stages must keep packed sequences apart."""
    places = [Place(12), Place(31), Place(20, 0, 1, 2), Place(28, 0, 1, 2)]
    model = tiny_model(8, 2, 3)
    path = write_test_plan(tmp_path / "x.plan", [places], pp=3, ranks=2, model=model)
    job = prepare(path, [0], settings())
    plain = generated_tokens(0, 64)

    def changed(which):
        return lambda i, length: plain(i, length)[::-1].copy() if i in which else plain(i, length)

    def losses(name, tokens):
        """Loss of 1 and 3 alone; 0 and 2 lie before them in their buckets, unlabelled."""
        target = tmp_path / f"{name}.npy"

        def entry(world):
            worker = set_up(world, job)
            batch = job.batches[0]
            placed = batch.sequences.placed()
            slots = [load_slot(rank_layout(placed, 0, world.lane), placed, tokens)]
            hidden = torch.from_numpy(np.isin(slots[0].layout.sequence, [0, 2]))
            slots[0].labels_T[hidden] = -1
            result = run_batch(worker, job.steps[0][world.stage], slots, 57)
            measured = collect(world, batch.schedule, result)
            if measured is not None:
                np.save(target, np.array(measured.loss))

        run_workers(entry, 3, 2, TIMEOUT_S)
        return float(np.load(target))

    original = losses("original", plain)
    assert losses("others-turned", changed({0, 2})) == original
    assert losses("own-turned", changed({1})) != original


def test_a_wrong_gradient_is_measured_against_its_own_norm():
    reference = {"a": np.array([3.0, 4.0]), "b": np.array([100.0, 0.0])}
    found = {"a": np.array([3.0, 4.5]), "b": np.array([100.0, 0.5])}
    errors = gradient_errors(found, reference)
    assert errors == pytest.approx({"a": 0.1, "b": 0.005})


def test_a_gradient_that_is_zero_but_for_rounding_is_measured_against_the_whole():
    reference = {"a": np.array([3.0, 4.0]), "q": np.array([1e-17, 0.0]), "z": np.zeros(2)}
    found = {"a": np.array([3.0, 4.0]), "q": np.array([3e-17, 0.0]), "z": np.array([0.0, 5e-3])}
    errors = gradient_errors(found, reference)
    assert errors["a"] == 0.0
    assert errors["q"] < 1e-17
    assert errors["z"] == pytest.approx(1e-3)


@pytest.mark.slow
def test_sequences_of_two_tokens_whose_queries_have_no_gradient_pass(tmp_path):
    path = plan_of(tmp_path, [Place(2), Place(2, 0, 2, 2), Place(1, 1)])
    for dtype in ("float64", "float32"):
        assert check(path, dtype).is_within


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["a", "b"])
def test_a_gradient_that_is_not_finite_is_the_worst_of_all(bad: float, where: str) -> None:
    reference = {"a": np.ones(3), "b": np.ones(2)}
    found = {name: g0.copy() for name, g0 in reference.items()}
    found[where][-1] = bad
    errors = gradient_errors(found, reference)
    assert max(errors, key=lambda name: errors[name]) == where
    assert errors[where] == np.inf
    assert gradient_errors(reference, found)[where] == np.inf


def test_a_verdict_on_what_is_not_finite_is_no() -> None:
    verdict = Verdict(
        loss=1.0, reference_loss=1.0, loss_error=0.0, max_gradient_error=np.inf,
        worst_parameter="a", limit=1e-10, dtype="float64", recompute="none", batch=0,
        pipeline="1f1b", num_sequences=1, peaks=Peaks(np.ones((1, 1)), np.ones((1, 1))),
        degrees={1: 1},
    )  # fmt: skip
    assert not verdict.is_within
    assert not replace(verdict, max_gradient_error=0.0, loss_error=np.nan).is_within
    assert replace(verdict, max_gradient_error=0.0).is_within


def test_a_vocabulary_of_one_id_has_loss_and_gradient_zero_and_passes(tmp_path):
    model = tiny_model().model_copy(update={"vocab_size": 1})
    path = write_test_plan(tmp_path / "x.plan", [[Place(9, 0, 2, 1)]], pp=1, ranks=2, model=model)
    verdict = check(path, "float64")
    assert (verdict.loss, verdict.loss_error, verdict.max_gradient_error) == (0.0, 0.0, 0.0)
    assert verdict.is_within


def test_errors_stand_as_they_are_where_the_whole_reference_is_zero():
    found = gradient_errors({"a": np.array([0.0, 0.25])}, {"a": np.zeros(2)})
    assert found == {"a": 0.25}
