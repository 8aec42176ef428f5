"""Runs an agent beside a Spark application: its thread and event loop, its signals, and how the application is ended.

`runtime` is that of the agent of one query, `cells.runtime` that of the agent of cells; `application` makes one of them before
there is a SparkContext. It wires the parts together and owns everything that touches the
process: the pipe that SIGTERM writes to, and the hard exit. What to hold and when is the agent's business.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from py4j.protocol import Py4JError

from shardherd.client import AsyncConsumerClient
from shardherd.clock import boot_time
from shardherd.core.model.gauges import Gauge
from shardherd.core.model.security import Security
from shardherd.source.kafka.batch_headers import event_times
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, SourceRefusedError
from shardherd.source.kafka.end_offsets import EndWatcher
from shardherd.source.reading.range_reader import REQUEST_TIMEOUT, STALL_TIMEOUT
from shardherd.spark import tasks
from shardherd.spark.decode_stats import ReceivedCounts, new_address
from shardherd.spark.metrics import AgentMetrics, serve_http
from shardherd.spark.pod import Pod
from shardherd.spark.running_batch import HandedBatch
from shardherd.spark.serve import SocketServer
from shardherd.spark.slots import Slots
from shardherd.spark.triggers import trigger_interval
from shardherd.telemetry.scrapers import Scrapers, digest_in
from shardherd.telemetry.tracing import instance, started

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession

    from shardherd.consumer.ports import Coordinator
    from shardherd.spark.agent_ports import KnownEndOffsets, Observer
    from shardherd.spark.consumer_run import ConsumerRun
    from shardherd.spark.kinesis.next_ends import NextEnds
    from shardherd.spark.traces import BatchTraces
    from shardherd.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

A = TypeVar("A", bound="ConsumerRun[Any]")

CANCEL_GRACE = 3.0
"""Seconds that cancelled jobs have to end before the process does."""

EXIT_MARGIN = 5.0
"""Seconds before the end of the pod's grace period at which the process ends by itself: SIGKILL would lose the logs."""

LEAVE_AT_EXIT = 5.0
"""Seconds that an application which ends by itself waits for its last checkpoint and for leaving."""

TASKS_INTERVAL = 2.0
"""Seconds between looks at the tasks of a running micro-batch: a fifth of the shortest progress timeout."""

READS_NO_LONGER = STALL_TIMEOUT + REQUEST_TIMEOUT + 10.0
"""Seconds after which a task that has neither ended nor failed is not hanging in Kafka: reading would have failed by then."""

EVENT_TIMES_INTERVAL = 10.0
"""Seconds between looks at the time of the last finished records: about as often as metrics are scraped."""

SLOTS_INTERVAL = 2.0
"""Seconds between looks at how many executors there are, where that changes."""

EXIT_STOPPED = 70
"""Exit code of a consumer that may read no longer; the kubelet starts it again."""


@dataclass(frozen=True, slots=True)
class Began:
    """When a trigger of Spark's began (ISO 8601), and the number of its micro-batch."""

    at: str
    batch: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A micro-batch of a query is in Spark's commit log.

    `run` is the id of the query's run; `ends` the end offsets of each source, with the rows that it gave; `phases`
    (milliseconds of each phase of the trigger) are as Spark counted them; `state` names the query's operators that keep state.
    """

    name: str
    run: str
    ends: Sequence[tuple[str, int]]
    phases: Mapping[str, int]
    state: Sequence[str]
    began: Began


class DriverRuntime(ABC, Generic[A]):
    """The agent of this process. `start` returns when the stream reader can connect."""

    def __init__(self, pod: Pod, gauges: Callable[[], tuple[Gauge, ...]] = tuple) -> None:
        self._pod = pod
        self._gauges = gauges
        self._loop = asyncio.new_event_loop()
        self._spark: SparkSession | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._terminate_read, self._terminate_write = os.pipe()
        self._thread = threading.Thread(target=self._main, name="shardherd-agent", daemon=True)
        self._agent: A | None = None
        self._metrics: AgentMetrics | None = None
        self._traces: Tracing | None = None
        self._batches: BatchTraces | None = None
        executors = pod.executors
        self._slots = None if executors.least is None else Slots(executors.cores, executors.least, executors.instances)
        self._tasks: set[asyncio.Task[None]] = set()
        self._run_id = ""

    def start(self) -> None:
        """Raises what kept the agent from starting."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        """The application ends by itself, and its queries have: let others have the shards now. For atexit."""
        agent = self._agent
        if agent is None or agent.gone or agent.draining or not self._thread.is_alive():
            return

        async def leaving() -> None:
            self._query_ended(agent)
            await agent.drain(boot_time() + LEAVE_AT_EXIT)
            self._end_batches()

        try:
            asyncio.run_coroutine_threadsafe(leaving(), self._loop).result(LEAVE_AT_EXIT + 1.0)
        except (TimeoutError, RuntimeError) as error:
            # RuntimeError: an interpreter that ends starts no thread any more, which a new connection needs.
            log.warning("the coordinator did not hear that this consumer leaves, it will see its container's end: %s", error)
        self._send_traces()

    def terminate(self, *_signal: Any) -> None:
        """SIGTERM's handler: only writes to a pipe, which is safe wherever the main thread was."""
        os.write(self._terminate_write, b"T")

    def attach(self, spark: SparkSession) -> None:
        """This is the session whose queries are stopped at the end of a drain."""
        self._spark = spark

    @property
    def group_uid(self) -> str:
        return self._pod.session.group_uid

    @property
    def source_access(self) -> tuple[str, Security]:
        """The brokers of the group's source, and how they are reached."""
        return self._pod.bootstrap_servers, self._pod.security

    @abstractmethod
    def batch(self, cell: str | None) -> HandedBatch | None:
        """What the query, or that of this cell, was given last to read. From any thread."""

    def finished(self, progress: Progress) -> None:
        """The query listener has something new. From any thread."""
        self._loop.call_soon_threadsafe(self._finished, progress)

    @abstractmethod
    def _finished(self, progress: Progress) -> None:
        """On the event loop: as `finished`."""

    @abstractmethod
    def _make_agent(self, coordinator: Coordinator, end_offsets: KnownEndOffsets, observer: Observer) -> A: ...

    @abstractmethod
    def _next_ends(self) -> NextEnds:
        """What is known of the shards of Kinesis, where those are read."""

    @abstractmethod
    def _make_server(self, agent: A, path: Path, reader_settings: dict[str, Any], **more: Any) -> SocketServer[Any]: ...

    @abstractmethod
    def _query_ended(self, agent: A) -> None:
        """The application ends, and so have its queries."""

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._run())
        except Exception as error:
            # Whatever it was, the application must not read on without its agent.
            if not self._started.is_set():
                self._failure = error
                self._started.set()
                return
            log.exception("the agent failed; ending the application")
            os._exit(EXIT_STOPPED)

    async def _run(self) -> None:
        pod = self._pod
        metrics = self._metrics = AgentMetrics(pod.namespace, pod.group, pod.session.consumer)
        coordinator, observer = self._outside(metrics)
        brokers = None if pod.kinesis else Brokers(pod.bootstrap_servers, pod.security, name="shardherd-agent")
        end_offsets = self._next_ends() if brokers is None else EndWatcher(brokers, self._end_offsets_changed)
        agent = self._agent = self._make_agent(coordinator, end_offsets, observer)
        metrics.watch(agent)
        counts_address = new_address(pod.worker_address, pod.metrics_port)
        reader_settings = {
            "group": pod.session.group_uid,
            "bootstrapServers": pod.bootstrap_servers,
            "slots": pod.slots,
            "kafka": pod.security.as_dict(),
            "kinesis": pod.kinesis,
            "countsAddress": counts_address.as_dict() if pod.metrics_port else None,
        }
        slots = self._slots
        wanted = None if slots is None else lambda news: slots.wanted(news=news)
        server = self._make_server(
            agent,
            pod.socket,
            reader_settings,
            read_committed=end_offsets.read_committed if isinstance(end_offsets, EndWatcher) else _unsaid,
            committed=pod.read_committed,
            slots=wanted,
        )
        await server.start()
        if pod.metrics_port:
            asked = pod.metrics_digest_file
            scrapers = Scrapers(digest_in(asked)) if asked is not None else None
            await serve_http(agent, metrics, pod.metrics_port, ReceivedCounts(counts_address), scrapers)
        end_offsets.start()
        self._loop.add_reader(self._terminate_read, self._terminated)
        watching = [
            self._loop.create_task(self._watch_tasks(agent)),
        ]
        if brokers is not None:
            watching.append(self._loop.create_task(self._watch_event_times(metrics, brokers)))
        if slots is not None:
            watching.append(self._loop.create_task(self._watch_executors(slots)))
        self._started.set()
        await agent.run()
        for task in watching:
            task.cancel()
        # The application may go on for a while after the agent has left; the stream reader still gets its answers.
        await asyncio.Event().wait()

    def _outside(self, metrics: AgentMetrics) -> tuple[Coordinator, Observer]:
        """The coordinator, and who hears what happens; both with traces, if those are wanted."""
        pod = self._pod
        place = (pod.coordinator_url, pod.namespace, pod.group, lambda: Path(pod.token_file).read_text())
        traces = self._traces = started(os.environ, pod.group, instance(pod.namespace, pod.session.consumer))
        if traces is None:
            return AsyncConsumerClient(*place, ca_file=pod.coordinator_ca_file), metrics
        # Nothing of OpenTelemetry is imported where traces are off.
        from shardherd.client.traced import TracedCoordinator, headers
        from shardherd.spark.traces import BatchTraces, Beside

        group = f"{pod.namespace}/{pod.group}"
        batches = self._batches = BatchTraces(traces.tracer, group, pod.session.consumer)
        client = AsyncConsumerClient(*place, ca_file=pod.coordinator_ca_file, headers=headers)
        return TracedCoordinator(client, traces.tracer, group, batches), Beside(metrics, batches)

    def _end_batches(self) -> None:
        """On the event loop: nothing more will be known of them."""
        if self._batches is not None:
            self._batches.close()

    def _send_traces(self) -> None:
        """The last of them go out. Blocks for a moment, if nobody takes them."""
        if self._traces is not None:
            self._traces.close()

    async def _watch_tasks(self, agent: A) -> None:
        """While a long micro-batch runs, tasks that end are its progress; between two, the query tells its trigger's interval.

        A micro-batch none of whose stages is under way, or whose tasks run on for longer than reading can, waits for its sink.
        Tasks that nobody runs wait for executors.
        """
        known, changed_at = 0, boot_time()
        while True:
            await asyncio.sleep(TASKS_INTERVAL)
            if self._spark is None:
                continue
            try:
                if not agent.tracker.busy:
                    agent.trigger_interval = await self._loop.run_in_executor(None, self._trigger_interval)
                    continue
                stages = await self._loop.run_in_executor(None, self._stages)
            except Py4JError as error:
                # One look that failed is no standstill; the next one may succeed.
                log.warning("cannot look at the tasks of the query, trying on: %s", error)
                continue
            # A number that changes when a task has ended, in whatever way.
            ended = sum(1_000_003 * each.stageId + each.numCompletedTasks + 1009 * each.numFailedTasks for each in stages)
            if ended != known:
                known, changed_at = ended, boot_time()
                agent.tracker.progress += 1
            quiet = boot_time() - max(changed_at, agent.batch_at)
            running = any(each.numActiveTasks for each in stages)
            agent.set_writing(not stages or (running and quiet > READS_NO_LONGER))

    def _trigger_interval(self) -> float:
        """Seconds from one trigger to the next, 0 if that is at once or not known. Not on the event loop."""
        assert self._spark is not None
        return trigger_interval(self._spark, self._run_id)

    async def _watch_executors(self, slots: Slots) -> None:
        """Spark adds executors and gives them back: tasks follow them."""
        while True:
            await asyncio.sleep(SLOTS_INTERVAL)
            if self._spark is None:
                continue
            try:
                slots.runs(await self._loop.run_in_executor(None, self._executors))
            except Py4JError as error:
                log.warning("cannot count the executors, trying on: %s", error)

    async def _watch_event_times(self, metrics: AgentMetrics, brokers: Brokers) -> None:
        """Learn how old the last finished record of every shard is, now and then: reading does not tell it."""
        while True:
            await asyncio.sleep(EVENT_TIMES_INTERVAL)
            last = metrics.last_records()
            try:
                metrics.event_times(await asyncio.to_thread(event_times, brokers, last, EVENT_TIMES_INTERVAL) if last else {})
            except (BrokersUnavailableError, SourceRefusedError) as error:
                log.info("cannot learn how old the last records are, trying on: %s", error)

    def _stages(self) -> list[SparkStageInfo]:
        """The stages that are under way."""
        assert self._spark is not None
        tracker = self._spark.sparkContext.statusTracker()
        infos = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return [info for info in infos if info is not None]

    async def _running(self) -> bool:
        """Whether Spark runs a task, or may."""
        if self._spark is None:
            return False
        try:
            return await self._loop.run_in_executor(None, tasks.running, self._spark)
        except Py4JError as error:
            log.info("cannot tell whether tasks still run: %s", error)
            return True

    def _executors(self) -> int:
        """How many executors are registered: each has a block manager, and so has the driver."""
        assert self._spark is not None
        return int(self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def _end_offsets_changed(self) -> None:
        """Called in the watcher's thread."""
        assert self._agent is not None
        self._loop.call_soon_threadsafe(self._agent.ends_changed)

    def _terminated(self) -> None:
        os.read(self._terminate_read, 64)
        if not self._tasks:
            log.info("SIGTERM: draining")
            task = self._loop.create_task(self._drain())
            self._tasks.add(task)

    async def _drain(self) -> None:
        assert self._agent is not None
        lasts = max(1.0, self._pod.grace_period - EXIT_MARGIN)
        _exit_after(lasts, 1)
        clean = await self._agent.drain(boot_time() + lasts)
        self._end_batches()
        await self._loop.run_in_executor(None, self._send_traces)
        if self._spark is None:
            os._exit(0)
        # py4j gives this thread a connection of its own: the main thread's is taken by the query that it awaits.
        await self._loop.run_in_executor(None, self._stop_queries)
        log.info("queries stopped after a %s drain", "clean" if clean else "partial")

    def _stop_queries(self) -> None:
        if self._spark is not None:
            for query in self._spark.streams.active:
                query.stop()

    async def _stop(self, reason: str) -> None:
        _exit_after(CANCEL_GRACE, EXIT_STOPPED)
        log.error("cancelling running jobs: %s", reason)
        if self._spark is not None:
            await self._loop.run_in_executor(None, self._spark.sparkContext.cancelAllJobs)


def _unsaid(committed: bool) -> None:
    """Whether a query reads committed records alone says nothing of a source without transactions."""


def _exit_after(seconds: float, code: int) -> None:
    """End the process by then, whatever the application does."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
