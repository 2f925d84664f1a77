"""The decision process again, told from its definitions: everything is worked out anew each time.

No arrays, no state but what has been decided; times come from the ops put down so far. Features go
by their names.
"""

import math

import numpy as np

from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.spells import stretched_s
from hydraplan.planner.policy.world import Instance

ACTIONS = ("F", "B", "W", "wait", "lightest", "heaviest")
NEVER = math.inf


class Oracle:
    """One episode."""

    def __init__(self, instance: Instance) -> None:
        self.lane, self.memory, self.windows = (
            instance.expected(),
            instance.memory,
            instance.windows,
        )
        times = self.lane.op_s[:, :, 0, 0]
        self.p, self.m = times.shape[1:]
        self.op_s = dict(zip("FBW", times.tolist(), strict=True))
        self.slow = [1.0] * self.p if instance.slow is None else instance.slow.tolist()
        self.load_s = self.lane.load_s[0].tolist()
        self.ops: list[list[Op]] = [[] for _ in range(self.p)]
        self.end_s: dict[tuple[str, int, int], float] = {}
        self.order: list[int] = []
        self.ignored: list[set[str]] = [set() for _ in range(self.p)]
        self.stage: int | None = None
        self.now_s, self.may_wait = 0.0, True
        self.go_on()

    def count(self, stage: int, kind: str) -> int:
        return sum(op.kind == kind for op in self.ops[stage])

    def free_s(self, stage: int) -> float:
        if not self.ops[stage]:
            return 0.0
        last = self.ops[stage][-1]
        return self.end_s[last.kind, stage, last.microbatch]

    def held(self, stage: int) -> float:
        held, live, frees = 0.0, self.memory.live.tolist(), self.memory.frees
        for op in self.ops[stage]:
            held += {"F": 1.0, "B": -frees, "W": -(1 - frees)}[op.kind] * live[op.microbatch]
        return held

    def fits(self, stage: int, microbatch: int) -> bool:
        return self.memory.fits(self.held(stage) + float(self.memory.live[microbatch]))

    def candidates(self) -> dict[str, int]:
        """What the first stage could take, by action."""
        rest = [m for m in range(self.m) if m not in self.order]
        if not rest:
            return {}
        by_load = sorted(rest, key=lambda m: self.load_s[m])
        return {"F": rest[0], "lightest": by_load[0], "heaviest": by_load[-1]}

    def arrival_s(self, stage: int, kind: str) -> float:
        """When the next F or B of a stage is there, room in memory or not."""
        j = self.count(stage, kind)
        if kind == "F" and stage == 0:
            return 0.0 if j < self.m else NEVER
        if j >= len(self.order):
            return NEVER
        m = self.order[j]
        if kind == "F":
            source = "F", stage - 1, m
        else:
            source = ("B", stage + 1, m) if stage + 1 < self.p else ("F", stage, m)
        if source not in self.end_s:
            return NEVER
        travels = source[1] != stage
        return self.end_s[source] + (float(self.lane.boundary_s[0, m]) if travels else 0.0)

    def at_s(self, stage: int, kind: str) -> float:
        """When a stage can begin its next op of a kind."""
        if kind == "W":
            owed = self.count(stage, "B") > self.count(stage, "W")
            return self.free_s(stage) if owed else NEVER
        arrival_s = self.arrival_s(stage, kind)
        if kind == "F" and arrival_s < NEVER:
            could = (
                self.candidates().values() if stage == 0 else [self.order[self.count(stage, "F")]]
            )
            if not any(self.fits(stage, m) for m in could):
                return NEVER
        return max(self.free_s(stage), arrival_s)

    def legal(self) -> set[str]:
        """Actions of the stage that chooses."""
        s = self.stage
        if s is None:
            return set()
        there = {k for k in "FBW" if self.at_s(s, k) <= self.now_s} - self.ignored[s]
        f_left = self.count(s, "F") < self.m
        if f_left and self.count(s, "F") < len(self.order):
            f_left = self.fits(s, self.order[self.count(s, "F")])
        comes = s > 0 and f_left and "F" not in there | self.ignored[s]
        b_left = self.count(s, "B") < self.count(s, "F")
        comes |= b_left and "B" not in there | self.ignored[s]
        actions = there - {"F"} if s == 0 else set(there)
        if s == 0 and "F" in there:
            seen = set()
            for action, m in self.candidates().items():
                what = self.load_s[m], float(self.memory.live[m])
                if what not in seen and self.fits(0, m):
                    actions.add(action)
                seen.add(what)
        return actions | ({"wait"} if comes and self.may_wait else set())

    def act(self, action: str) -> None:
        assert self.stage is not None
        if action == "wait":
            at = {k for k in "FBW" if self.at_s(self.stage, k) <= self.now_s}
            self.ignored[self.stage] |= at
        else:
            self.put_down(action)
        self.go_on()

    def put_down(self, action: str) -> None:
        s = self.stage
        assert s is not None
        kind = action if action in "FBW" else "F"
        if s == 0 and kind == "F":
            self.order.append(self.candidates()[action])
        m = self.order[self.count(s, kind)]
        begin_s = self.free_s(s) if kind == "W" else self.at_of_run_s(s, kind)
        work_s = self.op_s[kind][s][m]
        first = self.windows.first
        if len(first):
            lost_s = np.zeros(len(self.windows.speed))
            work_s = stretched_s(
                begin_s, work_s, int(first[s]), int(first[s + 1]), self.windows, lost_s
            )
        self.ops[s].append(Op(kind, m))  # type: ignore[arg-type]
        self.end_s[kind, s, m] = begin_s + work_s
        self.ignored[s] = set()

    def at_of_run_s(self, stage: int, kind: str) -> float:
        arrival_s = 0.0 if stage == 0 and kind == "F" else self.arrival_s(stage, kind)
        return max(self.free_s(stage), arrival_s)

    def go_on(self) -> None:
        while True:
            pairs = [(s, k) for s in range(self.p) for k in "FBW"]
            open_s = {p: self.at_s(*p) for p in pairs if p[1] not in self.ignored[p[0]]}
            at_s = min(open_s.values(), default=NEVER)
            self.may_wait = at_s < NEVER
            if at_s == NEVER:
                open_s = {p: self.at_s(*p) for p in pairs}
                at_s = min(open_s.values())
            if at_s == NEVER:
                self.stage = None
                sync_s = self.lane.grad_sync_s.tolist()
                self.now_s = max(self.free_s(s) + sync_s[s] for s in range(self.p))
                return
            self.now_s = at_s
            self.stage = min(s for (s, _), t in open_s.items() if t == at_s)
            if not self.may_wait:
                self.ignored[self.stage] = set()
            actions = self.legal()
            assert actions, "a stage without a legal action"
            if len(actions) > 1:
                return
            self.put_down(actions.pop())

    def schedule(self) -> Schedule:
        return tuple(map(tuple, self.ops))
