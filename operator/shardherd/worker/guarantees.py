"""What Outputs may promise, and which outputs can keep it: checked when a class is defined, and again when outputs are made.

Called by `outputs`. Decides nothing else.
"""

from __future__ import annotations

from typing import Any

from shardherd.worker.crew import is_async
from shardherd.worker.options import WorkerOptionError
from shardherd.worker.output import Output, TransactionalOutput

AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE = GUARANTEES = ("at-most-once", "at-least-once", "exactly-once")

WAIT, DROP = WHEN_FULL = ("wait", "drop")


class OutputsError(WorkerOptionError):
    """Outputs cannot be what they are said to be. Names the attribute, its value and what is expected."""


def check(cls: Any) -> None:
    """Whether a class of Outputs can be what its attributes say. Raises OutputsError."""
    for name, value, known in (("guarantee", cls.guarantee, GUARANTEES), ("when_full", cls.when_full, WHEN_FULL)):
        if value not in known:
            raise OutputsError(f"{name} of {cls.__name__} must be one of {', '.join(known)}, not {value!r}")
    for name, number, least in (
        ("batch_size", cls.batch_size, 1),
        ("batch_wait", cls.batch_wait, 0),
        ("queue_bytes", cls.queue_bytes, 1),
        ("queue_file_bytes", cls.queue_file_bytes, 1),
    ):
        if number < least:
            raise OutputsError(f"{name} of {cls.__name__} must be {least} or more, not {number}")
    for method in (cls.select, cls.acknowledged):
        if is_async(method):
            raise OutputsError(f"{method.__name__} of {cls.__name__} must be a function, not a coroutine")
    if cls.guarantee == EXACTLY_ONCE and cls.when_full == DROP:
        raise OutputsError(f"guarantee of {cls.__name__} is {EXACTLY_ONCE!r}, which drops nothing: set when_full to {WAIT!r}")
    for output in cls.outputs:
        if isinstance(output, type):
            check_output(output, cls.guarantee)


def check_output(output: type, guarantee: str, *, in_order: bool = True) -> None:
    """Whether an output can give what is asked for, with the option `in_order`. Raises OutputsError."""
    if guarantee == EXACTLY_ONCE and not issubclass(output, TransactionalOutput):
        raise OutputsError(
            f"guarantee is {EXACTLY_ONCE!r}, and output {output.__name__} cannot give it, as it keeps no position with its"
            f" records: make it a TransactionalOutput, or set guarantee to {AT_LEAST_ONCE!r}"
        )
    if guarantee == EXACTLY_ONCE and not in_order:
        raise OutputsError(
            f"guarantee is {EXACTLY_ONCE!r}, which needs the option in_order: the position of output {output.__name__} would"
            f" pass a record that failed. Set in_order to true, or guarantee to {AT_LEAST_ONCE!r}"
        )
    if guarantee != EXACTLY_ONCE and issubclass(output, TransactionalOutput) and output.write is Output.write:
        raise OutputsError(
            f"output {output.__name__} is a TransactionalOutput, and guarantee is {guarantee!r}: set it to {EXACTLY_ONCE!r}, or"
            " give the output a `write`"
        )
