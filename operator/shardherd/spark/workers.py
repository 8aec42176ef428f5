"""Which daemon forks Spark's Python workers: ours, which has imported what reading takes, unless the user has named one.

`application` and `alone` ask it for a session's settings. Starts nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

DAEMON = "spark.python.daemon.module"
OURS = "shardherd.spark.daemon"


def forked_ready(settings: Mapping[str, str]) -> dict[str, str]:
    """A session's settings with our daemon; a user's own stays, and the log names the two."""
    theirs = settings.get(DAEMON)
    if theirs is not None and theirs != OURS:
        log.warning(
            "%s is %s and stays so: every Python worker imports for itself what reading takes, which %s would do once",
            DAEMON,
            theirs,
            OURS,
        )
    return {DAEMON: OURS, **settings}
