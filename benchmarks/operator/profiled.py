"""The operator with a profile of each of its threads: `python -m benchmarks.operator.profiled FILE operator`.

At its end FILE.<thread> has what cProfile counted. For finding out what costs time; nothing is measured with it.
"""

from __future__ import annotations

import cProfile
import sys
import threading

from shardherd.cli import main


def run() -> int:
    """The operator's exit code."""
    target = sys.argv[1]
    plain = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        if thread.name != "kopf" and not thread.name.startswith("kafka-io"):
            plain(thread)
            return
        profile = cProfile.Profile()
        try:
            profile.runcall(plain, thread)
        finally:
            profile.dump_stats(f"{target}.{thread.name}")

    threading.Thread.run = profiled  # type: ignore[method-assign,assignment]
    profile = cProfile.Profile()
    try:
        code: int = profile.runcall(main, sys.argv[2:])
        return code
    finally:
        profile.dump_stats(f"{target}.main")


if __name__ == "__main__":
    sys.exit(run())
