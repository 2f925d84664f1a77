"""`hydraplan execute`: run a plan, for real on local workers or under torchrun, or simulated."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hydraplan.cli import options as o

REAL_ONLY = (
    "--data", "--device", "--attention", "--learning-rate", "--clip-grad", "--dtype", "--recompute",
    "--resume", "--checkpoint-every", "--keep-checkpoints", "--max-restarts", "--timeout",
    "--transport", "--debug-messages", "--ring-hops", "--inject", "--paced",
)  # fmt: skip
SLOW_HINT = "slow ranks of a simulation are noise: --noise straggler=1.5"
TRIALS, MAX_TRIALS = 200, 100_000
"""Trials with noise if none are asked for, and at most; an interval at the most is 1/300 as wide as
the spread."""

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Megatron .idx with its .bin; default: generated token ids."),
]
RecomputeRun = Annotated[
    Literal["none", "selective", "full"] | None,
    typer.Option("--recompute", help="What B makes again: none, selective, full.  [the plan's]"),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Longest wait of a worker for another, seconds.")
]
Device = Annotated[
    Literal["cpu", "cuda"] | None,
    typer.Option("--device", help="What workers compute on, a GPU each with cuda.  [default: cpu]"),
]
Transport = Annotated[
    Literal["tagged", "ordered"] | None,
    typer.Option(
        "--transport",
        help="Messages between stages: told apart by tags, or in order as NCCL takes them."
        "  [default: tagged; cuda: ordered]",
    ),
]
RingHops = Annotated[
    Literal["batched", "single"],
    typer.Option(
        "--ring-hops",
        help="Post what a ring hop sends and receives by one call, or by two.",
    ),
]
CorrectionOption = Annotated[
    Literal["none", "portfolio", "policy"] | None,
    typer.Option(
        "--correction",
        help="What makes new op orders, and places, for ranks that are slow.  [default: none]",
    ),
]
MigrationOption = Annotated[
    Literal["on", "off"] | None,
    typer.Option("--migration", help="Move work from slow ranks to others.  [default: off]"),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option("--replay", help="Repeat the decisions of this run, at the same steps."),
]
DebugMessages = Annotated[
    bool,
    typer.Option("--debug-messages", help="Check a header before each message between stages."),
]


def execute(
    context: typer.Context,
    plan: o.PlanFolder,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Use the plan's cost model, start no workers.")
    ] = False,
    noise: Annotated[
        str | None,
        typer.Option(
            "--noise",
            help="Of --simulate: none, or like jitter=0.3,straggler=1.4.  [default: none]",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            max=MAX_TRIALS,
            help="Draws of the noise.  [default: 200, without noise 1]",
        ),
    ] = None,
    pool_barrier: Annotated[
        bool,
        typer.Option(
            "--pool-barrier",
            help="Of --simulate: all lanes meet in every microbatch, as expert parallelism makes"
            " them.",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Optimizer steps.  [default: every batch once]"),
    ] = None,
    seed: o.Seed = 0,
    data: Data = None,
    device: Device = None,
    attention: o.Attention = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", min=0, help="Of AdamW.  [default: 3e-4]")
    ] = None,
    clip_grad: Annotated[
        float | None,
        typer.Option(
            "--clip-grad",
            min=0,
            help="Largest norm of the whole gradient, 0 for none.  [default: 1.0]",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16"] | None,
        typer.Option("--dtype", help="Precision of the activations.  [default: the model's]"),
    ] = None,
    recompute: RecomputeRun = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder; without it nothing is kept.")
    ] = None,
    force: o.Force = False,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on from the last checkpoint of this run, with its options."),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between checkpoints.  [default: none]")
    ] = None,
    keep_checkpoints: Annotated[
        int, typer.Option(min=1, help="How many of the last checkpoints stay.")
    ] = 2,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often all workers start again after one was lost.")
    ] = 0,
    timeout: Timeout = 120.0,
    transport: Transport = None,
    debug_messages: DebugMessages = False,
    ring_hops: RingHops = "batched",
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject",
            metavar="STAGE.LANE=FACTOR[@FROM-TO]",
            help="A rank that takes so many times as long, in some steps or all; repeatable.",
        ),
    ] = None,
    paced: Annotated[
        bool,
        typer.Option(
            "--paced", help="Let each part take as long as the plan says, for ranks on few cores."
        ),
    ] = False,
    correction: CorrectionOption = None,
    migration: MigrationOption = None,
    replay: ReplayOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="Of --simulate: processes that run trials with corrections."
            "  [default: usable cores]",
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Train with a plan on pp x ranks local processes, or as one worker under torchrun.

    Example: hydraplan execute run.plan --steps 3 -o first.run
    """
    from hydraplan.cli.defaults import is_flag, is_given
    from hydraplan.errors import InputError
    from hydraplan.files.runfile import Run
    from hydraplan.host import usable_cores
    from hydraplan.profiler.refit import Refit
    from hydraplan.profiler.refit_report import costs_json, print_costs
    from hydraplan.views import console
    from hydraplan.views.run_text import crowded_note, print_run, run_json

    run: Run | None
    costs: Refit | None = None
    crowded = ""
    if simulate:
        from hydraplan.executor.simulate import simulate_run
        from hydraplan.planner.pipeline.noise import Noise, parse_noise

        for option in REAL_ONLY:
            if is_flag(context, option[2:].replace("-", "_")):
                raise InputError(
                    f"{option} has no use with --simulate, nothing is trained",
                    SLOW_HINT if option == "--inject" else f"leave {option} out",
                )
        drawn = Noise() if noise is None else parse_noise(noise)
        run = simulate_run(
            plan,
            steps=steps,
            seed=seed,
            output=output,
            force=force,
            noise=drawn,
            trials=trials or (TRIALS if drawn.active else 1),
            pool_barrier=pool_barrier,
            correction=correction or "none",
            migration=migration == "on",
            replay=replay,
            workers=workers or usable_cores(),
        )
    else:
        for option, asked in (("--noise", noise), ("--trials", trials), ("--workers", workers)):
            if is_flag(context, option[2:]):
                raise InputError(
                    f"{option} {asked} has no use without --simulate", f"leave {option} out"
                )
        if is_flag(context, "pool_barrier"):
            raise InputError(
                "--pool-barrier has no use without --simulate: what is executed has no experts",
                "leave --pool-barrier out",
            )
        if checkpoint_every is not None and output is None and resume is None and not max_restarts:
            raise InputError(
                f"--checkpoint-every {checkpoint_every} has no use without -o, nothing is kept",
                "name a run folder: -o NAME.run",
            )
        if is_flag(context, "keep_checkpoints") and checkpoint_every is None and resume is None:
            raise InputError(
                f"--keep-checkpoints {keep_checkpoints} has no use, there are no checkpoints",
                "ask for them: --checkpoint-every STEPS",
            )
        if is_flag(context, "force") and output is None:
            raise InputError(
                "--force has no use without -o, nothing is replaced", "leave --force out"
            )
        from hydraplan.executor.inject import parse_injected
        from hydraplan.executor.launch import under_torchrun
        from hydraplan.executor.run import execute as execute_run
        from hydraplan.executor.run_costs import left_note, run_costs
        from hydraplan.executor.settings import Settings

        def learn(run: Run) -> None:
            nonlocal costs
            costs = run_costs(run, plan)

        settings = Settings(
            seed=seed if is_given(context, "seed") else None,
            data=data,
            dtype=dtype,
            recompute=recompute,
            device=device,
            attention=attention,
            timeout_s=timeout,
            transport=transport,
            debug_messages=debug_messages,
            ring_hops=ring_hops,
            injected=tuple(map(parse_injected, inject or ())),
            paced=paced,
        )
        run = execute_run(
            plan,
            settings,
            steps=steps,
            output=output,
            force=force,
            learning_rate=learning_rate,
            clip_grad=clip_grad,
            resume=resume,
            checkpoint_every=checkpoint_every,
            keep=keep_checkpoints,
            max_restarts=max_restarts,
            correction=correction,
            migration=None if migration is None else migration == "on",
            replay=replay,
            read=learn,
        )
        if run is not None and not under_torchrun():
            crowded = crowded_note(run.header, usable_cores())
    if run is None:
        return
    if json:
        console.emit_json(run_json(run) | costs_json(costs))
    else:
        print_run(run)
        if costs is not None:
            print_costs(costs)
    if crowded:
        console.note(crowded)
    if costs is not None and (warning := left_note(costs, run.path if run.path.is_dir() else None)):
        console.note(warning)
    if run.path.is_dir():
        console.note(f"wrote {run.path}")
