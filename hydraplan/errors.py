"""Every error hydraplan raises on purpose, each with its exit code.

HydraplanError            70  never raised itself
|-- InvalidPlan            1  a plan breaks an invariant
|-- RunFailed              1  a real run ended early, or a check said no
|   `-- WorkerLost         1  a worker was killed or stopped answering
|-- InputError             2  a file, an option or a value is wrong
|   `-- StalePlan          2  a plan was made from other inputs than these
|-- MissingDependency      3  torch, CUDA or a tool is absent
`-- Infeasible             4  the request is legal but cannot be met

A message says what, where, which value and which limit; the hint says what to do next.
"""


def printable(text: str) -> str:
    """The text on one line: line breaks and control characters as escapes, as in a literal.

    Names come from files, and a message must stay one line and never steer a terminal.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def many(count: int, noun: str) -> str:
    """The count with its noun: 1 stage, 2 stages, 3 batches."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count} {noun}{ending}"


class HydraplanError(Exception):
    """Base of the tree. `hint` is one line that tells the user what to do next."""

    exit_code = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InvalidPlan(HydraplanError):
    """A plan breaks an invariant that its strategy promises."""

    exit_code = 1


class RunFailed(HydraplanError):
    """A real run ended early, or its answer is no."""

    exit_code = 1


class WorkerLost(RunFailed):
    """A worker was killed or stopped answering; the run can go on from its last checkpoint."""


class InputError(HydraplanError):
    """A file, an option or a value from the user is wrong."""

    exit_code = 2


class StalePlan(InputError):
    """A plan was made from other lengths, another profile or another world than those at hand."""


class MissingDependency(HydraplanError):
    """Something this command needs is not installed or not on this machine."""

    exit_code = 3


class Infeasible(HydraplanError):
    """The request is well-formed, but no plan can meet it."""

    exit_code = 4


def first_line(error: BaseException) -> str:
    """First line of what an error says, at most 240 characters; its kind if it says nothing."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:240]
