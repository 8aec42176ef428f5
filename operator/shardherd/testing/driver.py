"""A Spark driver that a test plays: the real agent in the group's thread, and Spark's micro-batches one at a time, when called.

What a micro-batch reads, when it is finished and what a restart reads again is the agent's decision; the two logs that Spark
keeps in its checkpoint location are three fields here. Nothing of Spark runs: the application's function is called with what
`frame` makes of the records, such as a DataFrame of a session of the test's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardherd.client import AsyncConsumerClient
from shardherd.clock import boot_time
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.errors import ConsumerStoppedError
from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardId
from shardherd.spark.agent import Agent
from shardherd.spark.offsets import Offsets
from shardherd.testing.records import Record

if TYPE_CHECKING:
    from shardherd.testing.group import PlayedGroup

DRAIN = 10.0
"""Seconds that a drain may take."""


@dataclass
class _Location:
    """Spark's checkpoint location: the number and end of the last micro-batch that is done, and of the one begun after it."""

    done: int = -1
    end: Offsets | None = None
    begun: Offsets | None = None


class PlayedDriver:
    """One run of a driver; made by `PlayedGroup.driver`, and warm then. `stopped` says why it is over, empty while it is not.

    The application's function is called in the thread of whoever calls `micro_batch`. Its first call is with no record: so
    Spark warms a driver up before it may be given shards.
    """

    def __init__(
        self,
        group: PlayedGroup,
        name: ConsumerId,
        function: Callable[[Any, int], object],
        frame: Callable[[list[Record]], Any],
        before: PlayedDriver | None = None,
    ) -> None:
        self.name = name
        self.stopped = ""
        self._group = group
        self._function = function
        self._frame = frame
        self._busy = False
        self._closed = False
        if before is None:
            self._location, self.run = _Location(), group.begin(name)
        else:
            self._location = before._location
            self.run = group.begin(name, pod_uid=before.run.pod_uid, start=before.run.start + 1)
        self._client, self._agent, self._task = group.run(self._begin(self.run))

    def warm_up(self) -> None:
        """What Spark does first: again what was begun and is not done, and an empty micro-batch."""
        begun = self._location.begun
        if begun is not None:
            again = self._group.run(self._agent.replay(begun))
            self._execute(begun, again)
        self._until("it is warm", lambda: self._agent.ready, boot_time() + DRAIN, self._next)

    def micro_batch(self, *, dies: bool = False, within: float = 10.0) -> list[Record]:
        """The next micro-batch that has records; its records. Raises AssertionError if there are none to read `within` seconds.

        With `dies` the driver is killed once the function has returned, before Spark has noted that the micro-batch is done.
        So it is where the function raises: the query fails, and the error is raised on. Raises ConsumerStoppedError once it
        is over.
        """
        found: list[Record] = []

        def read() -> None:
            found.extend(self._next(dies=dies))

        self._until(f"{self.name} has records to read", lambda: bool(found), boot_time() + within, read)
        return found

    def drain(self) -> bool:
        """End as at SIGTERM: checkpoint, release, leave. Whether all that was read is done and durable."""
        clean = self._group.run(self._agent.drain(boot_time() + DRAIN))
        self.stopped = self.stopped or "it has drained"
        return clean

    def kill(self) -> None:
        """kill -9, which is reported to the coordinator as by the kubelet."""
        if not self.stopped:
            self._group.kill(self.name)

    def restart(self) -> PlayedDriver:
        """The next start of the same pod, with the same checkpoint location: what was begun and is not done is read again.

        Only what no other consumer was given meanwhile: its shards may be somebody else's by now.
        """
        self.kill()
        return self._group.driver(self.name, self._function, self._frame, before=self)

    def held(self) -> tuple[ShardId, ...]:
        """The shards that it may read now."""
        return tuple(sorted(self._agent.tracker.positions()))

    def stop_running(self) -> None:
        """Nothing of it runs any more. For the group."""
        if not self._closed:
            self._closed = True
            self._group.run(self._stop_agent())
        self.stopped = self.stopped or "it was killed"

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _until(self, what: str, holds: Callable[[], bool], deadline: float, step: Callable[[], object]) -> None:
        while True:
            if self.stopped:
                raise ConsumerStoppedError(self.stopped, consumer=self.name)
            step()
            if holds():
                return
            if boot_time() > deadline:
                raise AssertionError(f"it did not become true: {what}; {self._group.explained()}")

    def _next(self, *, dies: bool = False) -> list[Record]:
        """A micro-batch, if there is anything to do; its records."""
        start = self._location.end or Offsets(self._group.identity.uid)
        end = self._group.run(self._agent.latest(start, None))
        if end is start:
            return []
        self._location.begun = end
        return self._execute(end, end.shards, dies=dies)

    def _execute(self, end: Offsets, shards: Iterable[ShardId], *, dies: bool = False) -> list[Record]:
        ranges = {shard: end.shards[shard] for shard in sorted(shards)}
        records = [
            record
            for shard, each in ranges.items()
            for record in self._group.records(shard, each.start, each.stop - each.start)
        ]
        self._busy = True
        try:
            self._function(self._frame(records), self._location.done + 1)
        except BaseException:
            self.kill()
            raise
        finally:
            self._busy = False
        if self.stopped:
            return records  # killed meanwhile: nobody notes that it is done
        if dies and records:
            self.kill()
            return records
        location = self._location
        location.done, location.end, location.begun = location.done + 1, end, None
        self._group.run(self._finished(end))
        return records

    async def _finished(self, end: Offsets) -> None:
        self._agent.finished(end)

    async def _begin(self, run: Incarnation) -> tuple[AsyncConsumerClient, Agent, asyncio.Task[None]]:
        client = self._group.client(run)
        settings = SessionSettings(self._group.identity.uid, self.name, run, heartbeat_interval=0.2)
        agent = Agent(settings, client, _EndOffsets(self._group), _Unobserved(), self._stop, self._runs)
        return client, agent, asyncio.create_task(agent.run(), name=f"agent of {self.name}")

    async def _stop_agent(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    async def _runs(self) -> bool:
        return self._busy


class _EndOffsets:
    """Ends of the played group's shards: what was appended can be read at once."""

    def __init__(self, group: PlayedGroup) -> None:
        self._group = group

    def watch(self, shards: Iterable[ShardId], stops: Mapping[ShardId, int] | None = None) -> None:
        """All of them are known anyway."""

    def failing(self) -> bool:
        return False

    def known(self) -> Mapping[ShardId, int]:
        return self._group.ends()

    async def reached(self, shards: Collection[ShardId]) -> Mapping[ShardId, int]:  # noqa: ARG002
        return self._group.ends()

    async def sizes(self, positions: Mapping[ShardId, int]) -> Mapping[ShardId, float]:
        found = {shard: self._group.records(shard, at, 1) for shard, at in positions.items()}
        return {shard: float(len(records[0].value)) for shard, records in found.items() if records}


class _Unobserved:
    """An observer that keeps nothing."""

    def heartbeat(self, result: str) -> None:
        pass

    def checkpoint(self, result: str) -> None:
        pass

    def began(self, ranges: Mapping[ShardId, ReadRange], asked_at: float) -> None:
        pass

    def batch(self, ranges: Mapping[ShardId, ReadRange], seconds: float) -> None:
        pass
