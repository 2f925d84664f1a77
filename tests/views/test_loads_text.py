import numpy as np

from hydraplan.views.loads_text import bar, print_degrees, print_loads


def test_the_five_busiest_lanes_are_named_most_first(capsys) -> None:
    load_s = np.ones((20, 3))
    load_s[[3, 7, 11, 2, 19, 5]] += np.array([0.6, 0.5, 0.4, 0.3, 0.2, 0.1])[:, None]
    print_loads(load_s)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == ("load of 20 lanes, all microbatches: least 3 s, median 3 s, most 4.8 s")
    names = [part.split(" ")[0] for part in out[-1].removeprefix("busiest lanes: ").split(", ")]
    assert names == ["3", "7", "11", "2", "19"]
    bars = [line for line in out if "|" in line]
    assert len(bars) == 16
    assert max(bars, key=len).startswith("lane  2")  # lanes 2 and 3 share a bar, 3 is the busiest
    assert all(len(line) <= 80 for line in bars)


def test_a_degree_that_holds_few_tokens_is_still_seen(capsys) -> None:
    print_degrees({1: 2, 8: 1}, {1: 1_000_000, 8: 1})
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["1", "2", "1,000,000", "|" + "#" * 46]
    assert out[2].split() == ["8", "1", "1", "|#"]


def test_nothing_is_drawn_as_nothing() -> None:
    assert (bar(0.0, 40), bar(1e-9, 40), bar(1.0, 40)) == ("", "#", "#" * 40)
