"""`hydraplan demo`: the whole path on bundled lengths, as a user would type it.

Each step prints its command line and runs it in a process of its own, so that what is shown
is what the command does. The first step that fails ends the demo with its exit code.
"""

from pathlib import Path
from typing import Annotated

import typer

LENGTHS = "lengths.parquet"
CAP_TOKENS = 8192
"""Rows a rank of the planned cluster may hold at once; 32 of them hold the longest file."""

SMALL_CAP_TOKENS = 512
"""The same for the real run on this machine's cores."""

NEXT = """Next, your own lengths, on a cluster you do not have here:
  hydraplan profile --device analytic --cluster h100-sxm --model llama-8b -o h100.profile.parquet
  hydraplan plan MINE.jsonl --profile h100.profile.parquet --pp 4 --ranks 32 \\
      --max-tokens-per-rank auto --batch-sequences 512 -o run.plan
  hydraplan show run.plan"""


def demo(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder that keeps the files.")
    ] = None,
) -> None:
    """Walk the whole path on bundled real lengths.

    Profiles this machine, compares, plans, checks, simulates, executes, verifies and shows.
    Needs torch and takes about two minutes on two cores. Without -o nothing is kept.
    """
    import tempfile

    from hydraplan.errors import InputError

    if output is None:
        with tempfile.TemporaryDirectory(prefix="hydraplan-demo-") as folder:
            _run_steps(Path(folder))
        return
    if output.exists():
        raise InputError(f"{output} exists", "choose another -o")
    output.mkdir()
    _run_steps(output)


def _run_steps(folder: Path) -> None:
    from importlib import resources

    from hydraplan.views import console

    bundled = resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet"
    (folder / LENGTHS).write_bytes(bundled.read_bytes())
    steps = _steps()
    for number, (what, command) in enumerate(steps, 1):
        console.emit(f"\n[{number}/{len(steps)}] {what}\n$ hydraplan {command}\n")
        _run(command.split(), folder)
    console.emit("\nThe demo is done: planned, simulated, executed and verified on this machine.")
    console.emit(NEXT)


def _steps() -> list[tuple[str, str]]:
    """What each step shows, and its command line."""
    inputs = f"{LENGTHS} --profile cpu.profile.parquet"
    batch = f"--pp 4 --ranks 32 --max-tokens-per-rank {CAP_TOKENS} --batch-sequences 512"
    small = (
        f"--pp 2 --ranks 2 --max-tokens-per-rank {SMALL_CAP_TOKENS} --batch-sequences 32"
        " --num-batches 3 --on-overlong skip"
    )
    return [
        ("real lengths: the files of a standard library", f"lengths {LENGTHS}"),
        (
            "measure this machine (about 15 s)",
            "profile --device cpu --quick --model tiny -o cpu.profile.parquet",
        ),
        (
            "compare strategies on a planned cluster of 4 stages x 32 ranks",
            f"compare {inputs} {batch} --strategies hydra,memory-ffd",
        ),
        ("write the plan down", f"plan {inputs} {batch} -o demo.plan"),
        ("check every invariant of it", "validate demo.plan"),
        ("run it in the simulator", "execute demo.plan --simulate"),
        ("a plan small enough for this machine", f"plan {inputs} {small} -o small.plan"),
        (
            "execute it for real: 2 stages x 2 ranks, 3 steps",
            "execute small.plan --steps 3 -o small.run",
        ),
        ("loss and gradients against one process", "verify small.plan"),
        ("look at the plan: load of every slot", "show demo.plan --view loads"),
        ("and the ops of every stage", "show demo.plan --view gantt"),
    ]


def _run(arguments: list[str], folder: Path) -> None:
    """Run one command in a process of its own; end the demo with its exit code if it fails."""
    import os
    import subprocess
    import sys

    import hydraplan
    from hydraplan.views import console

    here = str(Path(hydraplan.__file__).parents[1])
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-m", "hydraplan", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        check=False,
    )
    if done.returncode:
        code = done.returncode if done.returncode > 0 else 128 - done.returncode
        console.note(
            f"error: the demo ends here: hydraplan {arguments[0]} failed, exit code {code}"
        )
        raise typer.Exit(code)
