"""The summary of a plan, as people read it."""

from dataclasses import replace

import numpy as np
import pytest

from hydraplan.config import load_cluster
from hydraplan.memory import TERMS
from hydraplan.metrics import FIGURES
from hydraplan.model import BatchSummary, Search, StageSkew
from hydraplan.views.bytes_text import beyond_note
from hydraplan.views.plan_text import batch_object, interleaving_note, print_plan
from hydraplan.views.window_text import batches_text
from tests.plans import plan_header, tiny_model

ADVICE = (
    "the cap asks for at least 9 microbatches, the longest sequence allows at most 6; what would"
    " open the window: a cap of 12288 tokens (+50%, by recomputing or offloading activations)"
)
OPEN = Search(5, 17, 0.05, 0.25, 0.03, 12, 1, 1.5, 1.02, 1.5, 2.0)
EMPTY = replace(OPEN, window_min=9, window_max=6, window_advice=ADVICE)


def header(**options):
    plain = plan_header(tiny_model(), pp=2, ranks=8, num_batches=1)
    changed = {"strategy": "hydra", "microbatch_order": "auto"} | options
    return plain.model_copy(update={"options": plain.options.model_copy(update=changed)})


def batch(number=0, search=OPEN, **changed):
    plain = BatchSummary(
        batch=number,
        strategy="hydra",
        winner="load-driven",
        pipeline="1f1b",
        microbatch_order="long-first",
        num_microbatches=17,
        num_sequences=16_384,
        num_tokens=101_927_408,
        status={"placed": 16_380, "empty": 4},
        degrees={1: 16_000, 8: 380},
        search=search,
        figures=dict.fromkeys(FIGURES, 0.25),
    )
    return replace(plain, **changed)


HELD = np.full((len(TERMS), 2), 1 << 30)
"""A gibibyte of everything."""


@pytest.fixture
def printed(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    def of(*batches, **options):
        skew = StageSkew(0, np.array([0.1, 0.14]), 0.015, 0.2)
        print_plan(header(**options), list(batches), [skew] * len(batches), [HELD] * len(batches))
        return capsys.readouterr().out

    return of


def test_a_plan_of_a_large_batch_reads_so(printed):
    before, _, after = printed(batch(search=EMPTY), engine="ring").partition("iteration_s")
    assert (
        before
        == f"""\
test, analytic profile 000000000000,
lengths by-hand 000000000000
tp 1 x pp 2 x ranks 8 = 16 devices, strategy hydra, schedule 1f1b,
at most 100,000 tokens a rank and microbatch
options: engine ring

batches (simulated, noise-free)
                                                                 iter.
batch    rows       tokens   M  window  winner       order           s  imbal.
{"-" * 78}
    0  16,384  101,927,408  17  9 > 6   load-driven  long-first   0.25    0.25
M: microbatches; window: numbers of them that allow balance, none if 4 > 2;
imbal.: fullest slot over the mean. More words and figures: docs/glossary.md
batch 0: the cap asks for at least 9 microbatches, the longest sequence allows
at most 6; what would open the window: a cap of 12288 tokens (+50%, by
recomputing or offloading activations)
an open window makes balance possible, no plan faster by itself: hydraplan
compare with that cap, tp or file tells

4 rows skipped: no token
batch 0 sequences by degree: 1: 16000, 8: 380

stages: layers of each chunk, F + B + W of a mean microbatch
stage   layers   ms a microbatch   over mean
--------------------------------------------
    0   1                    100   0.833
    1   1                    140   1.167
stage 1 is the slowest, 1.17 of the mean: 6.0% of the iteration is waiting since
stages are unequal (stage_skew)
fill_bubble, with every slot at the mean: 25.0%, and 20.0% if all stages took
their mean too

memory: what the fullest rank of a stage needs, predicted
stage   GiB     largest term   of it GiB
----------------------------------------
    0   9.000   weights        1.000
    1   9.000   weights        1.000
with 256 MiB a communicator, which is assumed

figures, mean over batches
figure                   value
------------------------------
"""
    )
    assert after.endswith("""
Plan: 16380 sequences, 8 ranks, 2 stages, 17 microbatches in 1 batch; slot
imbalance 0.250, pipeline bubble 25.0% (25.0% with every slot at the mean),
iteration 0.25 s simulated
""")


def test_chunks_are_told_where_a_stage_has_several_or_auto_chose_them(printed):
    assert "chunk" not in printed(batch(), pipeline="zb-h1").partition("batches")[0]
    text = printed(batch(pipeline="auto"), pipeline="auto", live_microbatches=2)
    assert "schedule auto,\n1 chunk a stage on route loop,\nat most 100,000" in text


def test_advice_that_every_batch_shares_stands_once(printed):
    text = printed(*(batch(i, EMPTY) for i in range(30)))
    assert text.count("what would open the window") == 1
    assert "every batch: the cap asks for at least 9" in text


def test_shares_that_may_be_larger_than_each_other_are_not_told_as_parts(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    figures = dict.fromkeys(FIGURES, 0.25) | {"pipeline_bubble": 0.2}
    print_plan(
        header(), [batch(figures=figures)], [StageSkew(0, np.array([0.1, 0.1]), 0.0, 0.3)], [HELD]
    )
    text = capsys.readouterr().out
    assert "pipeline bubble 20.0% (25.0% with every slot at the mean)" in text
    assert "at the mean: 25.0%, and 30.0% if all stages took their mean too" in text
    assert "points" not in text


def test_a_strategy_that_no_planner_wrote_begins_no_line_of_its_own(printed):
    text = printed(batch(), strategy="x\n::error::", pipeline="y\n::error::\x1b[31m")
    assert not [line for line in text.splitlines() if line.startswith("::")]
    assert "\x1b" not in text


def test_waits_for_unequal_stages_are_a_share_of_all_batches_together(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    batches = [batch(i, figures=dict.fromkeys(FIGURES, 1.0 + i)) for i in range(2)]
    skews = [StageSkew(i, np.array([0.1, 0.1]), 0.3 * i, 0.3) for i in range(2)]
    print_plan(header(), batches, skews, [HELD] * 2)
    assert "10.0% of the iteration is waiting since" in capsys.readouterr().out


def test_what_a_rank_may_hold_stands_in_live_tokens_beside_the_peak(printed):
    allowed = "peak_live_tokens: at most 300,000 live tokens a rank (--live-microbatches 3,\ncaps"
    text = printed(batch(), live_microbatches=3, max_tokens_per_rank=100_000)
    assert f"{allowed} of 100,000)" in text
    assert "live tokens" not in printed(batch())


def test_a_more_even_plan_that_was_not_taken_is_told_with_its_price(printed):
    search = replace(OPEN, load_driven_s=2.232, fastest_load_driven_s=2.0, memory_s=3.0)
    uneven = {"slot_imbalance": 1.48} | dict.fromkeys(set(FIGURES) - {"slot_imbalance"}, 0.25)
    line = "batch 0: a plan with slot imbalance 1.02 exists, 11.6% slower"
    assert line in printed(batch(search=search, figures=uneven))
    memory = replace(search, fastest_load_driven_s=2.1, memory_s=2.0)
    assert line in printed(batch(search=memory, winner="memory", figures=uneven))
    taken = replace(search, load_driven_s=2.0)
    even = uneven | {"slot_imbalance": 1.03}
    for said in (
        batch(search=taken, figures=uneven),
        batch(search=search, figures=even),
        batch(search=replace(search, load_driven_slot_imbalance=float("nan")), figures=uneven),
    ):
        assert "exists" not in printed(said)
    many = [batch(i, replace(search, load_driven_s=2.1 + i / 10), figures=uneven) for i in range(4)]
    text = printed(*many)
    assert "4 batches (0 to 3): more even plans exist, 5.0% to 20.0% slower" in text
    assert "a plan with slot imbalance" not in text


def test_a_window_that_nothing_opens_promises_nothing_and_reads_none(printed):
    shut = replace(OPEN, window_min=1, window_max=0, window_advice="nothing would open the window")
    text = printed(batch(search=shut))
    assert "an open window makes balance possible" not in text
    assert "  none    " in text
    assert "1 > 0" not in text


def test_a_plan_outside_its_window_says_so(printed):
    text = printed(batch(search=replace(OPEN, window_max=9)))
    assert "batch 0: M 17 is above the window 5..9: slots" in text
    assert "above the window" not in printed(batch())


def test_advice_names_its_batches_and_ends_after_three(printed):
    def advised(number):
        return batch(number, replace(EMPTY, window_advice=f"advice {number // 2}"))

    text = printed(batch(0), *map(advised, range(2, 13)))
    lines = [line for line in text.splitlines() if "advice" in line]
    assert lines == [
        "2 batches (2 to 3): advice 1", "2 batches (4 to 5): advice 2",
        "2 batches (6 to 7): advice 3",
    ]  # fmt: skip
    assert "and 5 more batches have an empty window: hydraplan show PLAN --batch" in text


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ([7], "batch 7"),
        ([2, 3], "2 batches (2 to 3)"),
        ([0, 5], "2 batches (0, 5)"),
        ([0, 1, 2, 9], "4 batches (0, 1, 2, 9)"),
        ([0, 2, 4, 6, 8], "5 batches (0, 2, ..., 8)"),
    ],
)
def test_batches_with_others_between_them_are_not_told_as_a_run(at, said):
    assert batches_text(at) == said


def test_exact_shows_status_fullest_slot_bound_and_gap(printed):
    search = replace(OPEN, exact_status="feasible", bound_s=0.5, fullest_slot_s=0.51)
    text = " ".join(printed(batch(search=search, num_microbatches=2)).split())
    assert (
        "batch 0: feasible: fullest slot 0.51 s, bound 0.5 s, gap 2.00% (loads summed; no placement"
        " in 2 microbatches is below the bound)"
    ) in text
    found = batch_object(batch(search=search))
    assert found["bound_gap"] == pytest.approx(0.02)
    assert (found["exact_status"], found["bound_s"]) == ("feasible", 0.5)


def test_an_exact_op_order_shows_status_time_bound_gap_and_work(printed):
    search = replace(
        OPEN, ops_status="optimal", ops_bound_s=0.5, ops_time_s=0.51, ops_deterministic_s=0.25
    )
    text = " ".join(printed(batch(search=search)).split())
    assert (
        "batch 0: op order optimal: 0.51 s on one lane, bound 0.5 s, gap 2.00% after 0.25"
        " deterministic seconds (no op order within the limit is below the bound)"
    ) in text
    assert "op order" not in printed(batch(search=OPEN))
    found = batch_object(batch(search=search))
    assert found["ops_gap"] == pytest.approx(0.02)
    assert (found["ops_status"], found["ops_deterministic_s"]) == ("optimal", 0.25)


def test_a_policy_shows_how_often_each_order_was_taken_and_its_own_figure(printed):
    some = [
        replace(OPEN, ops_from=name, ops_policy_s=policy_s, ops_guard_s=1.0)
        for name, policy_s in (("policy", 0.99), ("portfolio+search", 1.02), ("policy", 0.96))
    ]
    text = " ".join(printed(*(batch(i, search=each) for i, each in enumerate(some))).split())
    assert (
        "op orders taken: policy in 2 batches, portfolio+search in 1 batch; before any search the"
        " policy's own is 1.00% ahead of the best of portfolio and static schedules (mean over"
        " noise scenarios)"
    ) in text
    assert "op orders taken" not in printed(batch(search=OPEN))


def test_an_interleaved_plan_that_megatron_core_refuses_is_noted_with_the_option():
    batches = [batch(0, num_microbatches=16), batch(1), batch(2)]
    note = interleaving_note(header(pipeline="interleaved"), batches)
    assert note == (
        "note: batch 1 has 17 microbatches, no multiple of pp 2, as Megatron-Core's interleaved"
        " schedule wants it; --microbatch-multiple 2 plans one (2 of 3 batches)"
    )
    assert interleaving_note(header(pipeline="interleaved"), batches[:1]) == ""
    assert interleaving_note(header(), batches) == ""


def test_a_derived_cap_says_from_which_memory_and_stages_what_they_fill_of_it(printed):
    text = printed(batch(), memory_gib=12.0, cap_is_derived=True)
    assert "rank and microbatch\n(auto: the most that fits 12.00 GiB a device)\n" in text
    assert "stage   GiB     of 12.00   largest term   of it GiB" in text
    assert "    1   9.000      75.0%   weights        1.000" in text
    assert "cap-is-derived" not in text
    assert "auto:" not in printed(batch(), memory_gib=12.0)


def test_a_plan_that_its_cluster_cannot_hold_is_noted_unless_a_limit_was_given():
    small = load_cluster("h100-sxm").model_copy(update={"memory_bytes": 8 << 30})
    plain = header().model_copy(update={"cluster": small})
    said = beyond_note(plain, [HELD // 2, HELD])
    assert "stage 0 needs 9.00 GiB, most of it weights, a device of h100-sxm has 8.00" in said
    assert beyond_note(plain, [HELD // 2]) == beyond_note(header(), [HELD]) == ""
    assert (
        beyond_note(plain.model_copy(update={"options": header(memory_gib=9.0).options}), [HELD])
        == ""
    )
