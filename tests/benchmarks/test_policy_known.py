"""Benchmarks of the policy by itself: what they draw and how they count; their pages."""

import numpy as np
import pytest

from hydraplan.planner.policy.network import Policy, new_weights
from tests.benchmarks.scripts import BENCHMARKS, script

POLICY = BENCHMARKS / "policy"


@pytest.mark.parametrize("name", ["known", "public_setting", "inference", "cross_check"])
def test_the_page_holds_a_section_for_the_script(name):
    page = (POLICY / "README.md").read_text()
    assert f"python benchmarks/policy/{name}.py" in page
    assert f"<!-- {name} -->" in page
    assert f"<!-- end of {name} -->" in page


def test_a_policy_that_follows_zb_h1_gains_nothing_where_that_is_best(monkeypatch):
    known = script(monkeypatch, POLICY, "known")
    policy = Policy(new_weights(np.random.default_rng(0)))
    (row,) = known.cell([policy], "none", 2)
    assert row["greedy"] == "+0.00 +- 0.00"
    assert not row["corrected"]


def test_further_policies_stand_beside_the_first_by_their_seeds(monkeypatch):
    known = script(monkeypatch, POLICY, "known")
    weights = new_weights(np.random.default_rng(0))
    command = "hydraplan train-policy --seed 7 --steps 20 -o FILE.npz"
    assert known.seed(Policy(weights, {"command": command})) == "7"
    rows = [
        {"regime": name, "policy": j, "greedy": "g", "samples": f"{name}{j}", "corrected": j == 1}
        for name in ("even", "slow")
        for j in range(2)
    ]
    table = known.beside(rows, ["7", "0"], 48)
    assert "in 0 (seed 7), 2 (seed 0) of 2 regimes" in table.title
    assert table.markdown().splitlines()[-1] == "| slow | g | slow0 | no | slow1 (yes) |"


def test_every_regime_draws_a_batch_and_its_noise_has_mean_one(monkeypatch):
    known = script(monkeypatch, POLICY, "known")
    for draw, jitter in known.REGIMES.values():
        case = draw(np.random.default_rng(0))
        runs = known.noise(case, jitter, 8, np.random.default_rng(1))
        ratio = runs.op_s / case.expected().op_s[:, :, 0, 0, :, None]
        assert ratio.mean() == pytest.approx(1, abs=0.02)
        assert ratio.std() == pytest.approx(jitter, abs=0.02)


def test_without_noise_expected_and_drawn_durations_are_the_same(monkeypatch):
    public = script(monkeypatch, POLICY, "public_setting")
    policy = Policy(new_weights(np.random.default_rng(0)))
    rows = [public.row(policy, 0.0, oracle, 2) for oracle in (False, True)]
    assert rows[0] == rows[1] | {"durations": "expected"}
    case = public.batch(0.0, np.random.default_rng(0))
    assert case.lane.op_s[:, 1, 0, 0, 0].tolist() == pytest.approx([11.4, 11.4, 7.7])
