"""What planning costs: one solve and placement, the whole search, growth, and genuine Megatron.

    python benchmarks/planner/cost.py [--peers FOLDER] [--json FILE] [--readme] [--quick]

Warm CPU seconds of this process, the least of a few repeats; beside them the time that sorting a
million floats takes (`stopwatch`). "One plan" is one choice of degrees and one placement with
repair and sibling swap: for every quantum theta, and filled to a limit; the slowest counts.
"Search" is the whole way from lengths to a scored plan. The targets beside them are our own.

`--peers`: where `pip install --no-deps --target FOLDER megatron-core==0.16.1` put it; without
the option it is looked for in the environment, with `--peers none` it is left out.
"""

import argparse
from dataclasses import replace
from functools import partial
from math import log2, nan
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from cells import Asked, Pool, ask
from genuine import VERSION, genuine
from mixes import FILL, MIXES, batch, filling_tokens, scaled, sequences
from stopwatch import least_cpu_s, reference_s
from tables import Cell, Table, progress, reported

from hydraplan.model import IntArray
from hydraplan.planner.placement import hydra
from hydraplan.planner.placement.draft import Draft, Request, one_candidate
from hydraplan.planner.placement.search import ETAS, SLACKS, THETAS

CAP = 8_192
MIX = MIXES["256K"]
ONE_PLAN = ((16_384, 2_048, 32, 0.025), (131_072, 16_384, 32, 0.3), (1_048_576, 16_384, 64, 2.0))
"""Sequences, ranks, microbatches, target in seconds."""
GROWTH_FROM = (4_096, 512)
"""Sequences and ranks before the first of four doublings; 32 microbatches, more where the tokens
of more sequences ask for them."""


def main() -> None:
    """Run all parts, print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    parser.add_argument("--quick", action="store_true", help="without the largest cells")
    args = parser.parse_args()
    loads = [reference_s()]
    cut = 1 if args.quick else len(ONE_PLAN)
    plans = [one_plan(*row) for row in ONE_PLAN[:cut]]
    loads.append(reference_s())
    searches = [search_16k(), *(search_11k(*row) for row in gpus_11k())]
    loads.append(reference_s())
    grown = growth(2 if args.quick else 5)
    slopes = exponents(grown)
    loads.append(reference_s())
    peers = [] if args.peers == "none" else against_genuine(args.peers, args.quick)
    loads.append(reference_s())
    result = {
        "reference_sort_s": loads,
        "one_plan": plans,
        "search": searches,
        "growth": grown,
        "exponents": slopes,
    }
    tables = [
        Table("One plan, warm CPU ms", list(plans[0]), 2).of(plans),
        Table("The whole search, warm CPU ms", list(searches[0]), 1).of(searches),
        Table("Growth; time over N log N is 1.0 at the start", list(grown[0]), 2).of(grown),
        Table("Exponent of time in N log N, fitted", list(slopes[0]), 2).of(slopes),
    ]
    if peers:
        tables.append(Table(f"Against {VERSION}, CPU ms", list(peers[0]), 1).of(peers))
    tables.append(
        Table("CPU ms to sort a million floats, between the parts", ["ms"], 1).of(
            [{"ms": 1e3 * s} for s in loads]
        )
    )
    reported(args.json, result | {"genuine": peers}, tables, args.readme)


def points(request: Request, count: int) -> dict[str, Draft]:
    """What `place_once` repeats, by name: points of the search, with nothing found yet.

    Every quantum under the first guard, and filling to a limit with the first slack.
    """
    plain = one_candidate(request.window)
    searches = {f"theta {t:g}": replace(plain, theta=t, eta=ETAS[0]) for t in THETAS}
    searches["filling"] = replace(plain, slack=SLACKS[0])
    return {
        name: Draft(request.sequences, count, "as-built", nan, nan, "load-driven", search)
        for name, search in searches.items()
    }


def placed_ms(asked: Asked, request: Request, count: int, repeats: int) -> dict[str, float]:
    """CPU milliseconds of one choice of degrees and placement at each point."""
    return {
        name: 1e3 * least_cpu_s(partial(asked.once, request, point), repeats)[1]
        for name, point in points(request, count).items()
    }


def stopped(asked: Asked, request: Request, count: int) -> str:
    """Points that the cap stops, so that their time is that of a failure."""
    real, found = hydra.placed_at, []

    def spy(*given: Any) -> Any:
        found.append(real(*given))
        return found[-1]

    kinds = points(request, count)
    with patch.object(hydra, "placed_at", spy):
        for point in kinds.values():
            asked.once(request, point)
    return ", ".join(name for name, one in zip(kinds, found, strict=True) if one is None)


def one_plan(count: int, ranks: int, microbatches: int, target_s: float) -> Cell:
    """Solve and place once; the batch of the largest is shrunk to fill 80% of the cap."""
    pool = Pool(1, 8, ranks, CAP)
    tokens = int(FILL * CAP * ranks * microbatches)
    length = sequences(MIX, count, 0)
    if int(length.sum()) > tokens:
        length = scaled(MIX, count, tokens, 0)
    asked = ask(length, pool, microbatches=microbatches)
    repeats = 5 if count < 100_000 else 2
    request, open_s = least_cpu_s(asked.request, repeats)
    times = placed_ms(asked, request, microbatches, repeats)
    progress(f"one plan {count} x {ranks} x {microbatches}: {max(times.values()):.1f} ms")
    return {
        "N": count, "R": ranks, "M": microbatches,
        "fill of the cap": int(length.sum()) / (CAP * ranks * microbatches),
        "cost table": 1e3 * open_s,
        **times, "stopped by the cap": stopped(asked, request, microbatches) or "none",
        "target": 1e3 * target_s,
        "met": max(times.values()) <= 1e3 * target_s,
    }  # fmt: skip


def searched(name: str, length: IntArray, pool: Pool, target_s: float) -> Cell:
    """The whole search, and one plan at the point it found."""
    asked = ask(length, pool)
    request, open_s = least_cpu_s(asked.request, 3)
    (_, draft), search_s = least_cpu_s(asked.placed, 3)
    _, once_s = least_cpu_s(partial(asked.once, request, draft), 3)
    progress(f"search {name}: {1e3 * search_s:.0f} ms, {draft.search.num_candidates} candidates")
    return {
        "batch": name, "GPUs": pool.gpus, "N": len(length), "R": pool.ranks,
        "M": draft.num_microbatches, "candidates": draft.search.num_candidates,
        "winner": draft.winner, "cost table": 1e3 * open_s, "one plan": 1e3 * once_s,
        "search": 1e3 * search_s, "target": 1e3 * target_s, "met": search_s <= target_s,
    }  # fmt: skip


def search_16k() -> Cell:
    """16,384 sequences of the 256K mix on 2,048 ranks, 8 stages."""
    return searched("256K", sequences(MIX, 16_384, 0), Pool(1, 8, 2_048, CAP), 0.25)


def gpus_11k() -> list[tuple[str, int]]:
    """Mixes, and caps: 8,192 rows a rank, and 8,192 rows for each of its four devices."""
    return [(name, cap) for cap in (CAP, 4 * CAP) for name in MIXES]


def search_11k(name: str, cap_tokens: int) -> Cell:
    """A batch that fills 11,264 GPUs (tp 4, pp 8, R 352)."""
    pool = Pool(4, 8, 352, cap_tokens)
    length = batch(MIXES[name], filling_tokens(pool.pp, pool.ranks, cap_tokens), 0)
    return searched(f"{name}, cap {cap_tokens}", length, pool, 0.2)


def growth(steps: int) -> list[Cell]:
    """N and R doubled together, N (and M) alone, R alone; size is sequences plus slots."""
    count, ranks = GROWTH_FROM
    result = []
    for what, more, wider in (("N and R", 1, 1), ("N", 1, 0), ("R", 0, 1)):
        first: tuple[float, float] | None = None
        for step in range(steps):
            n, pool = count << step * more, Pool(1, 8, ranks << step * wider, CAP)
            microbatches = 32 << step * (more - wider) * more
            length = sequences(MIX, n, 0)
            asked = ask(length, pool, microbatches=microbatches)
            free = ask(length, pool)
            request = asked.request()
            once_ms = max(placed_ms(asked, request, microbatches, 3).values())
            (_, draft), search_s = least_cpu_s(free.placed, 1)
            size = n + pool.ranks * microbatches
            work = size * log2(size)
            first = first or (once_ms / work, search_s / work)
            result.append({
                "doubled": what, "N": n, "R": pool.ranks, "M": microbatches, "one plan ms": once_ms,
                "over N log N": once_ms / work / first[0], "search ms": 1e3 * search_s,
                "search M": draft.num_microbatches,
                "search over N log N": search_s / work / first[1],
            })  # fmt: skip
            progress(f"growth {what} {n} x {pool.ranks}: {once_ms:.1f} ms, {search_s:.2f} s")
    return result


def exponents(grown: list[Cell]) -> list[Cell]:
    """Least-squares slope of log time over log (size log size): 1 is growth as N log N."""
    result = []
    for what in dict.fromkeys(row["doubled"] for row in grown):
        here = [row for row in grown if row["doubled"] == what]
        size = [row["N"] + row["R"] * row["M"] for row in here]
        work = np.log([n * log2(n) for n in size])
        result.append({"doubled": what, "doublings": len(here) - 1, **{
            name: float(np.polyfit(work, np.log([row[f"{name} ms"] for row in here]), 1)[0])
            for name in ("one plan", "search")
        }})  # fmt: skip
    return result


def against_genuine(peers: str | None, quick: bool) -> list[Cell]:
    """One call of the genuine scheduler, our search and our compiled mcore-v1 on equal lengths."""
    sizes = ((4_096, 512), (8_192, 512), (4_096, 1_024))
    result = []
    for count, ranks in sizes[: 1 if quick else None]:
        length, pool = sequences(MIX, count, 0), Pool(1, 4, ranks, CAP)
        genuine_s, groups = genuine(length, ranks, CAP, peers)
        asked = ask(length, pool)
        request = asked.request()
        (_, draft), search_s = least_cpu_s(asked.placed, 3)
        _, once_s = least_cpu_s(partial(asked.once, request, draft), 5)
        v1 = ask(length, pool, "mcore-v1")
        _, v1_s = least_cpu_s(partial(v1.once, request, draft), 3)
        result.append({
            "N": count, "R": ranks, "cap": CAP, "genuine": 1e3 * genuine_s, "groups": groups,
            "one plan": 1e3 * once_s, "genuine / one plan": genuine_s / once_s, "goal": 100.0,
            "search": 1e3 * search_s, "genuine / search": genuine_s / search_s, "goal ": 5.0,
            "our mcore-v1": 1e3 * v1_s, "one plan / mcore-v1": once_s / v1_s,
            "search / mcore-v1": search_s / v1_s,
        })  # fmt: skip
        progress(f"genuine {count} x {ranks}: {genuine_s:.2f} s")
    return result


if __name__ == "__main__":
    main()
