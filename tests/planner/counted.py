"""How many Python lines the placement loops run through, nothing compiled, as the pool grows.

Run with `python -m tests.planner.counted` it prints lines of `planner/placement` per structure and
pool, as JSON. A loop over the pool, wherever it is, runs at least a line for every rank.
"""

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

COUNT, MICROBATCHES = 40, 2
POOLS = (512, 65_536)
CAPS = {"free": 1 << 40, "tight": 70, "full": 64}


def lines_of(work: Callable[[], object], folder: str = "planner/placement/") -> int:
    """Lines that run inside a package, the one of placements if none is named."""
    lines = 0

    def local(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return local

    def trace(frame: FrameType, _: str, __: object) -> Any:
        return local if folder in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def work(ranks: int) -> tuple[Any, Any, Any]:
    """Loads, rows and levels of sequences of all degrees, the whole pool twice."""
    rng = np.random.default_rng(0)
    top = ranks.bit_length() - 1
    level = np.append(rng.integers(0, 6, COUNT - 2), [top, top])
    load_s = np.append(rng.lognormal(0, 1, COUNT - 2), [9.0, 0.01])
    return load_s, np.append(rng.integers(1, 9, COUNT - 2), [6, 60]), level


def counts() -> dict[str, list[int]]:
    """Lines of each structure under each cap, one entry a pool."""
    from hydraplan.layout import legal_degrees  # noqa: PLC0415
    from hydraplan.planner.placement.fill import fill  # noqa: PLC0415
    from hydraplan.planner.placement.forest import new_forest  # noqa: PLC0415
    from hydraplan.planner.placement.lazy_heaps import place_lazy_heaps  # noqa: PLC0415
    from hydraplan.planner.placement.lazy_split import place_lazy_split  # noqa: PLC0415
    from hydraplan.planner.placement.min_max_forest import place_forest  # noqa: PLC0415
    from hydraplan.planner.placement.repair import Options, repair  # noqa: PLC0415

    found: dict[str, list[int]] = {}
    for ranks in POOLS:
        load_s, rows, level = work(ranks)
        degrees = legal_degrees(ranks)
        for name, cap in CAPS.items():
            asked = load_s, rows, level, ranks, MICROBATCHES, cap
            for place in (place_lazy_heaps, place_lazy_split, place_forest):
                lines = lines_of(lambda place=place, asked=asked: place(*asked))  # type: ignore[misc]
                found.setdefault(f"{place.__name__} {name}", []).append(lines)
        filled = place_forest(load_s, rows, level, ranks, MICROBATCHES, CAPS["free"])
        assert filled is not None
        table = load_s[:, None] * degrees[level][:, None] / degrees
        length, forest = rows * degrees[level], new_forest(ranks, MICROBATCHES)
        options = Options(np.arange(COUNT), table, length, degrees, CAPS["free"])
        columns = [filled[1], filled[2], level.copy(), load_s.copy(), rows.copy()]
        found.setdefault("repair", []).append(
            lines_of(lambda: repair(filled[0], options, *columns, 0.1, COUNT))  # type: ignore[misc]  # noqa: B023
        )
        order, nowhere = np.argsort(-load_s), np.zeros((4, COUNT), np.int64)
        level_of, microbatch, node, rows_of = nowhere
        places = level_of, microbatch, node, np.zeros(COUNT), rows_of
        found.setdefault("fill", []).append(
            lines_of(lambda: fill(forest, options, order, nowhere[0] * 0, 20.0, *places))  # type: ignore[misc]  # noqa: B023
        )
    return found


if __name__ == "__main__":
    json.dump(counts(), sys.stdout)
