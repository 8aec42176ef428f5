"""A group that a test plays: the real coordinator with its HTTP API on 127.0.0.1, over in-memory twins, in a thread of its own.

Who uses it decides who is there, what is written, who holds what and who dies; what follows from that is the coordinator's
decision. It runs in real time, with short intervals. Must not be imported by anything but tests.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

from shardherd.adapters.memory import (
    MemoryConnector,
    MemoryEvents,
    MemoryKafka,
    MemoryLeadership,
    MemoryOwnership,
    MemoryTokens,
)
from shardherd.client import AsyncConsumer, AsyncConsumerClient, Consumer, ConsumerClient
from shardherd.clock import SystemClock, boot_time
from shardherd.coordinator import CoordinatorPorts, CoordinatorServer
from shardherd.core.assignors import ASSIGNORS, Assignor
from shardherd.core.model.nouns import (
    ConsumerId,
    GroupIdentity,
    GroupSettings,
    GroupSpec,
    Incarnation,
    KafkaSource,
    ShardId,
    ShardState,
)
from shardherd.ports import Caller, SourceConnector
from shardherd.testing.driver import PlayedDriver
from shardherd.testing.pinned_assignor import pinned
from shardherd.testing.records import Record

T = TypeVar("T")

NAMESPACE = "test"
OTHERS = ConsumerId("others")
"""The consumer that takes what is revoked: it reads nothing, and gives up whatever is granted to another one."""


class PlayedGroup:
    """A group of one topic with so many shards, named `<topic>/0` and so on; `with` starts and ends it.

    `ordered`, `assignor` and `session_timeout` (seconds) are as in a ConsumerGroup's manifest.
    """

    def __init__(
        self,
        shards: int = 4,
        *,
        name: str = "played",
        topic: str = "records",
        ordered: bool = False,
        assignor: str = "Sticky",
        session_timeout: float = 10.0,
    ) -> None:
        if assignor not in ASSIGNORS:
            raise ValueError(f"assignor {assignor!r} is none of {', '.join(sorted(ASSIGNORS))}")
        self.identity = GroupIdentity(NAMESPACE, name, str(uuid.uuid4()))
        self.shards = tuple(ShardId(f"{topic}/{number}") for number in range(shards))
        self._discovery = 0.05
        self._rest = ASSIGNORS[assignor]
        self._topic = topic
        self._kafka = MemoryKafka()
        self._kafka.create_topic(topic, shards)
        self._records: dict[ShardId, list[Record]] = {shard: [] for shard in self.shards}
        self._tokens = MemoryTokens()
        self._runs: dict[ConsumerId, Incarnation] = {}
        self._pinned: dict[ShardId, ConsumerId] = {}
        self._assignors: dict[str, Assignor] = dict(ASSIGNORS)
        settings = GroupSettings(
            ordered=ordered,
            heartbeat_interval=0.2,
            session_timeout=session_timeout,
            initial_assignment_delay=0.0,
        )
        self._spec = GroupSpec(self.identity, KafkaSource("played:9092", (topic,), "", f"{NAMESPACE}.{name}"), settings, 1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardherd-played", daemon=True)
        self._server: CoordinatorServer | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="shardherd-played-")
        self._drivers: list[PlayedDriver] = []
        self._others: asyncio.Task[None] | None = None

    def __enter__(self) -> PlayedGroup:
        self._thread.start()
        try:
            self.run(self._start())
            self.until("its shards are known", lambda: len(self.checkpoints()) == len(self.shards))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # --- who is there ----------------------------------------------------------------------------------------------------

    @contextmanager
    def consumer(self, name: str, **options: Any) -> Iterator[Consumer]:
        """A run of this consumer, for a program without an event loop. At its end it drains and leaves."""
        consumer, run = ConsumerId(name), self.begin(name)
        with (
            ConsumerClient(self.url, *self._names, lambda: run.pod_uid) as client,
            Consumer(client, consumer, run, group_uid=self.identity.uid, **options) as found,
        ):
            yield found

    @asynccontextmanager
    async def async_consumer(self, name: str, **options: Any) -> AsyncIterator[AsyncConsumer]:
        """The same on the caller's event loop."""
        consumer, run = ConsumerId(name), self.begin(name)
        async with (
            AsyncConsumerClient(self.url, *self._names, lambda: run.pod_uid) as client,
            AsyncConsumer(client, consumer, run, group_uid=self.identity.uid, **options) as found,
        ):
            yield found

    def driver(
        self,
        name: str,
        function: Callable[[Any, int], object],
        frame: Callable[[list[Record]], Any] = list,
        *,
        before: PlayedDriver | None = None,
    ) -> PlayedDriver:
        """A Spark driver's run, warm, which calls `function(frame(records), batch_id)` each micro-batch: see PlayedDriver."""
        driver = PlayedDriver(self, ConsumerId(name), function, frame, before)
        self._drivers.append(driver)
        driver.warm_up()
        return driver

    def environment(self, name: str) -> dict[str, str]:
        """What the pod of a new run of this consumer would have in its environment, for `consumer_of_pod`."""
        run = self.begin(name)
        token = Path(self._folder.name) / run.pod_uid
        token.write_text(run.pod_uid)
        return {
            "SHARDHERD_COORDINATOR_URL": self.url,
            "SHARDHERD_NAMESPACE": self.identity.namespace,
            "SHARDHERD_GROUP": self.identity.name,
            "SHARDHERD_GROUP_UID": self.identity.uid,
            "SHARDHERD_CONSUMER": name,
            "SHARDHERD_POD_UID": run.pod_uid,
            "SHARDHERD_START": str(run.start),
            "SHARDHERD_TOKEN_FILE": str(token),
        }

    def kill(self, name: str) -> None:
        """It is proven that the consumer's last run has ended, as by kill -9.

        Its shards go to others at once, from their checkpoints on. Your code goes on, since it is in this process, but whatever
        it still says to the coordinator is refused.
        """
        consumer = ConsumerId(name)
        run = self._runs[consumer]
        for driver in self._drivers:
            if driver.run == run:
                driver.stop_running()
        self._coordination().consumer_died(self.identity, consumer, run)

    # --- who holds what --------------------------------------------------------------------------------------------------

    def grant(self, name: str, *shards: str) -> None:
        """From now on this consumer is to hold these shards, as soon as it is there and whoever holds them lets go."""
        self._pin({self._known(shard): ConsumerId(name) for shard in shards})

    def revoke(self, *shards: str) -> None:
        """Whoever holds these shards is to give them up: to a consumer of the played group, until they are granted again."""
        self._pin({self._known(shard): OTHERS for shard in shards})
        # It joins after that was said, or it would be given its share of the other shards as any consumer is.
        if self._others is None:
            self._others = self.run(self._join_others())

    def holders(self) -> dict[str, str]:
        """Who holds each shard for good; those that nobody holds, or that are on their way, are not in it."""
        view = self._coordination().view(self.identity)
        rows = view.shards if view is not None else ()
        return {row.shard: row.holder for row in rows if row.holder is not None and row.state is ShardState.ALREADY_ALLOC}

    def held_by(self, name: str) -> tuple[str, ...]:
        """The shards that this consumer holds for good."""
        return tuple(sorted(shard for shard, holder in self.holders().items() if holder == name))

    # --- records and checkpoints -----------------------------------------------------------------------------------------

    def append(self, shard: str, *values: bytes | str, key: bytes | None = None) -> None:
        """Write records to the end of a shard."""
        written = self._records[known := self._known(shard)]
        for value in values:
            data = value.encode() if isinstance(value, str) else value
            written.append(Record(key, data, known, len(written)))
        self._kafka.append(self._topic, int(known.rpartition("/")[2]), len(values))

    def records(self, shard: str, position: int, limit: int | None = None) -> list[Record]:
        """What there is of a shard from this position on, at most `limit` records."""
        return self._records[self._known(shard)][position : None if limit is None else position + limit]

    def ends(self) -> dict[ShardId, int]:
        """The position after the last record of each shard."""
        return {shard: len(records) for shard, records in self._records.items()}

    def checkpoints(self) -> dict[str, int]:
        """The durable position of each shard: where whoever holds it next goes on."""
        committed = self._kafka.committed.get(self._spec.kafka.group_id, {})
        return {str(shard): offset for shard, offset in committed.items()}

    # --- waiting ---------------------------------------------------------------------------------------------------------

    def until(self, what: str, holds: Callable[[], bool], within: float = 10.0) -> None:
        """Wait until it holds. Raises AssertionError that says `what` did not become true."""
        deadline = boot_time() + within
        while not holds():
            self._check(what, deadline, within)
            sleep(0.005)

    async def becomes(self, what: str, holds: Callable[[], bool], within: float = 10.0) -> None:
        """`until` for a test with an event loop, which goes on meanwhile."""
        deadline = boot_time() + within
        while not holds():
            self._check(what, deadline, within)
            await asyncio.sleep(0.005)

    def explained(self) -> str:
        """What there is, for the message of a test that fails."""
        return f"held: {self.holders()}, checkpointed: {self.checkpoints()}, written: {self.ends()}"

    def _check(self, what: str, deadline: float, within: float) -> None:
        if boot_time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}; {self.explained()}")

    # --- for the drivers -------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the coordinator listens."""
        assert self._server is not None, "use the group in a with block"
        return f"http://127.0.0.1:{self._server.port}"

    def begin(self, name: str, *, pod_uid: str = "", start: int = 1) -> Incarnation:
        """A new run of a consumer: of a new pod, or another start in this one. Its token is the pod's UID."""
        run = self._runs[ConsumerId(name)] = Incarnation(pod_uid or str(uuid.uuid4()), start)
        uid = self.identity.uid
        self._tokens.callers[run.pod_uid] = Caller(NAMESPACE, "default", name, run.pod_uid, self.identity.name, group_uid=uid)
        return run

    def client(self, run: Incarnation) -> AsyncConsumerClient:
        """The raw calls of this run, for the group's own event loop."""
        return AsyncConsumerClient(self.url, *self._names, lambda: run.pod_uid)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this work on the group's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- inside ----------------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, str]:
        return self.identity.namespace, self.identity.name

    def _known(self, shard: str) -> ShardId:
        if shard not in self._records:
            raise ValueError(f"there is no shard {shard!r} in the played group: it has {', '.join(self.shards)}")
        return ShardId(shard)

    def _coordination(self) -> Any:
        assert self._server is not None, "use the group in a with block"
        return self._server.coordination

    def _pin(self, wanted: Mapping[ShardId, ConsumerId]) -> None:
        self._pinned.update(wanted)
        # Another name is another assignor, and asks for a rebalance.
        name = f"played.{len(self._assignors)}"
        self._assignors[name] = pinned(dict(self._pinned), OTHERS, self._rest)
        self._spec = replace(self._spec, settings=replace(self._spec.settings, assignor=name))
        self._coordination().apply(self._spec)

    def _connector(self) -> SourceConnector:
        """What shows the coordinator the shards, and keeps their positions."""
        return MemoryConnector(self._kafka)

    async def _start(self) -> None:
        clock = SystemClock()
        ports = CoordinatorPorts(
            clock=clock,
            leadership=MemoryLeadership(clock),
            ownership=MemoryOwnership(),
            connector=self._connector(),
            tokens=self._tokens,
            events=MemoryEvents(),
            metrics=_Uncounted(),
            assignors=self._assignors,
        )
        self._server = CoordinatorServer(ports, host="127.0.0.1", port=0, discovery_interval=self._discovery)
        await self._server.start()
        await self._server.lead()
        self._server.coordination.apply(self._spec)

    async def _join_others(self) -> asyncio.Task[None]:
        run = self.begin(OTHERS)
        joined = asyncio.Event()

        async def hold() -> None:
            async with self.client(run) as client, AsyncConsumer(client, OTHERS, run, group_uid=self.identity.uid):
                joined.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold(), name="others")
        await joined.wait()
        return task

    def _end(self) -> None:
        try:
            for driver in self._drivers:
                driver.stop_running()
            self.run(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._folder.cleanup()

    async def _close(self) -> None:
        if self._others is not None:
            self._others.cancel()
            await asyncio.gather(self._others, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()


class _Uncounted:
    """CoordinatorMetrics of which nothing is kept."""

    def heartbeat(self, group: GroupIdentity, result: str) -> None:
        pass

    def checkpoints(self, group: GroupIdentity, result: str, count: int) -> None:
        pass

    def rebalance(self, group: GroupIdentity, reason: str, moved: int) -> None:
        pass

    def refused(self, reason: str) -> None:
        pass

    def source_request(self, operation: str, seconds: float) -> None:
        pass

    def source_error(self, group: GroupIdentity, operation: str) -> None:
        pass
