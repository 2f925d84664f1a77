"""`--max-tokens-per-rank auto`: the cap of a whole request, from the memory of a device."""

import numpy as np
import pytest

from hydraplan.errors import Infeasible, InputError
from hydraplan.files.lengths import Lengths
from hydraplan.files.profilefile import Profile
from hydraplan.host import GIB
from hydraplan.memory_cap import MISSED
from hydraplan.memory_limit import planned_bytes
from hydraplan.planner.derived_cap import with_derived_cap
from hydraplan.planner.plan import plan
from tests.planner.cases import mix, options, profile

PIPELINES = ["1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "zb-1p", "auto"]


def short(count: int) -> Lengths:
    """Rows so short that first fit fills every slot to the last token but few."""
    return Lengths("short", "sequences", np.full(count, 100, np.int64))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_plan_under_the_derived_cap_fits_and_says_from_which_memory(pipeline, recompute) -> None:
    asked = options(
        pp=2, ranks=1, pipeline=pipeline, recompute=recompute, batch_sequences=9000,
        strategy="memory-ffd", microbatch_order="as-built", memory_gib=150.0,
    )  # fmt: skip
    derived = with_derived_cap(short(9000), profile(), asked, 1)
    assert derived.cap_is_derived
    count = 14 * (derived.max_tokens_per_rank // 100)  # every slot of 14 microbatches is full
    full = derived.model_copy(update={"batch_sequences": count})
    header, batches = plan(short(count), profile(), full, 1)
    (batch,) = batches
    needed = planned_bytes(header, batch).sum(axis=0).max() / derived.memory_bytes
    # Orders planned later may leave room for what W waits for, which is most if all is made again.
    room = pipeline in ("zb-1p", "auto") and recompute == "full"
    assert (0.4 if room else 0.85) < needed <= 1 - MISSED
    assert batch.figures["max_tokens_per_rank"] > derived.max_tokens_per_rank - 100


def test_without_another_the_memory_is_that_of_the_cluster() -> None:
    derived = with_derived_cap(short(99), profile(), options(pp=4, batch_sequences=9), None)
    assert derived.memory_gib == 80e9 / GIB
    assert derived.memory_bytes == 80_000_000_000
    more = options(pp=4, batch_sequences=9, memory_gib=100.0)
    assert with_derived_cap(short(99), profile(), more, None).max_tokens_per_rank > 1.3 * (
        derived.max_tokens_per_rank
    )


def test_memory_that_nobody_knows_and_microbatches_without_a_number_are_refused() -> None:
    header = profile().header.model_copy(update={"cluster": None, "mode": "measured"})
    with pytest.raises(InputError, match="measured profile") as refused:
        with_derived_cap(short(99), Profile(header, "0" * 64), options(batch_sequences=9), 1)
    assert refused.value.hint == "give --memory-gib"
    asked = options(pipeline="gpipe", batch_sequences=9)
    with pytest.raises(InputError, match="gpipe holds all microbatches"):
        with_derived_cap(short(99), profile(), asked, 1)
    few, many = (
        with_derived_cap(
            short(99), profile(), asked.model_copy(update={"microbatches": count}), 1
        ).max_tokens_per_rank
        for count in (2, 8)
    )
    assert few > 3 * many


def test_too_little_memory_is_told_with_the_stage_and_its_largest_term() -> None:
    with pytest.raises(
        Infeasible, match=r"one token a rank needs .* GiB on stage 0, most of it weights"
    ):
        with_derived_cap(short(99), profile(), options(batch_sequences=9, memory_gib=8.0), 1)


@pytest.mark.parametrize("on_overlong", ["skip", "truncate"])
def test_few_microbatches_of_an_interleaved_schedule_fit_too(on_overlong) -> None:
    lengths = Lengths("t", "sequences", np.append(mix("32K", 40, 3), 10_000_000))
    for count in (5, 10, 20, 40):
        asked = options(
            pp=4, ranks=2, pipeline="interleaved", batch_sequences=count, on_overlong=on_overlong
        )
        derived = with_derived_cap(lengths, profile(), asked, None)
        header, batches = plan(lengths, profile(), derived, 1)
        for batch in batches:
            assert planned_bytes(header, batch).sum(axis=0).max() <= derived.memory_bytes
