"""`hydraplan lengths`: what is in a length file."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def lengths(
    file: Annotated[Path, typer.Argument(help="Parquet, CSV, .npy, Megatron .idx, or text.")],
    unit: Annotated[
        Literal["sequences", "documents"], typer.Option(help="What a row of an .idx is.")
    ] = "sequences",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a length file holds.

    Counts, percentiles, and which share of rows, tokens and attention work lies in its tail.
    """
    from hydraplan.files.lengths import read_lengths
    from hydraplan.views import console
    from hydraplan.views.distribution import summarize

    found = read_lengths(file, unit)
    summary = summarize(found.length_tokens)
    if json:
        console.emit_json({"name": found.name, "unit": found.unit, **summary.as_dict()})
        return
    console.emit(
        f"{found.name}: {summary.num_sequences:,} {found.unit}, {summary.num_tokens:,} tokens,"
        f" {summary.num_empty:,} empty\n"
    )
    console.print_table(
        ["percentile", "tokens"], list(summary.percentiles.items()), title="length of a row"
    )
    console.emit()
    console.print_table(
        ["beyond", "rows", "% of rows", "% of tokens", "% of sum(L^2)"],
        [
            [f"{t.beyond_tokens // 1024}K", t.num_sequences]
            + [100 * s for s in (t.sequences_share, t.tokens_share, t.squares_share)]
            for t in summary.tail
        ],
        title="tail (K = 1,024 tokens; sum(L^2) stands for attention work)",
    )
