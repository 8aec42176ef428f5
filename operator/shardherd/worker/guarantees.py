"""What Outputs may promise, and which outputs can keep it: checked when a class is defined, and again when outputs are made.

Called by `outputs`. Decides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

from shardherd.consumer.settings_given import no_number
from shardherd.core.model.nouns import ShardId
from shardherd.worker.crew import is_async
from shardherd.worker.makers import arguments_needed, first_missing
from shardherd.worker.options import WorkerOptionError
from shardherd.worker.output import Output, TransactionalOutput

AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE = GUARANTEES = ("at-most-once", "at-least-once", "exactly-once")

WAIT, DROP = WHEN_FULL = ("wait", "drop")


class OutputsError(WorkerOptionError):
    """Outputs cannot be what they are said to be. Names the attribute, its value and what is expected."""


def check(cls: Any) -> None:
    """Whether a class of Outputs can be what its attributes say. Raises OutputsError."""
    for name, wrong in _wrong(cls):
        raise OutputsError(f"{name} of {cls.__name__} {wrong}")
    for method in (cls.select, cls.acknowledged):
        if is_async(method):
            raise OutputsError(f"{method.__name__} of {cls.__name__} must be a function, not a coroutine")
    if cls.guarantee == EXACTLY_ONCE and cls.when_full == DROP:
        raise OutputsError(f"guarantee of {cls.__name__} is {EXACTLY_ONCE!r}, which drops nothing: set when_full to {WAIT!r}")
    # They wait for their outputs: nothing would await what a function returns.
    for name in ("initialize", "shutdown"):
        if not is_async(getattr(cls, name)):
            raise OutputsError(f"{name} of {cls.__name__} must be a coroutine, as that of Outputs is: write `async def {name}`")
    for output in cls.outputs:
        _check_maker(output, cls.__name__)
        if isinstance(output, type):
            check_output(output, cls.guarantee)
            if not hasattr(name := getattr(output, "name", ""), "__get__"):  # else each output computes its own
                check_name(name, output.__name__)


def _check_maker(output: Any, name: str) -> None:
    """Whether this can make an output of Outputs of this name. Raises OutputsError."""
    if not callable(output):
        remedy = f": name its class, {type(output).__name__}, as each shard has outputs of its own" if _is_one(output) else ""
        raise OutputsError(f"outputs of {name} must be classes of Output, or functions that make one, not {output!r}{remedy}")
    if needed := arguments_needed(output):
        what = getattr(output, "__name__", repr(output))
        raise OutputsError(
            f"outputs of {name} are made without arguments, and {what} needs {needed}: name a function that knows them, such as"
            f" `lambda: {what}({needed})`"
        )


def _wrong(cls: Any) -> Iterator[tuple[str, str]]:
    """The attributes that cannot be, whatever the others are: each by its name and what it must be."""
    for name, known in (("guarantee", GUARANTEES), ("when_full", WHEN_FULL)):
        if (value := getattr(cls, name)) not in known:
            yield name, f"must be one of {', '.join(known)}, not {value!r}"
    for name, least, whole in (
        ("batch_size", 1, True),
        ("batch_wait", 0, False),
        ("write_timeout", 1, False),
        ("queue_bytes", 1, True),
        ("queue_file_bytes", 1, True),
    ):
        if wrong := no_number(getattr(cls, name), least, whole=whole):
            yield name, wrong
    folder = cls.queue_directory
    if folder is not None and not isinstance(folder, str | PathLike):
        yield "queue_directory", f"must be the path of a folder, or empty for none, not {folder!r}"
    if not isinstance(cls.outputs, Sequence) or isinstance(cls.outputs, str):
        yield "outputs", f"must be a tuple of classes of Output, also of one alone, as in (Warehouse,), not {cls.outputs!r}"


def check_of_kinesis(outputs: Any, shard: ShardId) -> None:
    """Whether Outputs can send the records of a shard of Kinesis. Raises OutputsError.

    Several may have one position there, of up to 56 digits: outputs and files have no room for it, and of a batch that ends
    between them no position can be durable before it is sent.
    """
    name = type(outputs).__name__
    for output in outputs.outputs:
        if isinstance(output, type):
            check_output_of_kinesis(output, name, shard)
    if outputs.guarantee != AT_LEAST_ONCE:
        raise OutputsError(
            f"guarantee of {name} is {outputs.guarantee!r}, and shard {shard} is of Kinesis, where there is"
            f" {AT_LEAST_ONCE!r} alone: set it to that"
        )
    if outputs.queue_directory:
        raise OutputsError(
            f"queue_directory of {name} is {outputs.queue_directory!r}, and shard {shard} is of Kinesis, whose records are"
            " kept in memory alone: leave it out"
        )


def check_output_of_kinesis(output: type, name: str, shard: ShardId) -> None:
    """Whether an output of Outputs of this name can take the records of a shard of Kinesis. Raises OutputsError."""
    if _only_with_positions(output):
        raise OutputsError(
            f"output {output.__name__} of {name} keeps positions of Kafka, and shard {shard} is of Kinesis: use an Output"
            " that has a `write`"
        )


def check_output(output: type, guarantee: str, *, in_order: bool = True) -> None:
    """Whether an output can give what is asked for, with the option `in_order`. Raises OutputsError."""
    if missing := first_missing(output, _OUTPUT):
        raise OutputsError(f"output {output.__name__} has no {missing}: derive it from Output")
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
    if guarantee != EXACTLY_ONCE and _only_with_positions(output):
        raise OutputsError(
            f"output {output.__name__} is a TransactionalOutput, and guarantee is {guarantee!r}: set it to {EXACTLY_ONCE!r}, or"
            " give the output a `write`"
        )


def check_name(name: object, output: str) -> None:
    """Whether an output of this class can be called so; empty and None are for the name of the class. Raises OutputsError."""
    if not (name is None or (isinstance(name, str) and _can_be_written(name))):
        raise OutputsError(
            f"name of output {output} must be a text, by which metrics, the log and a queue's file call it, or empty for that"
            f" of its class, not {name!r}"
        )


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_OUTPUT = ("open", "write", "close")


def _is_one(output: Any) -> bool:
    return not first_missing(output, _OUTPUT)


def _only_with_positions(output: type) -> bool:
    """Whether an output takes records only together with the position that follows them."""
    return issubclass(output, TransactionalOutput) and output.write is Output.write
