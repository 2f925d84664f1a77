"""Plays the cells of a PyTorch file with communication as its runtime would: the oracle of proofs.

Reads the text by itself and knows nothing of graphs. On `gloo` a rank goes through its cells, posts
sends and receives and waits in the op that needs what it receives; the first send of a pair meets
its first receive. On `nccl` nobody waits to post, but each rank has one line of sends and receives,
of which only the first can move, and not before the op posted before it has run.
"""

import re
from typing import Literal

Verdict = Literal["ends", "hangs", "mixes up", "raises"]
"""`mixes up`: comes to its end, but data of one message are taken for those of another. `raises`:
the runtime would refuse a cell, whatever the others do."""

Said = tuple[str, int, int]  # word, stage, microbatch


class Player:
    """All rows of a file."""

    def __init__(self, text: str) -> None:
        self.rows = [[_said(cell) for cell in line.split(",")] for line in text.splitlines()]
        owner = {
            stage: r for r, row in enumerate(self.rows) for cell in row for _, stage, _ in cell
        }
        self.owner = [owner[stage] for stage in range(len(owner))]

    def verdict(self, backend: Literal["gloo", "nccl"]) -> Verdict:
        """What becomes of the file."""
        if any(self._raises(r, row) for r, row in enumerate(self.rows)):
            return "raises"
        return self._play(one_line=backend == "nccl")

    def _needs(self, rank: int, said: Said) -> Said | None:
        """The receive that an op waits for."""
        word, stage, m = said
        step = {"F": -1, "B": 1, "I": 1}.get(word, 0)
        other = stage + step
        if step and 0 <= other < len(self.owner) and self.owner[other] != rank:
            return "RECV_F" if step < 0 else "RECV_B", stage, m
        return None

    def _raises(self, rank: int, row: list[list[Said]]) -> bool:
        seen: set[Said] = set()
        for cell in row:
            for word, stage, m in cell:
                needed = self._needs(rank, (word, stage, m))
                if needed is not None and needed not in seen:
                    return True
                made = {"SEND_F": "F", "SEND_B": "IB"}.get(word)
                if made and not any((each, stage, m) in seen for each in made):
                    return True
                seen.add((word, stage, m))
        return False

    def _play(self, one_line: bool) -> Verdict:
        at = [0] * len(self.rows)  # next op cell on nccl, next cell on gloo
        ran = [0] * len(self.rows)  # cells done, sends and receives among them
        posted: list[list[tuple[Said, int, int]]] = [[] for _ in self.rows]  # said, peer, after
        arrived: set[Said] = set()
        mixed = False
        for rank, row in enumerate(self.rows):
            for i, cell in enumerate(row):
                for word, stage, m in cell:
                    if "_" in word and word != "REDUCE_GRAD":
                        step = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}[word]
                        posted[rank].append(((word, stage, m), self.owner[stage + step], i))
        moved = True
        while moved:
            moved = False
            for rank, row in enumerate(self.rows):
                while at[rank] < len(row) and all(
                    self._needs(rank, said) in arrived | {None} for said in row[at[rank]]
                ):
                    at[rank] += 1
                    moved = True
                ran[rank] = at[rank]
            for rank in range(len(self.rows)):
                for peer in range(len(self.rows)):
                    send = self._first(posted[rank], "SEND", peer, ran[rank], one_line)
                    take = self._first(posted[peer], "RECV", rank, ran[peer], one_line)
                    if send is not None and take is not None:
                        posted[rank].remove(send)
                        posted[peer].remove(take)
                        arrived.add(take[0])
                        mixed |= not _is_other_side(send[0], take[0])
                        moved = True
        if any(posted) or any(at[r] < len(row) for r, row in enumerate(self.rows)):
            return "hangs"
        return "mixes up" if mixed else "ends"

    @staticmethod
    def _first(
        posted: list[tuple[Said, int, int]], word: str, peer: int, done: int, one_line: bool
    ) -> tuple[Said, int, int] | None:
        """What may move: the first to that peer that is posted, on one line the first of all."""
        for each in posted[:1] if one_line else posted:
            said, other, after = each
            if said[0].startswith(word) and other == peer:
                return each if after <= done else None
        return None


def _said(cell: str) -> list[Said]:
    found = re.findall(r"(\d+)([A-Z][A-Z_]*)(\d*)", cell.split(")")[0])
    return [(word, int(stage), int(m or -1)) for stage, word, m in found]


def _is_other_side(send: Said, take: Said) -> bool:
    step = 1 if send[0] == "SEND_F" else -1
    return take == (send[0].replace("SEND", "RECV"), send[1] + step, send[2])
