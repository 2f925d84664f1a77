"""The rules of `docs/mcore-rules.md` sections 1 to 3 word for word: slow, with scans of all ranks.

A microbatch is a list of what each rank holds, in order. Grown out of the pool: IndexError, as
in the genuine schedulers.
"""

Held = list[list[int]]


def oracle(
    lengths: list[int], num_ranks: int, cap: int, min_degree: int, generation: str
) -> list[Held]:
    degree = [least_degree(n, cap, min_degree) for n in lengths]
    assert max(degree) <= num_ranks
    left = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = []
    while left:
        if generation == "v2":
            held, left = packed_group(left, lengths, degree, num_ranks, cap)
        else:
            held, left = one_group(left, lengths, degree, num_ranks, cap, generation)
            grow(held)
        groups.append(held)
    return groups


def least_degree(length: int, cap: int, min_degree: int) -> int:
    degree = 1
    while degree * cap < length:
        degree *= 2
    return max(degree, min_degree)


def buckets_of(left: list[int], work: list[float], degree: list[int]) -> list[list[int]]:
    kinds = len({degree[i] for i in left})
    target = sum(work[i] for i in left) / kinds
    buckets: list[list[int]] = [[]]
    for position, i in enumerate(left):
        exceeds = sum(work[j] for j in buckets[-1]) + work[i] > 1.1 * target
        few = len(left) - position <= kinds - 2 * (len(buckets) - 1)
        if buckets[-1] and (exceeds or few):
            buckets.append([])
        buckets[-1].append(i)
    return buckets


def one_group(
    left: list[int],
    lengths: list[int],
    degree: list[int],
    num_ranks: int,
    cap: int,
    generation: str,
) -> tuple[Held, list[int]]:
    work = [n * n / d for n, d in zip(lengths, degree, strict=True)]
    buckets = buckets_of(left, work, degree)
    held: Held = [[] for _ in range(num_ranks)]
    load = [0.0] * num_ranks
    sets: list[list[int]] = []
    first_degree, narrower = 0, False
    while any(buckets):
        free = [r for r in range(num_ranks) if not any(r in s for s in sets)]
        heads = [b for b in buckets if b]
        heads = [
            b
            for b in heads
            if len(free) >= degree[b[0]] or any(len(s) == degree[b[0]] for s in sets)
        ]
        if not heads:
            break
        i = heads[0][0]
        d = degree[i]
        old = [s for s in sets if len(s) == d]
        if generation == "v1":
            old = [
                s for s in old if sum(lengths[j] / d for j in held[s[0]]) + lengths[i] / d <= cap
            ]
        if len(free) >= d:
            chosen = free[:d]
            sets.append(chosen)
        elif old:
            chosen = min(old, key=lambda s: max(load[r] for r in s))
        else:
            break
        heads[0].pop(0)
        for r in chosen:
            held[r].append(i)
            load[r] += work[i]
        first_degree = first_degree or d
        narrower = narrower or d < first_degree
        if narrower and max(load) - min(load) <= 0.05 * max(load):
            break
    rest = [i for b in buckets for i in b]
    while generation == "main" and min(load) > 0:
        slack = max(load) - min(load)
        if slack <= 0.05 * max(load):
            break
        busiest = next(s for s in sets if load[s[0]] == max(load))
        if len(held[busiest[0]]) < 2:
            break
        i = held[busiest[0]][-1]
        after = [value - work[i] * (r in busiest) for r, value in enumerate(load)]
        if max(after) - min(after) >= slack:
            break
        load = after
        for r in busiest:
            held[r].pop()
        rest.append(i)
    return held, rest


def packed_group(
    left: list[int], lengths: list[int], degree: list[int], num_ranks: int, cap: int
) -> tuple[Held, list[int]]:
    limit = lengths[left[0]] * cap * 1.05
    held: Held = [[] for _ in range(num_ranks)]
    load = [0.0] * num_ranks
    sets: list[list[int]] = []
    rest = []
    for i in left:
        moves = []
        d = degree[i]
        while d <= num_ranks:
            free = [r for r in range(num_ranks) if not held[r]]
            moves += [
                s
                for s in sets
                if len(s) == d and sum(lengths[j] / d for j in held[s[0]]) + lengths[i] / d <= cap
            ]
            moves += [free[:d]] if len(free) >= d else []
            d *= 2
        if i == left[0]:
            moves = moves[:1]

        def score(ranks: list[int], i: int = i) -> float:
            return max(
                value + (lengths[i] ** 2 / len(ranks) if r in ranks else 0.0)
                for r, value in enumerate(load)
            )

        moves = [s for s in moves if score(s) <= limit]
        if not moves:
            rest.append(i)
            continue
        chosen = min(moves, key=score)
        if chosen not in sets:
            sets.append(chosen)
        for r in chosen:
            held[r].append(i)
            load[r] += lengths[i] ** 2 / len(chosen)
    if grow(held, looks_ahead=True):
        return held, rest
    inside = [
        i for k, i in enumerate(left) if sum(lengths[j] for j in left[: k + 1]) / num_ranks <= cap
    ]
    return [list(inside) for _ in range(num_ranks)], left[len(inside) :]


def grow(held: Held, looks_ahead: bool = False) -> bool:
    """Fill empty ranks in place; False if no set may grow."""
    num_ranks = len(held)
    while [] in held:
        used = held.index([])
        sets = []  # first rank and size
        for r in range(used):
            if r == 0 or held[r] != held[r - 1]:
                sets.append([r, 0])
            sets[-1][1] += 1
        smallest = min(size for _, size in sets)
        grown = min(2 * smallest, num_ranks)
        able = [first for first, size in sets if size == smallest]
        if looks_ahead:
            able = [first for first in able if first + grown <= num_ranks]
        if not able:
            return False
        first, more = able[0], grown - smallest
        for r in range(used - 1, first + smallest - 1, -1):
            held[r + more] = held[r]
        for r in range(first + smallest, first + grown):
            held[r] = list(held[first])
    return True
