"""Standard output while a command runs: what it does not take ends the command with a sentence, not with a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class _CannotWriteError(Exception):
    """No OSError: nobody is to take it for one of what the command reads, or for one that may be left aside."""


class _Told:
    """A file whose errors of writing are known from those of any other."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """As the file does it."""
        with _known():
            return self._file.write(text)

    def flush(self) -> None:
        """As the file does it."""
        with _known():
            self._file.flush()


@contextmanager
def _known() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _CannotWriteError(error.strerror) from error


def told(work: Callable[[], int], failed: int) -> int:
    """What `work` returns, or ends by; `failed` where standard output does not take what it writes.

    A reader that has enough, as `head` has, is told nothing. Signs that the output's encoding does not have are escaped.
    """
    out = cast("TextIO | None", sys.stdout)
    if out is None:  # it was closed by whoever started us
        return work()
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    checked = sys.stdout = cast("TextIO", _Told(out))
    try:
        try:
            return work()
        finally:
            checked.flush()
    except _CannotWriteError as error:
        _give_up(out)
        print(f"shardherd: standard output cannot be written: {error}", file=sys.stderr)
    except BrokenPipeError:
        _give_up(out)
    finally:
        sys.stdout = out
    return failed


def _give_up(out: TextIO) -> None:
    """What is still in the buffer would be tried once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
