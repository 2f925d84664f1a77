"""Rates and coefficients in the GPU check: work over time, and what each is held against."""

import json
import time

import pytest
import torch

from tests.benchmarks.gpu_scripts import gpu_script


def _ran(call):
    if call.before is not None:
        call.before()
    call.run()


@pytest.fixture
def rates(monkeypatch):
    found = gpu_script(monkeypatch, "rates")
    monkeypatch.setattr(found, "median_call_s", lambda scale, left, call: (_ran(call), 1e-3)[1])
    return found


@pytest.fixture
def quick(monkeypatch):
    return gpu_script(monkeypatch, "scale").quick_scale("cpu")


@pytest.fixture
def budget(monkeypatch):
    return gpu_script(monkeypatch, "budget")


def test_rates_are_exact_work_over_time_and_stand_beside_the_product(rates, quick, budget):
    sized = quick._replace(product=64, rate_tokens=(10,), linear_rows=(5,))
    rows = {row.what: row for row in rates.rate_rows(sized, budget.Left.of(1_000))}
    product = 2 * 64**3 / 1e-3
    forward = 4 * 55 * 8 * 16 / 1e-3  # pairs of ten rows, heads, head_dim of the tiny model
    linear = 2 * 5 * (64 * 16 * 2 * (8 + 2) + 3 * 64 * 160) / 1e-3
    measured = {what: row.value * 1e12 for what, row in rows.items()}
    assert measured == pytest.approx(
        {
            "bf16 matrix product, 64 wide": product,
            "attention cpu, 10 tokens, forward": forward,
            "attention cpu, 10 tokens, backward": 2.5 * forward,
            "linears, 5 rows, forward": linear,
            "linears, 5 rows, input": linear,
            "linears, 5 rows, weight": linear,
        }
    )
    note = rows["attention cpu, 10 tokens, forward"].note
    assert note == f"{forward / product:.0%} of the product here"


def test_a_known_gpu_is_held_against_its_data_sheet(rates, quick, budget):
    sized = quick._replace(device_name="NVIDIA H200", product=64)
    row = next(rates.rate_rows(sized, budget.Left.of(1_000)))
    assert row.note == "0% of the data sheet's 9.89e+14"


def test_what_there_is_no_time_for_is_named(rates, quick, budget):
    spent = budget.Left(time.monotonic() - 1)
    rows = list(rates.rate_rows(quick._replace(rate_tokens=(10,)), spent))
    assert [(row.what, row.verdict) for row in rows[1:]] == [
        ("attention cpu, 10 tokens, both ways", "left out"), ("linears at more rows", "left out"),
    ]  # fmt: skip


def test_a_profile_has_a_row_for_every_coefficient_that_was_fitted(
    monkeypatch, quick, budget, tmp_path
):
    own_profile = gpu_script(monkeypatch, "own_profile")
    rate = {"flops_per_s": 4e14, "call_s": 2e-5}
    names = ("attention_forward", "memory_bytes_per_s")
    said = {
        "num_measurements": 50,
        "components": [
            {"name": name, "num_points": 9, "median_error": error, "worst_error": 0.2}
            for name, error in zip(names, (0.03, 0.0), strict=True)
        ],
        "fit": {"attention_forward": rate, "memory_bytes_per_s": 3e12, "node_p2p": {}},
    }
    asked = []
    monkeypatch.setattr(
        own_profile, "told", lambda *words: (asked.append(words), json.dumps(said))[1]
    )
    rows = list(own_profile.profile_rows(quick, tmp_path / "p", budget.Left.of(1_000)))
    assert [(row.what, row.value) for row in rows] == [
        ("measurements", 50),
        ("attention_forward: 400 TFLOP/s, call 20 us", 3.0),
        ("memory_bytes_per_s: 3,000.0 GB/s", 0.0),
    ]
    (words,) = asked
    assert words[words.index("--seconds") + 1] == pytest.approx(7.5)


@pytest.mark.parametrize(("name", "cluster"), [("NVIDIA H200", "h200-sxm"), ("other", "h100-sxm")])
def test_a_gpu_is_profiled_with_the_links_of_its_cluster(
    monkeypatch, quick, budget, tmp_path, name, cluster
):
    own_profile = gpu_script(monkeypatch, "own_profile")
    said = {"num_measurements": 1, "components": [], "fit": {}}
    asked = []
    monkeypatch.setattr(
        own_profile, "told", lambda *words: (asked.append(words), json.dumps(said))[1]
    )
    device = quick.device._replace(torch_device=torch.device("cuda"))
    gpu = quick._replace(device=device, device_name=name)
    (row,) = own_profile.profile_rows(gpu, tmp_path / "p", budget.Left.of(1_000))
    assert row.note == f"links are those of {cluster}, not measured"
    assert asked[0][asked[0].index("--cluster") + 1] == cluster
