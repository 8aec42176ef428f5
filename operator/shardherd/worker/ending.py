"""Ends the process of a worker whose program still runs after its run is over, where another consumer may write next.

Called by `worker`, last. A thread cannot be ended, a process can. It decides when that must be.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from shardherd.core.model.nouns import ShardId

log = logging.getLogger(__name__)

ABANDONED = 1
"""The exit code of such a process: what it had in hand was not finished."""


def end_adrift(adrift: Collection[ShardId], *, ordered: bool, fields: Mapping[str, Any]) -> None:
    """End this process at once if something of these shards still runs. Not in an unordered group, which has fenced it, and
    where a record may be written twice anyhow."""
    if not adrift or not ordered:
        return
    log.critical(
        "the program still runs for %s, and this run is over: the process ends, so that nothing of an ordered group is written"
        " after another consumer has the shard",
        ", ".join(sorted(adrift)),
        extra=dict(fields),
    )
    _exit()


def _exit() -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(ABANDONED)
