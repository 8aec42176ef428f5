"""Tells a program's listener that a shard in hand comes and goes. Each `holding` has one, on the consumer's event loop.

It decides which method of the listener ends what `on_assigned` has begun, and for how long one that may save nothing is waited
for. For how long the others are is `calling`'s decision.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from shardherd.client.consumer import CANCEL_GRACE
from shardherd.client.in_hand import ShardInHand
from shardherd.consumer.contained import named
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.worker.calling import Calling, GivenUpError
from shardherd.worker.counts import Counts
from shardherd.worker.listener import AnyListener
from shardherd.worker.processor import Saves

log = logging.getLogger(__name__)


class Telling:
    """What a listener is told of one shard in hand. After an `on_assigned` that has returned, one of the others follows."""

    def __init__(self, listener: AnyListener | None, shard: ShardInHand, calling: Calling, counts: Counts) -> None:
        self._listener = listener
        self._shard = shard
        self._calling = calling
        self._counts = counts
        self._assigned = False

    @property
    def owed(self) -> bool:
        """Whether the listener waits to be told that the shard goes."""
        return self._assigned

    async def assigned(self) -> None:
        """The shard has come. Raises what the listener does, and GivenUpError."""
        if self._listener is not None and not self._assigned:
            call = self._calling.begin(self._listener.on_assigned, self._shard.name, self._shard.position)
            try:
                await self._calling.finished(call)
            except GivenUpError:
                call.ended.add_done_callback(self._assigned_late)
                raise
            self._assigned = True

    async def revoked(self, saves: Saves) -> None:
        """The shard is about to go, if it is not lost already. Raises GivenUpError."""
        if self._listener is None or not self._assigned:
            return
        if self._shard.lost:
            await self.lost()
            return
        self._assigned = False
        method = self._listener.on_revoked
        try:
            await self._calling.finished(self._calling.begin(method, self._shard.name, saves.as_seen_by(method)))
        except (FencedEpochError, ConsumerStoppedError) as over:
            log.info("on_revoked could not save: %s", over, extra=self._calling.fields)
        except GivenUpError:
            raise
        except Exception:
            self._counts.failures["on_revoked"] += 1
            log.exception("on_revoked failed; the shard goes all the same", extra=self._calling.fields)

    async def lost(self) -> None:
        """The shard is gone."""
        if self._listener is None or not self._assigned:
            return
        self._assigned = False
        calling, clock = self._calling, asyncio.get_running_loop().time
        call, until = calling.begin(self._listener.on_lost, self._shard.name), clock() + CANCEL_GRACE
        call.ended.add_done_callback(calling.turns)
        while not call.ended.done() and (left := until - clock()) > 0:
            await calling.turn(left)
        if not call.ended.done():
            call.cancel()
            log.error("on_lost has not ended within %g s: it is not waited for", CANCEL_GRACE, extra=calling.fields)
            calling.leave_adrift(call)
        else:
            self._lost_ended(call.ended)

    def _assigned_late(self, assigned: asyncio.Future[Any]) -> None:
        """What was given up has returned all the same: it is ended, before anything else of the shard begins."""
        if self._listener is not None and assigned.exception() is None:
            call = self._calling.begin(self._listener.on_lost, self._shard.name)
            self._calling.leave_adrift(call)
            call.ended.add_done_callback(self._lost_ended)

    def _lost_ended(self, lost: asyncio.Future[Any]) -> None:
        if (error := lost.exception()) is not None:
            self._counts.failures["on_lost"] += 1
            log.error("on_lost failed: %s", named(error), extra=self._calling.fields, exc_info=error)
