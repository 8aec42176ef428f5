"""This machine's time, for whoever has a deadline to keep: the one place that says which clock that is. Decides nothing.

A machine that is suspended, as a laptop or a virtual machine that is moved, loses time by `time.monotonic`: to it a lease, a
session and the limit to a consumer's silence would seem young, while the others have long given its shards away. So all
deadlines are kept on the clock that goes on meanwhile, where the system has one: Linux. An event loop's timers do not, and are
late by the suspension: whoever acts on a deadline compares it with this clock at that moment, and nobody sleeps past a look.
"""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def boot_time() -> float:
        """Seconds of a clock that never goes back, and goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def boot_time() -> float:
        """Seconds of a clock that never goes back. This system has none that surely goes on while it is suspended."""
        return time.monotonic()


class SystemClock:
    """The seconds of `boot_time`, and the wall clock of this machine."""

    def now(self) -> float:
        return boot_time()

    def wall(self) -> float:
        return time.time()
