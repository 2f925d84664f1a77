"""Options that several commands share, and the request they add up to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

if TYPE_CHECKING:
    from hydraplan.files.lengths import Lengths
    from hydraplan.files.profilefile import Profile
    from hydraplan.planheader import PlanOptions

LengthsFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="LENGTHS...",
        help="Files, globs, a folder, - for stdin, or synthetic:NAME. Parquet, Arrow, JSONL, CSV,"
        " .npy, Megatron .idx, or text.",
    ),
]
ProfileFile = Annotated[Path, typer.Option("--profile", help="Profile of the devices.")]
PlanFolder = Annotated[Path, typer.Argument(help="Plan folder.")]
Pp = Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.")]
Ranks = Annotated[int, typer.Option("--ranks", min=1, help="Ranks of each stage's pool.")]
Tp = Annotated[int, typer.Option("--tp", min=1, help="Devices of a rank.")]
Cap = Annotated[
    str,
    typer.Option("--max-tokens-per-rank", help="Cap on the rows of every slot; auto: what fits."),
]
BatchSequences = Annotated[
    int | None, typer.Option("--batch-sequences", min=1, help="Rows of a global batch.")
]
BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", min=1, help="Most tokens of a global batch.")
]
NumBatches = Annotated[
    str, typer.Option("--num-batches", help="Batches from the start of the file, or 'all'.")
]
Pipeline = Annotated[
    str,
    typer.Option(
        "--pipeline",
        help="Schedule: gpipe, 1f1b, interleaved, zb-h1|h2|v; or planned on"
        " its costs: zb-1p|2p, portfolio, policy, exact (small), auto (fastest). Which:"
        " docs/schedules.md.",
    ),
]
Attention = Annotated[
    Literal["auto", "cpu", "cuda", "flash", "flash2", "flash4", "reference"] | None,
    typer.Option(
        "--attention",
        help="Attention kernel: torch's own of the device (auto), or one by name; flash: the newest"
        " flash-attn.  [default: auto]",
    ),
]
LiveMicrobatches = Annotated[
    int | None,
    typer.Option(
        "--live-microbatches",
        min=1,
        help="Caps of activations a rank may hold at once; planned schedules: stages, zb-2p twice.",
    ),
]
Chunks = Annotated[
    int | None,
    typer.Option(
        "--chunks", min=1, help="Chunks of a stage.  [default: interleaved, zb-v: 2; auto: 1 or 2]"
    ),
]
Microbatches = Annotated[
    str, typer.Option("--microbatches", help="Microbatches of a batch, or 'auto'.")
]
OnOverlong = Annotated[
    Literal["error", "skip", "truncate"],
    typer.Option("--on-overlong", help="What to do with a row that no degree can hold."),
]
MinDegree = Annotated[
    int, typer.Option("--min-degree", min=1, help="Lowest degree: a power of two, or all ranks.")
]
MicrobatchMultiple = Annotated[
    int,
    typer.Option("--microbatch-multiple", min=1, help="What the microbatches are a multiple of."),
]
MaxGroups = Annotated[
    int | None,
    typer.Option("--max-groups", min=1, help="Most distinct rank sets of degree above 1."),
]
Reorder = Annotated[
    str, typer.Option("--reorder", help="How far rows may move: batch, window:K rows, none.")
]
Engine = Annotated[
    Literal["nested", "ring"],
    typer.Option("--engine", help="Attention of a group: Ulysses inside a ring, or a ring."),
]
Layers = Annotated[
    Literal["balanced", "even"],
    typer.Option("--layers", help="Layers of the stages: by what they cost, or as many in each."),
]
MicrobatchShape = Annotated[
    Literal["even", "tapered"],
    typer.Option("--microbatch-shape", help="Microbatches of equal load, or light at both ends."),
]
Recompute = Annotated[
    Literal["none", "selective", "full"],
    typer.Option("--recompute", help="What B makes again: nothing, norms and SwiGLU, all layers."),
]
MemoryGib = Annotated[
    float | None,
    typer.Option(
        "--memory-gib",
        min=0.0,
        help="Memory of a device; a plan that needs more is refused.",
    ),
]
RankSpeed = Annotated[
    Path | None,
    typer.Option(
        "--rank-speed",
        help="Speed of every lane: Parquet, CSV, text, a run folder, or a profile by all ranks.",
    ),
]
Unit = Annotated[
    Literal["sequences", "documents"], typer.Option("--unit", help="What a row of an .idx is.")
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="A tokenizer.json: count text or messages of JSONL."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of anything random.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


class Inputs(NamedTuple):
    """What `plan` and `compare` hand to the planner; `num_batches` None means all."""

    lengths: "Lengths"
    profile: "Profile"
    options: "PlanOptions"
    num_batches: int | None


def read_inputs(
    lengths: list[str],
    profile: Path,
    *,
    context: typer.Context,
    unit: Literal["sequences", "documents"],
    tokenizer: Path | None,
    pp: int,
    ranks: int,
    tp: int,
    max_tokens_per_rank: str,
    batch_sequences: int | None,
    batch_tokens: int | None,
    num_batches: str,
    strategy: str,
    pipeline: str,
    chunks: int | None,
    live_microbatches: int | None,
    microbatches: str,
    microbatch_order: str | None,
    on_overlong: Literal["error", "skip", "truncate"],
    seed: int,
    min_degree: int,
    microbatch_multiple: int,
    max_groups: int | None,
    reorder: str,
    engine: Literal["nested", "ring"],
    layers: Literal["balanced", "even"],
    microbatch_shape: Literal["even", "tapered"],
    rank_speed: Path | None,
    recompute: Literal["none", "selective", "full"],
    memory_gib: float | None,
    resume_from: Path | None = None,
) -> Inputs:
    """Check the options that typer cannot, and read both input files."""
    from pydantic import ValidationError

    from hydraplan.cli.defaults import strongest
    from hydraplan.config import validation_text
    from hydraplan.errors import InputError
    from hydraplan.files.lengths_sources import read_sources
    from hydraplan.files.profilefile import read_profile
    from hydraplan.files.remaining import read_remaining
    from hydraplan.files.speeds import read_speeds
    from hydraplan.planheader import PlanOptions
    from hydraplan.planner.derived_cap import with_derived_cap
    from hydraplan.planner.placement.strategies import STRATEGIES
    from hydraplan.views import console

    size = {"batch_sequences": batch_sequences, "batch_tokens": batch_tokens}
    size = strongest(context, size)
    if sum(count is not None for count in size.values()) != 1:
        raise InputError(
            "give exactly one of --batch-sequences and --batch-tokens",
            "a batch is what one optimizer step of the whole pool trains on: --batch-sequences 512",
        )
    if strategy not in STRATEGIES:
        raise InputError(f"unknown strategy {strategy!r}", f"known: {', '.join(STRATEGIES)}")
    rows, costs = read_sources(lengths, unit, tokenizer), read_profile(profile)
    if rows.source:
        console.note(f"note: {rows.name}: {rows.source}")
    cap = _count(max_tokens_per_rank, "--max-tokens-per-rank", "auto")
    model = costs.header.model
    resumes = None if resume_from is None else read_remaining(resume_from, rows, model)
    try:
        options = PlanOptions(
            pp=pp,
            ranks=ranks,
            tp=tp,
            max_tokens_per_rank=cap or 1,
            batch_sequences=size["batch_sequences"],
            batch_tokens=size["batch_tokens"],
            strategy=strategy,
            pipeline=pipeline,
            chunks=chunks,
            live_microbatches=live_microbatches,
            microbatches=_count(microbatches, "--microbatches", "auto"),
            microbatch_order=STRATEGIES[strategy].default_order
            if microbatch_order is None
            else microbatch_order,
            on_overlong=on_overlong,
            seed=seed,
            min_degree=min_degree,
            microbatch_multiple=microbatch_multiple,
            max_groups=max_groups,
            reorder=reorder,
            engine=engine,
            layers=layers,
            microbatch_shape=microbatch_shape,
            rank_speed=None if rank_speed is None else read_speeds(rank_speed, ranks, pp, tp),
            recompute=recompute,
            memory_gib=memory_gib,
            resumes=resumes,
        )
    except ValidationError as error:
        raise InputError(f"option {validation_text(error)}") from None
    count = _count(num_batches, "--num-batches", "all")
    if cap is None:
        options = with_derived_cap(rows, costs, options, count)
    return Inputs(rows, costs, options, count)


def _count(text: str, option: str, word: str) -> int | None:
    """A positive whole number, or None for the word that leaves it open."""
    from hydraplan.errors import InputError
    from hydraplan.planheader import MAX_DIGITS

    if text == word:
        return None
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        raise InputError(f"{option} {text!r} is neither a positive whole number nor {word!r}")
    if len(text) > MAX_DIGITS:
        raise InputError(f"{option} {text[:MAX_DIGITS]}... has {len(text)} digits")
    return int(text)
