"""What a policy sees, told name by name from an `Oracle`."""

import math

from tests.planner.policy_oracle import NEVER, Oracle

SOON = 8.0


def seen(o: Oracle) -> dict[str, float]:
    """Features of the stage that chooses, by name; the template's are left out."""
    s, now_s = o.stage, o.now_s
    assert s is not None
    unit_s = float(o.lane.op_s[:, :, 0, 0].mean())
    limit = o.memory.limit * (1 + 1e-9)
    latest_s = max(through_s(o, k) for k in range(o.p))

    def next_time(kind: str) -> float:
        j = o.count(s, kind)
        if j < len(o.order):
            return o.op_s[kind][s][o.order[j]] / unit_s
        if s == 0 and kind == "F" and j < o.m:
            return o.op_s[kind][s][o.candidates()["F"]] / unit_s
        return 0.0

    def soon(kind: str) -> float:
        return min(SOON, max(0.0, o.arrival_s(s, kind) - now_s) / unit_s)

    speed, left, next_speed, next_in = window(o, s, o.p * unit_s)
    found = {
        "f_time": next_time("F"),
        "b_time": next_time("B"),
        "w_time": next_time("W"),
        "f_there": float(o.arrival_s(s, "F") <= now_s),
        "b_there": float(o.arrival_s(s, "B") <= now_s),
        "w_there": float(o.at_s(s, "W") < NEVER),
        "f_in": soon("F"),
        "b_in": soon("B"),
        "in_flight": (o.count(s, "F") - o.count(s, "B")) / o.p,
        "owed": (o.count(s, "B") - o.count(s, "W")) / o.p,
        "held": o.held(s) / limit,
        "f_done": o.count(s, "F") / o.m,
        "b_done": o.count(s, "B") / o.m,
        "w_done": o.count(s, "W") / o.m,
        "work": work_s(o, s) / (3 * o.m * unit_s),
        "slack": (latest_s - through_s(o, s)) / (o.p * unit_s),
        "slow": o.slow[s],
        "window_speed": speed,
        "window_left": left,
        "next_speed": next_speed,
        "next_in": next_in,
        "depth": s / max(1, o.p - 1),
        "stages": o.p / 16,
        "microbatches": math.log2(o.m) / 8,
        "room": min(4.0, limit / float(o.memory.live.mean()) / o.p),
        "frees": o.memory.frees,
        "travel": float(o.lane.boundary_s.mean()) / unit_s,
        "progress": sum(map(len, o.ops)) / (3 * o.p * o.m),
        "idle": sum(o.free_s(k) <= now_s for k in range(o.p)) / o.p,
    }
    for side, other in (("up", s - 1), ("down", s + 1)):
        here = 0 <= other < o.p
        found |= {f"{side}_{k}": v if here else 0.0 for k, v in near(o, other, here).items()}
    loads = {"F": "next", "lightest": "lightest", "heaviest": "heaviest"}
    could = o.candidates() if s == 0 else {}
    mean_s = float(o.lane.load_s[0].mean())
    for action, name in loads.items():
        found[f"{name}_load"] = o.load_s[could[action]] / mean_s if could else 0.0
    return found


def near(o: Oracle, k: int, here: bool) -> dict[str, float]:
    """A neighbour of the stage that chooses."""
    names = ("is", "free_in", "f_queue", "b_queue", "held", "slack", "slow", "window_speed")
    if not here:
        return dict.fromkeys(names, 0.0)
    unit_s = float(o.lane.op_s[:, :, 0, 0].mean())
    latest_s = max(through_s(o, each) for each in range(o.p))
    f_sent = o.m if k == 0 else o.count(k - 1, "F")
    b_sent = o.count(k, "F") if k == o.p - 1 else o.count(k + 1, "B")
    values = (
        1.0,
        min(SOON, max(0.0, o.free_s(k) - o.now_s) / unit_s),
        min(1.0, (f_sent - o.count(k, "F")) / o.p),
        (b_sent - o.count(k, "B")) / o.p,
        o.held(k) / (o.memory.limit * (1 + 1e-9)),
        (latest_s - through_s(o, k)) / (o.p * unit_s),
        o.slow[k],
        window(o, k, 1.0)[0],
    )
    return dict(zip(names, values, strict=True))


def work_s(o: Oracle, k: int) -> float:
    """Expected seconds of the ops that a stage has still to run."""
    left_s = 0.0
    for kind in "FBW":
        for m in range(o.m):
            left_s += o.op_s[kind][k][m]
    for op in o.ops[k]:
        left_s -= o.op_s[op.kind][k][op.microbatch]
    return left_s


def through_s(o: Oracle, k: int) -> float:
    """When a stage would be through without waiting."""
    return max(o.now_s, o.free_s(k)) + work_s(o, k)


def window(o: Oracle, k: int, span_s: float) -> tuple[float, float, float, float]:
    """Speed now and until when, speed of the next window and when."""
    if not len(o.windows.first):
        return 1.0, 0.0, 1.0, SOON
    low, high = o.windows.first[k], o.windows.first[k + 1]
    all_of = [
        (float(o.windows.begin_s[i]), float(o.windows.end_s[i]), float(o.windows.speed[i]))
        for i in range(low, high)
    ]
    now = [w for w in all_of if w[0] <= o.now_s < w[1]]
    coming = sorted((w for w in all_of if w[0] > o.now_s), key=lambda w: w[0])
    speed = math.prod(w[2] for w in now)
    left = min(SOON, (min(w[1] for w in now) - o.now_s) / span_s) if now else 0.0
    if not coming:
        return speed, left, 1.0, SOON
    return speed, left, coming[0][2], min(SOON, (coming[0][0] - o.now_s) / span_s)
