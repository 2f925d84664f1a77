from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.heads import contiguous_split
from hydraplan.kernels.packing import Bucket, rank_layout
from hydraplan.layout import ring_shard
from tests.builders import Place, placed_sequences

shapes = st.sampled_from([(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (8, 1), (2, 4), (1, 8)])
lengths = st.lists(st.integers(1, 70), min_size=1, max_size=6)


def shard_positions(bucket: Bucket, all_lengths: list[int], ring: int) -> list[tuple[int, int]]:
    """(sequence, position) of every row of a ring shard, in shard order."""
    rows = []
    for i in bucket.sequence_id:
        front, back = ring_shard(all_lengths[i], bucket.ring_size, ring)
        rows += [(i, p) for p in (*front, *back)]
    return rows


@given(lengths, shapes)
def test_members_hold_every_position_of_every_sequence_once(chosen, shape):
    u, r = shape
    placed = placed_sequences([Place(n, 3, u, r) for n in chosen])
    layouts = [rank_layout(placed, 0, 3 + member) for member in range(u * r)]
    held = [
        (int(i), int(p))
        for layout in layouts
        for i, p in zip(layout.sequence, layout.positions, strict=True)
    ]
    assert sorted(held) == [(i, p) for i, n in enumerate(chosen) for p in range(n)]
    assert all(len(x.positions) == len(x.sequence) == x.rows for x in layouts)


@given(lengths, shapes)
def test_peer_major_rows_put_in_shard_order_are_the_ring_shard(chosen, shape):
    u, r = shape
    placed = placed_sequences([Place(n, 0, u, r) for n in chosen])
    layouts = [rank_layout(placed, 0, member) for member in range(u * r)]
    for ring in range(r):
        inner = layouts[ring * u : (ring + 1) * u]
        peer_major = [
            (int(i), int(p))
            for layout in inner
            for i, p in zip(layout.sequence, layout.positions, strict=True)
        ]
        for layout in inner:
            (bucket,) = layout.buckets
            assert bucket.peer_rows == tuple(peer.rows for peer in inner)
            shard = peer_major
            if bucket.to_shard is not None:
                shard = [peer_major[j] for j in bucket.to_shard.index]
                assert bucket.to_peers is not None
                assert [shard[j] for j in bucket.to_peers.index] == peer_major
            assert shard == shard_positions(bucket, chosen, ring)


@given(lengths, st.sampled_from([1, 2, 4, 8]))
def test_ring_steps_meet_every_causal_pair_once(chosen, r):
    placed = placed_sequences([Place(n, 0, 1, r) for n in chosen])
    met = []
    for ring in range(r):
        (bucket,) = rank_layout(placed, 0, ring).buckets
        own = shard_positions(bucket, chosen, ring)
        for hop, step in enumerate(bucket.steps):
            held = shard_positions(bucket, chosen, (ring - hop) % r)
            assert step.shard_rows == len(held)
            queries = own if step.q_rows is None else [own[j] for j in step.q_rows.index]
            keys = held if step.k_rows is None else [held[j] for j in step.k_rows.index]
            assert (step.cu_q[-1], step.cu_k[-1]) == (len(queries), len(keys))
            for (q0, q1), (k0, k1) in zip(pairwise(step.cu_q), pairwise(step.cu_k), strict=True):
                assert q1 > q0
                assert k1 > k0
                for a, query in enumerate(queries[q0:q1]):
                    last = a + 1 if step.causal else k1 - k0
                    met += [(*query, *key) for key in keys[k0 : k0 + last]]
    right = [(i, p, i, k) for i, n in enumerate(chosen) for p in range(n) for k in range(p + 1)]
    assert sorted(met) == right


def test_a_member_without_rows_still_has_the_bucket():
    layout = rank_layout(placed_sequences([Place(1, 0, 2, 2)]), 0, 2)
    assert layout.rows == 0
    assert layout.positions.dtype == np.int64
    assert [bucket.sequence_id for bucket in layout.buckets] == [(0,)]


def test_a_lane_outside_every_group_has_an_empty_layout():
    layout = rank_layout(placed_sequences([Place(9, 0, 2, 2)]), 0, 4)
    assert (layout.rows, layout.buckets, len(layout.positions)) == (0, (), 0)


def test_other_microbatches_do_not_leak_in():
    placed = placed_sequences([Place(4, microbatch=0), Place(5, microbatch=1)])
    assert rank_layout(placed, 1, 0).sequence.tolist() == [1] * 5


def test_all_members_build_the_same_buckets_in_the_same_order_when_groups_overlap_askew():
    placed = placed_sequences(
        [Place(8, 0, 2, 1), Place(8, 1, 2, 1), Place(8, 0, 2, 1), Place(8, 0, 1, 2), Place(8, 1)]
    )
    buckets = [
        [(b.first_rank, b.sequence_id, b.order) for b in rank_layout(placed, 0, lane).buckets]
        for lane in range(3)
    ]
    assert buckets[0] == [(0, (0, 2), 0), (0, (3,), 3)]
    assert buckets[1] == [(0, (0, 2), 0), (1, (1,), 1), (0, (3,), 3), (1, (4,), 4)]
    assert buckets[2] == [(1, (1,), 1)]
    assert rank_layout(placed, 0, 1).buckets[0].rows.index.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_packed_rows_follow_the_global_order():
    placed = placed_sequences([Place(2), Place(4, 0, 2, 1), Place(3), Place(8, 0, 2, 2)])
    layout = rank_layout(placed, 0, 0)
    assert layout.sequence.tolist() == [3, 3, 1, 1, 0, 0, 2, 2, 2]
    assert layout.positions.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 2]


def test_a_head_split_goes_to_its_bucket_alone_and_must_fit_it():
    placed = placed_sequences([Place(9, 0, 2, 1), Place(9, 0, 1, 2), Place(9, 0, 2, 1)])
    split = contiguous_split(4, 2, [[3, 1]])
    layout = rank_layout(placed, 0, 1, {(0, 2, 1): split})
    assert [bucket.heads for bucket in layout.buckets] == [split, None]
    with pytest.raises(InputError, match="split for 2 x 1 members is given to the bucket of 1 x 2"):
        rank_layout(placed, 0, 1, {(0, 1, 2): split})
