"""The tables of a comparison, as people read them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hydraplan.metrics import FIGURES
from hydraplan.model import Comparison
from hydraplan.views.compare_text import print_rows, row_object
from tests.plans import tiny_model
from tests.views.test_plan_text import EMPTY, HELD, batch, header


def row(strategy: str, order: str, iteration_s: float, cap: str = "cap") -> Comparison:
    figures = dict.fromkeys(FIGURES, 0.0625) | {
        "iteration_s": iteration_s, "slot_imbalance": 1.02, "max_tokens_per_rank": 150_000.0,
    }  # fmt: skip
    found = batch(search=EMPTY, strategy=strategy, winner="memory", figures=figures)
    return Comparison(strategy, order, 1, "loop", (found,), figures, cap, HELD, 0.0015, 0.25)


def test_a_comparison_reads_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    profile = SimpleNamespace(model=tiny_model(), mode="analytic", device="analytic h100-sxm")
    rows = [
        row("hydra", "auto", 2.0),
        row("mcore-main", "as-built", 3.0, "cap-per-sequence"),
        row("memory-ffd", "long-first", 2.5),
    ]
    print_rows(header(engine="ring").options, profile, rows)
    assert (
        capsys.readouterr().out
        == f"""\
test, analytic profile (analytic h100-sxm),
tp 1 x pp 2 x ranks 8, schedule 1f1b, 1 batch,
at most 100,000 tokens a rank and microbatch
options: engine ring

simulated, noise-free, mean over batches
strategy         order         M   iter. s   x best   pipe   fill     dp   imb.
{"-" * 79}
hydra            auto         17         2        1   6.2%   6.2%   6.2%   1.02
mcore-main (1)   as-built     17         3      1.5   6.2%   6.2%   6.2%   1.02
memory-ffd       long-first   17       2.5     1.25   6.2%   6.2%   6.2%   1.02
pipe, fill, dp: pipeline bubble, the same with every slot at the mean (may be
more), and data-parallel bubble, shares of the iteration. imb.: fullest slot
over the mean.
(1) another cap: at most 100,000 tokens of each sequence a rank, more of several
together; up to 150,000 rows here

planning, warm CPU ms a batch; window of the first batch
strategy     order        won by   window of M   one plan   search
{"-" * 66}
hydra        auto         memory   9 > 6              1.5      250
mcore-main   as-built     -        9 > 6              1.5      250
memory-ffd   long-first   -        9 > 6              1.5      250

memory: what the fullest rank of the fullest stage needs, predicted
strategy     order        stage   GiB     largest term   of it GiB
{"-" * 66}
hydra        auto             0   9.000   weights        1.000
mcore-main   as-built         0   9.000   weights        1.000
memory-ffd   long-first       0   9.000   weights        1.000
with 256 MiB a communicator, which is assumed
batch 0: the cap asks for at least 9 microbatches, the longest sequence allows
at most 6; what would open the window: a cap of 12288 tokens (+50%, by
recomputing or offloading activations)
an open window makes balance possible, no plan faster by itself: hydraplan
compare with that cap, tp or file tells

rows not placed whole: 4 empty
"""
    )


def test_under_auto_every_row_tells_the_layout_it_ran_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    profile = SimpleNamespace(model=tiny_model(), mode="analytic", device="analytic h100-sxm")
    rows = [
        replace(row("hydra", "auto", 2.0), num_chunks=2, route="v"),
        replace(row("memory-ffd", "sandwich", 2.5), num_chunks=2),
        row("static-cp", "sandwich", 3.0),
    ]
    print_rows(header(pipeline="auto", live_microbatches=2).options, profile, rows)
    told = capsys.readouterr().out.splitlines()
    start = told.index("planning, warm CPU ms a batch; window of the first batch")
    assert told[start + 1] == (
        "strategy     order      chunks   won by   window of M   one plan   search"
    )
    assert [line[:30].split() for line in told[start + 3 : start + 6]] == [
        ["hydra", "auto", "2", "v"],
        ["memory-ffd", "sandwich", "2", "loop"],
        ["static-cp", "sandwich", "1"],
    ]
    assert [(r["chunks"], r["route"]) for r in map(row_object, rows)] == [
        (2, "v"),
        (2, "loop"),
        (1, "loop"),
    ]


def test_a_comparison_under_a_limit_tells_it_in_live_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    profile = SimpleNamespace(model=tiny_model(), mode="analytic", device="analytic h100-sxm")
    print_rows(header(live_microbatches=3).options, profile, [row("hydra", "auto", 2.0)])
    text = capsys.readouterr().out
    assert "\nat most 300,000 live tokens a rank (--live-microbatches 3, caps of 100,000)\n" in text
