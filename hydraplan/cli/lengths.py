"""`hydraplan lengths`: what is in a length file."""

from hydraplan.cli import options as o


def lengths(
    files: o.LengthsFiles,
    unit: o.Unit = "sequences",
    tokenizer: o.TokenizerFile = None,
    json: o.Json = False,
) -> None:
    """Show what a length file holds.

    Counts, percentiles, and which share of rows, tokens and attention work lies in its tail.
    """
    from hydraplan.files.lengths_sources import read_sources
    from hydraplan.views import console
    from hydraplan.views.distribution import summarize

    found = read_sources(files, unit, tokenizer)
    if found.source:
        console.note(f"note: {found.name}: {found.source}")
    summary = summarize(found.length_tokens)
    if json:
        about = {"name": found.name, "unit": found.unit, "source": found.source or None}
        console.emit_json({**about, **summary.as_dict()})
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
