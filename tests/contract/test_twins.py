"""The in-memory twins keep the contracts of the ports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shardherd.adapters.memory import (
    MemoryConnector,
    MemoryEvents,
    MemoryKafka,
    MemoryLeadership,
    MemoryOwnership,
    MemoryTokens,
)
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, GroupSpec, KafkaSource, ShardId
from shardherd.ports import Caller, OffsetStore, ShardSource
from tests.contract.cluster import EventsContract, EventsLab, LeadershipContract, LeadershipLab, TokensContract
from tests.contract.offsets import Open, SourceOffsetsContract
from tests.contract.ownership import OwnershipContract
from tests.contract.secrets import SecretsContract, SecretsLab
from tests.contract.source import SourceContract
from tests.harness.memory_secrets import MemorySecrets
from tests.harness.simulated_clock import SimulatedClock

GROUP = GroupIdentity("demo", "clicks", "uid-1")


def spec_of(topics: tuple[str, ...], pattern: str, group_id: str, servers: str = "kafka:9092", **more: Any) -> GroupSpec:
    source = KafkaSource(servers, topics, pattern, group_id, **more)
    return GroupSpec(GROUP, source, GroupSettings(), wanted=1)


class TestMemorySecrets(SecretsContract):
    @pytest.fixture
    def lab(self) -> SecretsLab:
        secrets = MemorySecrets()

        async def put(name: str, data: dict[str, bytes], labelled: bool) -> None:
            secrets.data["shop", name] = data
            if not labelled:
                secrets.unlabelled.add(("shop", name))

        def cut_off() -> None:
            secrets.available = False

        return SecretsLab(secrets, "shop", put, cut_off)


class TestMemoryOwnership(OwnershipContract):
    @pytest.fixture
    def store(self) -> MemoryOwnership:
        return MemoryOwnership()

    @pytest.fixture
    def group(self) -> GroupIdentity:
        return GROUP


class TestMemoryOffsets(SourceOffsetsContract):
    @pytest.fixture
    def topic(self) -> str:
        return "clicks"

    @pytest.fixture
    def open_store(self, topic: str) -> Open:
        kafka = MemoryKafka()
        kafka.create_topic(topic, 3)

        def open_store() -> OffsetStore:
            return MemoryConnector(kafka).offsets(spec_of((topic,), "", "g"))

        return open_store


class MemorySourceLab:
    """A MemoryKafka as the contract wants to use it."""

    def __init__(self) -> None:
        self.rack = "zone-b"
        self.kafka = MemoryKafka(rack=self.rack)

    async def create(self, topic: str, partitions: int) -> None:
        self.kafka.create_topic(topic, partitions)

    async def grow(self, topic: str, partitions: int) -> None:
        self.kafka.grow_topic(topic, partitions)

    async def delete(self, topic: str) -> None:
        del self.kafka.topics[topic], self.kafka.topic_ids[topic]

    async def recreate(self, topic: str, partitions: int) -> None:
        self.kafka.create_topic(topic, partitions)

    async def append(self, topic: str, partition: int, records: int, since: float | None = None) -> None:
        self.kafka.append(topic, partition, records)
        times = self.kafka.times.setdefault(ShardId(f"{topic}/{partition}"), [])
        times += [(0.0 if since is None else since) + number for number in range(records)]

    @asynccontextmanager
    async def transaction(self, topic: str, partition: int, records: int, since: float | None = None) -> AsyncIterator[None]:
        shard = ShardId(f"{topic}/{partition}")
        self.kafka.open_since[shard] = self.kafka.topics[topic][partition][1]
        await self.append(topic, partition, records, since)
        yield
        del self.kafka.open_since[shard]

    def open(self, topics: tuple[str, ...], pattern: str, group_id: str, **more: Any) -> ShardSource:
        return MemoryConnector(self.kafka).source(spec_of(topics, pattern, group_id, **more))

    def open_unreachable(self) -> tuple[ShardSource, str]:
        return MemoryConnector(MemoryKafka(reachable=False)).source(spec_of(("a",), "", "g", "nowhere:1")), "nowhere:1"

    @asynccontextmanager
    async def member(self, topic: str, group_id: str) -> AsyncIterator[str]:
        self.kafka.members[group_id] = ("a-member at 10.0.0.1",)
        yield "a-member"
        del self.kafka.members[group_id]

    async def eventually(self, what: Callable[[], Awaitable[bool]]) -> None:
        assert await what()


class TestMemorySource(SourceContract):
    @pytest.fixture
    def lab(self) -> MemorySourceLab:
        return MemorySourceLab()

    @pytest.fixture
    def prefix(self) -> str:
        return "test-"


class TestMemoryLeadership(LeadershipContract):
    @pytest.fixture
    def lab(self) -> LeadershipLab:
        clock = SimulatedClock()
        leadership = MemoryLeadership(clock)

        async def hold() -> None:
            leadership.withhold()

        async def let_go() -> None:
            leadership.grant()

        async def take_away() -> None:
            leadership.lose()

        return LeadershipLab(leadership, clock, hold, let_go, take_away)


class MemoryTokensLab:
    """A MemoryTokens with one token."""

    def __init__(self) -> None:
        self.reviewer = MemoryTokens()
        self.valid = "a-valid-token"
        self.caller = Caller("demo", "spark", "clicks-0", "pod-uid-0", "clicks", group_uid="group-uid")
        self.reviewer.callers[self.valid] = self.caller

    def cut_off(self) -> None:
        self.reviewer.available = False


class TestMemoryTokens(TokensContract):
    @pytest.fixture
    def lab(self) -> MemoryTokensLab:
        return MemoryTokensLab()


class TestMemoryEvents(EventsContract):
    @pytest.fixture
    def lab(self) -> EventsLab:
        recorder = MemoryEvents()

        async def recorded() -> list[tuple[str, str, bool, int]]:
            counted = Counter((event.reason, event.message, event.warning) for event in recorder.events)
            return [(*event, count) for event, count in counted.items()]

        return EventsLab(recorder, GROUP, recorded, flush=lambda: asyncio.sleep(0))
