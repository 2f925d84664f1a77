"""The next batch is decided while a step runs, by a process beside rank 0.

Once ranks are known to be slow, every batch that comes up for the first time is decided for them.
That takes a tenth of a second or more, and all workers would wait for it. So as a step begins, the
batch of the next one goes to a process that was forked from rank 0 and holds all batches; a thread
would hold up rank 0 itself. If what is believed of the ranks is still the same when that batch is
due, its decision is there; else, and if the process is gone, fails, or does not answer in time, it
is decided on the spot. The decision is the same either way, so a run does not depend on which it
was.

The process computes on the CPU alone, uses no communicator and no GPU, and ends with rank 0.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import numpy as np

from hydraplan.executor.correction import Decide
from hydraplan.files.decisionsfile import Change
from hydraplan.host import begin_as_child
from hydraplan.model import BatchPlan, FloatArray
from hydraplan.views.console import note

Answer = tuple[Change, float, float]


class Ahead:
    """A `Decide` that may be asked before its answer is needed; `close` ends its process.

    An answer that was begun is waited for `wait_s` seconds at most.
    """

    def __init__(self, decide: Decide, batches: Mapping[int, BatchPlan], wait_s: float) -> None:
        self._decide, self._wait_s = decide, wait_s
        self._asked: tuple[int, bytes] | None = None
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        args = decide, batches, theirs, ours, os.getpid()
        self._process = context.Process(target=_answer, args=args, daemon=True)
        self._process.start()
        theirs.close()
        self._pipe: Connection | None = ours

    def begin(self, batch: BatchPlan, factor: FloatArray) -> None:
        """Have this decided; nothing where the process is still busy with something else."""
        if self._pipe is None or (self._asked is not None and not self._pipe.poll()):
            return
        if self._asked is not None:
            self._received()  # what nobody needed
        self._exchanged(lambda pipe: pipe.send((batch.batch, factor)))
        self._asked = batch.batch, factor.tobytes()

    def __call__(self, batch: BatchPlan, factor: FloatArray) -> Answer:
        """The decision, waited for if it was begun, else made here."""
        if self._asked == (batch.batch, factor.tobytes()):
            found = self._received()
            if found is not None:
                return found
        return self._decide(batch, factor)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = None

    def _received(self) -> Answer | None:
        self._asked = None

        def answer(pipe: Connection) -> Answer | str:
            if not pipe.poll(self._wait_s):
                raise TimeoutError
            found: Answer | str = pipe.recv()
            return found

        return self._exchanged(answer)

    def _exchanged(self, act: Callable[[Connection], Answer | str | None]) -> Answer | None:
        """What comes of it; None, from now on, where the process is of no use any more."""
        if self._pipe is None:
            return None
        try:
            found = act(self._pipe)
        except TimeoutError:
            found = f"did not answer within {self._wait_s:g} s"
        except (EOFError, OSError):
            found = "is gone"
        if not isinstance(found, str):
            return found
        self.close()
        note(f"the process that decides ahead {found}; batches are decided between steps")
        return None


def _answer(
    decide: Decide,
    batches: Mapping[int, BatchPlan],
    pipe: Connection,
    other: Connection,
    parent: int,
) -> None:
    """Body of the process: decide what comes, until rank 0 is gone; a text says what failed."""
    begin_as_child(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other.close()
    while True:
        try:
            number, factor = pipe.recv()
        except EOFError:
            return
        try:
            answer: Answer | str = decide(batches[number], np.asarray(factor))
        except Exception as error:  # told by rank 0, in a line
            answer = f"failed on batch {number} ({type(error).__name__}: {error})"
        pipe.send(answer)
