"""`python -m shardherd.worker module:Class`: a worker as a process, which `shardherd run module:Class` becomes.

It decides what the name of a processor means, which variables are options, and the exit code. Where the worker is and whom it
talks to is `place`'s business.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardherd.core.model.errors import ConsumerStoppedError, InvalidRequestError
from shardherd.source.security.environment import VariableError, json_object
from shardherd.telemetry import logs
from shardherd.worker.listener import METHODS, AnyListener
from shardherd.worker.makers import arguments_needed, first_missing
from shardherd.worker.options import Options, WorkerOptionError
from shardherd.worker.worker import READING_ERRORS, Worker

ENDED, FAILED, MISUSED = 0, 1, 2

OPTION = "SHARDHERD_WORKER_"
"""What the name of an option is written after in a variable, in capitals."""

KAFKA = f"{OPTION}KAFKA"
"""Variable with settings of Kafka by their names, as a JSON object."""


LISTENER = f"{OPTION}LISTENER"
"""Variable that names what makes a listener, as a processor is named."""


class UnknownProcessorError(ValueError):
    """There is no such processor, or listener, or its module cannot be imported. Names what is missing, or wrong."""


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the arguments and the environment say, until it ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shardherd.worker", description="A worker of a ConsumerGroup.")
    parser.add_argument("processor", help="module:Class, or a function that makes one")
    name: str = parser.parse_args(arguments).processor
    logs.configure(os.environ.get("SHARDHERD_LOG_FORMAT", "text"), os.environ.get("SHARDHERD_LOG_LEVEL", "INFO").upper())
    try:
        listener = listener_in(os.environ)
        Worker(find(name), options=options_in(os.environ), listener=listener, kafka=json_object(os.environ, KAFKA)).run()
    except UnknownProcessorError as error:
        _print_own_code(error.__cause__)
        print(f"shardherd: {error}", file=sys.stderr)
        return MISUSED
    except (WorkerOptionError, InvalidRequestError, VariableError) as error:
        print(f"shardherd: {error}", file=sys.stderr)
        return MISUSED
    except (ConsumerStoppedError, *READING_ERRORS) as error:
        print(f"shardherd: the worker has ended: {error}", file=sys.stderr)
        return FAILED
    return ENDED


def options_in(environment: Mapping[str, str]) -> Options:
    """The options that variables say, such as SHARDHERD_WORKER_BATCH_SIZE. Raises WorkerOptionError."""
    known = {f"{OPTION}{field.name.upper()}": field for field in dataclasses.fields(Options)}
    given: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(OPTION) or variable in (KAFKA, LISTENER):
            continue
        if (field := known.get(variable)) is None:
            names = ", ".join(sorted([*(each.name for each in known.values()), "listener"]))
            raise WorkerOptionError(f"{variable} names no option of a worker; they are {names}")
        kind = type(field.default) if field.default is not None else float
        try:
            given[field.name] = _READERS[kind](text)
        except (KeyError, ValueError) as error:
            raise WorkerOptionError(f"{variable} must be {_EXPECTED[kind]}, not {text!r}") from error
    return Options(**given)


def listener_in(environment: Mapping[str, str]) -> AnyListener | None:
    """The listener that a variable names, if one does. Raises UnknownProcessorError, WorkerOptionError."""
    name = environment.get(LISTENER, "")
    if not name:
        return None
    make = find(name, "a listener")
    if needed := arguments_needed(make):
        raise WorkerOptionError(
            f"{LISTENER} names {name}, which is called without arguments, and needs {needed}: give defaults"
        )
    made: Any = make()
    if missing := first_missing(made, METHODS):
        raise WorkerOptionError(f"{LISTENER} must name a Listener, and {name} has no {missing}: derive it from Listener")
    listener: AnyListener = made
    return listener


_TRUTH = {"true": True, "false": False}
_READERS: Mapping[type, Any] = {int: int, float: float, str: str, bool: lambda text: _TRUTH[text.lower()]}
_EXPECTED: Mapping[type, str] = {int: "a whole number", float: "a number of seconds", str: "text", bool: "true or false"}


def find(name: str, what: str = "a processor") -> Callable[[], Any]:
    """What makes processors, or `what`, by its name. Raises UnknownProcessorError."""
    module, colon, rest = name.partition(":")
    if not colon or not module or not rest:
        raise UnknownProcessorError(f"{what} is named as module:Class, not {name!r}")
    found: Any = _imported(module, f"{what} is named as module:Class, not {name!r}: write {_as_module(module)}:{rest}")
    for part in rest.split("."):
        if not hasattr(found, part):
            raise UnknownProcessorError(f"module {module} has no {rest}")
        found = getattr(found, part)
    if not callable(found):
        raise UnknownProcessorError(f"{name} cannot be called: name a class, or a function that makes {what}")
    factory: Callable[[], Any] = found
    return factory


def _as_module(path: str) -> str:
    """How the module of this file is named: without its folder, which is where this is called, and without .py."""
    return path.replace("\\", "/").rpartition("/")[2].removesuffix(".py").strip(".")


def _imported(module: str, remedy: str) -> Any:
    """The module of this name. Raises UnknownProcessorError: with the remedy if it is named as a file, or relative to nothing;
    what its own code has raised is the cause."""
    if module.startswith("."):
        raise UnknownProcessorError(remedy)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            is_file = "/" in module or "\\" in module or module.endswith(".py")
            text = remedy if is_file else f"there is no module {error.name} here: call this in its folder, or install it"
            raise UnknownProcessorError(text) from None
        raise _broken(module, error) from error
    except SystemExit as error:
        raise UnknownProcessorError(
            f"module {module} ends the process where it is imported, by {error!r}: put what it does as a script under"
            ' `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        raise _broken(module, error) from error


def _broken(module: str, error: Exception) -> UnknownProcessorError:
    return UnknownProcessorError(f"module {module} cannot be imported: {type(error).__name__}: {error}")


def _print_own_code(error: BaseException | None) -> None:
    """Where the program's own code has failed, without what has imported it."""
    if error is None:
        return
    frames = error.__traceback__
    while frames is not None and (
        frames.tb_frame.f_code.co_filename == __file__ or _imports(frames.tb_frame.f_code.co_filename)
    ):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def _imports(file: str) -> bool:
    return file.startswith("<frozen importlib") or file == importlib.__file__
