import logging

import pytest
import torch

from hydraplan.errors import InputError, MissingDependency
from hydraplan.kernels import attention
from hydraplan.kernels.attention import AttentionKernel, choose_kernel, kernel_report

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_auto_takes_the_fused_kernel_on_the_cpu(dtype):
    kernel = choose_kernel(CPU, dtype)
    assert (kernel.name, kernel.segments_in_one_call) == ("cpu", False)


def test_a_kernel_can_be_named():
    assert choose_kernel(CPU, torch.float64, "reference").name == "reference"


def test_flash_is_refused_with_its_reason():
    with pytest.raises(MissingDependency, match=r"flash cannot be used .* not used yet") as error:
        choose_kernel(CPU, torch.float32, "flash")
    assert error.value.exit_code == 3


def test_the_cuda_kernel_is_refused_on_the_cpu():
    with pytest.raises(MissingDependency, match="cuda cannot be used"):
        choose_kernel(CPU, torch.bfloat16, "cuda")


def test_unknown_names_and_types_are_input_errors():
    with pytest.raises(InputError, match="unknown attention kernel 'magic'"):
        choose_kernel(CPU, torch.float32, "magic")
    with pytest.raises(InputError, match=r"torch\.int64 is not supported"):
        choose_kernel(CPU, torch.int64)


def test_the_choice_is_logged_once(caplog):
    choose_kernel.cache_clear()
    with caplog.at_level(logging.INFO, attention.__name__):
        choose_kernel(CPU, torch.float32)
        choose_kernel(CPU, torch.float32)
    assert [record.message for record in caplog.records] == [
        "attention kernel: cpu for torch.float32 on cpu"
    ]


def test_a_kernel_that_answers_wrongly_is_not_used(monkeypatch, caplog):
    right = attention.KERNELS["cpu"]

    def doubled(*arguments):
        out, lse = right.forward(*arguments)
        return 2 * out, lse

    wrong = AttentionKernel("cpu", doubled, right.backward, False)
    monkeypatch.setitem(attention.KERNELS, "cpu", wrong)
    for cached in (choose_kernel, attention.why_not):
        cached.cache_clear()
    try:
        assert choose_kernel(CPU, torch.float64).name == "reference"
        assert "its output is off by 1.0e+00" in caplog.text
        with pytest.raises(MissingDependency, match="its output is off"):
            choose_kernel(CPU, torch.float64, "cpu")
    finally:
        for cached in (choose_kernel, attention.why_not):
            cached.cache_clear()


def test_the_report_names_every_kernel_with_a_reason_where_absent():
    report = kernel_report()
    assert [name for name, _, _ in report] == ["cpu", "cuda", "flash", "reference"]
    assert all(works != bool(reason) for _, works, reason in report)
    assert dict((name, works) for name, works, _ in report)["cpu"]
