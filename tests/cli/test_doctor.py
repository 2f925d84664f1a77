"""`hydraplan doctor`: it tries things, says why they fail, and knows what planning needs."""

import importlib
import json

import pytest
import torch

from hydraplan.cli.app import run
from hydraplan.kernels import glue


@pytest.fixture
def without(monkeypatch):
    real = importlib.import_module

    def hide(*names):
        def imported(name, package=None):
            if name in names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return real(name, package)

        monkeypatch.setattr(importlib, "import_module", imported)

    return hide


def findings(capsys):
    found = json.loads(capsys.readouterr().out)
    return found["can_plan"], {f["part"]: f for f in found["findings"]}


def test_this_machine_can_plan_and_open_gloo(capsys):
    assert run(["doctor", "--json"]) == 0
    can_plan, found = findings(capsys)
    assert can_plan
    for part in ("python", "numpy", "pyarrow", "numba", "torch", "gloo", "numba cache"):
        assert found[part]["state"] == "ok", found[part]
    assert any(part.startswith("kernel ") for part in found)
    assert {"cores", "memory", "open files", "CUDA"} < set(found)


def test_what_merges_and_moves_heads_is_said_with_its_reason(capsys, monkeypatch):
    monkeypatch.setattr(glue, "glue_report", lambda: ("triton", False, "gathered heads are wrong"))
    assert run(["doctor", "--json"]) == 0
    _, found = findings(capsys)
    assert found["kernel triton"]["state"] == "absent"
    assert found["kernel triton"]["detail"] == "gathered heads are wrong"


def test_what_needs_cp_sat_is_named(capsys):
    assert run(["doctor", "--json"]) == 0
    _, found = findings(capsys)
    assert found["ortools"]["needed_for"] == "strategy and schedule exact (CP-SAT)"


def test_what_counts_texts_is_said_or_how_to_install_it(capsys, without):
    assert run(["doctor", "--json"]) == 0
    assert findings(capsys)[1]["tokenizers"]["state"] == "ok"
    without("tokenizers")
    assert run(["doctor", "--json"]) == 0
    can_plan, found = findings(capsys)
    assert can_plan
    assert found["tokenizers"]["state"] == "absent"
    assert found["tokenizers"]["detail"].endswith("pip install 'hydraplan[tokenizers]'")


def test_without_torch_planning_still_works(capsys, without):
    without("torch")
    assert run(["doctor", "--json"]) == 0
    can_plan, found = findings(capsys)
    assert can_plan
    assert found["torch"]["state"] == "absent"
    assert "gloo" not in found


def test_without_numba_the_answer_is_exit_3_and_names_it(capsys, without):
    without("numba")
    assert run(["doctor"]) == 3
    out, err = capsys.readouterr()
    assert "No module named 'numba'" in out
    assert err.startswith("error: planning does not work here: numba\n\nhint: pip install")


def test_a_cache_that_cannot_be_written_is_told(capsys, monkeypatch):
    def refuse(_function):
        raise RuntimeError("cannot cache function '_probe': no locator available")

    monkeypatch.setattr("hydraplan.planner.compiled.compiled", refuse)
    assert run(["doctor", "--json"]) == 3
    can_plan, found = findings(capsys)
    assert not can_plan
    assert "no locator available" in found["numba cache"]["detail"]


def test_the_kernel_that_auto_takes_is_named_and_why_not_each_other(capsys, monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    choices = [(cpu, torch.float32, "cpu"), (cuda, torch.bfloat16, "cuda")]
    report = [
        *(("cpu", True, ""), ("cuda", True, ""), ("flash2", True, "")),
        *(("flash4", False, "flash-attn-4 is not installed (extra fa4)"), ("reference", True, "")),
    ]
    monkeypatch.setattr("hydraplan.kernels.attention.auto_choices", lambda: choices)
    monkeypatch.setattr("hydraplan.kernels.attention.kernel_report", lambda: report)
    assert run(["doctor", "--json"]) == 0
    _, found = findings(capsys)
    assert found["attention on cpu"]["detail"] == "auto takes kernel cpu for float32"
    assert found["attention on cuda"]["detail"] == "auto takes kernel cuda for bfloat16"
    seen = {name: (found[f"kernel {name}"]["state"], found[f"kernel {name}"]["detail"])
            for name, _, _ in report}  # fmt: skip
    assert seen == {
        "cpu": ("ok", "tried"),
        "cuda": ("ok", "tried"),
        "flash2": ("ok", "tried; auto takes torch's own; by name: --attention flash2"),
        "flash4": ("absent", "flash-attn-4 is not installed (extra fa4)"),
        "reference": ("ok", "tried; slow, so auto takes it only where no other serves"),
    }


def test_a_device_left_to_the_reference_kernel_is_limited(capsys, monkeypatch):
    choices = [(torch.device("cpu"), torch.float32, "reference")]
    monkeypatch.setattr("hydraplan.kernels.attention.auto_choices", lambda: choices)
    assert run(["doctor", "--json"]) == 0
    _, found = findings(capsys)
    assert found["attention on cpu"]["state"] == "limited"


def test_this_machine_names_its_kernel_in_text(capsys):
    assert run(["doctor"]) == 0
    assert "auto takes kernel cpu" in " ".join(capsys.readouterr().out.split())
