"""Drawn head splits: any heads to any member, or ranges of any length."""

from hypothesis import strategies as st

from hydraplan.heads import HeadSplit


@st.composite
def head_splits(
    draw: st.DrawFn,
    heads: st.SearchStrategy[tuple[int, int]] | None = None,
    sizes: st.SearchStrategy[tuple[int, int]] | None = None,
) -> HeadSplit:
    """A split of drawn (query, KV) heads over drawn (inner, ring) sizes."""
    groups = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(lambda x: (x[0] * x[1], x[0]))
    num_heads, num_kv_heads = draw(groups if heads is None else heads)
    u, r = draw(st.tuples(st.integers(1, 4), st.integers(1, 3)) if sizes is None else sizes)
    shards = []
    for _ in range(r):
        holder = draw(st.lists(st.integers(0, u - 1), min_size=num_heads, max_size=num_heads))
        if draw(st.booleans()):
            holder.sort()
        shards.append(
            tuple(tuple(h for h in range(num_heads) if holder[h] == inner) for inner in range(u))
        )
    return HeadSplit(num_heads, num_kv_heads, tuple(shards))
