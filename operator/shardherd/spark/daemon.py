"""Spark's daemon of Python workers, with all that reading takes imported before it forks them.

Spark starts it for every executor, as `python -m shardherd.spark.daemon pyspark.worker`, where `spark.python.daemon.module`
names it (`workers` sets that). A worker of Spark's own daemon imports for itself: a second of the processor for each, and
again after a minute without work, since Spark ends idle workers then. A fork of this one begins to read at once, and shares
its memory.

It reads nothing, connects to nothing and starts no thread: only the thread that forks is there in the fork. (numpy's OpenBLAS
starts some where Spark's OMP_NUM_THREADS, which is `spark.task.cpus`, lets it; it ends them before a fork, by itself.) It
compiles nothing either; what has no object file yet, a worker sees to. Forks are otherwise those of `pyspark.daemon`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import logging
import os
import socket
import sys
from collections.abc import Iterator

from pyspark import daemon

log = logging.getLogger(__name__)

MODULES = (
    "pyspark.worker",
    "shardherd.spark.source",
    "shardherd.spark.reader",
    "shardherd.source.values.json_column",
    "shardherd.source.values.avro_column",
)
LIBRARIES = ("shardherd.source.decoding.compiled_records", "shardherd.source.values.compiled_values")

KEPT_BLOCK = 64 * 1024 * 1024
"""Bytes up to which a block of memory comes from the heap: an answer to a Fetch, a column of an Arrow batch."""

KEPT_FREE = 128 * 1024 * 1024
"""Free bytes at the end of the heap beyond which they are given back."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Have workers use their memory again for the next batch.

    Otherwise glibc gives large blocks back, and the kernel clears each new one first: a tenth of a worker's time. Another C
    library does as it does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Older ones refuse so large a block. The second setting alone would have all larger ones given back at once.
    if mallopt is not None and mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK):
        mallopt(_M_TRIM_THRESHOLD, KEPT_FREE)


def load() -> None:
    """Import what the workers need. What cannot be imported is theirs to complain of: it then ends a task, not all."""
    # A thread of Arrow's second allocator, which would not be in the forks anyway.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    try:
        for module in MODULES:
            importlib.import_module(module)
        for module in LIBRARIES:
            for library in importlib.import_module(module).LIBRARIES:
                if library.compiled():
                    library.functions()
    except ImportError:
        log.warning("workers import for themselves what reading takes, as it cannot be imported here", exc_info=True)
    if (random := sys.modules.get("numpy.random")) is not None:
        # Python draws a new state for each fork; numpy would give all of them the same random numbers.
        os.register_at_fork(after_in_child=random.seed)
    # What is here stays: a worker's collection of garbage must neither look at it nor, by that, take a copy of its memory.
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _stdout_aside() -> Iterator[None]:
    """Spark reads the daemon's address from stdout: nothing that is imported may print there before it."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _worker(sock: socket.socket, authenticated: bool) -> int:
    """As Spark's own, but that Spark has closed the socket is the end of the worker, and no error for the log.

    A worker that has answered a planner flushes a last word that nobody reads any more: TCP takes it, a Unix domain socket does
    not. What a task has not written its worker tells by itself.
    """
    try:
        code: int = _own_worker(sock, authenticated)
    except BrokenPipeError:
        return 1
    return code


_own_worker = daemon.worker


def main() -> None:
    """Serve until Spark ends."""
    daemon.worker = _worker
    keep_memory()
    with _stdout_aside():
        load()
    daemon.manager()


if __name__ == "__main__":
    main()
