"""Starts and stops the streaming queries of cells, as the agent orders; `shardherd.spark.run_cells` runs it in its thread.

It decides nothing about ownership. It knows when a query may be stopped without breaking a micro-batch off, reads in Spark's
log what was finished, and tells the agent. Queries are started one after the other in one thread, in which the application's
function is called, too; each is stopped in a thread of its own, so that the other cells do not wait.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from shardherd.core.consumer.cells import CellStart, lost
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.cells.agent import Orders
from shardherd.spark.cells.build import Build, Cell, checked
from shardherd.spark.cells.location import LocationError, Locations
from shardherd.spark.offsets import OffsetsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

LOOK = 0.2
"""Most seconds between two looks at whether a query has ended by itself."""

STOP_LOOK = 0.02
"""Seconds between two looks at whether the micro-batch has ended of a query that is to be stopped."""

CELL_PROPERTY = "shardherd.cell"
"""Spark's local property of a query's thread with its cell."""

POOL_PROPERTY = "spark.scheduler.pool"

NAME = "cell-"
"""With its number, the name of a cell's query."""


class CellCalls(Protocol):
    """The agent, as another thread may call it. Methods as `CellAgent` has them."""

    def orders(self, wait: float) -> Orders: ...
    def began(self, each: CellStart) -> int | None: ...
    def known(self, cell: int, committed: Mapping[ShardId, Offset]) -> None: ...
    def parked(self, cell: int) -> bool: ...
    def unfinished(self, cell: int) -> bool: ...
    def ended(self, cell: int, committed: Mapping[ShardId, Offset], failure: str = "", *, finished: bool = False) -> None: ...
    def lose(self, cell: int, why: str, location: str) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class _Query:
    running: StreamingQuery
    generation: int
    stopping: Future[None] | None = None


class CellRunner:
    """Of one application. `trigger` are the arguments of `DataStreamWriter.trigger`."""

    def __init__(
        self, spark: SparkSession, agent: CellCalls, locations: Locations, build: Build, trigger: Mapping[str, Any]
    ) -> None:
        self._spark = spark
        self._agent = agent
        self._locations = locations
        self._build = build
        self._trigger = trigger
        self._queries: dict[int, _Query] = {}
        self._stops = ThreadPoolExecutor(64, thread_name_prefix="shardherd-stops")

    def run(self) -> None:
        """Until this consumer has left its group, or, with Trigger.AvailableNow, what there was has been read.

        Raises what the application's function raises; then every query has been stopped.
        """
        try:
            while True:
                orders = self._agent.orders(LOOK)
                for cell in orders.stop:
                    self._stop(cell)
                for each in orders.start:
                    self._start(each)
                self._look()
                if not self._queries and (orders.over or (orders.finished and "availableNow" in self._trigger)):
                    return
        finally:
            if self._queries:
                self._agent.close()
            for cell in list(self._queries):
                self._stop(cell)
            self._stops.shutdown(wait=True)

    def _start(self, each: CellStart) -> None:
        cell, location = each.cell, self._locations.of(each.cell, each.generation)
        identity = f"{self._locations.group}/{each.generation}/{cell}"
        start = self._agent.began(each)
        if start is None:
            return
        try:
            logged = self._locations.logged(cell, each.generation)
        except (LocationError, OffsetsError) as error:
            self._agent.ended(cell, {}, str(error))
            return
        if why := lost(None if logged is None else logged.planned, each.shards):
            self._agent.lose(cell, why, location)
            self._agent.ended(cell, {})
            return
        if logged is not None:
            self._agent.known(cell, logged.committed)
        context = self._spark.sparkContext
        properties = {CELL_PROPERTY: str(cell), POOL_PROPERTY: f"{NAME}{cell}"}
        for name, text in properties.items():
            context.setLocalProperty(name, text)
        try:
            writer = checked(self._build(Cell(cell, identity, start, self._spark)), cell)
            named = writer.queryName(f"{NAME}{cell}").option("checkpointLocation", location).trigger(**self._trigger)
            try:
                with self._locations.used():
                    self._queries[cell] = _Query(named.start(), each.generation)
            except (PySparkException, Py4JError) as error:
                self._agent.ended(cell, {}, str(error))
        except BaseException:
            self._agent.ended(cell, {})
            raise
        finally:
            for name in properties:
                context.setLocalProperty(name, None)  # type: ignore[arg-type]  # what was there before: nothing

    def _stop(self, cell: int) -> None:
        query = self._queries.get(cell)
        if query is not None and query.stopping is None:
            query.stopping = self._stops.submit(self._stop_now, cell, query)

    def _stop_now(self, cell: int, query: _Query) -> None:
        """The agent gives a query that is to be stopped no answer: it begins no micro-batch, and ends the one it has."""
        failure = ""
        try:
            while query.running.isActive and query.running.status["isTriggerActive"] and not self._agent.parked(cell):
                time.sleep(STOP_LOOK)
            query.running.stop()
        except (PySparkException, Py4JError) as error:
            # It is over all the same: what it has finished is in Spark's log.
            failure = str(error)
        self._end(cell, query, failure)

    def _look(self) -> None:
        """Which queries have ended by themselves?"""
        for cell, query in list(self._queries.items()):
            if query.stopping is not None or query.running.isActive:
                continue
            error = query.running.exception()
            finished = error is None and "availableNow" in self._trigger
            said = "" if finished else "it was stopped by the application" if error is None else str(error)
            self._end(cell, query, said, finished=finished)

    def _end(self, cell: int, query: _Query, failure: str, *, finished: bool = False) -> None:
        committed: Mapping[ShardId, Offset] = {}
        try:
            # If its progress has told all, the log has no news, and whoever waits for the cell need not wait for the storage.
            logged = self._locations.logged(cell, query.generation) if self._agent.unfinished(cell) else None
            committed = {} if logged is None else logged.committed
        except (LocationError, OffsetsError) as error:
            # The positions only mirror the log: whoever starts the cell next reads it again, and mirrors more.
            log.warning("what cell %d has finished is not known to the coordinator: %s", cell, error)
        with contextlib.suppress(KeyError):
            del self._queries[cell]
        self._agent.ended(cell, committed, failure, finished=finished)
