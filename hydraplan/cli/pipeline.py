"""`hydraplan pipeline`: one schedule by itself, on times that are the same everywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hydraplan.cli import options as o

if TYPE_CHECKING:
    from hydraplan.files.pytorch_csv import PyTorchSchedule
    from hydraplan.planner.pipeline.alone import Alone, StageTimes
    from hydraplan.planner.pipeline.exact import ExactOrder
    from hydraplan.planner.pipeline.memory import Memory
    from hydraplan.planner.pipeline.schedules import Layout
    from hydraplan.planner.policy.policy_order import PolicyOrder

MIN_WORK, MAX_TIME = 1e-12, 1e12
"""Least time of a whole microbatch on a stage, and largest of anything; shares of the one and sums
of the other stay far from what floats can hold."""

MAX_WEIGHED = 1 << 25
"""Most of stages x chunks x microbatches x (300 + stages) that is list-scheduled under every rule:
an op takes as long as looking at 300 stages does, all of it about half a minute."""

MAX_CUT = 1 << 17
"""Most stages x microbatches that an order is made with and then cut from, a few seconds."""


class Asked(NamedTuple):
    """Size of what runs, and the file that gives its op order, if one does."""

    stages: int
    microbatches: int
    layouts: "tuple[Layout, ...]"
    file: "PyTorchSchedule | None" = None


class Found(NamedTuple):
    """What is known of an op order besides it: the proof of `exact`, whose order `policy` took."""

    proof: "ExactOrder | None" = None
    by: "PolicyOrder | None" = None


def pipeline(
    context: typer.Context,
    schedule: Annotated[
        str, typer.Option("--schedule", help="Name of a schedule, or a PyTorch FILE.csv.")
    ],
    pp: Annotated[
        int | None, typer.Option("--pp", min=1, help="Pipeline stages; a file tells its own.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", min=1, help="Microbatches of a batch.")
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(
            "--chunks",
            min=1,
            help="Chunks of a stage.  [default: the schedule's; interleaved: 2; auto: 1 or 2]",
        ),
    ] = None,
    forward: Annotated[
        float, typer.Option("--forward", help="Time of a whole stage's forward, in any unit.")
    ] = 1.0,
    backward: Annotated[
        float, typer.Option("--backward", help="Time of its input gradient alone.")
    ] = 1.0,
    weight: Annotated[float, typer.Option("--weight", help="Time of its weight gradient.")] = 1.0,
    comm: Annotated[
        float, typer.Option("--comm", help="From the end of an op until the next stage has it.")
    ] = 0.0,
    joined: Annotated[
        float,
        typer.Option(
            "--joined", help="Time of a forward and a backward at once, over the sum of both."
        ),
    ] = 1.0,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            "--memory-limit",
            help="Microbatch activations a stage may hold.  [default for planned orders: --pp;"
            " zb-2p: twice that]",
        ),
    ] = None,
    backward_frees: Annotated[
        float, typer.Option("--backward-frees", help="Share of them that B frees, W the rest.")
    ] = 0.5,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the op order as PyTorch CSV.")
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Show what a schedule leaves idle and how much it holds, on equal stages and microbatches.

    Example: hydraplan pipeline --schedule zb-h1 --pp 4 --microbatches 12
    """
    from hydraplan.cli.defaults import is_flag
    from hydraplan.errors import Infeasible, InputError
    from hydraplan.files.parquet import refuse_existing
    from hydraplan.files.pytorch_csv import compute_rows, write_csv
    from hydraplan.planner.compiled import WAIT, is_cold
    from hydraplan.planner.pipeline.alone import StageTimes
    from hydraplan.planner.pipeline.memory import even_memory
    from hydraplan.planner.pipeline.pytorch_form import loss_note
    from hydraplan.planner.pipeline.static_orders import same_ops
    from hydraplan.planner.planned import PLANNED
    from hydraplan.route import route
    from hydraplan.views import console
    from hydraplan.views.pipeline_text import pipeline_object, print_pipeline

    times = StageTimes(forward, backward, weight, comm, joined)
    _check_numbers(times, memory_limit, backward_frees)
    if output is not None:
        refuse_existing(output, force)
    asked = _asked(schedule, pp, microbatches, chunks)
    joins = asked.file is not None or schedule.startswith("dualpipe")
    if joined != 1.0 and not joins and is_flag(context, "joined"):
        raise InputError(f"--joined {joined:g}: {schedule} joins no ops", "leave --joined out")
    planned_limit = asked.stages * (2.0 if schedule == "zb-2p" else 1.0)
    limit = planned_limit if memory_limit is None else memory_limit
    memory = even_memory(limit, asked.microbatches, backward_frees)
    is_planned = asked.file is None and schedule in PLANNED
    loops = "hydraplan.planner." + ("policy" if schedule == "policy" else "pipeline")
    if is_planned and is_cold(loops):
        console.note(WAIT)
    layout, ran, found = _fastest_run(schedule, asked, times, memory)
    ops, way = ran.timeline.schedule, route(layout.route, asked.stages, layout.chunks)
    if asked.file is not None:
        _prove(schedule, asked.file)
    peak = ran.figures["peak_memory"]
    if memory_limit is not None and not memory.fits(peak):
        raise Infeasible(
            f"{schedule} holds {peak:.6g} microbatch activations on one stage, --memory-limit"
            f" {memory_limit:.6g} allows fewer",
            "raise the limit, or use --schedule auto, which orders its ops within one",
        )
    if output is not None:
        write_csv(output, compute_rows(ops, way))
    if (output or asked.file) and (said := loss_note(ops, way)):
        console.note(said)
    about = {
        "schedule": schedule,
        "mode": "simulated",
        "pp": asked.stages,
        "microbatches": asked.microbatches,
        "chunks": layout.chunks,
        "route": layout.route,
        **({"same_ops_as": same_ops(ops, way)} if is_planned else {}),
        **times._asdict(),
        "memory_limit": limit if is_planned else memory_limit,
        "backward_frees": backward_frees,
        **_proven(found.proof),
        "ops_from": found.by and found.by.source,
    }
    if json:
        console.emit_json(pipeline_object(about, ran.figures))
    else:
        print_pipeline(about, ran.figures, ran.timeline)


def _prove(name: str, found: "PyTorchSchedule") -> None:
    """Refuse a file whose own sends and receives hang; without any PyTorch makes its own."""
    from hydraplan.errors import Infeasible
    from hydraplan.planner.pipeline.deadlock import one_line
    from hydraplan.planner.pipeline.pytorch_proof import file_deadlock, has_messages
    from hydraplan.views import console

    if not has_messages(found):
        return
    if circle := file_deadlock(found):
        raise Infeasible(
            f"{name}: {one_line(circle)}",
            "move one of these sends or receives, or leave all out: PyTorch then places its own",
        )
    console.note(f"{name}: its sends and receives are proven free of deadlock on gloo and NCCL")


def _check_numbers(times: "StageTimes", memory_limit: float | None, frees: float) -> None:
    """Refuse what is no time, no limit or no share."""
    from hydraplan.errors import InputError

    for name, value in times._asdict().items():
        if not 0 <= value <= MAX_TIME:
            raise InputError(f"--{name} {value} is not a number from 0 to {MAX_TIME:g}")
    if not sum(times[:3]) > 0:
        raise InputError("--forward, --backward and --weight are all 0", "give one a time above 0")
    if not sum(times[:3]) >= MIN_WORK:
        raise InputError(
            f"--forward, --backward and --weight are {sum(times[:3])} together, below {MIN_WORK:g}",
            "give times in a smaller unit",
        )
    if not times.joined > 0:
        raise InputError("--joined 0 leaves a forward and a backward no time", "1 is their sum")
    if memory_limit is not None and not 0 < memory_limit <= MAX_TIME:
        raise InputError(
            f"--memory-limit {memory_limit} is not a number above 0 and up to {MAX_TIME:g}"
        )
    if not 0 <= frees <= 1:
        raise InputError(f"--backward-frees {frees} is not a share from 0 to 1")


def _asked(name: str, pp: int | None, microbatches: int | None, chunks: int | None) -> Asked:
    """Size, route and, from a file, op order; refused before anything of that size is made."""
    from hydraplan.errors import InputError, many
    from hydraplan.files.pytorch_csv import read_csv
    from hydraplan.planner.pipeline.schedules import SCHEDULES, Layout, layouts_of
    from hydraplan.planner.planned import PLANNED
    from hydraplan.views import console

    given = {"pp": pp, "microbatches": microbatches, "chunks": chunks}
    if name.lower().endswith(".csv"):
        found = read_csv(Path(name))
        holds = (len(found.schedule), found.num_microbatches, found.num_chunks)
        for (option, value), held in zip(given.items(), holds, strict=True):
            if value not in (None, held):
                raise InputError(
                    f"--{option} {value}, but {name} holds {held}", f"leave --{option} out"
                )
        layout = Layout(found.route, found.num_chunks)
        return Asked(*holds[:2], (layout,), found)
    if name not in SCHEDULES and name not in PLANNED:
        names = ", ".join([*SCHEDULES, *PLANNED])
        raise InputError(f"unknown schedule {name!r}", f"known: {names}, or a FILE.csv")
    if pp is None or microbatches is None:
        absent = "--pp" if pp is None else "--microbatches"
        raise InputError(f"{absent} is missing, schedule {name} has none of its own")
    first, *others = layouts_of(name, chunks)
    _check_size(name, pp, first.chunks, microbatches)
    if sum(x.chunks for x in (first, *others)) * pp * microbatches * (300 + pp) <= MAX_WEIGHED:
        return Asked(pp, microbatches, (first, *others))
    if others:
        console.note(
            f"{name}: too large to try several layouts, only {many(first.chunks, 'chunk')} a stage"
            " is; --chunks asks for others"
        )
    return Asked(pp, microbatches, (first,))


def _check_size(name: str, pp: int, chunks: int, microbatches: int) -> None:
    """Refuse what would take minutes, before anything of that size is made."""
    from hydraplan.errors import Infeasible, InputError, many
    from hydraplan.planner.pipeline.exact import MAX_OPS
    from hydraplan.slots import MAX_STAGE_MICROBATCHES

    count = pp * chunks * microbatches
    parts = many(pp, "stage"), many(chunks, "chunk"), many(microbatches, "microbatch")
    size = f"{name}: {' x '.join(parts)}"
    if count > MAX_STAGE_MICROBATCHES:
        raise InputError(
            f"{size} are {count}, beyond {MAX_STAGE_MICROBATCHES}", "take fewer of one of them"
        )
    if name == "exact" and 3 * count > MAX_OPS:
        raise Infeasible(f"{size} are {3 * count} ops, beyond {MAX_OPS}", "use portfolio or auto")
    if name in ("portfolio", "auto", "policy") and count * (300 + pp) > MAX_WEIGHED:
        most = MAX_WEIGHED // ((300 + pp) * pp * chunks)
        raise InputError(
            f"{size} take minutes to plan, on so many stages at most"
            f" {many(most, 'microbatch')} are",
            "take fewer of one of them, or use zb-1p, which is planned sooner",
        )
    if name.startswith("dualpipe") and pp * max(microbatches, 2 * pp) > MAX_CUT:
        raise InputError(
            f"{name} is cut out of at least 2 x {pp} microbatches on {pp} stages, together beyond"
            f" {MAX_CUT}",
            "take fewer stages, or zb-v, which is made for any number",
        )


def _fastest_run(
    name: str, asked: Asked, times: "StageTimes", memory: "Memory"
) -> "tuple[Layout, Alone, Found]":
    """The layout on which it ends first, of those within the limit, and the run there."""
    from hydraplan.errors import Infeasible
    from hydraplan.planner.planned import fastest_of

    runs, refused = [], []
    for layout in asked.layouts:
        try:
            runs.append((layout, *_run(name, asked, layout, times, memory)))
        except Infeasible as error:
            refused.append(error)
    if not runs:
        raise refused[0]
    figures = [ran.figures for _, ran, _ in runs]
    taken = [each["makespan"] for each in figures]
    return runs[fastest_of(range(len(runs)), taken, lambda i: figures[i]["peak_memory"])]


def _run(
    name: str, asked: Asked, layout: "Layout", times: "StageTimes", memory: "Memory"
) -> "tuple[Alone, Found]":
    """Run the op order of the file, of the name, or a planned one."""
    import numpy as np

    from hydraplan.errors import Infeasible
    from hydraplan.planner.pipeline.alone import run_alone, slot_times_alone
    from hydraplan.planner.pipeline.deadlock import deadlock_of_batch, one_line
    from hydraplan.planner.pipeline.schedules import SCHEDULES
    from hydraplan.planner.planned import PLANNED, plan_ops
    from hydraplan.planner.policy.policy_order import policy_order
    from hydraplan.route import route

    known = Found()
    stages, count, (way, chunks) = asked.stages, asked.microbatches, layout
    slots = slot_times_alone(times, way, stages, chunks, count)
    if asked.file is not None:
        ops = asked.file.schedule
    elif name in SCHEDULES:
        ops = SCHEDULES[name].make(stages, count, chunks)
    elif name == "exact":
        found = plan_ops(name, slots, memory, {"as-built": np.arange(count)}, search=False)
        ops, known = found.schedule, Found(proof=found.proof)
    elif name == "policy":
        known = Found(by=(taken := policy_order(slots, memory)))
        ops = taken.schedule
    else:
        ops = PLANNED[name](slots, memory)
    try:
        return run_alone(slots, ops, way, memory), known
    except Infeasible:
        circle = deadlock_of_batch(ops, route(way, stages, chunks), count, 1, {})
        raise Infeasible(
            f"{name}: {one_line(circle)}", "change the order of one of these"
        ) from None


def _proven(proof: "ExactOrder | None") -> "dict[str, object]":
    """What `exact` knows of faster orders, named as in plans; times in the unit of the user."""
    return {
        "ops_status": proof and proof.status,
        "ops_bound": proof and proof.bound_s,
        "ops_gap": proof and proof.gap,
        "ops_deterministic_s": proof and proof.deterministic_s,
    }
