"""Starts the server that forks the processes of queries, and has those ask it that Spark's JVM starts; `application` calls it.

Only a driver with cells has it: a query of its own for each cell is started wherever the cell goes. Forks nothing itself.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from shardherd.spark import python_path
from shardherd.spark.launch import sitecustomize

USE_DAEMON = "spark.python.use.daemon"
"""Who sets this to false wants no process of Spark's forked."""


_servers: list[subprocess.Popen[bytes]] = []
"""Of this process: while their standard input is open they serve."""


def start(address: Path) -> subprocess.Popen[bytes]:
    """The server, which ends with this process. It is there when it has imported what they need; nobody waits for it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "shardherd.spark.cells.fork_server", str(address)],
        stdin=subprocess.PIPE,
        process_group=0,  # a terminal's interrupt is the driver's to handle
    )
    _servers.append(server)
    return server


def asked(address: Path) -> contextlib.AbstractContextManager[None]:
    """What is started meanwhile, the JVM above all, has the processes of its queries ask the server."""
    return python_path.launched({sitecustomize.ADDRESS: str(address)})


def wanted(settings: Mapping[str, str]) -> bool:
    """Whether these settings of a session leave Spark's processes to be forked."""
    return settings.get(USE_DAEMON, "true").strip().lower() != "false"
