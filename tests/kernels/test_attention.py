import logging

import pytest
import torch

from hydraplan.errors import InputError, MissingDependency
from hydraplan.kernels import attention
from hydraplan.kernels.attention import (
    AttentionKernel,
    auto_choices,
    choose_kernel,
    kernel_report,
)
from tests.kernels import flash_standins

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_auto_takes_the_fused_kernel_on_the_cpu(dtype):
    kernel = choose_kernel(CPU, dtype)
    assert (kernel.name, kernel.segments_in_one_call) == ("cpu", False)


def test_a_kernel_can_be_named():
    assert choose_kernel(CPU, torch.float64, "reference").name == "reference"


def test_flash_is_refused_with_the_reason_of_each_package():
    with pytest.raises(MissingDependency, match="flash cannot be used") as error:
        choose_kernel(CPU, torch.bfloat16, "flash")
    message = str(error.value)
    assert "flash4: torch finds no CUDA device; flash2: torch finds no CUDA device" in message
    assert error.value.exit_code == 3


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The CPU stands in for a CUDA device, with both flash packages; call it to lack one."""

    def machine(**versions):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        for name in ("flash2", "flash4"):
            monkeypatch.setitem(attention._DEVICE_TYPE, name, "cpu")
        return flash_standins.install(monkeypatch, versions or None)

    clear()
    yield machine
    clear()


def clear():
    for cached in (choose_kernel, attention.why_not):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [({}, "flash4"), ({"flash-attn-4": "4.0.0b1"}, "flash2"), ({"flash-attn": "2.5"}, "flash4")],
)
def test_flash_takes_the_newest_package_that_works(versions, chosen, as_on_a_gpu):
    calls = as_on_a_gpu(**versions)
    kernel = choose_kernel(CPU, torch.bfloat16, "flash")
    assert (kernel.name, kernel.segments_in_one_call) == (chosen, True)
    assert calls  # the probe called it


@pytest.mark.parametrize("name", ["flash2", "flash4"])
def test_a_flash_package_can_be_named_and_its_reason_is_told(name, as_on_a_gpu):
    as_on_a_gpu()
    assert choose_kernel(CPU, torch.float16, name).name == name
    with pytest.raises(MissingDependency, match="it takes float16 and bfloat16 only"):
        choose_kernel(CPU, torch.float32, name)


def test_auto_takes_no_flash_package(as_on_a_gpu):
    calls = as_on_a_gpu()
    assert choose_kernel(CPU, torch.bfloat16).name == "cpu"
    assert not calls


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
    clear()
    try:
        assert choose_kernel(CPU, torch.float64).name == "reference"
        assert "its output is off by 1.0e+00" in caplog.text
        with pytest.raises(MissingDependency, match="its output is off"):
            choose_kernel(CPU, torch.float64, "cpu")
    finally:
        clear()


def test_the_report_names_every_kernel_with_a_reason_where_absent():
    report = kernel_report()
    assert [name for name, _, _ in report] == ["cpu", "cuda", "flash2", "flash4", "reference"]
    assert all(works != bool(reason) for _, works, reason in report)
    works = {name: works for name, works, _ in report}
    assert works["cpu"]
    assert works["reference"]


def test_the_choice_of_auto_is_told_for_each_kind_of_device():
    assert auto_choices()[0] == (CPU, torch.float32, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["cuda", "flash2", "flash4"])
def test_every_kernel_that_is_installed_agrees_with_the_reference_on_the_gpu(name, dtype):
    device = torch.device("cuda", 0)
    absent = attention._WHY_ABSENT.get(name, lambda _: "")(device)
    if absent:
        pytest.skip(absent)
    assert attention.why_not(name, device, dtype) == ""


def test_a_kernel_of_a_package_names_the_version_that_is_installed(monkeypatch):
    monkeypatch.setattr(attention.metadata, "version", {"flash-attn": "2.8.3"}.__getitem__)
    assert attention.package_versions("flash2") == {"flash-attn": "2.8.3"}
    assert attention.package_versions("cpu") == attention.package_versions("cuda") == {}
