"""Plan one batch from Python and look at it with pandas. Needs neither torch nor a GPU.

python examples/plan_in_python.py
"""

import tempfile
from importlib import resources
from pathlib import Path

import hydraplan
from hydraplan.config import load_cluster, load_model
from hydraplan.files.lengths import read_lengths
from hydraplan.files.planfile import write_plan
from hydraplan.files.profilefile import read_profile, write_profile
from hydraplan.planheader import PlanOptions
from hydraplan.planner.plan import plan
from hydraplan.profiler.analytic import analytic_header


def main() -> None:
    """Profile (analytic), plan, write, read back, ask three questions."""
    folder = Path(tempfile.mkdtemp())
    header = analytic_header(load_cluster("h100-sxm"), load_model("llama-8b"))
    write_profile(folder / "h100.profile.parquet", header, [])
    profile = read_profile(folder / "h100.profile.parquet")
    with resources.as_file(
        resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet"
    ) as path:
        lengths = read_lengths(path)
    options = PlanOptions(
        pp=4,
        ranks=32,
        tp=1,
        max_tokens_per_rank=8192,
        batch_sequences=512,
        batch_tokens=None,
        strategy="hydra",
        pipeline="1f1b",
        microbatches=None,
        microbatch_order="auto",
        on_overlong="error",
        seed=0,
    )
    write_plan(folder / "run.plan", *plan(lengths, profile, options, num_batches=1))
    frames = hydraplan.load_plan(folder / "run.plan")
    placed = frames.sequences[frames.sequences.status == "placed"]
    print("sequences by degree\n", placed.degree.value_counts().sort_index().to_string())
    tokens = (placed.rank_tokens_max * placed.degree).groupby(placed.microbatch).sum()
    print("rows of each microbatch\n", tokens.to_string())
    shown = ["winner", "num_microbatches", "iteration_s", "pipeline_bubble", "slot_imbalance"]
    print("figures (simulated)\n", frames.batches[shown].T.to_string(header=False))


if __name__ == "__main__":
    main()
