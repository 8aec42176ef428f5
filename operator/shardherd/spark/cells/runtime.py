"""The runtime of the agent of cells: what Spark reports of their queries, and the agent's methods for another thread to call.

`application` makes it in a group with cells; `runner` calls it from the application's threads. Everything that touches the
process is `driver_runtime`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardherd.core.consumer.cells import CellStart
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.cells.agent import CellAgent, Orders
from shardherd.spark.cells.build import Build, CellsError
from shardherd.spark.cells.location import Locations
from shardherd.spark.cells.logged import committed_by
from shardherd.spark.cells.runner import NAME, CellRunner
from shardherd.spark.cells.serve import CellServer
from shardherd.spark.driver_runtime import DriverRuntime, Progress
from shardherd.spark.running_batch import HandedBatch
from shardherd.spark.triggers import interval_of
from shardherd.spark.warming import start_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardherd.consumer.ports import Coordinator
    from shardherd.spark.agent_ports import KnownEndOffsets, Observer
    from shardherd.spark.kinesis.next_ends import NextEnds

log = logging.getLogger(__name__)

T = TypeVar("T")


class CellRuntime(DriverRuntime[CellAgent]):
    """Of an application with a streaming query for each cell. Implements `runner.CellCalls`, from any thread."""

    _runs = False
    _interval = 0.0

    def attach(self, spark: SparkSession) -> None:
        super().attach(spark)
        log.info("this ConsumerGroup has spec.state: nothing is read before shardherd.spark.run_cells(build) is called")

    def run(self, build: Build, trigger: Mapping[str, Any]) -> None:
        """As `shardherd.spark.run_cells`."""
        spark = self._spark
        assert spark is not None
        if self._runs:
            raise CellsError("run_cells() is called once in an application: it returns when the application is to end")
        self._runs = True
        locations = Locations(spark, self._pod.state_location, self._pod.session.group_uid)
        locations.check()
        if (every := trigger.get("processingTime")) is not None:
            # All queries have the same. Between two triggers one waits, and does not hang.
            self._interval = interval_of(spark, every)
        start_workers(spark, self._pod.slots).join()
        self._ask(lambda agent: agent.warmed(self._interval))
        CellRunner(spark, self, locations, build, trigger).run()

    def orders(self, wait: float) -> Orders:
        assert self._agent is not None
        return asyncio.run_coroutine_threadsafe(self._agent.orders(wait), self._loop).result()

    def began(self, each: CellStart) -> int | None:
        return self._ask(lambda agent: agent.began(each))

    def known(self, cell: int, committed: Mapping[ShardId, Offset]) -> None:
        self._ask(lambda agent: agent.known(cell, committed))

    def parked(self, cell: int) -> bool:
        return self._ask(lambda agent: agent.parked(cell))

    def unfinished(self, cell: int) -> bool:
        return self._ask(lambda agent: agent.unfinished(cell))

    def ended(self, cell: int, committed: Mapping[ShardId, Offset], failure: str = "", *, finished: bool = False) -> None:
        self._ask(lambda agent: agent.ended(cell, committed, failure, finished=finished))

    def lose(self, cell: int, why: str, location: str) -> None:
        self._ask(lambda agent: agent.lose(cell, why, location))

    def close(self) -> None:
        self._ask(lambda agent: agent.close())

    def batch(self, cell: str | None) -> HandedBatch | None:
        return None if self._agent is None or cell is None else self._agent.batch(int(cell))

    def _ask(self, question: Callable[[CellAgent], T]) -> T:
        agent = self._agent
        assert agent is not None

        async def asked() -> T:
            return question(agent)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result()

    def _make_agent(self, coordinator: Coordinator, end_offsets: KnownEndOffsets, observer: Observer) -> CellAgent:
        agent = CellAgent(self._pod.session, coordinator, end_offsets, observer, self._stop)
        agent.gauges = self._gauges
        return agent

    def _next_ends(self) -> NextEnds:
        raise CellsError("the state of cells is for Kafka, whose keys keep their cells: read Kinesis without spec.state")

    def _make_server(self, agent: CellAgent, path: Path, reader_settings: dict[str, Any], **more: Any) -> CellServer:
        return CellServer(agent, path, reader_settings, **more)

    def _trigger_interval(self) -> float:
        return self._interval

    def _query_ended(self, agent: CellAgent) -> None:
        """`run` has stopped them, and said so."""

    def _finished(self, progress: Progress) -> None:
        before, found, number = progress.name.partition(NAME)
        if before or not found or not number.isdecimal():
            return  # a query of the application's own
        assert self._agent is not None
        assert self._metrics is not None
        self._metrics.trigger(sum(rows for _, rows in progress.ends), progress.phases)
        if self._slots is not None:
            self._slots.took(progress.phases.get("addBatch", 0) / 1000)
        self._agent.committed(int(number), committed_by((end for end, _ in progress.ends), self.group_uid))
