"""The options a plan was made with: what people read above its tables, and all of them as JSON.

Sizes (devices, cap, strategy, schedule) always stand in the header line; any other option
stands there only where it differs from its default, so that two plans that differ show why.
"""

from hydraplan.planheader import PlanOptions

IN_HEADER = ("pp", "ranks", "tp", "max_tokens_per_rank", "strategy", "pipeline", "cap_is_derived")
"""Options that every header names."""

IN_TABLE = ("batch_sequences", "batch_tokens", "microbatch_order")
"""Options whose effect stands in every row of the tables: rows, tokens and order of a batch."""

NAMED_LANES = 8
"""Most slow lanes that are named one by one."""


def options_object(options: PlanOptions) -> dict[str, object]:
    """All options for `--json`, named as in the footer of a plan."""
    return options.model_dump()


def changed_options(options: PlanOptions) -> str:
    """Options that differ from their default, on one line; empty if none does."""
    changed = {
        name: value
        for name, value in options
        if name not in (*IN_HEADER, *IN_TABLE) and value != _DEFAULTS[name]
    }
    words = [f"{name.replace('_', '-')} {_word(value)}" for name, value in changed.items()]
    return f"options: {', '.join(words)}" if words else ""


def _word(value: object) -> str:
    """A value as its option spells it; the speeds of all lanes by their range."""
    if not isinstance(value, tuple):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    slow = [lane for lane, speed in enumerate(value) if speed < 1]
    which = f": {', '.join(map(str, slow))}" if 0 < len(slow) <= NAMED_LANES else ""
    return f"{min(value):g}..{max(value):g} ({len(slow)} of {len(value)} lanes below 1{which})"


_DEFAULTS: dict[str, object] = {
    name: field.get_default() for name, field in PlanOptions.model_fields.items()
} | {"microbatches": None, "on_overlong": "error", "seed": 0}
"""Defaults of the command line; where `PlanOptions` has none of its own, they stand here."""
