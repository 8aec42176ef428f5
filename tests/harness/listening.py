"""A client between a consumer and the coordinator that notes what was answered. Used where takeovers are timed and checked."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from shardherd.client import AsyncConsumerClient
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    Heartbeat,
    HeartbeatReply,
    Leave,
    ShardId,
)
from tests.harness.long import LONG

AFTER_SIGTERM, AFTER_A_CRASH = (2.0, 5.0) if LONG else (10.0, 10.0)
"""Seconds within which the other one has to answer: what docs/day-two.md says, if this run may take its time. A machine that
does much else at the same time is slower; that somebody has to wait for the Lease to run out, which is 15 s, it shows too."""


@dataclass
class Answers:
    """What the coordinator told consumers: when answered heartbeats were sent and answered, and what it acknowledged."""

    heartbeats: list[tuple[float, float]] = field(default_factory=list)
    acknowledged: list[tuple[ShardId, int, int]] = field(default_factory=list)
    """Shard, epoch and offset, in the order of the answers."""

    def until_answered(self, since: float) -> float | None:
        """Seconds from then until the first answer to a heartbeat that was sent after it, None if there was none yet."""
        return next((answered - since for sent, answered in self.heartbeats if sent > since), None)

    def longest_silence(self, since: float) -> float:
        """The longest time in seconds after that moment from which on nothing was answered, up to the last answer."""
        answers = [since, *(answered for _, answered in self.heartbeats if answered > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(answers)), default=0.0)

    def check(self) -> None:
        """No shard's position went back, and no earlier epoch came after a later one."""
        last: dict[ShardId, tuple[int, int]] = {}
        for shard, epoch, offset in self.acknowledged:
            before = last.get(shard, (0, -1))
            assert epoch >= before[0], f"{shard}: epoch {epoch} after {before[0]}"
            assert offset >= before[1], f"{shard}: {offset} after {before[1]}"
            last[shard] = (epoch, offset)


class Listening:
    """`consumer.ports.Coordinator` over a client of it."""

    def __init__(self, client: AsyncConsumerClient, answers: Answers) -> None:
        self._client = client
        self._answers = answers

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        sent = time.monotonic()
        reply = await self._client.heartbeat(heartbeat, wait)
        self._answers.heartbeats.append((sent, time.monotonic()))
        return reply

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        reply = await self._client.checkpoint(request)
        sent = {each.shard: each for each in request.checkpoints}
        for outcome in reply.outcomes:
            if outcome.result is CheckpointResult.OK:
                each = sent[outcome.shard]
                self._answers.acknowledged.append((each.shard, each.owner_epoch, each.offset))
        return reply

    async def leave(self, leave: Leave) -> None:
        await self._client.leave(leave)
