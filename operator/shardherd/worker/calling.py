"""Calls a program's own code for a shard in hand, and waits for it. Each `holding` has one, on the consumer's event loop.

It decides for how long that code may keep a shard which another consumer wants, and what becomes of code that does not end. It
knows nothing of records: who processes them is told when to stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from shardherd.client.consumer import CANCEL_GRACE
from shardherd.client.in_hand import ShardInHand
from shardherd.consumer.waiting import within
from shardherd.worker.crew import Call, begun, is_async
from shardherd.worker.surroundings import Surroundings
from shardherd.worker.unfinished import check_done

log = logging.getLogger(__name__)


class GivenUpError(Exception):
    """What runs was not waited for any longer."""


def _returned(method: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function. Raises TypeError for one that says that its work is still to be done."""
    result = method(*arguments)
    check_done(getattr(method, "__name__", "it"), result, may_be_async=True)
    return result


class Calling:
    """`turned` is set by whoever changes something that it waits for. `stop` has what runs end at its next record.

    `halted`: nothing is handed out any more. `cancelled`: the run is over. `given_up`: some code still runs, and no other of
    this shard may run beside it.
    """

    def __init__(self, around: Surroundings, shard: ShardInHand, turned: asyncio.Event, stop: Callable[[], None]) -> None:
        self.halted = False
        self.cancelled = False
        self.given_up = False
        self._around = around
        self._consumer = around.consumer
        self._options = around.options
        self._shard = shard
        self._turned = turned
        self._stop = stop
        # Until when the program's code may keep a shard that is wanted back: all that it still does, together.
        self._bound = float("inf")

    @property
    def leaving(self) -> bool:
        """Whether nothing may be handed out any more. May be asked in any thread."""
        return self.halted or self._wanted_back() or self._consumer.draining

    @property
    def over(self) -> bool:
        """Whether what is done from now on counts no more: then nothing may be finished either. May be asked in any thread."""
        return self.cancelled or bool(self._consumer.stopped) or self._shard.lost

    @property
    def fields(self) -> dict[str, Any]:
        """What every line of the log names."""
        return self._consumer.session.log_fields(self._shard.name, self._shard.epoch)

    @property
    def patience(self) -> float:
        """For how many seconds more what was handed out may keep the shard. They run from the first time that it is wanted."""
        if self.cancelled or self._consumer.stopped:
            return 0.0
        if not self._shard.wanted:
            return float("inf")
        now = asyncio.get_running_loop().time()
        self._bound = min(self._bound, now + self._options.revoke_timeout)
        return float("inf") if self._consumer.ordered else max(0.0, self._bound - now)

    def begin(self, method: Callable[..., Any], *arguments: Any) -> Call:
        """Call a function in a thread, or a coroutine."""
        if is_async(method):
            return begun(self._around.crew, method, *arguments)
        return begun(self._around.crew, _returned, method, *arguments)

    async def finished(self, call: Call, *, cancelled: bool = False) -> Any:
        """The result of the program's own code. While it runs, the shard may be wanted back: then it has `revoke_timeout`.

        That is for all that is called from then on; what is called late has a moment, too, and so has what is `cancelled`.
        Raises GivenUpError where it was not waited for any longer.
        """
        call.ended.add_done_callback(self.turns)
        clock = asyncio.get_running_loop().time
        grace, waits = clock() + CANCEL_GRACE, False
        deadline = grace if cancelled else float("inf")
        least = grace if self._wanted_back() else clock()
        while not call.ended.done():
            if self._wanted_back():
                self.halted = True
                self._stop()
                self._bound = min(self._bound, clock() + self._options.revoke_timeout)
                if not cancelled:
                    # A run that is over waits for nothing but that its own code ends.
                    deadline = min(deadline, clock() if self.cancelled else max(self._bound, least))
            if clock() >= deadline and call.can_be_cancelled and not cancelled:
                call.cancel()
                cancelled, deadline = True, clock() + CANCEL_GRACE
            elif clock() >= deadline and not self.cancelled and not waits:
                if not self._consumer.ordered:
                    self._give_up(call)
                waits = True
                log.warning("what runs of this shard has not ended in time, and is waited for", extra=self.fields)
            left = deadline - clock()
            await self.turn(left if 0 < left < float("inf") else None)
        return call.ended.result()

    async def slot_for_shutdown(self) -> bool:
        """Wait for one of the slots of those that shut down, but not past the time that the shard may be kept."""
        slots, clock = self._around.shutdown_slots, asyncio.get_running_loop().time
        while not slots.take(self._turned):
            if self._wanted_back():
                self._bound = min(self._bound, clock() + self._options.revoke_timeout)
            left = self._bound - clock()
            if self.cancelled or left <= 0:
                slots.leave(self._turned)
                return False
            await self.turn(left if left < float("inf") else None)
        return True

    async def turn(self, seconds: float | None = None) -> None:
        """Wait until something has changed, or so many seconds are over. The first cancellation is such a change, too."""
        try:
            await within(self._turned, seconds)
        except asyncio.CancelledError:
            if self.cancelled:
                # What runs is not waited for: shutdown must not run beside it.
                self.given_up = True
                raise
            self.cancelled = True
        self._turned.clear()

    def turns(self, _: object) -> None:
        """Something has changed."""
        self._turned.set()

    def _wanted_back(self) -> bool:
        """Whether the batch in hand should end at its next record."""
        return self._shard.wanted or self.cancelled or bool(self._consumer.stopped)

    def _give_up(self, call: Call) -> None:
        log.error(
            "what runs of this shard has not ended in time%s (revoke_timeout: %g s): it is given up, and read again"
            " from offset %d",
            " since another consumer wants it" if self._shard.wanted else "",
            self._options.revoke_timeout,
            self._shard.done,
            extra=self.fields,
        )
        self.leave_adrift(call)
        raise GivenUpError

    def leave_adrift(self, call: Call) -> None:
        """Wait for this call no longer: until it has ended, no other of this shard may begin."""
        self.given_up = True
        name, adrift = self._shard.name, self._around.adrift
        adrift.setdefault(name, set()).add(call)

        def ended(_: object) -> None:
            adrift[name].remove(call)
            if not adrift[name]:
                del adrift[name]
            log.warning("what was given up of this shard has ended", extra=self.fields)

        call.ended.add_done_callback(ended)
