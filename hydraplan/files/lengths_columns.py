"""Which column of a table says how long its rows are, by name.

A file is read by the first group of names it has one of; two names of one group are ambiguous.
Nothing is read here.
"""

from collections.abc import Iterable

from hydraplan.errors import InputError, printable

LENGTH_COLUMNS = ("length", "length_tokens", "seqlen")
ID_COLUMNS = ("input_ids",)
BOUNDARY_COLUMNS = ("seq_start_id", "cu_seqlens")
TEXT_COLUMNS = ("text", "messages")

MAX_TOTAL_TOKENS = 2**63 - 1


def counted_column(where: str, names: Iterable[str], *groups: tuple[str, ...]) -> str:
    """The name to count by.

    Args:
        where: The file, and the row where that matters, as the message begins.
        groups: Names that are looked for, the most telling first.

    Raises:
        InputError: There is none, or a choice of several.
    """
    held = list(names)
    for group in groups:
        found = [name for name in held if name in group]
        if len(found) > 1:
            raise InputError(
                f"{where} is ambiguous: each of the columns {', '.join(found)} could be the length",
                f"keep one of {', '.join(group)}",
            )
        if found:
            return found[0]
    known = [name for group in groups for name in group]
    hint = "rename the column that counts the tokens of a row"
    if TEXT_COLUMNS not in groups and not set(TEXT_COLUMNS).isdisjoint(held):
        hint = "text and messages of JSONL are counted by --tokenizer tokenizer.json"
    raise InputError(
        f"{where} has no column {', '.join(known[:-1])} or {known[-1]};"
        f" it has {printable(', '.join(held)[:80])}",
        hint,
    )
