"""The stages of a plan: their layers, what a mean microbatch takes, what their difference costs."""

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
        "alike_fill_bubble": skew.alike_fill_bubble,
    }


def print_stages(
    header: PlanHeader, batches: Sequence[BatchSummary], skews: Sequence[StageSkew]
) -> None:
    """A row a stage, means over the batches; then what of the fill is that they differ.

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
    console.emit(
        f"fill {fill:.1%} of the time: {equal:.1%} if all stages took their mean, so"
        f" {max(0.0, 100 * (fill - equal)):.1f} points are unequal stages; stage {slowest} is the"
        f" slowest, {over[slowest]:.2f} of the mean"
    )
    console.emit()
