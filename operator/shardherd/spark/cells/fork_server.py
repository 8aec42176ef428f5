"""Forks the processes of queries, with all imported that they need: `python -m shardherd.spark.cells.fork_server`.

Each start of a cell's query takes a process for its stream reader, and one more with `transformWithState`. Spark starts them
anew: each imports for a second of the processor, at the very time for which nobody reads the cell, and Spark gives up if that
takes 10 s, as it does where cores are short. A fork begins at once, and shares the memory of what was imported. `forked` starts
the server, `launch.sitecustomize` asks it. It decides nothing about who reads what, starts no thread, and ends when its
standard input does: that is the driver's hand.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from shardherd.spark.launch.sitecustomize import RUNNERS

log = logging.getLogger(__name__)

MODULES = (*RUNNERS, "shardherd.spark.source", "shardherd.spark.link", "shardherd.spark.task_planning")

PATIENCE = 5.0
"""Seconds that a process may take to say what it wants: others wait meanwhile."""


def load() -> None:
    """Import what these processes need. What cannot be imported is theirs to complain of."""
    # A thread of Arrow's second allocator, which would not be in the forks anyway.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    try:
        for module in MODULES:
            importlib.import_module(module)
    except ImportError:
        log.warning("processes of queries import for themselves what they need, as it cannot be imported here", exc_info=True)
    for runner in RUNNERS:
        sys.modules.pop(runner, None)  # it is run as the main program of each fork
    if (random := sys.modules.get("numpy.random")) is not None:
        os.register_at_fork(after_in_child=random.seed)
    # What is here stays: a fork's collection of garbage must neither look at it nor take a copy of its memory by that.
    gc.collect()
    gc.freeze()


def serve(listener: socket.socket) -> None:
    """Until the standard input ends."""
    # Nobody waits for them here: each tells its own end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            line, _ = listener.accept()
            with line:
                _serve_one(line, listener)


def _serve_one(line: socket.socket, listener: socket.socket) -> None:
    line.settimeout(PATIENCE)
    files: list[int] = []
    try:
        _, files, _, _ = socket.recv_fds(line, 1, 3)
        wanted = json.loads(line.makefile("rb").readline())
    except (OSError, ValueError) as error:
        log.warning("a process that wanted a fork has not said what for: %s", error)
    else:
        try:
            fork = os.fork()
        except OSError as error:
            log.warning("the process of a query is not forked, and does the work itself: %s", error)
            return
        if not fork:
            listener.close()
            _be(line, files, wanted)
    finally:
        for each in files:
            os.close(each)


def _be(line: socket.socket, files: list[int], wanted: dict[str, Any]) -> None:
    """In the fork: be the process that asked. Does not return."""
    code = 1
    try:
        line.settimeout(None)
        line.sendall(b"%d\n" % os.getpid())
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for standard, each in enumerate(files):
            os.dup2(each, standard)
            os.close(each)
        os.environ.clear()
        os.environ.update(wanted["environment"])
        os.chdir(wanted["folder"])
        sys.path[:] = wanted["path"]
        sys.argv = [wanted["module"]]
        runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code & 255 if isinstance(error.code, int) else int(error.code is not None)
    except Exception:
        log.exception("the process of a query has failed")
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        with contextlib.suppress(OSError):
            line.sendall(b"%d\n" % code)
        os._exit(code)


def main() -> None:
    """Import, then listen at the address that is the argument."""
    logging.basicConfig(level=logging.WARNING)
    address = Path(sys.argv[1])
    load()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        address.unlink(missing_ok=True)
        listener.bind(str(address))
        address.chmod(0o600)
        listener.listen(64)
        try:
            serve(listener)
        finally:
            address.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
