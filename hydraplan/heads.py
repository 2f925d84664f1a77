"""Who computes which heads: how an inner group divides a layer's heads between its members.

A split is data that all members of a group hold alike. It names the query heads of every
member of every ring shard; what else is needed follows: the KV heads a member receives, and
the runs of heads that one kernel call may take. Any division is legal: sizes that do not
divide the heads, KV groups cut between members (their KV head is replicated, its gradients
summed), members without a head. By default heads are divided evenly, in contiguous ranges;
members that differ in speed get ranges by what a head takes them.

Ring peers pass their KV heads on to each other, so all members with one inner index receive
the same ones: the union of what their query heads need in any ring shard.

Pure Python. Whether a division is worth its larger exchanges is not decided here.

Source: uneven heads inside a Ulysses group are our derivation; the rule of one ratio a kernel
call follows from how grouped-query kernels count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import NamedTuple

from hydraplan.errors import InputError

Heads = tuple[int, ...]
"""Numbers of heads, ascending."""


class HeadRun(NamedTuple):
    """Heads that one kernel call takes: columns among the query and KV heads of a member.

    Every KV head of a run serves equally many of its query heads, as kernels assume.
    """

    q: slice
    kv: slice


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """Query heads of every member, `q_heads[ring index][inner index]`, and what follows.

    `kv_heads[inner index]`: KV heads that every member of that inner index receives.
    `runs[ring index][inner index]`: kernel calls of a member; they cover its query heads once,
    a KV head that only another ring shard needs is in none.

    Raises:
        InputError: The heads of some ring shard are not each held once, or cannot be grouped.
    """

    num_heads: int
    num_kv_heads: int
    q_heads: tuple[tuple[Heads, ...], ...]
    kv_heads: tuple[Heads, ...] = field(init=False, repr=False, compare=False)
    runs: tuple[tuple[tuple[HeadRun, ...], ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_groups(self.num_heads, self.num_kv_heads)
        _check_shards(self.num_heads, self.q_heads)
        each = self.num_heads // self.num_kv_heads
        served = [[[head // each for head in held] for held in shard] for shard in self.q_heads]
        kv_heads = tuple(
            tuple(sorted({head for held in column for head in held}))
            for column in zip(*served, strict=True)
        )
        runs = tuple(
            tuple(_runs(held, columns) for held, columns in zip(shard, kv_heads, strict=True))
            for shard in served
        )
        object.__setattr__(self, "kv_heads", kv_heads)
        object.__setattr__(self, "runs", runs)

    @property
    def ulysses_size(self) -> int:
        """Members of an inner group."""
        return len(self.q_heads[0])

    @property
    def ring_size(self) -> int:
        """Ring shards."""
        return len(self.q_heads)


def _check_shards(num_heads: int, q_heads: tuple[tuple[Heads, ...], ...]) -> None:
    if not q_heads or not q_heads[0] or len({len(shard) for shard in q_heads}) > 1:
        raise InputError("a head split needs equally many members in every ring shard")
    for ring, shard in enumerate(q_heads):
        for held in shard:
            if list(held) != sorted(held):
                raise InputError(f"ring shard {ring}: heads {held} are not in ascending order")
        named = sorted(head for held in shard for head in held)
        if named != list(range(num_heads)):
            raise InputError(
                f"ring shard {ring}: members hold heads {named}, not each of 0..{num_heads - 1}"
                " once"
            )


def _runs(served: list[int], kv_heads: Heads) -> tuple[HeadRun, ...]:
    """Runs of a member whose query heads are served by the KV heads `served`, in order."""
    runs: list[HeadRun] = []
    q_end = ratio = 0
    for column, kv_head in enumerate(kv_heads):
        count = served.count(kv_head)
        if count and count == ratio:
            q, kv = runs[-1]
            runs[-1] = HeadRun(slice(q.start, q_end + count), slice(kv.start, column + 1))
        elif count:
            runs.append(HeadRun(slice(q_end, q_end + count), slice(column, column + 1)))
        q_end, ratio = q_end + count, count
    return tuple(runs)


def check_groups(num_heads: int, num_kv_heads: int) -> None:
    """Refuse KV heads that would not all serve equally many query heads.

    Raises:
        InputError: The query heads are not a multiple of the KV heads.
    """
    if num_kv_heads < 1 or num_heads < 1 or num_heads % num_kv_heads:
        raise InputError(f"{num_heads} query heads are not a multiple of {num_kv_heads} KV heads")


@lru_cache(maxsize=1024)
def even_split(num_heads: int, num_kv_heads: int, ulysses_size: int, ring_size: int) -> HeadSplit:
    """Contiguous ranges of ceil(heads / u) heads at most, as few KV groups cut as that allows."""
    return weighted_split(num_heads, num_kv_heads, [[1.0] * ulysses_size] * ring_size)


def weighted_split(
    num_heads: int, num_kv_heads: int, head_s: Sequence[Sequence[float]]
) -> HeadSplit:
    """Contiguous ranges such that the member that ends last in each ring shard ends earliest.

    Of those, as few KV heads are replicated as possible, then the others end early too.

    Args:
        head_s: Seconds of one query head, `[ring index][inner index]`; any positive unit.

    Raises:
        InputError: Heads cannot be grouped, or times are not positive.
    """
    check_groups(num_heads, num_kv_heads)
    if not all(0 < seconds < inf for shard in head_s for seconds in shard):
        raise InputError(f"seconds of a head must be positive and finite, not {head_s}")
    each = num_heads // num_kv_heads
    counts = {tuple(shard): _counts(num_heads, each, tuple(shard)) for shard in head_s}
    return contiguous_split(num_heads, num_kv_heads, [counts[tuple(shard)] for shard in head_s])


def _counts(num_heads: int, each: int, member_s: tuple[float, ...]) -> list[int]:
    """Heads of every member; `each` query heads a KV head.

    The earliest end follows head by head: to whom it makes end first. Then, member by member
    and for every number of heads given so far, the division with fewest cuts inside a group.
    """
    given = [0] * len(member_s)
    for _ in range(num_heads):
        i = min(range(len(given)), key=lambda i: (member_s[i] * (given[i] + 1), i))
        given[i] += 1
    end_s = max(n * seconds for n, seconds in zip(given, member_s, strict=True))
    best: dict[int, tuple[int, float, list[int]]] = {0: (0, 0.0, [])}
    for seconds in member_s:
        most, found = int(end_s / seconds * (1 + 1e-12)), best
        best = {}
        for start, (cuts, spread, counts) in found.items():
            for n in range(min(most, num_heads - start) + 1):
                is_cut = n > 0 and start % each > 0
                way = (cuts + is_cut, spread + seconds * n * n, [*counts, n])
                best[start + n] = min(best.get(start + n, way), way)
    return best[num_heads][2]


def contiguous_split(
    num_heads: int, num_kv_heads: int, counts: Sequence[Sequence[int]]
) -> HeadSplit:
    """Ranges of `counts[ring index][inner index]` query heads, in the order of the members.

    Raises:
        InputError: Counts of a shard do not add up to the heads.
    """
    shards = []
    for shard in counts:
        ends = [sum(shard[: i + 1]) for i in range(len(shard))]
        shards.append(tuple(tuple(range(b - n, b)) for n, b in zip(shard, ends, strict=True)))
    return HeadSplit(num_heads, num_kv_heads, tuple(shards))
