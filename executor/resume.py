"""Where a run begins: afresh, after a checkpoint of its own, or after one of a run before it.

A run goes on in its own folder with the plan it has, or in another with a plan of the rows that
remain (`plan --resume-from`). Whatever would make other steps than the run's is refused.
"""

import os
from pathlib import Path
from typing import NamedTuple, TypeVar

from hydraplan.errors import InputError, StalePlan
from hydraplan.executor.launch import RESTARTS, under_torchrun
from hydraplan.files.checkpointfile import CHECKPOINTS, Saved
from hydraplan.files.ledger import last_checkpoint
from hydraplan.files.parquet import refuse_existing
from hydraplan.files.planfile import Plan
from hydraplan.files.runfile import Run, RunHeader, open_run, our_files, plan_digest
from hydraplan.planheader import PlanHeader

V = TypeVar("V")

MAY_CHANGE = frozenset(
    {"tool_version", "plan", "plan_name", "plan_digest", "steps", "checkpoint_every", "recompute"}
    | {"injected", "paced"}
)
"""What a run may be gone on with otherwise; the plan is asked for apart."""


class Start(NamedTuple):
    """Steps of the run that are done, what they left, and whether its folder is gone on with."""

    steps: int = 0
    saved: Saved | None = None
    in_place: bool = False


def earlier_run(resume: Path | None, output: Path | None) -> Run | None:
    """The run to go on from: `resume`, or the `output` that torchrun has restarted workers of."""
    restarted = under_torchrun() and os.environ.get(RESTARTS, "0") != "0"
    if restarted and output is not None and output.is_dir():
        return open_run(output)
    return None if resume is None else open_run(resume)


def start_of(earlier: Run | None, opened: Plan) -> Start:
    """Where a run of a plan begins.

    Raises:
        StalePlan: The plan is neither that of the earlier run nor made to go on from it.
        InputError: The earlier run has no checkpoint, a damaged one, or one that does not agree
            with its ledger.
    """
    plan = opened.header
    resumes = plan.options.resumes
    if earlier is None:
        if resumes is not None:
            raise InputError(
                f"the plan goes on {resumes}; without that run it has no weights",
                "give the run: --resume RUN",
            )
        return Start()
    header, digest = earlier.header, plan_digest(opened)
    if header.plan_digest == digest:
        saved = last_checkpoint(earlier)
        if saved is None and resumes is not None:
            raise InputError(
                f"run {earlier.path} has no checkpoint yet, and goes on {resumes}",
                f"begin it again: --resume with the run before it, and -o {earlier.path} --force",
            )
        return Start(saved.about.steps if saved else 0, saved, in_place=True)
    if resumes is None or resumes.plan_digest != header.plan_digest:
        ours = "" if resumes is None else f", it goes on {resumes}"
        raise StalePlan(
            f"the plan has digest {digest[:16]} and {_world(plan)}{ours}; run {earlier.path} is of"
            f" {header.plan_digest[:16]}, {_world(header.plan)}",
            "resume with the plan of the run, or plan what remains: hydraplan plan LENGTHS"
            f" --resume-from {earlier.path}",
        )
    saved = last_checkpoint(earlier)
    found = 0 if saved is None else saved.about.steps
    if saved is None or found != resumes.steps:
        raise StalePlan(
            f"the plan goes on {resumes}; the last checkpoint of run {earlier.path} is after step"
            f" {found}",
            f"plan again: hydraplan plan LENGTHS --resume-from {earlier.path}",
        )
    return Start(0, saved)


def start_again(folder: Path, first: Start) -> Start:
    """Where a run whose workers were lost begins again."""
    if not (folder / "steps.parquet").is_file():
        return first
    run = open_run(folder)
    saved = None if run.header.checkpoint_every is None else last_checkpoint(run)
    if saved is None:
        return first._replace(in_place=True)
    return Start(saved.about.steps, saved, in_place=True)


def way_on(output: Path | None, header: RunHeader) -> str:
    """What to do once a run has lost a worker for good, as part of a hint."""
    if output is None or header.checkpoint_every is None:
        return "with -o and --checkpoint-every a run can go on after that"
    repeated = "" if header.replays is None else ", the same --replay"
    return f"go on with the same plan{repeated} and --resume {output}" if output.is_dir() else ""


def refuse_moved_on(folder: Path, start: Start) -> None:
    """Refuse to rewind a run that another process took further since it was looked at.

    Raises:
        InputError: It did; asked where nobody else can write any more.
    """
    found = start_again(folder, start).steps
    if found != start.steps:
        raise InputError(
            f"run {folder} is at the checkpoint after step {found} by now, it was at {start.steps}"
            " when this process began",
            "start again: it goes on from where the other process left it",
        )


def output_of(output: Path | None, force: bool, earlier: Run | None, start: Start) -> Path | None:
    """Where the run goes: on in its own folder, or into a free one."""
    if earlier is not None and start.in_place:
        if output is not None and output.resolve() != earlier.path.resolve():
            raise InputError(
                f"the run goes on in its own folder {earlier.path}, -o names {output}",
                "leave -o out",
            )
        return earlier.path
    if output is not None:
        if earlier is not None and output.resolve() == earlier.path.resolve():
            raise InputError(
                f"-o {output} is the run that this one goes on from", "choose another -o"
            )
        if not force and (output / CHECKPOINTS).is_dir():
            raise InputError(
                f"{output} exists and has checkpoints",
                f"go on from the last with the plan that ran: --resume {output}; --force replaces"
                " the run, checkpoints and all",
            )
        refuse_existing(output, force, our_files(output))
    return output


def taken(value: V | None, earlier: RunHeader | None, name: str, default: V) -> V:
    """What was asked for, else what the earlier run had, else the default."""
    if value is not None:
        return value
    found: V | None = None if earlier is None else getattr(earlier, name)
    return default if found is None else found


def is_foreign(start: Start, folder: Path) -> bool:
    """Whether the run in `folder` begins after another run's checkpoint and has none of its own."""
    return start.saved is not None and start.saved.path.parent != folder / CHECKPOINTS


def refuse_other(earlier: Run | None, asked: RunHeader) -> None:
    """Refuse to go on with other options than the earlier run's, naming both values."""
    if earlier is None:
        return
    for name, value in asked:
        before = getattr(earlier.header, name)
        if name not in MAY_CHANGE and value != before:
            raise InputError(
                f"{name.replace('_', ' ')} {value} is not that of run {earlier.path}, {before}",
                "name its --replay again: the run knows only a digest of the decisions"
                if name == "replays"
                else "resume with the options of the run; those left out are taken from it",
            )


def refuse_replay(earlier: Run | None, replay: Path | None) -> None:
    """Refuse to repeat decisions in a run that began with its own, or with none."""
    if replay is not None and earlier is not None and earlier.header.replays is None:
        raise InputError(
            f"--replay {replay}: run {earlier.path} repeats no decisions", "leave --replay out"
        )


def _world(plan: PlanHeader) -> str:
    pp, ranks = plan.options.pp, plan.options.ranks
    return f"pp {pp} x ranks {ranks} = {pp * ranks} workers"


def check_steps(steps: int, start: Start, plan: PlanHeader) -> None:
    """Refuse fewer steps than are done, and a second round over rows that remained.

    Raises:
        InputError: The run would end before it began, or train rows again.
    """
    if steps < start.steps:
        raise InputError(
            f"--steps {steps} counts from the first step of the run, {start.steps} are done",
            f"ask for more than {start.steps}",
        )
    if plan.options.resumes is not None and steps > plan.num_batches:
        raise InputError(
            f"--steps {steps} would train rows again: the plan goes on {plan.options.resumes} and"
            f" has {plan.num_batches} batches",
            f"ask for at most {plan.num_batches}",
        )


def is_checkpoint(steps: int, header: RunHeader) -> bool:
    """Whether a checkpoint is due once so many steps are done; one is at the end of a run."""
    every = header.checkpoint_every
    return every is not None and (steps % every == 0 or steps == header.steps)
