import numpy as np
import pytest

from hydraplan.cli.app import run as command
from hydraplan.errors import InputError
from hydraplan.executor.inject import (
    Injected,
    check_injected,
    parse_injected,
    refuse_too_late,
    slow_factor,
)
from hydraplan.executor.settings import Settings
from hydraplan.files.runfile import open_run, read_step_ops
from hydraplan.views.run_text import run_title
from tests.executor.trained import BATCHES, losses, train
from tests.plans import write_test_plan


def test_a_rank_is_slow_in_the_steps_that_are_named_and_in_no_other():
    some = [parse_injected(text) for text in ("0.1=1.5@5-14", "0.1=2@15-15", "1.0=3")]
    assert some == [Injected(0, 1, 1.5, 5, 14), Injected(0, 1, 2.0, 15, 15), Injected(1, 0, 3.0)]
    found = [slow_factor(some, 0, 1, step) for step in (0, 4, 5, 14, 15, 16)]
    assert found == [1, 1, 1.5, 1.5, 2, 1]
    assert [slow_factor(some, 1, 0, step) for step in (0, 999)] == [3, 3]
    assert slow_factor(some, 1, 1, 5) == 1
    assert list(map(str, some)) == ["0.1=1.5@5-14", "0.1=2@15-15", "1.0=3"]
    check_injected(some, 2, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0=2", "does not say which rank"),
        ("0.1", "does not say which rank"),
        ("0.-1=2", "does not say which rank"),
        ("0.1=2@3", "does not say which rank"),
        ("0.1=1_5", "does not say which rank"),
        ("0.1=" + "9" * 5000, "does not say which rank"),
        ("0.1=\u0662", "does not say which rank"),
        ("0.\u0663=2", "does not say which rank"),
        ("0.1=fast", "factor 'fast' is no number"),
        ("0.1=0.5", "factor 0.5 is not from 1 to 100"),
        ("0.1=nan", "factor nan is not from 1 to 100"),
        ("0.1=1e9", "factor 1e9 is not from 1 to 100"),
        ("0.1=2@7-6", "step 7 comes after step 6"),
    ],
)
def test_what_cannot_be_injected_is_refused_with_what_is_wrong(text, said, tmp_path, capsys):
    with pytest.raises(InputError) as e:
        parse_injected(text)
    assert said in str(e.value)
    plan = write_test_plan(tmp_path / "x.plan", BATCHES, pp=1, ranks=2)
    assert command(["execute", str(plan), "--inject", text]) == 2
    assert "--inject" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["2.0=2"], r"--inject 2.0=2: the plan has stages 0..1 and lanes 0..1"),
        (["0.2=2@1-2"], r"--inject 0.2=2@1-2: the plan has stages"),
        (["0.1=2", "0.1=3@4-5"], r"0.1=2 and 0.1=3@4-5 both hold in step 4"),
        (["0.1=2@1-4", "0.1=3@4-5"], r"both hold in step 4"),
    ],
)
def test_ranks_that_are_not_there_and_two_factors_at_once_are_refused(texts, said):
    with pytest.raises(InputError, match=said):
        check_injected([parse_injected(text) for text in texts], 2, 2)


def test_what_begins_after_the_last_step_is_refused_and_what_begins_in_it_is_not():
    refuse_too_late([parse_injected("0.1=2"), parse_injected("0.1=2@3-9")], steps=4)
    with pytest.raises(InputError, match=r"0\.1=2@4-9: the last step of the run is 3"):
        refuse_too_late([parse_injected("0.1=2@4-9")], steps=4)


@pytest.mark.dist
def test_a_run_that_goes_on_is_slowed_and_paced_as_before_unless_asked_otherwise(tmp_path):
    plan = write_test_plan(tmp_path / "x.plan", [[*BATCHES[0]]], pp=1, ranks=2)
    kept = tmp_path / "x.run"
    slow = (Injected(0, 1, 2.0, 0, 3),)
    train(plan, steps=1, output=kept, checkpoint_every=1, injected=slow, paced=True)
    more = train(plan, steps=2, resume=kept)
    assert (more.header.injected, more.header.paced) == (("0.1=2@0-3",), True)
    timeline, *_ = read_step_ops(more, 1)
    assert timeline.busy_s[0][:, 1].sum() > timeline.busy_s[0][:, 0].sum()
    last = train(plan, steps=3, resume=kept, injected=(Injected(0, 1, 1.0),))
    assert (last.header.injected, last.header.paced) == (("0.1=1",), True)
    with pytest.raises(InputError, match="the last step of the run is 3"):
        train(plan, steps=4, resume=kept, injected=(Injected(0, 1, 2.0, 4, 5),))


@pytest.mark.dist
def test_a_slow_rank_is_busy_longer_where_it_is_slow_and_computes_the_same(tmp_path):
    plan = write_test_plan(tmp_path / "x.plan", [[*BATCHES[0]]], pp=2, ranks=2)
    slow = (Injected(1, 0, 9.0, 1, 1),)
    run = train(plan, steps=3, output=tmp_path / "x.run", injected=slow)
    assert losses(run) == losses(train(plan, steps=3))
    kept = open_run(tmp_path / "x.run")
    assert kept.header.injected == ("1.0=9@1-1",)
    assert "slowed on purpose: 1.0=9@1-1" in run_title(kept)
    busy = [read_step_ops(kept, step)[0].busy_s for step in range(3)]
    others = [np.concatenate([b[0].ravel(), b[1][:, 1]]).sum() for b in busy]
    mine = [b[1][:, 0].sum() for b in busy]
    assert mine[1] / others[1] > 2 * max(mine[0] / others[0], mine[2] / others[2])
    assert Settings().injected == ()
