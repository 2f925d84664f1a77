"""The stages of a plan: their layers, what a mean microbatch takes, what their difference costs."""

import math
from collections.abc import Sequence

import numpy as np

from hydraplan.metrics import mean_figures
from hydraplan.model import BatchSummary, StageSkew
from hydraplan.planheader import PlanHeader
from hydraplan.views import console


def stages_object(skew: StageSkew) -> dict[str, object]:
    """A batch's stages for `--json`."""
    return {
        "stage_s": skew.stage_s,
        "slowest_stage": int(skew.stage_s.argmax()),
        "stage_skew_s": skew.skew_s,
        "alike_fill_bubble": skew.alike_fill_bubble,
    }


def print_stages(
    header: PlanHeader, batches: Sequence[BatchSummary], skews: Sequence[StageSkew]
) -> None:
    """A row a stage, means over the batches; then what it costs that they differ.

    One stage alone is not worth a word.
    """
    if header.options.pp == 1:
        return
    stage_s = np.mean([skew.stage_s for skew in skews], axis=0)
    slowest, over = int(stage_s.argmax()), stage_s / stage_s.mean()
    console.print_table(
        ["stage", "layers", "ms a microbatch", "over mean"],
        [
            [stage, " + ".join(map(str, layers)), 1e3 * stage_s[stage], f"{over[stage]:.3f}"]
            for stage, layers in enumerate(header.layers)
        ],
        title="stages: layers of each chunk, F + B + W of a mean microbatch",
    )
    fill = mean_figures([batch.figures for batch in batches])["fill_bubble"]
    equal = float(np.mean([skew.alike_fill_bubble for skew in skews]))
    waited_s = sum(skew.skew_s for skew in skews)
    iterations_s = sum(batch.figures["iteration_s"] for batch in batches)
    waited = waited_s / iterations_s if iterations_s else math.nan
    console.emit(
        f"stage {slowest} is the slowest, {over[slowest]:.2f} of the mean: {waited:.1%} of the"
        " iteration is waiting since stages are unequal (stage_skew)"
    )
    console.emit(
        f"fill_bubble, with every slot at the mean: {fill:.1%}, and {equal:.1%} if all stages took"
        " their mean too"
    )
    console.emit()
