"""How Spark has its Python workers, unless the user says otherwise: forked by our daemon, which has imported what reading
takes, and connected by Unix domain sockets.

`application` and `alone` ask it for a session's settings. Starts nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

DAEMON = "spark.python.daemon.module"
OURS = "shardherd.spark.daemon"

SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Spark 4.1 and later know it; older ones connect by TCP, by which what a task reads costs twice as much to hand over."""


def with_workers(settings: Mapping[str, str]) -> dict[str, str]:
    """A session's settings with our daemon and such sockets; a user's own stay, and the log names a daemon that is not ours."""
    theirs = settings.get(DAEMON)
    if theirs is not None and theirs != OURS:
        log.warning(
            "%s is %s and stays so: every Python worker imports for itself what reading takes, which %s would do once",
            DAEMON,
            theirs,
            OURS,
        )
    return {DAEMON: OURS, SOCKETS: "true", **settings}
