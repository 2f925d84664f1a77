import json
import os
import signal
import struct
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run as command
from hydraplan.errors import InputError, RunFailed, StalePlan
from hydraplan.executor import run as executor_run
from hydraplan.executor.groups import World
from hydraplan.executor.launch import TAKEN_SIGNALS
from hydraplan.executor.prepare import Job, prepare
from hydraplan.executor.run import _signals_put_off
from hydraplan.executor.settings import Settings
from hydraplan.executor.worker import agree
from hydraplan.files.lengths import digest, read_lengths
from hydraplan.files.runfile import open_run, read_step_ops, read_timeline
from hydraplan.kernels.attention import choose_kernel
from hydraplan.metrics import planned_live_peaks, shares
from hydraplan.planner.pipeline.schedules import SCHEDULES
from tests.builders import Place
from tests.executor.trained import BATCHES, losses, train
from tests.plans import tiny_model, write_test_plan
from tests.processes import run_ranks

pytestmark = pytest.mark.dist

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def plan(tmp_path):
    return write_test_plan(tmp_path / "x.plan", BATCHES, pp=2, ranks=2)


def test_steps_walk_through_the_batches_begin_again_and_learn(plan, tmp_path):
    run = train(plan, steps=5, output=tmp_path / "x.run")
    assert [row["batch"] for row in run.steps] == [0, 1, 0, 1, 0]
    assert [row["tokens"] for row in run.steps[:2]] == [46, 21]
    assert [row["valid_tokens"] for row in run.steps[:2]] == [43, 19]
    assert losses(run)[4] < losses(run)[2] < losses(run)[0]
    kept = open_run(tmp_path / "x.run")
    assert kept.steps == run.steps
    assert kept.peaks.measured.shape == (5, 2, 2)
    assert kept.peaks.measured[:2].max(axis=2).tolist() == [[26, 17], [11, 11]]
    assert kept.peaks.differ() == []
    assert kept.peaks.measured_bytes is None
    predicted = kept.peaks.predicted_bytes
    assert (predicted[:, :, 0] == predicted[:, :, 1]).all()  # of the fullest lane
    assert (predicted > 0).all()
    assert (kept.header.mode, kept.header.device, kept.header.dtype) == (
        "measured",
        "cpu",
        "float32",
    )
    assert (kept.traffic.predicted[0].sum(axis=(1, 2)) > 0).all()
    assert np.array_equal(kept.traffic.measured, kept.traffic.predicted)
    timeline, waits, predicted = read_step_ops(kept, 1)
    assert predicted.schedule == timeline.schedule
    assert [len(ops) for ops in timeline.schedule] == [2, 2]
    assert timeline.start_s[0].shape == (2, 2)
    for stage in range(2):
        spent = timeline.end_s[stage] - timeline.start_s[stage]
        assert (spent > 0).all()
        assert (timeline.busy_s[stage] <= spent).all()
        assert (waits.group_s[stage] <= spent - timeline.busy_s[stage] + 1e-9).all()
        assert (waits.group_s[stage] >= 0).all()
        assert (predicted.busy_s[stage] > 0).all()
    assert (waits.transfer_s[0][0] == 0).all()  # the first forward of the first stage gets nothing
    assert all((stage >= 0).all() for stage in waits.transfer_s)
    forward_end, backward_start = timeline.end_s[0][0], timeline.start_s[0][1]
    assert (timeline.start_s[1][0] >= forward_end).all()
    assert (backward_start >= timeline.end_s[1][1]).all()
    assert shares(timeline)["iteration_s"] == pytest.approx(kept.steps[1]["iteration_s"], rel=1e-6)


def test_the_same_plan_and_seed_give_the_same_losses_and_another_seed_others(plan):
    first, second, other = (losses(train(plan, steps=3, seed=s)) for s in (0, 0, 1))
    assert first == second
    assert first != other


def test_a_run_of_zb_v_learns_as_1f1b_does_and_its_record_holds_b_and_w_of_both_chunks(tmp_path):
    options = {"pp": 2, "ranks": 2, "model": tiny_model(num_layers=4)}
    zb_v = partial(SCHEDULES["zb-v"].make, num_chunks=2)
    path = write_test_plan(
        tmp_path / "v.plan", BATCHES, make=zb_v, num_chunks=2, route="v", **options
    )
    run = train(path, steps=2, output=tmp_path / "v.run")
    plain = train(write_test_plan(tmp_path / "x.plan", BATCHES, **options), steps=2)
    assert losses(run) == pytest.approx(losses(plain), rel=1e-6)
    assert run.peaks.differ() == []
    for each in (run, plain):
        assert np.array_equal(each.traffic.measured, each.traffic.predicted)
    assert run.peaks.measured[1].tolist() == [[10, 11]] * 2  # both chunks of the only microbatch
    assert plain.peaks.measured[1].tolist() == [[10, 11]] * 2
    timeline = read_timeline(run, 1)
    assert timeline.schedule == zb_v(2, 1)
    assert {(op.kind, op.chunk) for op in timeline.schedule[0]} == set(product("FBW", (0, 1)))
    for stage, ops in enumerate(timeline.schedule):
        for position, op in enumerate(ops):
            if op.kind == "W":
                before = ops.index(op._replace(kind="B"))
                assert (timeline.start_s[stage][position] >= timeline.end_s[stage][before]).all()
                assert (timeline.end_s[stage][position] > timeline.start_s[stage][position]).all()


@pytest.mark.parametrize("name", ["loss", "gradient norm"])
def test_a_loss_or_norm_that_is_no_number_ends_the_run_and_keeps_the_steps_before(
    name, plan, tmp_path, monkeypatch
):
    if name == "loss":
        monkeypatch.setattr(executor_run, "clip_gradients", lambda weights, groups, limit: 1.0)
    output, last = tmp_path / "x.run", {"loss": 2, "gradient norm": 1}[name]
    said = rf"rank 0 .*the {name} of step {last} \(batch {last % 2}\) is nan"
    with pytest.raises(RunFailed, match=said) as e:
        train(plan, steps=3, learning_rate=1e30, output=output)
    assert "--learning-rate" in e.value.hint
    assert [row["step"] for row in open_run(output).steps] == list(range(last))


@pytest.mark.parametrize(
    "recompute", ["full", *(pytest.param(m, marks=pytest.mark.slow) for m in ("none", "selective"))]
)
def test_weights_are_float32_under_bfloat16_and_small_updates_are_kept(recompute, plan):
    """A learning rate that weights in bfloat16 would mostly round away."""
    run = train(plan, steps=6, learning_rate=2e-4, dtype="bfloat16", recompute=recompute)
    assert (run.header.dtype, run.header.recompute) == ("bfloat16", recompute)
    assert losses(run)[4] < losses(run)[2] < losses(run)[0]
    assert run.peaks.differ() == []
    assert run.traffic.measured.tolist() == run.traffic.predicted.tolist()


@pytest.mark.parametrize("number", TAKEN_SIGNALS)
def test_signals_wait_until_files_are_whole_unless_nobody_heeds_them(number):
    came = []
    before = {n: signal.signal(n, lambda n, _: came.append(n)) for n in TAKEN_SIGNALS}
    ignored = signal.SIGHUP if number is not signal.SIGHUP else signal.SIGQUIT
    signal.signal(ignored, signal.SIG_IGN)
    try:
        with _signals_put_off():
            os.kill(os.getpid(), ignored)
            os.kill(os.getpid(), number)
            assert came == []
        assert came == [number]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("option", ["--learning-rate", "--clip-grad", "--timeout"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_options_that_are_no_finite_number_are_exit_2(plan, capsys, option, value):
    assert command(["execute", str(plan), option, value]) == 2
    assert option.strip("-").split("-")[-1] in capsys.readouterr().err


def test_a_run_of_any_number_of_steps_reads_each_batch_once_and_starts(plan, monkeypatch):
    found = []

    def start(entry, pp, ranks, timeout_s, device):
        found.extend(cell.cell_contents for cell in entry.__closure__)
        return False

    monkeypatch.setattr(executor_run, "run_workers", start)
    assert train(plan, steps=10**18) is None
    (job,) = (value for value in found if isinstance(value, Job))
    assert [batch.batch for batch in job.batches] == [0, 1]


@pytest.mark.parametrize("left", ["WORLD_SIZE", "RANK"])
def test_half_of_torchruns_environment_does_not_make_local_workers_wait_for_rank_0(
    plan, monkeypatch, left
):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(left, "3")
    job = prepare(plan, [1], Settings())
    assert not job.is_shared
    assert [batch.batch for batch in job.batches] == [1]
    assert len(job.digest) == 64


def test_an_output_that_exists_is_refused_before_anything_runs(plan, tmp_path):
    (tmp_path / "x.run").mkdir()
    with pytest.raises(InputError, match="exists"):
        train(plan, output=tmp_path / "x.run")


@pytest.fixture
def dataset(tmp_path):
    """Two sequences of ids 0..63, the second with 64 at its end if asked; and a plan of them."""

    def make(last):
        ids = np.array([*range(20), *range(63, 44, -1), last], "<u2")
        ids.tofile(tmp_path / "d.bin")
        header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3)
        numbers = struct.pack("<2i", 20, 20) + struct.pack("<5q", 0, 40, 0, 1, 2)
        (tmp_path / "d.idx").write_bytes(header + numbers)
        plan = write_test_plan(
            tmp_path / "d.plan",
            [[Place(20, 0, 2, 1), Place(20, 0, 1, 2)]],
            pp=1,
            ranks=2,
            lengths_digest=digest(np.array([20, 20])),
        )
        return plan, tmp_path / "d.idx"

    return make


def test_ids_of_a_dataset_are_trained_on(dataset):
    plan, data = dataset(63)
    run = train(plan, data=data)
    assert run.header.data == "d.idx"
    assert losses(run) != losses(train(plan))


def test_an_id_beyond_the_vocabulary_is_exit_2_and_nothing_is_written(dataset, tmp_path, capsys):
    plan, data = dataset(64)
    output = tmp_path / "bad.run"
    assert command(["execute", str(plan), "--data", str(data), "-o", str(output)]) == 2
    said = capsys.readouterr().err
    assert "sequence 1 holds id 64 at position 19" in said
    assert not output.exists()


def test_data_of_other_lengths_is_exit_2_naming_both_digests(plan, capsys):
    assert command(["execute", str(plan), "--data", str(DATA / "megatron_tiny.idx")]) == 2
    said = capsys.readouterr().err
    assert "0000000000000000" in said
    assert digest(read_lengths(DATA / "megatron_tiny.idx").length_tokens)[:16] in said


def test_verify_prints_its_errors_and_says_yes(plan, capfd):
    assert command(["verify", str(plan), "--batch", "1", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert next(iter(said)) == "schema_version"
    assert said["max_gradient_error"] <= 1e-10
    assert said["within"] is True
    assert (said["dtype"], said["num_sequences"]) == ("float64", 2)
    assert said["degrees"] == {"1": 1, "2": 1}
    held = {"peak_live_tokens": 11.0, "predicted_peak_live_tokens": 11.0}
    assert said["stages"] == [{"stage": stage, **held} for stage in range(2)]
    assert said["holds_as_predicted"] is True


def test_verify_and_execute_make_again_what_they_are_told_to(plan, tmp_path, capfd):
    asked = ["--recompute", "full", "--json"]
    assert command(["verify", str(plan), "--batch", "1", *asked]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["recompute"] == "full"
    assert 0 < said["peak_live_tokens"] == said["predicted_peak_live_tokens"] < 1
    run = ["--steps", "1", "--dtype", "bfloat16", "-o", str(tmp_path / "x.run")]
    assert command(["execute", str(plan), *run, *asked]) == 0
    header = open_run(tmp_path / "x.run").header
    assert (header.dtype, header.recompute, header.clip_grad) == ("bfloat16", "full", 1.0)


def test_the_attention_kernel_is_the_one_asked_for_and_stays_that_of_the_run(
    plan, tmp_path, capfd, monkeypatch
):
    def noting(device, dtype, name="auto"):
        (tmp_path / f"used-{name}").touch()
        return choose_kernel(device, dtype, name)

    monkeypatch.setattr("hydraplan.executor.worker.choose_kernel", noting)
    assert command(["verify", str(plan), "--batch", "1", "--attention", "reference", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["within"] is True
    run = ["execute", str(plan), "--json", "--steps"]
    asked = ["--checkpoint-every", "1", "--attention", "reference", "-o", str(tmp_path / "x.run")]
    assert command([*run, "1", *asked]) == 0
    assert command([*run, "2", "--resume", str(tmp_path / "x.run")]) == 0
    assert open_run(tmp_path / "x.run").header.attention == "reference"
    assert [path.name for path in tmp_path.glob("used-*")] == ["used-reference"]
    capfd.readouterr()
    again = [*run, "3", "--attention", "cpu", "--resume", str(tmp_path / "x.run")]
    assert command(again) == 2
    assert "attention cpu is not that of run" in capfd.readouterr().err


def test_an_attention_kernel_that_no_worker_can_use_ends_the_run_with_its_reason(plan, capfd):
    assert command(["execute", str(plan), "--steps", "1", "--attention", "flash4"]) == 3
    err = capfd.readouterr().err
    assert "attention kernel flash4 cannot be used for torch.float32 on cpu: torch finds no" in err


@pytest.mark.parametrize(("told", "does"), [(None, "selective"), ("none", "none")])
def test_a_run_makes_again_what_its_plan_was_made_for_unless_told_otherwise(told, does, tmp_path):
    path = write_test_plan(tmp_path / "x.plan", BATCHES, pp=2, ranks=2, recompute="selective")
    job = prepare(path, [0], Settings(recompute=told))
    assert job.recompute == job.cost.recompute == does


def test_verify_says_no_where_a_worker_holds_something_else_than_predicted(
    plan, monkeypatch, capfd
):
    def more(cost, batch):
        return planned_live_peaks(cost, batch) + np.array([[0], [2]])

    monkeypatch.setattr("hydraplan.executor.verify.planned_live_peaks", more)
    assert command(["verify", str(plan), "--batch", "1"]) == 1
    out, err = capfd.readouterr()
    assert [line.split() for line in out.splitlines()[-3:-1]] == [
        ["0", "11", "11"],
        ["1", "13", "11"],
    ]
    assert "both errors are within the limit of float64\n" in out
    assert "stage 1, lane 0 held activations of 10 tokens at once, 12 were predicted (and 1" in err


@pytest.mark.parametrize("name", ["seed", "steps", "plan"])
def test_workers_that_were_asked_for_different_runs_refuse_and_say_what_differs(name):
    def entry(rank: int) -> str:
        asked = {"plan": "ab", "seed": 0, "steps": 3}
        if rank == 2:
            asked[name] = "other"
        try:
            agree(World(rank, 2, 2), asked)
        except StalePlan as error:
            return str(error)
        return "agreed"

    for said in run_ranks(entry, 4):
        assert f"another {name} than rank 0" in said
        assert "stage 1" in said


@pytest.mark.parametrize(
    "option",
    [
        ["--data", "x.idx"],
        ["--learning-rate", "0.1"],
        ["--clip-grad", "1"],
        ["--dtype", "float32"],
        ["--recompute", "full"],
        ["--attention", "cpu"],
        ["--timeout", "9"],
        ["--transport", "ordered"],
        ["--debug-messages"],
        ["--ring-hops", "single"],
        ["--inject", "0.0=2"],
        ["--paced"],
    ],
)
def test_options_of_real_runs_are_refused_in_a_simulated_one(plan, option, capsys):
    assert command(["execute", str(plan), "--simulate", *option]) == 2
    assert f"{option[0]} has no use with --simulate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--keep-checkpoints", "3"], "--keep-checkpoints 3 has no use, there are no checkpoints"),
        (["--force"], "--force has no use without -o, nothing is replaced"),
        (["--checkpoint-every", "2"], "--checkpoint-every 2 has no use without -o"),
    ],
)
def test_options_that_would_do_nothing_are_refused(plan, option, said, capsys):
    assert command(["execute", str(plan), *option]) == 2
    assert said in capsys.readouterr().err
