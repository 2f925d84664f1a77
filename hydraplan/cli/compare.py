"""`hydraplan compare`: strategies side by side on the same batches."""

from typing import Annotated

import typer

from hydraplan.cli import options as o


def compare(
    context: typer.Context,
    lengths: o.LengthsFiles,
    profile: o.ProfileFile,
    ranks: o.Ranks,
    max_tokens_per_rank: o.Cap,
    strategies: Annotated[
        str, typer.Option("--strategies", help="Comma list of what plan --strategy takes.")
    ] = "hydra,memory-ffd",
    pp: o.Pp = 1,
    tp: o.Tp = 1,
    batch_sequences: o.BatchSequences = None,
    batch_tokens: o.BatchTokens = None,
    num_batches: o.NumBatches = "1",
    pipeline: o.Pipeline = "1f1b",
    chunks: o.Chunks = None,
    live_microbatches: o.LiveMicrobatches = None,
    microbatches: o.Microbatches = "auto",
    on_overlong: o.OnOverlong = "error",
    min_degree: o.MinDegree = 1,
    microbatch_multiple: o.MicrobatchMultiple = 1,
    max_groups: o.MaxGroups = None,
    reorder: o.Reorder = "batch",
    engine: o.Engine = "nested",
    layers: o.Layers = "balanced",
    microbatch_shape: o.MicrobatchShape = "even",
    rank_speed: o.RankSpeed = None,
    recompute: o.Recompute = "none",
    memory_gib: o.MemoryGib = None,
    unit: o.Unit = "sequences",
    tokenizer: o.TokenizerFile = None,
    seed: o.Seed = 0,
    workers: Annotated[
        int,
        typer.Option("--workers", min=1, help="Processes that plan batches; 1 times them best."),
    ] = 1,
    json: o.Json = False,
) -> None:
    """Plan the same batches with several strategies and show all figures side by side.

    Baselines are shown in each microbatch order; hydra chooses its own.
    """
    from hydraplan.errors import Infeasible, InputError
    from hydraplan.model import Comparison, LeftOut
    from hydraplan.planner.compare import compare as rows_of
    from hydraplan.planner.compiled import WAIT, is_cold
    from hydraplan.planner.plan import without_taper
    from hydraplan.views import console
    from hydraplan.views.compare_text import print_rows, row_object
    from hydraplan.views.options_text import options_object

    names = [name.strip() for name in strategies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(f"--strategies {strategies!r} names none, or one twice")
    inputs = o.read_inputs(
        lengths,
        profile,
        context=context,
        unit=unit,
        tokenizer=tokenizer,
        num_batches=num_batches,
        pp=pp,
        ranks=ranks,
        tp=tp,
        max_tokens_per_rank=max_tokens_per_rank,
        batch_sequences=batch_sequences,
        batch_tokens=batch_tokens,
        strategy=names[0],
        pipeline=pipeline,
        chunks=chunks,
        live_microbatches=live_microbatches,
        microbatches=microbatches,
        microbatch_order=None,
        on_overlong=on_overlong,
        seed=seed,
        min_degree=min_degree,
        microbatch_multiple=microbatch_multiple,
        max_groups=max_groups,
        reorder=reorder,
        engine=engine,
        layers=layers,
        microbatch_shape=microbatch_shape,
        rank_speed=rank_speed,
        recompute=recompute,
        memory_gib=memory_gib,
    )
    if ignored := without_taper(inputs.options, names):
        console.note(f"note: {ignored}")
    by_policy = pipeline == "policy" and is_cold("hydraplan.planner.policy")
    if by_policy or is_cold("hydraplan.planner.placement"):
        console.note(WAIT)
    with console.progress("strategies compared", len(names)) as advance:
        found = list(console.counted(rows_of(*inputs, names, workers), advance))
    rows = [row for row in found if isinstance(row, Comparison)]
    left_out = [row for row in found if isinstance(row, LeftOut)]
    if not rows:
        raise Infeasible(f"no strategy plans this: {left_out[0].reason}", "see plan --strategy")
    if json:
        console.emit_json(
            {
                "profile_mode": inputs.profile.header.mode,
                "options": {
                    name: value
                    for name, value in options_object(inputs.options).items()
                    if name not in ("strategy", "microbatch_order")  # each row has its own
                },
                "live_limit_tokens": inputs.options.live_limit_tokens,
                "memory_limit_bytes": inputs.options.memory_bytes,
                "rows": [row_object(r) for r in rows],
                "left_out": {r.strategy: r.reason for r in left_out},
            }
        )
    else:
        print_rows(inputs.options, inputs.profile.header, rows)
        for missing in left_out:
            console.emit(f"\nleft out: {missing.strategy}: {missing.reason}")
