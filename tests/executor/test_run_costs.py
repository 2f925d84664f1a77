"""What `execute` says of a run's costs: real workers, what ranks take is made up."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hydraplan.cli.app import run as command
from hydraplan.executor.predicted import predict
from hydraplan.files.profilefile import read_profile
from tests.builders import Place
from tests.executor import trained
from tests.plans import tiny_model, write_test_plan
from tests.profiler.made_run import attention, off

pytestmark = pytest.mark.dist

LENGTHS = np.random.default_rng(4).integers(40, 400, (2, 6, 3))
BATCHES = [
    [Place(int(n), lane, 1, 1, m) for lane in (0, 1) for m in range(6) for n in LENGTHS[lane, m]]
]


@pytest.fixture
def plan(tmp_path):
    model = tiny_model().model_copy(update={"hidden_size": 16, "ffn_hidden_size": 16})
    return write_test_plan(tmp_path / "x.plan", BATCHES, pp=1, ranks=2, model=model)


@pytest.fixture
def taken(monkeypatch):
    """Have ranks take what the plan's costs say with attention so many times as long, +-1%."""

    def by(factor):
        def other(cost, batch, moves):
            return predict(replace(cost, fit=off(cost.fit, attention(factor))), batch, moves)

        monkeypatch.setattr(trained, "predict", other)
        trained.make_up_times(monkeypatch, (0, 0), ())

    return by


def executed(capfd, *arguments):
    assert command(["execute", *map(str, arguments), "--steps", "3"]) == 0
    out, err = capfd.readouterr()
    return out, [line for line in err.splitlines() if line.startswith("warning")]


def test_costs_that_hold_stand_in_the_table_and_nobody_is_warned(plan, taken, capfd):
    taken(1.0)
    out, warned = executed(capfd, plan)
    assert warned == []
    last = out[out.index("Own time of ops beside the plan's costs, 2 steps after the first") :]
    rows = {line.split()[0]: line.split() for line in last.splitlines()}
    assert rows["F"][1] == rows["BW"][1] == "12"
    assert float(rows["all"][3]) == pytest.approx(1.0, abs=0.02)
    assert last.splitlines()[-1].startswith("times as long as its costs say: all 1.0")


def test_a_run_that_left_its_costs_is_told_and_refit_mends_them(plan, taken, tmp_path, capfd):
    taken(2.0)
    out, warned = executed(capfd, plan, "-o", tmp_path / "x.run", "--json")
    costs, left = (json.loads(out)[name] for name in ("costs", "costs_left_profile"))
    assert (costs["multipliers"], costs["steps"]) == ("part", 2)
    told = {part["name"]: part["times"] for part in costs["parts"]}
    assert told == pytest.approx({"attention": 2.0, "linear": 1.0}, rel=0.05)
    assert left["limit"] == 0.15
    (line,) = warned
    assert f"beside all other work {left['part']} takes {left['times']:.2f} times" in line
    assert f"hydraplan profile --refit {tmp_path / 'x.run'} -o" in line
    refitted = tmp_path / "new.profile.parquet"
    assert command(["profile", "--refit", str(tmp_path / "x.run"), "-o", str(refitted)]) == 0
    assert read_profile(refitted).header.fit.attention_backward.flops_per_s == pytest.approx(
        1e10 / 2, rel=0.05
    )


def test_a_run_that_is_kept_nowhere_is_told_how_to_keep_one(plan, taken, capfd):
    taken(2.0)
    _, (line,) = executed(capfd, plan)
    assert "hydraplan profile --refit RUN (keep it with -o) -o NEW.profile.parquet" in line


def test_a_simulated_run_says_nothing_of_costs(plan, capfd):
    out, warned = executed(capfd, plan, "--simulate", "--json")
    told = json.loads(out)
    assert (told["costs"], told["costs_left_profile"], warned) == (None, None, [])
