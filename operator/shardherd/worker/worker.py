"""A worker: one consumer of a group, which processes the records of the shards that it holds by a user's processors.

`run` and `shardherd run` make one. It joins the group by `client.pod`, has each shard that it is given held by a `Holding`, and
fetches what their `Stream` asks for. It decides what the worker is about, and when an error ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardherd.client.consumer import CANCEL_GRACE, AsyncConsumer
from shardherd.client.pod import consumer_of_pod
from shardherd.consumer.gauges import OwnGauge
from shardherd.consumer.session import Session
from shardherd.consumer.waiting import within
from shardherd.core.model.errors import ConsumerStoppedError
from shardherd.core.model.nouns import Phase, ShardId
from shardherd.source.decoding.record_batches import CorruptRecordsError
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, SourceRefusedError
from shardherd.source.kinesis.client import Kinesis, KinesisRefusedError, KinesisUnavailableError
from shardherd.source.kinesis.ranges import RecordsLostError
from shardherd.source.reading.lost_records import RangeLostError
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker.counts import Counts
from shardherd.worker.crew import Call, Crew, ThreadCrew
from shardherd.worker.dead_letters import DeadLetters, KafkaDeadLetters
from shardherd.worker.delivery import BadRecordError
from shardherd.worker.ending import end_adrift
from shardherd.worker.fetching import Fetcher, InThreads, KafkaFetcher, brokers_of
from shardherd.worker.holding import Holding, UnreadableError
from shardherd.worker.listener import AnyListener
from shardherd.worker.makers import check_factory, check_listener
from shardherd.worker.metrics import Picture, WorkerMetrics
from shardherd.worker.options import Options, WorkerOptionError
from shardherd.worker.place import Place, place
from shardherd.worker.processor import AnyProcessor
from shardherd.worker.slots import Slots
from shardherd.worker.stream import Stream
from shardherd.worker.surroundings import Surroundings
from shardherd.worker.watching import watch

log = logging.getLogger(__name__)

READING_ERRORS = (
    SourceRefusedError,
    RangeLostError,
    CorruptRecordsError,
    UnreadableError,
    BadRecordError,
    KinesisRefusedError,
    RecordsLostError,
)
"""What the data or the source are to blame for, and not this program."""

UNAVAILABLE = (BrokersUnavailableError, KinesisUnavailableError)
"""The source cannot be read now, and may be later."""

EXPECTED = (*READING_ERRORS, WorkerOptionError)
"""What ends a worker and needs no traceback."""

RETRY_DELAY = 1.0
"""Seconds until the source is asked again after it could not be."""

LINE = 0.05
"""Seconds for which shards that were read to their ends are not asked for while others wait for their turn to be processed.
What comes meanwhile is one answer, and not many that each want a turn. Longer, and the ends that are known would be old."""

SHUTDOWN = 30.0
"""Seconds that `Worker.shutdown` waits for the end: the specification's figure."""

Factory = Callable[[], AnyProcessor]


class Processing:
    """What a consumer does with its shards, on the consumer's event loop: all of a worker but how it joins."""

    def __init__(
        self,
        factory: Factory,
        fetcher: Fetcher,
        crew: Crew,
        options: Options,
        dead_letters: DeadLetters | None = None,
        listener: AnyListener | None = None,
        kafka: KafkaAccess | None = None,
    ) -> None:
        self.failure: Exception | None = None
        """The error that ends the worker, if one does."""
        self.counts = Counts()
        self._factory = factory
        self._fetcher = fetcher
        self._crew = crew
        self._options = options
        self._dead_letters = dead_letters
        self._listener = listener
        self._kafka = kafka
        self._stream = Stream(options.memory // 2)
        self._holdings: dict[asyncio.Task[None], Holding] = {}
        self._warm = False
        self._given_up: Mapping[ShardId, object] = {}
        self._consumer: AsyncConsumer | None = None
        # What cannot be read now, empty if everything can.
        self._away = ""
        self._draining: asyncio.Task[bool] | None = None

    def about(self) -> Phase | None:
        """What the worker is about. A batch that is processed, or tried again, waits for the program's own sink."""
        if not self._warm:
            return Phase.WARMING
        if any(holding.busy for holding in self._holdings.values()):
            return Phase.WRITING
        return Phase.READING if self._away or self._stream.behind else Phase.IDLE

    @property
    def troubles(self) -> dict[ShardId, str]:
        """Why batches were not processed yet, of each shard that has one."""
        return {each.name: each.trouble for each in self._holdings.values() if each.trouble}

    @property
    def adrift(self) -> set[ShardId]:
        """The shards of which something of the program still runs, although nobody waits for it any more."""
        return {each.name for each in self._holdings.values() if each.cancelled} | set(self._given_up)

    @property
    def paused(self) -> tuple[ShardId, ...]:
        """The shards that are not read on, as what waits to be processed of them is as much as may be."""
        return self._stream.paused

    def picture(self) -> Picture:
        """The worker now, for who scrapes."""
        held = tuple(holding.picture() for holding in self._holdings.values())
        acknowledged_at = None if self._consumer is None else self._consumer.session.acknowledged_at
        return Picture(held, self._stream.size, acknowledged_at)

    async def run(self, consumer: AsyncConsumer) -> None:
        """Until the consumer drains or must stop, and what it had in hand has ended. Raises what ended the worker."""
        self._warm = True
        around = Surroundings(
            consumer,
            self._stream,
            self._crew,
            self._factory,
            self._options,
            self.counts,
            self._dead_letters,
            self._listener,
            self._kafka,
        )
        self._consumer, self._given_up = consumer, around.adrift
        beside = [
            asyncio.create_task(self._fetch(consumer, around.slots, behind=True)),
            asyncio.create_task(self._fetch(consumer, around.slots, behind=False)),
            asyncio.create_task(self._tell(consumer)),
        ]
        try:
            await self._hold_all(around)
            await self._end(consumer, around.telling)
        finally:
            for task in (*beside, *around.telling):
                task.cancel()
            await asyncio.gather(*beside, *around.telling, return_exceptions=True)
        if self.failure is not None:
            raise self.failure

    def end_by(self, error: Exception, consumer: AsyncConsumer) -> None:
        """The worker cannot go on: it drains, and says why."""
        if self.failure is None:
            self.failure = error
            log.error("ends: %s: %s", type(error).__name__, error, extra=consumer.session.log_fields())
            timeout = consumer.session.settings.drain_timeout
            self._draining = asyncio.create_task(consumer.drain(timeout))

    async def _hold_all(self, around: Surroundings) -> None:
        """A holding for each shard that the consumer is given, until it is given none any more."""
        while True:
            taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._hold(around, taken))
            await asyncio.wait({task, taken}, return_when=asyncio.FIRST_COMPLETED)
            if not taken.done():
                return

    async def _hold(self, around: Surroundings, taken: asyncio.Future[None]) -> None:
        me = asyncio.current_task()
        assert me is not None
        try:
            async with around.consumer.take() as shard:
                taken.set_result(None)
                holding = self._holdings[me] = Holding(around, shard)
                await holding.run()
        except ConsumerStoppedError:
            return
        except Exception as error:
            if not isinstance(error, EXPECTED):
                log.exception("a defect ends this worker", extra=around.consumer.session.log_fields())
            self.end_by(error, around.consumer)
        finally:
            self._holdings.pop(me, None)

    async def _end(self, consumer: AsyncConsumer, telling: set[asyncio.Task[None]]) -> None:
        """Wait for what is in hand, and for callbacks. A drain bounds it; a run that had to stop gives it a moment."""
        while (self._holdings or telling) and not consumer.stopped:
            changed = asyncio.create_task(consumer.changed())
            await asyncio.wait({*self._holdings, *telling, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        left = {*telling, *(() if consumer.draining else self._holdings)}
        if left:
            await asyncio.wait(left, timeout=CANCEL_GRACE)
        if self._draining is not None:
            await self._draining

    async def _tell(self, consumer: AsyncConsumer) -> None:
        """Whatever changes in the consumer, all that hold a shard look at it."""
        while True:
            await consumer.changed()
            for holding in self._holdings.values():
                holding.turned.set()
            self._stream.look_again()

    async def _fetch(self, consumer: AsyncConsumer, slots: Slots, *, behind: bool) -> None:
        """Fetch what the stream asks for, of one kind of shards, as fast as it is processed."""
        stream, loop = self._stream, asyncio.get_running_loop()
        while True:
            if not behind and not slots.no_line.is_set():
                await within(slots.no_line, LINE)
            wanted = stream.ask(behind=behind)
            if not wanted:
                await stream.may_ask()
                continue
            begun = loop.time()
            try:
                parts = await self._fetcher.fetch(wanted, behind=behind)
            except UNAVAILABLE as error:
                if not self._away:
                    log.warning("%s cannot be read, trying on: %s", _of(error), error, extra=consumer.session.log_fields())
                self._away = _of(error)
                await asyncio.sleep(RETRY_DELAY)
                stream.arrived(wanted, ())
                continue
            except Exception as error:  # noqa: BLE001 - none of the others is over by itself
                self.end_by(error, consumer)
                return
            if self._away:
                log.info("%s answers again", self._away, extra=consumer.session.log_fields())
            self._away = ""
            stream.arrived(wanted, parts)
            del parts  # or the next Fetch would keep them, though they are processed
            if not behind and (early := begun + self._options.fetch_interval - loop.time()) > 0:
                await asyncio.sleep(early)


class Worker:
    """A worker that can be stopped from elsewhere: `run` blocks until it has ended, `shutdown` asks it to.

    `factory` makes a processor; it is called once for each shard that is held. `listener` is told of shards that come and go.
    What Kafka, which group and who this is comes from the environment of a pod, or from these arguments: see `place`. `gauge`
    as in `run`; by default it is what the factory has under that name, such as a static method of a processor's class, as a pod
    knows nothing but that.
    """

    def __init__(
        self,
        factory: Factory,
        *,
        options: Options | None = None,
        environment: Mapping[str, str] | None = None,
        fetcher: Fetcher | None = None,
        gauge: OwnGauge | None = None,
        listener: AnyListener | None = None,
        **where: Any,
    ) -> None:
        check_factory(factory)
        check_listener(listener)
        self._factory = factory
        self._options = options or Options()
        self._place: Place = place(os.environ if environment is None else environment, **where)
        self._fetcher = fetcher
        own: OwnGauge | None = getattr(factory, "gauge", None)
        self._gauge = gauge or own
        self._listener = listener
        self._crew: ThreadCrew | None = None
        self._ending: Callable[[], None] | None = None
        self._stop_asked = threading.Event()
        self._over = threading.Event()
        # Taken by the one run that there is.
        self._begun = threading.Lock()

    def run(self) -> None:
        """Join the group and process until `shutdown`, SIGTERM or SIGINT: then drain, and leave. Once: each run is one of a
        worker of its own.

        Raises ConsumerStoppedError if it had to stop otherwise, InvalidRequestError for a wrong place, and what made it
        impossible to go on: SourceRefusedError, RangeLostError, UnreadableError. RuntimeError where it cannot run.
        """
        _check_thread()
        if not self._begun.acquire(blocking=False):
            raise RuntimeError(
                f"this worker {'has run' if self._over.is_set() else 'runs'} already, and runs once: make another Worker for"
                " another run"
            )
        if self._stop_asked.is_set():
            log.warning("this worker was asked to end before it began, and processes nothing")
        try:
            asyncio.run(self._run())
        finally:
            self._over.set()

    def shutdown(self, timeout: float = SHUTDOWN) -> bool:
        """Ask it to drain and to leave; may be called from any thread. Whether it has ended within so many seconds.

        Where the worker calls the program's code it does not wait, as that must end first.
        """
        self._stop_asked.set()
        if (ending := self._ending) is not None:
            ending()
        return self._over.wait(0 if self._crew is not None and self._crew.runs_here else timeout)

    async def _run(self) -> None:
        options, where = self._options, self._place
        crew = self._crew = ThreadCrew("shardherd-worker")
        fetcher = self._fetcher or fetcher_of(where, options, crew)
        dead_letters = KafkaDeadLetters(options.dead_letters, where.kafka) if options.dead_letters else None
        processing = Processing(self._factory, fetcher, crew, options, dead_letters, self._listener, where.kafka)
        environment = dict(where.environment)
        namespace, group, consumer_name = (
            environment.get(f"SHARDHERD_{each}", "") for each in ("NAMESPACE", "GROUP", "CONSUMER")
        )
        metrics = WorkerMetrics(namespace, group, consumer_name, processing.counts, processing.picture)
        if options.drain_timeout is not None:
            environment["SHARDHERD_DRAIN_TIMEOUT_MS"] = str(round(options.drain_timeout * 1000))
        session: Session | None = None

        def end_what_hangs() -> None:
            """Before anything that may take its time: the shards may be somebody else's soon."""
            if session is not None:
                end_adrift(processing.adrift, ordered=session.settings.ordered, fields=session.log_fields())

        watching = asyncio.create_task(watch(crew, lambda: {} if session is None else session.log_fields()))
        try:
            async with consumer_of_pod(
                environment,
                signals=SIGNALS if threading.current_thread() is threading.main_thread() else (),
                ready=False,
                about=processing.about,
                save_interval=options.save_interval,
                heard=processing.counts.hear,
                metrics=metrics.page,
                gauge=self._gauge,
            ) as consumer:
                loop, session = asyncio.get_running_loop(), consumer.session

                def end() -> None:
                    asyncio.run_coroutine_threadsafe(consumer.drain(consumer.session.settings.drain_timeout), loop)

                self._ending = end
                if self._stop_asked.is_set():
                    end()
                await self._warm_up(consumer, fetcher, crew)
                await processing.run(consumer)
                if not consumer.draining:
                    end_what_hangs()
                if consumer.stopped and not consumer.draining:
                    raise ConsumerStoppedError(consumer.stopped) from consumer.session.defect
        finally:
            self._ending = None
            watching.cancel()
            end_what_hangs()  # after it has left: who hears that it goes on waits for it
            try:
                await _closed("the source", crew.call(fetcher.close))
                if dead_letters is not None:
                    await _closed("the topic of dead letters", crew.call(dead_letters.close))
            finally:
                # What was given up, and has not ended, closes what it has by itself.
                if not processing.adrift:
                    crew.close()

    async def _warm_up(self, consumer: AsyncConsumer, fetcher: Fetcher, crew: Crew) -> None:
        """Connect to the source before shards are given: without it there is nothing to be read anywhere. Who is to leave
        meanwhile does not wait for it."""
        connecting = crew.call(fetcher.connect).ended
        while not connecting.done():
            if consumer.draining or consumer.stopped:
                return
            changed = asyncio.ensure_future(consumer.changed())
            await asyncio.wait({connecting, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        try:
            connecting.result()
        except UNAVAILABLE as error:
            log.warning("begins without %s: %s", _of(error), error, extra=consumer.session.log_fields())
        consumer.become_ready()


async def _closed(what: str, closing: Call) -> None:
    """Wait for a moment until it is. All is saved by now: what hangs must not keep the process."""
    await asyncio.wait({closing.ended}, timeout=CANCEL_GRACE)
    if closing.ended.done():
        closing.ended.result()
    else:
        log.warning("the connections to %s are not closed within %g s, and are not waited for", what, CANCEL_GRACE)


def _check_thread() -> None:
    """Whether a worker can run in this thread, and whether a signal can end it there. Raises RuntimeError."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            "a worker blocks until it ends, and has an event loop of its own, so it cannot run on this one: call its `run` in a"
            " thread, as by `await asyncio.to_thread(worker.run)`, and end it by `worker.shutdown`"
        )
    if threading.current_thread() is not threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        log.warning(
            "this worker runs beside the main thread, where alone signals arrive, so that SIGTERM ends the process without a"
            " drain: handle it there by Worker.shutdown, or run the worker there"
        )


def _of(error: Exception) -> str:
    """The name of the source that cannot be read now."""
    return "Kafka" if isinstance(error, BrokersUnavailableError) else "Kinesis"


def fetcher_of(where: Place, options: Options, crew: Crew) -> Fetcher:
    """What reads the source that the place names, in threads of `crew` where it blocks. Raises WorkerOptionError."""
    if where.kinesis is None:
        return KafkaFetcher(
            brokers_of(where.kafka, where.zone),
            brokers_of(where.kafka, where.zone),
            memory=options.memory // 4,
            fail_on_data_loss=options.fail_on_data_loss,
            batch_size=options.batch_size,
        )
    if options.dead_letters:
        raise WorkerOptionError(
            f"dead_letters is {options.dead_letters!r}, a topic of Kafka, and this worker reads stream {where.kinesis.name} of"
            " Kinesis: leave it out"
        )
    if options.max_value_bytes:
        raise WorkerOptionError(
            f"max_value_bytes is {options.max_value_bytes}, and what is cut is flagged by a header, which records of stream"
            f" {where.kinesis.name} of Kinesis do not have: leave it out"
        )
    # Here, as it brings Arrow along, which who reads Kafka may not need.
    from shardherd.worker.kinesis_fetching import KinesisFetcher

    return InThreads(KinesisFetcher(Kinesis(where.kinesis), fail_on_data_loss=options.fail_on_data_loss), crew)


SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(
    factory: Factory,
    *,
    bootstrap: str | None = None,
    group: str | None = None,
    coordinator: str | None = None,
    group_uid: str | None = None,
    consumer: str | None = None,
    token_file: Path | str | None = None,
    ca_file: Path | str | None = None,
    kafka: Mapping[str, str] | None = None,
    stream: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
    credentials: Path | str | None = None,
    gauge: OwnGauge | None = None,
    listener: AnyListener | None = None,
    **options: Any,
) -> None:
    """Process the records of a group by processors that `factory` makes, such as the class of one. Blocks until SIGTERM.

    In a pod of a ConsumerGroup nothing else is needed. Elsewhere `bootstrap` is Kafka's host:port, `group` the group as
    `namespace/name` with its `group_uid`, `coordinator` the URL of the coordinator, `token_file` and `ca_file` what it is
    shown and believed by, `kafka` settings by Kafka's names. For Kinesis there are `stream` (its name or ARN), `region`,
    `endpoint` and `credentials` (a folder) in the place of `bootstrap` and `kafka`. `listener` is told of shards that come and
    go. `gauge` says how full the program is, from 0 to 1, for a group with `watermarks.own`; it is called every few seconds, in
    a thread of its own.
    `options` are those of `Options`. Raises as `Worker.run` does.
    """
    Worker(
        factory,
        options=Options(**options),
        listener=listener,
        bootstrap=bootstrap,
        group=group,
        coordinator=coordinator,
        group_uid=group_uid,
        consumer=consumer,
        token_file=token_file,
        ca_file=ca_file,
        kafka=kafka,
        stream=stream,
        region=region,
        endpoint=endpoint,
        credentials=credentials,
        gauge=gauge,
    ).run()
