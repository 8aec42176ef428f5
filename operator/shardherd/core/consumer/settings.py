"""Who one run of a consumer is, and its times; how long it may be without an answer, and how it shares out the time of a drain.

Made by whoever starts a consumer, and renewed by every answer to a heartbeat. It reads no clock: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardherd.core.model.nouns import ConsumerId, HeartbeatReply, Incarnation

LEAVING = 5.0
"""Seconds of a drain that are kept for leaving, or a quarter of it if that is less: until then it tries to checkpoint."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Who the consumer is, where it runs, how much it can do relative to others, and its times in seconds.

    `group` is its namespace and name, for the log. `save_interval`: a checkpoint that need not be durable at once is after
    that; 0 saves everything at once. The coordinator's answers have the last word on `ordered`, `heartbeat_interval` and
    `session_timeout`.
    """

    group_uid: str
    consumer: ConsumerId
    incarnation: Incarnation
    zone: str = ""
    capacity: int = 1
    heartbeat_interval: float = 3.0
    session_timeout: float = 45.0
    coordinator_loss_limit: float = 300.0
    drain_timeout: float = 60.0
    ordered: bool = False
    group: str = ""
    save_interval: float = 0.0

    @property
    def silence_limit(self) -> float:
        """Seconds after the sending of the last acknowledged heartbeat at which this consumer stops by itself.

        In an ordered group that is before it can be expired; else its checkpoints are fenced, and it may read on for a while.
        """
        margin = max(2 * self.heartbeat_interval, 5.0)
        return self.session_timeout - margin if self.ordered else self.coordinator_loss_limit

    def answered(self, reply: HeartbeatReply) -> SessionSettings:
        """These settings, as the newest answer has them."""
        said = (reply.ordered, reply.heartbeat_interval, reply.session_timeout)
        if said == (self.ordered, self.heartbeat_interval, self.session_timeout):
            return self
        ordered, interval, timeout = said
        return replace(self, ordered=ordered, heartbeat_interval=interval, session_timeout=timeout)


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """Until when a drain waits for what is being read, for what is not durable, and tries to leave, on the session's clock."""

    reading: float
    saving: float
    leaving: float


def until(deadline: float) -> DrainTimes:
    """The whole time for each of the three."""
    return DrainTimes(deadline, deadline, deadline)


def with_room_to_leave(now: float, deadline: float, drain_timeout: float) -> DrainTimes:
    """What is being read has `drain_timeout` to end; what is finished is saved for as long as there is time to leave."""
    saving = deadline - min(LEAVING, (deadline - now) / 4)
    return DrainTimes(min(saving, now + drain_timeout), saving, deadline)
