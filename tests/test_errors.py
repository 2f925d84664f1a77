import pytest

from hydraplan.errors import many


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
