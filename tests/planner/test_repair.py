from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.layout import legal_degrees, rank_tokens_max
from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.placement.forest import Forest, filled_forest
from hydraplan.planner.placement.repair import MAX_PARTNERS, Options, repair
from tests.planner.placed import POOLS, UNBOUNDED, Work, blocks_of, in_slots

SPEEDS = (0.5, 1.0, 2.0)


class Placed(NamedTuple):
    """A placement that knows nothing of balance, and what repair is asked."""

    work: Work
    microbatch: IntArray
    node: IntArray
    options: Options
    slow: FloatArray | None


def first_ranks(work: Work, level: IntArray, node: IntArray) -> IntArray:
    width = 1 << (work.ranks - 1).bit_length()
    return (node - (width >> level)) << level


def exact_rows(length: IntArray, level: IntArray, ranks: int) -> IntArray:
    """Rows of the fullest member in a plain ring, the most of all shapes."""
    return rank_tokens_max(length, np.ones_like(level), legal_degrees(ranks)[level])


@st.composite
def placements(draw: st.DrawFn) -> Placed:
    """Whole-number loads that fall with the degree, some degrees left out, any place that fits."""
    ranks = draw(st.sampled_from(POOLS))
    microbatches = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    cap = draw(st.sampled_from([6, 20, 60, UNBOUNDED]))
    count = draw(st.integers(1, 40))
    degrees = legal_degrees(ranks)
    length = np.minimum(rng.geometric(1 / 40, count), (min(cap, 1000) - 2) * ranks)
    load_s = np.ceil(length[:, None] ** 1.5 / degrees + rng.integers(0, 3, count)[:, None])
    floor = (exact_rows(np.repeat(length, len(degrees)), np.tile(np.arange(len(degrees)), count),
                        ranks).reshape(load_s.shape) <= cap).argmax(axis=1)  # fmt: skip
    out = rng.random(load_s.shape) < 0.2
    out |= np.arange(len(degrees)) < floor[:, None]
    out[np.arange(count), floor] = False
    load_s[out] = np.inf
    load_s[:, 1:][load_s[:, 1:] >= np.minimum.accumulate(load_s, axis=1)[:, :-1]] = np.inf
    wanted = rng.integers(0, len(degrees), count)
    level = np.array([np.flatnonzero(np.isfinite(row) & (np.arange(len(row)) <= max(w, f)))[-1]
                      for row, w, f in zip(load_s, wanted, floor, strict=True)])  # fmt: skip
    rows = exact_rows(length, level, ranks)
    width = 1 << (ranks - 1).bit_length()
    held = np.zeros((microbatches, ranks), np.int64)
    places = []
    for i in range(count):
        lanes = blocks_of(ranks, level[i])
        free = [(m, b) for m in range(microbatches) for b in range(len(lanes))
                if held[m, lanes[b]].max() + rows[i] <= cap]  # fmt: skip
        if free:  # half of them crowd into the first place
            m, b = free[0 if rng.random() < 0.5 else int(rng.integers(len(free)))]
            held[m, lanes[b]] += rows[i]
            places.append((i, m, (width >> level[i]) + b))
    kept, microbatch, node = (np.array(column) for column in zip(*places, strict=True))
    load = load_s[kept, level[kept]]
    return Placed(
        Work(load, rows[kept], level[kept], ranks, microbatches),
        microbatch,
        node,
        Options(kept, load_s, length[kept], degrees, cap),
        rng.choice(SPEEDS, ranks) if draw(st.booleans()) else None,
    )


class Repaired(NamedTuple):
    """What repair left."""

    forest: Forest
    work: Work
    microbatch: IntArray
    node: IntArray
    moves: int


def repaired(placed: Placed, stop_s: float, max_steps: int) -> Repaired:
    work = placed.work
    load, rows, level = (column.copy() for column in work[:3])
    microbatch, node = placed.microbatch.copy(), placed.node.copy()
    forest = filled_forest(work.ranks, work.microbatches, microbatch, node, load, rows, placed.slow)
    moves, looked = repair(
        forest, placed.options, microbatch, node, level, load, rows, stop_s, max_steps
    )
    assert looked >= moves
    after = Work(load, rows, level, work.ranks, work.microbatches)
    return Repaired(forest, after, microbatch, node, moves)


def loads(placed: Placed, work: Work, microbatch: IntArray, node: IntArray) -> FloatArray:
    """Seconds in every slot; a group works at the speed of its slowest lane."""
    slow = np.ones(work.ranks) if placed.slow is None else placed.slow
    first = first_ranks(work, work.level, node)
    degree = legal_degrees(work.ranks)[work.level]
    slowest = np.array([slow[a : a + d].max() for a, d in zip(first, degree, strict=True)])
    return in_slots(work.load * slowest, work, microbatch, first)


@given(placements(), st.sampled_from([0.0, 0.5, 0.9]), st.integers(0, 60))
def test_repair_keeps_everything_legal_and_never_raises_the_peak(
    placed: Placed, share: float, max_steps: int
) -> None:
    before = loads(placed, placed.work, placed.microbatch, placed.node)
    stop_s = share * before.max()
    after = repaired(placed, stop_s, max_steps)
    work, options = after.work, placed.options
    held = loads(placed, work, after.microbatch, after.node)  # checks range and alignment
    assert held.max() <= before.max()
    assert after.moves <= max_steps
    listed = options.load_s[options.bucket, work.level]
    assert np.isfinite(listed).all()
    assert (work.load == listed).all()
    exact = exact_rows(options.length_tokens, work.level, work.ranks)
    assert (exact <= work.rows).all()  # an upper bound after a change of degree
    assert (work.rows <= exact + 2).all()
    rows = in_slots(work.rows, work, after.microbatch, first_ranks(work, work.level, after.node))
    assert rows.max() <= options.cap_tokens
    filled = filled_forest(
        work.ranks, work.microbatches, after.microbatch, after.node, work.load, work.rows,
        placed.slow,
    )  # fmt: skip
    for name in Forest._fields:
        assert np.array_equal(getattr(filled, name), getattr(after.forest, name)), name
    assert len(after.node) == len(placed.node)


@given(placements(), st.sampled_from([0.3, 0.6, 0.9, 1.0]))
def test_repair_stops_when_no_slot_exceeds_the_aim_or_nothing_helps(
    placed: Placed, share: float
) -> None:
    before = loads(placed, placed.work, placed.microbatch, placed.node).max()
    stop_s = share * before
    after = repaired(placed, stop_s, 1000)
    assert after.moves < 1000
    peak = after.forest.highest[:, 1].max()
    if peak > stop_s:
        again = Placed(after.work, after.microbatch, after.node, placed.options, placed.slow)
        assert repaired(again, stop_s, 1000).moves == 0
    elif after.moves:
        one_less = repaired(placed, stop_s, after.moves - 1)
        assert one_less.forest.highest[:, 1].max() > stop_s
    if share == 1.0:
        assert after.moves == 0


def best_peak(placed: Placed, m: int, lane: int) -> float:
    """Lowest load that one step leaves on the fullest lane and where it moves something."""
    work, options, degrees = placed.work, placed.options, placed.options.degrees
    slow = np.ones(work.ranks) if placed.slow is None else placed.slow
    first = first_ranks(work, work.level, placed.node)
    held = loads(placed, work, placed.microbatch, placed.node)
    rows = in_slots(work.rows, work, placed.microbatch, first)
    peak, best = held[lane, m], np.inf
    for i in np.flatnonzero(placed.microbatch == m):
        mine = range(first[i], first[i] + degrees[work.level[i]])
        if lane not in mine:
            continue
        own_s = work.load[i] * slow[mine].max()
        for target in range(max(0, work.level[i] - 1), min(len(degrees), work.level[i] + 2)):
            stays = target == work.level[i]
            cost_s = work.load[i] if stays else options.load_s[options.bucket[i], target]
            mean = -(-options.length_tokens[i] // degrees[target])
            needs = work.rows[i] if stays else mean + 2 * (target > 0)
            blocks = blocks_of(work.ranks, target)
            load, to_m, b = min(
                (held[lanes, j].max(), j, b)
                for j in range(work.microbatches)
                for b, lanes in enumerate(blocks)
            )
            lanes = blocks[b]
            if to_m != m or lanes.stop <= mine.start or mine.stop <= lanes.start:
                room = options.cap_tokens - rows[lanes, to_m].max() - needs
                if room >= 0:
                    best = min(best, max(load + cost_s * slow[lanes].max(), peak - own_s))
                there = (placed.microbatch == to_m) & (first == lanes.start)
                there &= work.level == target
                for j in np.flatnonzero(there)[::-1][:MAX_PARTNERS] if stays else ():
                    less_s = work.load[i] - work.load[j]
                    kept = options.cap_tokens - rows[mine, m].max() - work.rows[j] + work.rows[i]
                    if kept >= 0 and room + work.rows[j] >= 0:
                        other = load + less_s * slow[lanes].max()
                        best = min(best, max(peak - less_s * slow[mine].max(), other))
            wider = [x for x in blocks if x.start <= mine.start and mine.stop <= x.stop]
            if target == work.level[i] + 1 and wider:
                without, free = held[:, m].copy(), options.cap_tokens - rows[:, m]
                without[mine] -= own_s
                free[mine] += work.rows[i]
                if free[wider[0]].min() >= needs:
                    best = min(best, without[wider[0]].max() + cost_s * slow[wider[0]].max())
    return float(best)


@given(placements())
def test_a_step_is_the_best_of_those_it_may_take(placed: Placed) -> None:
    before = loads(placed, placed.work, placed.microbatch, placed.node)
    m = int(before.max(axis=0).argmax())
    lane = int(before[:, m].argmax())
    after = repaired(placed, 0.0, 1)
    best = best_peak(placed, m, lane)
    assert after.moves == (best < before.max())
    if after.moves:
        held = loads(placed, after.work, after.microbatch, after.node)
        degree = legal_degrees(after.work.ranks)
        old = first_ranks(placed.work, placed.work.level, placed.node)
        new = first_ranks(after.work, after.work.level, after.node)
        hot = (placed.microbatch == m) & (old <= lane)
        hot &= lane < old + degree[placed.work.level]
        moved = (after.microbatch != placed.microbatch) | (after.node != placed.node)
        (who,) = np.flatnonzero(hot & moved)
        assert moved.sum() <= 2
        lanes = slice(new[who], new[who] + degree[after.work.level[who]])
        assert max(held[lanes, after.microbatch[who]].max(), held[lane, m]) == best


def test_a_sequence_doubles_in_place_only_where_its_own_ranks_keep_the_cap() -> None:
    """Degree 1 to 2 is counted as one row more, which the lane that is full does not hold."""
    load_s = np.array([[9.0, 4.0], [3.0, np.inf]])
    work = Work(np.array([9.0, 3.0]), np.array([2, 3]), np.array([0, 0]), 2, 1)
    node = np.array([2, 2])
    for cap, level in ((6, 1), (5, 0)):
        options = Options(np.arange(2), load_s, np.array([2, 3]), np.array([1, 2]), cap)
        found = repaired(Placed(work, np.zeros(2, int), node, options, None), 7.5, 9)
        held = in_slots(found.work.rows, found.work, found.microbatch,
                        first_ranks(found.work, found.work.level, found.node))  # fmt: skip
        assert held.max() <= cap
        assert found.work.level[0] == level


def test_repair_moves_within_a_microbatch() -> None:
    """One microbatch, both on lane 0 of two; one of them goes to lane 1."""
    options = Options(np.arange(2), np.array([[3.0, np.inf]] * 2), np.array([3, 3]),
                      np.array([1, 2]), 9)  # fmt: skip
    work = Work(np.array([3.0, 3.0]), np.array([3, 3]), np.array([0, 0]), 2, 1)
    found = repaired(Placed(work, np.zeros(2, int), np.array([2, 2]), options, None), 3.0, 9)
    assert sorted(found.node.tolist()) == [2, 3]
