"""What lies at the ends of the route, to be timed: embedding, final norm, head and loss, optimizer.

Timed is the executor's own code: what embeds and adds up rows, and the loss with the head. Where a
microbatch has more logits than are kept (`decoder.LOSS_CHUNK_ELEMENTS`) B makes them again and does
W's work, as in a step.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from hydraplan.config import ModelShape
from hydraplan.ends import embedding_bytes, head_flops
from hydraplan.executor.decoder import LOSS_CHUNK_ELEMENTS, embed, loss_sum
from hydraplan.executor.split_linear import Work, add_rows
from hydraplan.executor.whole import Ends, random_stage
from hydraplan.files.profilefile import Measurement, Name, Pass
from hydraplan.profiler.measure import Call, Point, Run

ROWS = tuple(2**power for power in range(6, 16))
LEAST_KEPT_ROWS = 1024
"""Where logits of fewer rows are kept, no microbatch worth planning keeps any."""

OPTIMIZER_PARAMETERS = (2**18, 2**20, 2**22)
OPTIMIZER_BYTES = 28
"""A parameter of AdamW in float32: weight, gradient and two moments read, three of them written."""


def end_points(model: ModelShape, device: torch.device) -> list[Point]:
    """Points of all three."""
    kept = max(1, LOSS_CHUNK_ELEMENTS // model.vocab_size)
    points = [_embedding(model, device, rows) for rows in ROWS]
    points += [
        _loss(model, device, rows) for rows in ROWS if kept < LEAST_KEPT_ROWS or rows <= kept
    ]
    return points + [_optimizer(device, count) for count in OPTIMIZER_PARAMETERS]


def _row(model: ModelShape, component: Name, direction: Pass, rows: int) -> Measurement:
    return Measurement(component, direction, rows, dtype=model.dtype, kernel="torch")


def _embedding(model: ModelShape, device: torch.device, rows: int) -> Point:
    moved = float(rows * embedding_bytes(model))

    def prepare() -> Sequence[Call]:
        weights = random_stage(model, Ends(0, has_head=False), device).weights
        ids_T = torch.randint(model.vocab_size, (rows,), device=device)
        compute = getattr(torch, model.dtype)
        found_TC = torch.randn(rows, model.hidden_size, device=device).to(compute)

        def forward() -> None:
            with torch.no_grad():
                embed(weights, ids_T, compute)

        weight = partial(add_rows, weights["embedding"], ids_T, found_TC)
        directions: tuple[tuple[Pass, Run], ...] = (("forward", forward), ("weight", weight))
        return [
            Call(_row(model, "embedding", direction, rows)._replace(bytes=moved), run)
            for direction, run in directions
        ]

    return Point("embedding", moved, prepare)


def _loss(model: ModelShape, device: torch.device, rows: int) -> Point:
    flops = float(rows * head_flops(model))

    def prepare() -> Sequence[Call]:
        stage = random_stage(model, Ends(0, has_embedding=False), device)
        compute = getattr(torch, model.dtype)
        x_TC = torch.randn(rows, model.hidden_size, device=device).to(compute).requires_grad_()
        labels_T = torch.randint(model.vocab_size, (rows,), device=device)
        one = torch.ones((), dtype=torch.float64, device=device)
        passed: list[Tensor] = []
        waiting: list[Work] = []
        gradients = stage.gradients

        def forward() -> None:
            passed.append(loss_sum(stage.weights, x_TC, labels_T, gradients.keeping))

        def fresh() -> None:  # to free the logits of the last call is no work of this one
            passed.clear()
            x_TC.grad = None

        def graph() -> None:
            fresh()
            forward()

        def backward() -> None:
            gradients.are_put_off = True
            passed[0].backward(one)
            waiting[:] = gradients.take()

        def both() -> None:
            graph()
            backward()

        def weight() -> None:
            for work in waiting:
                work()

        calls: tuple[tuple[Pass, Run, Run], ...] = (
            ("forward", forward, fresh),
            ("input", backward, graph),
            ("weight", weight, both),
        )
        return [
            Call(_row(model, "loss", direction, rows)._replace(flops=flops), run, before)
            for direction, run, before in calls
        ]

    return Point("loss", flops, prepare)


def _optimizer(device: torch.device, count: int) -> Point:
    moved = float(count * OPTIMIZER_BYTES)

    def prepare() -> Sequence[Call]:
        weight = torch.zeros(count, device=device, requires_grad=True)
        weight.grad = torch.ones_like(weight)
        adamw = torch.optim.AdamW([weight])
        row = Measurement("optimizer", "step", dtype="float32", kernel="torch", bytes=moved)
        return (Call(row, adamw.step),)

    return Point("optimizer", moved, prepare)
