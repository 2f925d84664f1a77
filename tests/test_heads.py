from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.heads import HeadRun, HeadSplit, contiguous_split, even_split, weighted_split
from hydraplan.layout import legal_ulysses
from tests.head_splits import head_splits


def test_legal_sizes_give_every_member_equally_many_heads_in_one_run():
    for heads, kv_heads in ((8, 8), (8, 2), (8, 1), (40, 8), (28, 4), (32, 2), (12, 6)):
        for u, r in product(legal_ulysses(heads, kv_heads, 64), (1, 3)):
            split = even_split(heads, kv_heads, u, r)
            kv_each = max(1, kv_heads // u)
            assert {len(held) for shard in split.q_heads for held in shard} == {heads // u}
            assert {len(held) for held in split.kv_heads} == {kv_each}
            whole = (HeadRun(slice(0, heads // u), slice(0, kv_each)),)
            assert all(runs == whole for shard in split.runs for runs in shard)


def test_sizes_that_divide_nothing_differ_by_one_head_and_some_members_have_none():
    split = even_split(7, 7, 3, 1)
    assert split.q_heads == (((0, 1), (2, 3), (4, 5, 6)),)
    assert even_split(2, 1, 3, 1).q_heads == (((), (0,), (1,)),)
    assert even_split(2, 1, 3, 1).kv_heads == ((), (0,), (0,))
    # The middle cut is the border of a KV group.
    assert even_split(28, 4, 8, 1).kv_heads == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))


def test_full_groups_go_together_and_a_partial_group_alone():
    split = contiguous_split(8, 4, [[5, 3]])
    assert split.kv_heads == ((0, 1, 2), (2, 3))
    assert split.runs[0][0] == (
        HeadRun(slice(0, 4), slice(0, 2)),
        HeadRun(slice(4, 5), slice(2, 3)),
    )
    assert split.runs[0][1] == (
        HeadRun(slice(0, 1), slice(0, 1)),
        HeadRun(slice(1, 3), slice(1, 2)),
    )


def test_ring_peers_carry_each_others_kv_heads():
    split = contiguous_split(4, 4, [[3, 1], [1, 3]])
    assert split.kv_heads == ((0, 1, 2), (1, 2, 3))
    assert split.runs[0][1] == (HeadRun(slice(0, 1), slice(2, 3)),)
    assert split.runs[1][0] == (HeadRun(slice(0, 1), slice(0, 1)),)


def all_counts(heads: int, members: int) -> list[tuple[int, ...]]:
    """Every way to give heads to members."""
    if members == 1:
        return [(heads,)]
    return [(n, *rest) for n in range(heads + 1) for rest in all_counts(heads - n, members - 1)]


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
    st.lists(st.sampled_from([1.0, 1.2, 1.5, 2.0, 7.0]), min_size=1, max_size=4),
)
def test_slow_members_get_the_heads_that_end_earliest_with_the_fewest_kv_copies(shape, member_s):
    kv_heads, each = shape
    heads = kv_heads * each

    def rank(counts):
        split = contiguous_split(heads, kv_heads, [counts])
        end_s = max(n * seconds for n, seconds in zip(counts, member_s, strict=True))
        return round(end_s, 9), sum(map(len, split.kv_heads))

    split = weighted_split(heads, kv_heads, [member_s])
    found = tuple(len(held) for held in split.q_heads[0])
    assert rank(found) == min(rank(counts) for counts in all_counts(heads, len(member_s)))


def test_a_member_half_as_fast_gets_half_the_heads_and_kv_groups_stay_whole():
    split = weighted_split(32, 8, [[1.0, 1.0, 1.0, 2.0], [1.0] * 4])
    # No member ends after 10, and one KV group is cut; 9, 9, 9, 5 would end then and cut three.
    assert [len(held) for held in split.q_heads[0]] == [8, 10, 10, 4]
    assert [len(held) for held in split.q_heads[1]] == [8, 8, 8, 8]
    whole = weighted_split(24, 6, [[1.0, 2.0]])
    assert [len(held) for held in whole.q_heads[0]] == [16, 8]
    assert whole.kv_heads == ((0, 1, 2, 3), (4, 5))
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="positive and finite"):
            weighted_split(4, 4, [[1.0, wrong]])


@given(head_splits())
def test_runs_cover_every_query_head_once_with_the_kv_head_that_serves_it(split):
    each = split.num_heads // split.num_kv_heads
    for shard, shard_runs in zip(split.q_heads, split.runs, strict=True):
        for held, columns, runs in zip(shard, split.kv_heads, shard_runs, strict=True):
            served = []
            for q, kv in runs:
                queries, keys = held[q], columns[kv]
                assert len(queries) % len(keys) == 0
                ratio = len(queries) // len(keys)
                assert [head // each for head in queries] == [k for k in keys for _ in range(ratio)]
                served += queries
            assert served == list(held)


@given(head_splits())
def test_members_of_one_inner_index_receive_no_kv_head_that_none_of_them_needs(split):
    each = split.num_heads // split.num_kv_heads
    for inner, columns in enumerate(split.kv_heads):
        needed = {head // each for shard in split.q_heads for head in shard[inner]}
        assert list(columns) == sorted(needed)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "q_heads", "said"),
    [
        (8, 3, (((0,),),), "8 query heads are not a multiple of 3 KV heads"),
        (4, 0, (((0,),),), "4 query heads are not a multiple of 0 KV heads"),
        (2, 1, (), "equally many members"),
        (2, 1, (((0, 1), ()), ((0, 1),)), "equally many members"),
        (2, 1, (((1, 0),),), "heads (1, 0) are not in ascending order"),
        (3, 1, (((0, 1), (1, 2)),), "hold heads [0, 1, 1, 2], not each of 0..2 once"),
        (2, 1, (((0, 1),), ((0,),)), "ring shard 1: members hold heads [0], not each of 0..1 once"),
    ],
)
def test_what_is_no_division_of_the_heads_is_refused(heads, kv_heads, q_heads, said):
    with pytest.raises(InputError) as caught:
        HeadSplit(heads, kv_heads, q_heads)
    assert said in str(caught.value)
