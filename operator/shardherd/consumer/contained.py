"""Makes a failure of what a program raises that would end more than its call: a task of ours, or the loop of all coroutines.

Asked by `calls`, and by the worker, around what the program awaits. A client that connects again may
cancel what waits for it, `sys.exit` may stand in a function that is called deep inside, and a library may have a class for
its timeouts that is no Exception: each is a failure as any other. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


def text_of(error: BaseException) -> str:
    """What an error says. One of a program may fail to, which must not fail who tells of it."""
    try:
        return str(error)
    except Exception as wrong:  # noqa: BLE001 - it is the program's own code
        return f"<what it says cannot be told: {type(wrong).__name__} in its __str__>"


def named(error: BaseException) -> str:
    """An error with its class."""
    return f"{type(error).__name__}: {text_of(error)}"


class CancelledByProgramError(Exception):
    """Something that the program awaited was cancelled, and its call was not."""


class ExitedByProgramError(Exception):
    """The program wanted to end the process."""


class RaisedByProgramError(Exception):
    """The program raised what is neither an Exception nor an exit."""


@contextlib.contextmanager
def contained(what: str) -> Iterator[None]:
    """Raise CancelledByProgramError for a CancelledError that is not meant for this task, ExitedByProgramError for an exit,
    RaisedByProgramError for whatever else is no Exception."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CancelledByProgramError(
            f"{what} raised asyncio.CancelledError, and was not cancelled: something that it awaited was, as by a client that"
            " connects again"
        ) from error
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitedByProgramError(f"{what} raised {error!r}, which ends no worker: to end one send it SIGTERM") from error
    except (Exception, GeneratorExit):  # the last is how a coroutine is closed whose loop is gone
        raise
    except BaseException as error:
        raise RaisedByProgramError(f"{what} raised {error!r}, which is no Exception") from error
