"""Values of settings side by side, where long ones differ in little."""

import pytest

from hydraplan.views.diff_text import _both

RULES = ("accounted", "degree", "inside", "layout", "order", "schedule")


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ((*RULES, "reorder"), RULES, ("also reorder", "no others")),
        ((*RULES, "cap"), (*RULES, "cap-mean"), ("also cap", "also cap-mean")),
        ((1.0, 0.5), (0.5, 1.0), ("(1.0, 0.5)", "(0.5, 1.0)")),
        (("a", "b"), ("b", "a"), ("('a', 'b')", "('b', 'a')")),
        ("hydra", None, ("hydra", "-")),
        (0.125, 7, ("0.125", "7")),
    ],
)
def test_of_lists_of_words_only_what_the_other_has_not_is_shown(old, new, shown) -> None:
    assert _both(old, new) == shown
