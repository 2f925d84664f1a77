import pytest

from hydraplan.errors import first_line, many


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "stage", "1 stage"),
        (0, "stage", "0 stages"),
        (2, "rank", "2 ranks"),
        (1, "batch", "1 batch"),
        (3, "microbatch", "3 microbatches"),
    ],
)
def test_a_noun_goes_with_its_count(count: int, noun: str, said: str) -> None:
    assert many(count, noun) == said


def test_an_error_that_says_nothing_is_told_by_its_kind() -> None:
    assert first_line(OSError("\n disk full\nat last")) == "disk full"
    assert first_line(RuntimeError()) == "RuntimeError"
    assert len(first_line(ValueError("x" * 1_000))) == 240
