"""What a program gives a worker to make processors and outputs of, and its listener: whether it can be what it is given for.

Called before anything of it is, by `worker` and `guarantees`; and by `surroundings` with each processor that was made. What
would only be noticed with each try again is refused here, once. Decides nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from shardherd.worker.asynchronous import AsyncOperator
from shardherd.worker.listener import METHODS
from shardherd.worker.options import WorkerOptionError
from shardherd.worker.processor import AsyncProcessor, Processor
from shardherd.worker.record_processor import RecordProcessor
from shardherd.worker.trees import TreeProcessor, wrong_manual

_PROCESSOR = ("initialize", "process", "shutdown")

_TO_DEFINE = {
    "process": (Processor.process, AsyncProcessor.process, RecordProcessor.process),
    "root": (TreeProcessor.root,),
    "invoke": (AsyncOperator.invoke,),
    "emit": (AsyncOperator.emit,),
}
"""What a class of processors has only as a place for a program's own."""


def check_factory(factory: Any) -> None:
    """Whether this can make processors. Raises WorkerOptionError."""
    expected = "factory must be a class of processors, or a function that makes one"
    if not callable(factory):
        remedy = f": give the class, {type(factory).__name__}, as each shard has one of its own" if _is_one(factory) else ""
        raise WorkerOptionError(f"{expected}, not {factory!r}{remedy}")
    if needed := arguments_needed(factory):
        raise WorkerOptionError(
            f"{expected}, without arguments, and {_named(factory)} needs {needed}: {_lambda(factory, needed)}"
        )
    if isinstance(factory, type) and (missing := first_missing(factory, _PROCESSOR)):
        raise WorkerOptionError(
            f"{expected}, and {factory.__name__} has no {missing}: derive it from Processor, or another one"
        )
    if isinstance(factory, type) and (left_out := _left_out(factory)):
        raise WorkerOptionError(f"{expected}, and {factory.__name__} does not define {left_out}")


def check_processor(processor: Any, factory: Any) -> None:
    """Whether this, which was made, is a processor. Raises WorkerOptionError."""
    if isinstance(processor, type):
        raise WorkerOptionError(
            f"{_named(factory)} must make a processor, not return the class {processor.__name__}: call that there"
        )
    if missing := first_missing(processor, _PROCESSOR):
        raise WorkerOptionError(
            f"{_named(factory)} must make a processor, and {processor!r} has no {missing}: derive its class from Processor, or"
            " another one, and return one of it"
        )
    if left_out := _left_out(processor):
        raise WorkerOptionError(
            f"{_named(factory)} must make a processor, and {type(processor).__name__} does not define {left_out}"
        )
    if isinstance(processor, TreeProcessor) and (wrong := wrong_manual(processor.manual, processor)):
        raise WorkerOptionError(f"manual of {type(processor).__name__} {wrong}")
    if isinstance(processor, RecordProcessor):
        try:
            # As the worker will, which says by it how many records may be pending.
            processor.max_pending = processor.max_pending
        except AttributeError as error:
            raise WorkerOptionError(
                f"{type(processor).__name__} is a RecordProcessor, whose max_pending the worker sets: {error}; let it be set,"
                " as a frozen dataclass and a property without a setter do not"
            ) from None


def _left_out(processor: Any) -> str:
    """The method that this processor, or class of them, should define and does not; empty if there is none."""
    methods = ((name, getattr(processor, name, None)) for name in _TO_DEFINE)
    return next((name for name, method in methods if getattr(method, "__func__", method) in _TO_DEFINE[name]), "")


def check_listener(listener: Any) -> None:
    """Whether this can be told of shards; None is nobody. Raises WorkerOptionError."""
    if listener is None:
        return
    if isinstance(listener, type):
        raise WorkerOptionError(
            f"listener must be an object, not the class {listener.__name__}: give one of it, {listener.__name__}()"
        )
    if missing := first_missing(listener, METHODS):
        raise WorkerOptionError(
            f"listener must be a Listener, and {listener!r} has no {missing}: derive its class from Listener"
        )


def arguments_needed(make: Callable[..., Any]) -> str:
    """The arguments without which this cannot be called, as far as that can be known; empty for none."""
    try:
        # Not what a decorator has hidden: it may give the arguments itself.
        parameters = inspect.signature(make, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return ""
    given = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(each.name for each in parameters if each.default is each.empty and each.kind not in given)


def first_missing(what: Any, methods: Sequence[str]) -> str:
    """The first of these methods that this has not; empty if it has all."""
    return next((each for each in methods if not callable(getattr(what, each, None))), "")


def _is_one(factory: Any) -> bool:
    return not first_missing(factory, _PROCESSOR)


def _named(factory: Any) -> str:
    return getattr(factory, "__qualname__", "") or repr(factory)


def _lambda(factory: Any, needed: str) -> str:
    return f"give a function that knows them, such as `lambda: {getattr(factory, '__name__', 'make')}({needed})`"
