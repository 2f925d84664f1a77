"""A run that ends beside the costs of its plan: what its ops say, and a word where these have left.

Source: ours; how costs are told from ops is `hydraplan.profiler.refit`.
"""

from pathlib import Path

from hydraplan.errors import InputError
from hydraplan.executor.inject import known_factor
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import Run
from hydraplan.profiler.left_profile import left_profile
from hydraplan.profiler.refit import Refit, refit


def run_costs(run: Run, plan: Path) -> Refit | None:
    """What the ops of a run say of its plan's costs; None where they tell nothing of them.

    So it is for simulated and paced runs, a single step, and another dtype than the profile's.
    """
    try:
        return refit(run, open_plan(plan), known_factor(run.header.injected))
    except InputError:
        return None


def left_note(found: Refit, kept: Path | None) -> str:
    """A warning with what helps, if costs have left the profile of the plan; else "".

    Args:
        kept: The run folder, None if nothing is kept.
    """
    left = left_profile(found)
    if left is None:
        return ""
    run = "RUN (keep it with -o)" if kept is None else str(kept)
    return f"warning: {left}; hydraplan profile --refit {run} -o NEW.profile.parquet learns it"
