"""Tells an asyncio.CancelledError of a program's own from one that means that its call is to end.

Asked by `sending`, `outputs` and `asynchronous` around what the program awaits. A client that connects again may cancel what
waits for it: that is a failure as any other. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class CancelledByProgramError(Exception):
    """Something that the program awaited was cancelled, and its call was not."""


@contextlib.contextmanager
def uncancelled(what: str) -> Iterator[None]:
    """Raise CancelledByProgramError in place of a CancelledError that is not meant for the task that runs."""
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
