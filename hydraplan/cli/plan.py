"""`hydraplan plan`: lengths and a profile in, a plan folder out."""

from pathlib import Path
from typing import Annotated

import typer

from hydraplan.cli import options as o
from hydraplan.cli.summary import print_summary, summary_object, worse


def plan(
    context: typer.Context,
    lengths: o.LengthsFiles,
    profile: o.ProfileFile,
    ranks: o.Ranks,
    max_tokens_per_rank: o.Cap,
    output: Annotated[Path, typer.Option("-o", "--output", help="Plan folder to write.")],
    pp: o.Pp = 1,
    tp: o.Tp = 1,
    batch_sequences: o.BatchSequences = None,
    batch_tokens: o.BatchTokens = None,
    num_batches: o.NumBatches = "1",
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="hydra; exact (small batches); or a baseline: memory-ffd, static-cp,"
            " token-balance, mcore-main|v1|v2.",
        ),
    ] = "hydra",
    pipeline: o.Pipeline = "1f1b",
    chunks: o.Chunks = None,
    live_microbatches: o.LiveMicrobatches = None,
    microbatches: o.Microbatches = "auto",
    microbatch_order: Annotated[
        str | None,
        typer.Option(help="as-built, long-first, sandwich, searched or auto (default for hydra)."),
    ] = None,
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
    resume_from: Annotated[
        Path | None,
        typer.Option(help="Plan only the rows after the last checkpoint of this run."),
    ] = None,
    seed: o.Seed = 0,
    force: o.Force = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="Processes that plan batches.  [default: usable cores]"
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Give every sequence of every batch its degree, its ranks and its microbatch.

    Example: hydraplan plan lengths.parquet --profile h100.profile.parquet --pp 4 --ranks 32
    --max-tokens-per-rank 8192 --batch-sequences 512 -o run.plan
    """
    from hydraplan.files.parquet import refuse_existing
    from hydraplan.files.planfile import PLAN_FILES, write_plan
    from hydraplan.host import usable_cores
    from hydraplan.memory_limit import check_fits, planned_bytes
    from hydraplan.model import BatchPlan, BatchSummary, IntArray, StageSkew
    from hydraplan.planner.compiled import WAIT, is_cold
    from hydraplan.planner.measured_range import Asked, extrapolated, largest_sizes, together
    from hydraplan.planner.plan import plan_many, without_taper
    from hydraplan.planner.stage_skew import stage_skew
    from hydraplan.views import console
    from hydraplan.views.bytes_text import beyond_note
    from hydraplan.views.check_text import check_lines
    from hydraplan.views.plan_text import interleaving_note

    refuse_existing(output, force, PLAN_FILES)
    inputs = o.read_inputs(
        lengths,
        profile,
        context=context,
        unit=unit,
        tokenizer=tokenizer,
        pp=pp,
        ranks=ranks,
        tp=tp,
        max_tokens_per_rank=max_tokens_per_rank,
        batch_sequences=batch_sequences,
        batch_tokens=batch_tokens,
        num_batches=num_batches,
        strategy=strategy,
        pipeline=pipeline,
        chunks=chunks,
        live_microbatches=live_microbatches,
        microbatches=microbatches,
        microbatch_order=microbatch_order,
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
        resume_from=resume_from,
    )
    if ignored := without_taper(inputs.options):
        console.note(f"note: {ignored}")
    by_policy = pipeline == "policy" and is_cold("hydraplan.planner.policy")
    if by_policy or is_cold("hydraplan.planner.placement"):
        console.note(WAIT)
    summaries: list[BatchSummary] = []
    skews: list[StageSkew] = []
    held: list[IntArray] = []
    asked: list[Asked] = []
    worst: BatchPlan | None = None

    def kept(batch: BatchPlan) -> BatchPlan:
        nonlocal worst
        worst = worse(worst, batch)
        summaries.append(batch.summary())
        skews.append(stage_skew(header, batch))
        held.append(planned_bytes(header, batch))
        asked.append(largest_sizes(header.cost_model(), batch))
        check_fits(held[-1], header.options.memory_bytes, batch.batch)
        return batch

    with (
        plan_many(*inputs, workers or usable_cores()) as (header, batches),
        console.progress("batches planned", header.num_batches) as advance,
    ):
        write_plan(output, header, map(kept, console.counted(batches, advance)))
    assert worst is not None
    told = header, summaries, skews, held, worst
    if json:
        console.emit_json(summary_object(output, *told))
    else:
        print_summary(*told)
    profiled = inputs.profile.header
    for line in (*check_lines(profiled), *extrapolated(profiled.terms, together(asked))):
        console.note(line)
    planned, total = sum(b.num_sequences for b in summaries), len(inputs.lengths.length_tokens)
    if resume_from is None and planned < total:
        console.note(f"planned {planned:,} of {total:,} rows; --num-batches all plans all of them")
    for note in (interleaving_note(header, summaries), beyond_note(header, held)):
        if note:
            console.note(note)
    console.note(f"wrote {output}")
