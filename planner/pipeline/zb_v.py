"""ZB-V: two chunks a stage, laid down the stages and up again, and weight gradients apart.

The first stage holds both ends of the model, so a microbatch is back where it began when its
forward ends, and the activations of all stages come and go alike: none holds more than 1F1B's
first stage does, and with F = B = W none is ever idle between its first and its last op.
"""

from collections import Counter

from hydraplan.model import Op, OpKind, Schedule


def zb_v(num_stages: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """The order for F = B = W, for any number of microbatches.

    A stage holds at most P microbatches. With fewer than 2 P of them the order is that of 2 P
    without those that are missing: what is left of an order that can go on still can.

    Source: layout, memory and zero bubble are the Zero Bubble paper's. The order is derived from
    F = B = W: what each stage can run when nobody waits.
    """
    assert num_chunks == 2, num_chunks
    whole = max(num_microbatches, 2 * num_stages)
    return tuple(_stage(num_stages, s, whole, num_microbatches) for s in range(num_stages))


def _stage(num_stages: int, stage: int, num_microbatches: int, kept: int) -> tuple[Op, ...]:
    """Ops of one stage; each kind takes the microbatches of each chunk in order.

    Those from `kept` on are counted and left out: work grows with what is kept.
    """
    above, below = stage, num_stages - stage
    ops: list[Op] = []
    run: Counter[tuple[OpKind, int]] = Counter()

    def go(times: int, *passes: tuple[OpKind, int]) -> None:
        for step in range(min(times, kept - min(run[of] for of in passes))):
            for kind, chunk in passes:
                if run[kind, chunk] + step < kept:
                    ops.append(Op(kind, run[kind, chunk] + step, chunk))
        run.update(dict.fromkeys(passes, max(0, times)))

    up: tuple[tuple[OpKind, int], ...] = (("F", 1), ("B", 1), ("W", 1))
    go(2 * below - 1, ("F", 0))  # until the first microbatch is back
    go(above, ("F", 1), ("F", 0))  # it goes on up to the loss, others come down
    go(below, *up)  # its backward comes down, until it is on its way up again
    go(num_microbatches - run["F", 0], ("F", 0), ("B", 0), ("W", 0), *up)
    go(num_microbatches - run["F", 1], ("B", 0), ("W", 0), *up)
    go(above, ("B", 0), ("B", 1))  # upstream waits for these, weight gradients do not hurry
    go(below, ("B", 0), ("W", 0))
    go(num_microbatches - run["W", 1], ("W", 1))
    go(num_microbatches - run["W", 0], ("W", 0))
    return tuple(ops)
