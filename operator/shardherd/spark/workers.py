"""How Spark has its Python workers, unless the user says otherwise: forked by our daemon, which has imported what reading
takes, and connected by Unix domain sockets.

`application` and `alone` ask it for a session's settings. Starts nothing.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping

log = logging.getLogger(__name__)

DAEMON = "spark.python.daemon.module"
OURS = "shardherd.spark.daemon"

SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Spark 4.1 and later know it; older ones connect by TCP, by which what a task reads costs twice as much to hand over."""

FOLDER = "spark.python.unix.domain.socket.dir"
"""Where the sockets are; without it in the temporary folder of each JVM."""

LONGEST = 40
"""Bytes of that folder's path. A socket's name has 42 more, and no system takes over 107, macOS over 103. On one machine an
executor's folder has the name of its own pod, which is longer than that of the driver's."""

JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

_TEMPORARY = re.compile(r'"-Djava\.io\.tmpdir=([^"]*)"|-Djava\.io\.tmpdir=(\S+)')


def with_workers(settings: Mapping[str, str]) -> dict[str, str]:
    """A session's settings with our daemon and, where their paths are not too long, such sockets.

    A user's own stay, and the log names a daemon that is not ours.
    """
    theirs = settings.get(DAEMON)
    if theirs is not None and theirs != OURS:
        log.warning(
            "%s is %s and stays so: every Python worker imports for itself what reading takes, which %s would do once",
            DAEMON,
            theirs,
            OURS,
        )
    short = all(len(os.fsencode(folder)) <= LONGEST for folder in _folders(settings))
    return {DAEMON: OURS, **({SOCKETS: "true"} if short else {}), **settings}


def _folders(settings: Mapping[str, str]) -> Iterator[str]:
    """Where Spark may make its sockets, as far as that is said here."""
    if FOLDER in settings:
        yield settings[FOLDER]
        return
    for options in (os.environ.get("JAVA_TOOL_OPTIONS", ""), *(settings.get(name, "") for name in JAVA_OPTIONS)):
        yield from (quoted or plain for quoted, plain in _TEMPORARY.findall(options))
