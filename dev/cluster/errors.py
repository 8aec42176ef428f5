"""Decides nothing; names the error that every module here raises for a cause that a user can act on."""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """Something of the local cluster did not work. The message names what, and the remedy or the end of the right log."""


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a log, as a block to append to an error."""
    if not path.exists():
        return f"(no log at {path})"
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - 64 * 1024))
        text = log.read().decode(errors="replace").splitlines()
    return "\n".join([f"--- end of {path}", *text[-lines:]])
