"""The runtime of the agent of one streaming query: what Spark reports of it, and what is refused.

`application` makes it in a group without cells. Everything that touches the process is `driver_runtime`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.agent import Agent
from shardherd.spark.driver_runtime import DriverRuntime, Progress
from shardherd.spark.flow import Limits
from shardherd.spark.offsets import OffsetsError, parse
from shardherd.spark.running_batch import HandedBatch
from shardherd.spark.serve import ReaderServer

if TYPE_CHECKING:
    from shardherd.consumer.ports import Coordinator
    from shardherd.spark.agent_ports import KnownEndOffsets, Observer
    from shardherd.spark.kinesis.next_ends import NextEnds

STATEFUL = (
    "this query keeps state by key ({operators}), and a ConsumerGroup moves shards between consumers without it: what it "
    "counts would be wrong after every move. Make a ConsumerGroup with spec.state, in which shards move with their state, and "
    "run the query by shardherd.spark.run_cells. Write the records to a topic that is partitioned by that key and read it by "
    "one query that is in no group, or add up in the sink (MERGE) what foreachBatch gives it"
)


class AgentRuntime(DriverRuntime[Agent]):
    """Of an application with one streaming query."""

    def batch(self, cell: str | None) -> HandedBatch | None:  # noqa: ARG002
        return None if self._agent is None else self._agent.batch

    def _make_agent(self, coordinator: Coordinator, end_offsets: KnownEndOffsets, observer: Observer) -> Agent:
        agent = Agent(self._pod.session, coordinator, end_offsets, observer, self._stop, self._running)
        agent.events_arrive = True
        agent.gauges = self._gauges
        return agent

    def _next_ends(self) -> NextEnds:
        from shardherd.spark.kinesis.next_ends import NextEnds
        from shardherd.spark.kinesis.options import of_pod
        from shardherd.spark.kinesis.planner import StreamService

        assert self._pod.kinesis is not None
        service = StreamService(of_pod(self._pod.kinesis), executors=self._pod.executors.instances > 0)
        return NextEnds(service, self._end_offsets_changed, self._wanted)

    def _wanted(self) -> tuple[Mapping[ShardId, Offset], Limits]:
        """Where each shard that may be read is read on, and what the query wants. Not on the event loop."""

        async def now() -> tuple[Mapping[ShardId, Offset], Limits]:
            agent = self._agent
            return ({}, Limits()) if agent is None else (agent.tracker.positions(), agent.limits)

        return asyncio.run_coroutine_threadsafe(now(), self._loop).result()

    def _make_server(self, agent: Agent, path: Path, reader_settings: dict[str, Any], **more: Any) -> ReaderServer:
        return ReaderServer(agent, path, reader_settings, **more)

    def _query_ended(self, agent: Agent) -> None:
        agent.query_ended()

    def _finished(self, progress: Progress) -> None:
        agent = self._agent
        assert agent is not None
        assert self._metrics is not None
        for end, rows in progress.ends:
            try:
                offsets = parse(end, self._pod.session.group_uid)
            except (OffsetsError, ValueError):
                continue  # another source's offsets
            self._run_id = progress.run
            if progress.state:
                agent.refuse(STATEFUL.format(operators=", ".join(progress.state)))
            else:
                agent.event_accepted()
            self._metrics.trigger(rows, progress.phases)
            if self._batches is not None:
                self._batches.trigger(offsets.shards, progress.began.at, progress.began.batch, rows, progress.phases)
            if self._slots is not None:
                self._slots.took(progress.phases.get("addBatch", 0) / 1000)
            agent.finished(offsets)
