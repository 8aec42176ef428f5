"""The machine's own time, for the composition roots. Decides nothing."""

from __future__ import annotations

import time


class SystemClock:
    """Monotonic and wall-clock seconds of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
