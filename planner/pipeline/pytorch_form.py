"""Lowered lists as rows of PyTorch's CSV with communication.

Message for message what `lowering` says, in PyTorch's words and numbers. Every chunk is unsharded
first and resharded last, which plain modules ignore, and its gradient is reduced when all ops are
done, where PyTorch scales it. Between chunks of one rank PyTorch, as we, sends nothing.
"""

from hydraplan.files.pytorch_csv import PYTORCH_WORD, stage_indices
from hydraplan.files.pytorch_rows import Action, Row
from hydraplan.model import Schedule
from hydraplan.planner.pipeline.lowering import Message, Steps
from hydraplan.route import Route


def lowered_rows(steps: Steps, route: Route) -> tuple[Row, ...]:
    """Cells of every rank, for `pytorch_csv.write_csv`.

    Raises:
        InputError: The route has no form in this format.
    """
    index = stage_indices(route)
    rows = []
    for here, numbers in zip(steps, index, strict=True):
        cells: list[tuple[Action, ...]] = [(Action("UNSHARD", number),) for number in numbers]
        half: tuple[Action, ...] = ()
        for step in here:
            if step.message is not None:
                cells.append((_message(step.message, step.kind == "send", index),))
                continue
            assert step.op is not None, step
            op = step.op
            half = (*half, Action(PYTORCH_WORD[op.kind], numbers[op.chunk], op.microbatch))
            if not op.joined:
                cells.append(half)
                half = ()
        cells += [(Action(word, n),) for word in ("REDUCE_GRAD", "RESHARD") for n in numbers]
        rows.append(tuple(cells))
    return tuple(rows)


def loss_note(schedule: Schedule, route: Route) -> str:
    """What PyTorch's runtime would get wrong of this order, in a sentence; "" for nothing.

    It keeps losses in the order in which forwards of its last stage run, and takes the m-th for
    microbatch m.
    """
    _, ((stage, chunk), *_) = route.ends()
    ran = [op.microbatch for op in schedule[stage] if op.kind == "F" and op.chunk == chunk]
    wrong = next((at for at, m in enumerate(ran) if at != m), None)
    if wrong is None:
        return ""
    return (
        f"PyTorch takes the losses of its last stage in the order of their forwards, of which"
        f" number {wrong} is microbatch {ran[wrong]} here: its runtime would mix them up"
    )


def _message(message: Message, sends: bool, index: list[list[int]]) -> Action:
    """Its cell on one side; PyTorch names the sender's stage there, the receiver's here."""
    back = message.way == "backward"
    number = index[message.to_stage][message.to_chunk]
    if sends:
        number += 1 if back else -1
    word = ("SEND_" if sends else "RECV_") + ("B" if back else "F")
    return Action(word, number, message.microbatch)
