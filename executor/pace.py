"""Let the parts of a worker take as long as the plan's cost model says of them.

Two cores cannot stand for eight devices: where ranks share cores, one's waiting is another's
computing, and wall time says nothing of who waits for whom. A paced worker does its arithmetic, and
then each part waits until its predicted time has passed since it began, times what the worker is
slow on purpose. A part is one product of a linear, forward, backward or of its weight's gradient,
or one call of the attention kernel. What is sent takes what it takes. The seconds of the parts are
the worker's busy ones.

Not paced: norms, rotations, SwiGLU's product, the embedding and cross entropies, which the cost
model has inside its linears or leaves to memory.

Source: ours; seconds are those of `hydraplan.cost`, product by product and call by call.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from hydraplan.cost import BACKWARD_FLOPS_RATIO, CostModel
from hydraplan.costfit import RateFit, causal_waste
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.exchange import totals


@dataclass(slots=True)
class Pace:
    """The clock of a paced worker.

    `slow`: how many times as long it takes. `worked_s`: seconds of all parts so far; a part whose
    arithmetic took longer than it should counts with its CPU seconds. `late_s`: by how much the
    last part woke up too late, for want of a core. The next one ends as much earlier, unless the
    worker waited for others meanwhile, until `waited_s` of all exchanges: that is when it would
    have begun.
    """

    cost: CostModel
    slow: float = 1.0
    worked_s: float = 0.0
    late_s: float = 0.0
    waited_s: float = 0.0

    def begin(self) -> None:
        """Begin an op, whose inputs are there only now."""
        self.late_s = 0.0

    @contextmanager
    def part(self, seconds: float) -> Iterator[None]:
        """Let what is done inside take so many seconds on a worker of nominal speed."""
        late_s = max(0.0, self.late_s - (totals().wait_s - self.waited_s))
        began_s, began_cpu_s = time.perf_counter() - late_s, time.thread_time()
        yield
        wanted_s = seconds * self.slow
        time.sleep(max(0.0, began_s + wanted_s - time.perf_counter()))
        worked_s = max(wanted_s, time.thread_time() - began_cpu_s)
        self.worked_s += worked_s
        self.late_s = max(0.0, time.perf_counter() - began_s - worked_s)
        self.waited_s = totals().wait_s

    def product_s(self, direction: int, rows: int, weight: Tensor) -> float:
        """One product with a weight, in a direction of `hydraplan.cost`; calls are shared out."""
        fit = self.cost.fit
        rate = (fit.linear_forward, fit.linear_input, fit.linear_weight)[direction]
        share = weight.numel() / self.cost.model.layer_parameters
        return rate.call_s * share + 2 * rows * weight.numel() / rate.flops_per_s

    def attention_s(
        self, rate: RateFit, heads: int, cu_q: Sequence[int], cu_k: Sequence[int], causal: bool
    ) -> float:
        """One forward call of the attention kernel; `rate` of another makes it that one's."""
        queries, keys = (np.diff(np.array(cu, float)) for cu in (cu_q, cu_k))
        pairs = queries * (queries + 1) / 2 if causal else queries * keys
        if causal:
            pairs = pairs * causal_waste(queries, rate.causal_block_rows)
        pairs = pairs * rate.slowness(np.maximum(queries, 1.0))
        calls = 1 if self.cost.fit.segments_in_one_call else len(queries)
        flops = 4 * heads * self.cost.model.head_dim * float(pairs.sum())
        return rate.call_s * calls + flops / rate.flops_per_s

    def paced(self, kernel: AttentionKernel) -> AttentionKernel:
        """The kernel, each call at the pace of the plan."""
        fit = self.cost.fit

        def forward(q: Tensor, k: Tensor, v: Tensor, *case: Any) -> tuple[Tensor, Tensor]:
            with self.part(self.attention_s(fit.attention_forward, q.shape[1], *case[:3])):
                return kernel.forward(q, k, v, *case)

        def backward(dout: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
            rate = fit.attention_backward
            rate = rate.model_copy(update={"flops_per_s": rate.flops_per_s / BACKWARD_FLOPS_RATIO})
            with self.part(self.attention_s(rate, dout.shape[1], *rest[5:8])):
                return kernel.backward(dout, *rest)

        return kernel._replace(forward=forward, backward=backward)
