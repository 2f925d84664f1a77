"""The part of the GPU check on Triton's kernels, with made-up ones in their place."""

import time

import pytest

from hydraplan.kernels.glue import TORCH
from tests.benchmarks.gpu_scripts import gpu_script


@pytest.fixture
def glue_rates(monkeypatch):
    return gpu_script(monkeypatch, "glue_rates")


@pytest.fixture
def quick(monkeypatch, glue_rates):
    monkeypatch.setattr(glue_rates, "median_s", lambda scale, left, run: (run(), 1e-3)[1])
    return gpu_script(monkeypatch, "scale").quick_scale("cpu")._replace(glue_rows=64)


@pytest.fixture
def left(monkeypatch):
    return gpu_script(monkeypatch, "budget").Left(time.monotonic() + 1_000)


def with_triton(monkeypatch, glue_rates, **other):
    monkeypatch.setattr(glue_rates, "why_no_triton", lambda device, dtype: "")
    monkeypatch.setattr(glue_rates, "triton_glue", lambda: TORCH._replace(**other))


def test_without_triton_the_reason_and_torchs_ops_are_told(glue_rates, quick, left):
    rows = list(glue_rates.glue_rows(quick, left))
    (absent,) = [row for row in rows if row.verdict == "absent"]
    assert absent.what == "triton"
    assert absent.note
    assert [row.what for row in rows if row.verdict == "measured"] == [
        "copy", *(f"{move.name}, torch" for move in glue_rates.moves(quick)),
    ]  # fmt: skip


def test_kernels_with_the_same_numbers_pass_and_have_a_rate(glue_rates, quick, left, monkeypatch):
    with_triton(monkeypatch, glue_rates)
    rows = list(glue_rates.glue_rows(quick, left))
    ours = [row for row in rows if row.what.endswith(", triton")]
    assert [row.verdict for row in ours] == ["ok"] * 6
    sizes = [move.moved_bytes for move in glue_rates.moves(quick)]
    assert [row.value for row in ours] == pytest.approx([size / 1e-3 / 1e9 for size in sizes])
    merge, *_ = sizes
    assert merge == 64 * 8 * (10 * 16 + 12)  # rows, heads; 4 + 2 bytes read, 4 written, 3 lse


@pytest.mark.parametrize("name", ["merge", "gather", "scatter"])
def test_a_kernel_that_is_off_is_told_by_name(glue_rates, quick, left, monkeypatch, name):
    def merge_rows(out, lse, rows, part, part_lse):
        TORCH.merge_rows(out, lse, rows, part * 1.01, part_lse)

    def gather_heads(parts, heads):
        return TORCH.gather_heads(parts, heads) + 0.5

    def scatter_heads(*inputs):
        return [x * 1.05 for x in TORCH.scatter_heads(*inputs)]

    wrong = {"merge": merge_rows, "gather": gather_heads, "scatter": scatter_heads}[name]
    with_triton(monkeypatch, glue_rates, **{wrong.__name__: wrong})
    found = [row.what for row in glue_rates.glue_rows(quick, left) if row.verdict == "no"]
    assert len(found) == 2
    assert all(what.startswith(name) for what in found)
