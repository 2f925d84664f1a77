"""What a worker holds of its microbatches between their ops, and how many tokens that is.

Counted as `hydraplan.metrics.live_peaks` predicts it, but from what is there: a forward pass that
was not gone back through holds a share of the rows of its slot, weight gradients that wait another
one, and work of other lanes comes on top. All is divided by the chunks of a stage.
"""

from dataclasses import dataclass, field

from hydraplan.executor.split_linear import Work
from hydraplan.executor.stage import Passed

Key = tuple[int, int]
"""(microbatch, chunk)."""


@dataclass(slots=True)
class Held:
    """Passes and waiting work of one batch; `kept[microbatch]` tokens after F, `waits` after B."""

    kept: list[float]
    waits: list[float]
    num_chunks: int
    passed: dict[Key, Passed] = field(default_factory=dict)
    waiting: dict[Key, list[Work]] = field(default_factory=dict)
    peak_tokens: float = 0.0

    def tokens(self) -> float:
        """Tokens whose activations are held now."""
        passed = sum(self.kept[m] for m, _ in self.passed)
        waiting = sum(self.waits[m] for m, _ in self.waiting)
        return (passed + waiting) / self.num_chunks

    def measure(self) -> None:
        """Note how much is held; called after every op."""
        self.peak_tokens = max(self.peak_tokens, self.tokens())
