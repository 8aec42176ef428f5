"""How many batches are processed at once, and who is next: shards take turns. Asked by every `holding`."""

from __future__ import annotations

import asyncio


class Slots:
    """So many slots. Who waits has an event, which is set when it should ask again. `no_line` is set while nobody waits."""

    def __init__(self, count: int) -> None:
        self.no_line = asyncio.Event()
        self.no_line.set()
        self._free = count
        self._waiting: dict[asyncio.Event, None] = {}

    def take(self, who: asyncio.Event) -> bool:
        """Whether there is a slot for this one now. If not, it waits in line, until it takes one or leaves."""
        first = next(iter(self._waiting), who)
        if not self._free or first is not who:
            self._waiting.setdefault(who)
            self.no_line.clear()
            return False
        self._free -= 1
        self.leave(who)
        return True

    def give_back(self) -> None:
        self._free += 1
        self._wake()

    def leave(self, who: asyncio.Event) -> None:
        """It does not wait any more."""
        self._waiting.pop(who, None)
        if not self._waiting:
            self.no_line.set()
        self._wake()

    def _wake(self) -> None:
        if self._free and self._waiting:
            next(iter(self._waiting)).set()
