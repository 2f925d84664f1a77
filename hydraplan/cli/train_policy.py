"""`hydraplan train-policy`: learn a policy that orders ops, from drawn batches alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydraplan.cli import options as o

if TYPE_CHECKING:
    from hydraplan.planner.policy.train import Settings

COLUMNS = ("steps", "greedy over ZB-H1", "drawn over ZB-H1", "greedy over rules")


def train_policy(
    output: Annotated[Path, typer.Option("-o", "--output", help="Policy to write, FILE.npz.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")] = 0,
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=10**12, help="Choices to play in all.")
    ] = 20_000_000,
    group: Annotated[
        int,
        typer.Option(
            "--group", min=2, max=256, help="Episodes of a batch, compared with each other."
        ),
    ] = 16,
    clone: Annotated[
        int,
        typer.Option(
            "--clone", min=0, max=5000, help="Batches whose best order is imitated first."
        ),
    ] = 600,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint beside the output.")
    ] = False,
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", help="Folder of figures for TensorBoard."),
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Train a policy that orders the ops of a pipeline; a few minutes on one core.

    Example: hydraplan train-policy -o policy.npz
    """
    from contextlib import nullcontext

    from hydraplan.errors import InputError
    from hydraplan.files.eventfile import open_events, write_scalars
    from hydraplan.files.parquet import refuse_existing
    from hydraplan.planner.compiled import WAIT, is_cold
    from hydraplan.planner.policy.checkpoint import load_learner, save_learner
    from hydraplan.planner.policy.network import Policy
    from hydraplan.planner.policy.policy_file import save_policy
    from hydraplan.planner.policy.train import Settings, training
    from hydraplan.planner.policy.validation import BATCHES, validation
    from hydraplan.views import console

    settings = Settings(seed, steps, group, cloned=clone)
    checkpoint = output.with_name(f"{output.name.removesuffix('.npz')}.checkpoint.npz")
    if resume and not checkpoint.exists():
        raise InputError(
            f"{checkpoint} does not exist, there is no run to go on from",
            f"{output} is done" if output.exists() else "leave --resume out",
        )
    refuse_existing(output, force)
    if checkpoint.exists() and not (resume or force):
        raise InputError(
            f"{checkpoint} of a run that did not end exists",
            "add --resume to go on from it, or --force to train anew",
        )
    refuse_existing(checkpoint, force=True)
    start, history = load_learner(settings, checkpoint) if resume else (None, [])
    if is_cold("hydraplan.planner.policy"):
        console.note(WAIT)
    learner, log = start, nullcontext() if log_dir is None else open_events(log_dir)
    try:
        with log as events, console.progress("choices played", total=steps) as advanced:
            advanced(start.steps if start is not None else 0)
            for learner, played, measured in training(settings, start, validation(BATCHES)):
                advanced(played)
                if measured is not None:
                    history.append(measured)
                    save_learner(settings, learner, history, checkpoint)
                    if events is not None:
                        write_scalars(events, learner.steps, measured)
    except KeyboardInterrupt:
        if checkpoint.exists():
            console.note(
                f"{checkpoint} has what was learnt; the same command with --resume goes on"
            )
        raise
    assert learner is not None
    about = {"command": _command(settings), "validation": _told(history[-1])}
    save_policy(Policy(learner.weights, about), output)
    checkpoint.unlink(missing_ok=True)
    if json:
        console.emit_json({"policy": str(output), "command": about["command"], "rows": history})
        return
    rows = [[row["steps"], *(row[f"{n}_percent"] for n in ("greedy", "drawn", "greedy_over_rules"))]
            for row in history]  # fmt: skip
    console.print_table(COLUMNS, rows, title="throughput gained on the fixed batches, %")
    console.emit(f"\n{output}: {about['command']}")
    console.note("plans are made by the policy in the package; this one: docs/policy.md, Use")


def _command(settings: "Settings") -> str:
    """What makes the same policy again."""
    return (
        f"hydraplan train-policy --seed {settings.seed} --steps {settings.steps} --group"
        f" {settings.group} --clone {settings.cloned} -o FILE.npz"
    )


def _told(row: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in row.items() if "percent" in name)
