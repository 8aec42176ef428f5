"""Has Python's processes ready sooner that Spark's JVM starts; `python_path` puts this folder on its PYTHONPATH.

Python imports a module of this name before anything else. It has pyspark imported from where it is installed, as that is
compiled. In the processes that Spark starts for a query it asks the server of `cells.fork_server`, where there is one, for a
fork, and then only stands for that: it hands signals on, and ends as it does. In the daemons whose forks plan a source it
imports the source, which each fork would import otherwise; Spark ends those that were idle for a minute. In all other processes
it does nothing more but import the `sitecustomize` that would have come.
"""

import os
import sys

READER = "pyspark.sql.streaming.python_streaming_source_runner"
"""What Spark runs for a stream reader: it imports for a second of the processor before it says anything."""

STATE = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""What Spark runs before the first micro-batch of a query with `transformWithState`, to ask which state it has."""

RUNNERS = (READER, STATE)

PLANNERS = ("pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read")
"""What Spark's daemons fork to make a source, and to learn how its tasks read it."""

SOURCE = "shardherd.spark.source"

ADDRESS = "SHARDHERD_FORK_SERVER"
"""Environment variable with the server's socket."""


def _leave_out_archives() -> None:
    """Spark's second copies of pyspark and py4j, which it puts before all others in every process that it starts.

    They hold no bytecode, so that each process would compile what it imports of them: 0.8 s of the processor. They stay where
    what would be imported without them is not pyspark of this Spark.
    """
    from importlib import machinery
    from pathlib import Path

    if not (home := os.environ.get("SPARK_HOME")):
        return
    archives = Path(home, "python", "lib").absolute()  # as Python has its path
    path = [each for each in sys.path if Path(each).parent != archives]
    if path == sys.path:
        return
    pyspark, py4j = (machinery.PathFinder.find_spec(name, path) for name in ("pyspark", "py4j"))
    if pyspark is None or pyspark.origin is None or py4j is None:
        return
    if Path(pyspark.origin).parent.samefile(home):
        sys.path[:] = path


def _stand_for_a_fork(module: str) -> None:
    """Returns only if there is none: then this process is to do the work."""
    import contextlib
    import json
    import signal
    import socket
    from pathlib import Path

    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(os.environ[ADDRESS])
        folder = str(Path.cwd())
        # As `-m` has it: the folder comes to the path after this module.
        path = sys.path if sys.flags.safe_path else [folder, *sys.path]
        wanted = json.dumps({"module": module, "environment": dict(os.environ), "path": path, "folder": folder})
        socket.send_fds(line, [b"f"], [0, 1, 2])
        line.sendall(wanted.encode() + b"\n")
        answers = line.makefile("rb")
        fork = int(answers.readline() or 0)
    except OSError:
        fork = 0
    if not fork:
        line.close()
        return

    def hand_on(number: int, _frame: object) -> None:
        # If it is gone, its last word, or that there is none, is on its way.
        with contextlib.suppress(ProcessLookupError):
            os.kill(fork, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    # Its last word is its exit code; without one it was killed.
    os._exit(int(answers.readline() or 1))


def _import_the_source() -> None:
    """What cannot be imported is the forks' to complain of."""
    import contextlib
    import gc
    import importlib

    with contextlib.suppress(ImportError):
        importlib.import_module(SOURCE)
    # What is here stays: a fork's collection of garbage must not take a copy of it by looking at it.
    gc.freeze()


def _import_the_next() -> None:
    """The module that would have been imported if this folder were not there."""
    from importlib import machinery, util

    here = __file__.rpartition("/")[0]
    found = machinery.PathFinder.find_spec("sitecustomize", [each for each in sys.path if each != here])
    if found is not None and found.loader is not None:
        found.loader.exec_module(util.module_from_spec(found))


if __name__ == "sitecustomize":
    _leave_out_archives()
    _import_the_next()
    if sys.orig_argv[-2:-1] == ["-m"] and sys.orig_argv[-1] in RUNNERS:
        # They multiply no matrices, and numpy's threads for that would each turn idly for a while as they begin.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if ADDRESS in os.environ:
            _stand_for_a_fork(sys.orig_argv[-1])
    elif sys.orig_argv[-3:-1] == ["-m", "pyspark.daemon"] and sys.orig_argv[-1] in PLANNERS:
        _import_the_source()
