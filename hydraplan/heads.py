"""Who computes which heads: how an inner group divides a layer's heads between its members.

A split is data that all members of a group hold alike. It names the query heads of every
member of every ring shard; what else is needed follows: the KV heads a member receives, and
the runs of heads that one kernel call may take. Any division is legal: sizes that do not
divide the heads, KV groups cut between members (their KV head is replicated, its gradients
summed), members without a head. By default heads are divided evenly, in contiguous ranges.

Ring peers pass their KV heads on to each other, so all members with one inner index receive
the same ones: the union of what their query heads need in any ring shard.

Pure Python; which division is fast is not decided here.

Source: uneven heads inside a Ulysses group are our derivation; the rule of one ratio a kernel
call follows from how grouped-query kernels count.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
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
    """Contiguous ranges cut at floor(heads x i / u): sizes differ by one head at most.

    A cut falls on the border of a KV group wherever both divisions have one.
    """
    cuts = [num_heads * i // ulysses_size for i in range(ulysses_size + 1)]
    counts = [b - a for a, b in pairwise(cuts)]
    return contiguous_split(num_heads, num_kv_heads, [counts] * ring_size)


def contiguous_split(num_heads: int, num_kv_heads: int, counts: list[list[int]]) -> HeadSplit:
    """Ranges of `counts[ring index][inner index]` query heads, in the order of the members.

    Raises:
        InputError: Counts of a shard do not add up to the heads.
    """
    shards = []
    for shard in counts:
        ends = [sum(shard[: i + 1]) for i in range(len(shard))]
        shards.append(tuple(tuple(range(b - n, b)) for n, b in zip(shard, ends, strict=True)))
    return HeadSplit(num_heads, num_kv_heads, tuple(shards))
