"""Tasks on resources that work one task after the other, run event by event: an oracle.

A resource takes the tasks of its queue in order; a task begins once all it waits for have ended.
No formula of the product is used: time only ever advances to the next end of a task.
"""

from heapq import heappop, heappush


class Tasks:
    """Tasks by name; each resource runs its own in the order in which they were added."""

    def __init__(self):
        self.queues, self.seconds, self.needs = {}, {}, {}

    def add(self, name, resource, seconds, needs=()):
        self.queues.setdefault(resource, []).append(name)
        self.seconds[name], self.needs[name] = seconds, set(needs)
        return name

    def ends(self):
        """End of every task."""
        ended, events, busy, now, count = {}, [], set(), 0.0, 0
        waiting = {resource: list(queue) for resource, queue in self.queues.items()}
        while len(ended) < len(self.seconds):
            for resource, queue in waiting.items():
                if queue and resource not in busy and self.needs[queue[0]] <= ended.keys():
                    busy.add(resource)
                    task = queue.pop(0)
                    count += 1
                    heappush(events, (now + self.seconds[task], count, resource, task))
            assert events, "tasks wait for each other in a circle"
            now, _, resource, task = heappop(events)
            busy.remove(resource)
            ended[task] = now
        return ended


def pair_ends(giver, taker, kept_s, trip, layers):
    """When giver and taker end `layers` layers; the taker does its own units first."""
    return parts_ends([(giver, taker, kept_s, trip)], layers)


def parts_ends(parts, layers):
    """The same for layers of several parts; a trip may be None."""
    tasks, last = Tasks(), {"giver": [], "taker": []}
    for i in range(layers):
        for j, (giver, taker, kept_s, trip) in enumerate(parts):
            at = f"{i}.{j}"
            before = tasks.add(f"before{at}", "giver", giver[0])
            tasks.add(f"kept{at}", "giver", kept_s)
            tasks.add(f"own{at}", "taker", taker[0] + taker[1])
            back = []
            if trip is not None:
                out = tasks.add(f"out{at}", "link out", trip[0], [before])
                foreign = tasks.add(f"foreign{at}", "taker", trip[1], [out])
                back = [tasks.add(f"back{at}", "link back", trip[2], [foreign])]
            last["giver"] = tasks.add(f"after{at}", "giver", giver[2], back)
            last["taker"] = tasks.add(f"taker after{at}", "taker", taker[2])
    ends = tasks.ends()
    return ends[last["giver"]], ends[last["taker"]]


def group_end(step_s, hop_s, exchange_s):
    """End of the attention of a nested group: all-to-all, ring steps with hops beside, all-to-all.

    A hop begins when both its ends have begun the step beside it, as engines post it.
    """
    ring, inner = len(step_s), len(step_s[0])
    tasks = Tasks()
    for k in range(ring):
        tasks.add(("in", k), ("exchange", k), exchange_s / 2)
    for s in range(ring):
        for k in range(ring):
            for i in range(inner):
                begun = {
                    j: [("in", j)] if s == 0 else [("step", s - 1, j, i), ("hop", s - 1, j, i)]
                    for j in (k, (k - 1) % ring)
                }
                if s < ring - 1:  # what rank k receives beside step s
                    needs = begun[k] + begun[(k - 1) % ring]
                    tasks.add(("hop", s, k, i), ("link", k, i), hop_s[i], needs)
                tasks.add(("step", s, k, i), (k, i), step_s[k][i], begun[k])
    for k in range(ring):
        needs = [("step", ring - 1, k, i) for i in range(inner)]
        tasks.add(("out", k), ("exchange", k), exchange_s / 2, needs)
    return max(tasks.ends().values())
