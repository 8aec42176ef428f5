"""A coordinator serves an ordered group whose stream splits and merges while it is read. Kinesis is played."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from shardherd.adapters.connector import Sources
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kinesis.connector import KinesisConnector
from shardherd.coordinator.runtime import Runtime
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    GroupSettings,
    GroupSpec,
    GrowthCutover,
    KinesisSource,
    Reset,
    ResetTo,
    ShardCheckpoint,
    ShardId,
)
from shardherd.source.kinesis.client import Kinesis, StreamAccess
from shardherd.source.kinesis.listing import ListedShard, list_shards
from shardherd.source.kinesis.shard_reader import ShardReader, of_position
from tests.harness.kinesis import REGION, PlayedKinesis, merge, put, split, stream
from tests.harness.memory_positions import MemoryPositions
from tests.harness.memory_secrets import MemorySecrets
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig

KEYS = 24
FULL = 2**128


@pytest.fixture(scope="module")
def service() -> Iterator[PlayedKinesis]:
    with PlayedKinesis() as service:
        yield service


@pytest.fixture
def table() -> MemoryPositions:
    return MemoryPositions()


@pytest.fixture
async def rig(table: MemoryPositions, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr("shardherd.adapters.kinesis.stream.LIST_INTERVAL", 0.02)
    rig = Rig()
    await rig.runtime.stop()
    lead(rig, table)
    yield rig
    await rig.runtime.stop()


def lead(rig: Rig, table: MemoryPositions) -> None:
    """A coordinator, beside others or after them, that keeps positions in this table."""
    secrets = MemorySecrets()
    secrets.data["demo", "aws"] = {"accessKeyId": b"id", "secretAccessKey": b"secret"}
    kinesis = KinesisConnector(secrets, table, commit_interval=0.01)
    rig.ports = replace(rig.ports, connector=Sources(KafkaConnector(), kinesis))
    rig.runtime = Runtime(rig.ports, discovery_interval=0.02, unknown_group_grace=0.0)
    rig.runtime.lead()


def spec_of(service: PlayedKinesis, wanted: int = 2, *, ordered: bool = True, starting: str = "Earliest") -> GroupSpec:
    settings = GroupSettings(ordered=ordered, growth_cutover=GrowthCutover.NEVER, initial_assignment_delay=0.0)
    return GroupSpec(IDENTITY, KinesisSource("orders", REGION, service.url, "aws", starting), settings, wanted)


class Reader:
    """Reads what its consumer holds, writes it to `sink`, and checkpoints."""

    def __init__(self, consumer: Consumer, kinesis: Kinesis, sink: dict[str, list[int]]) -> None:
        self.consumer = consumer
        self.kinesis = kinesis
        self.sink = sink
        self.positions: dict[ShardId, int] = {}

    async def turn(self, limit: int = 40) -> None:
        """One heartbeat, and one request for each shard that is held."""
        await self.consumer.heartbeat()
        held = self.consumer.held
        self.positions = {shard: self.positions.get(shard, self.consumer.positions[shard]) for shard in held}
        listed = {each.id: each for each in await asyncio.to_thread(list_shards, self.kinesis)}
        for shard in held:
            self.read(shard, listed[shard.rpartition("/")[2]], limit)
        wanted = tuple(ShardCheckpoint(shard, epoch, self.positions[shard]) for shard, epoch in held.items())
        consumer = self.consumer
        reply = await consumer.rig.group.ask(CheckpointRequest(consumer.name, consumer.incarnation, wanted, IDENTITY.uid))
        assert isinstance(reply, CheckpointReply)
        assert {each.result for each in reply.outcomes} <= {CheckpointResult.OK, CheckpointResult.UNCHANGED}

    def read(self, shard: ShardId, listed: ListedShard, limit: int) -> None:
        position = self.positions[shard]
        answer = ShardReader(self.kinesis, listed.id, of_position(position, listed.begin)).read(limit)
        for record in answer.records:
            if record.number >= position:
                self.sink[record.key].append(int(record.data))
                position = record.number + 1
        if answer.over and listed.end is not None:
            position = listed.end
        self.positions[shard] = position


def readers(rig: Rig, service: PlayedKinesis, sink: dict[str, list[int]], count: int = 2) -> list[Reader]:
    kinesis = Kinesis(StreamAccess("orders", REGION, service.url), client=service.client)
    return [Reader(rig.consumer(ordinal), kinesis, sink) for ordinal in range(count)]


class Writer:
    """Writes 0, 1, 2 and so on under each of its keys."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.written = 0

    def write(self, records: int) -> None:
        for number in range(self.written, self.written + records):
            put(self.client, "orders", [(f"k{key}", str(number).encode()) for key in range(KEYS)])
        self.written += records

    @property
    def expected(self) -> dict[str, list[int]]:
        return {f"k{key}": list(range(self.written)) for key in range(KEYS)}


def id_of(number: int) -> str:
    return f"shardId-{number:012d}"


def states(rig: Rig) -> dict[int, str]:
    return {int(row.shard[-12:]): row.state.value for row in rig.view.shards}


async def test_keys_stay_in_order_while_shards_split_and_merge_and_the_leader_changes(
    service: PlayedKinesis, rig: Rig, table: MemoryPositions
) -> None:
    sink: dict[str, list[int]] = defaultdict(list)
    with stream(service, "orders", 2) as client:
        writer, all_of = Writer(client), readers(rig, service, sink)
        writer.write(3)
        rig.runtime.apply(spec_of(service))

        async def turns(count: int, limit: int = 40) -> None:
            for _ in range(count):
                await asyncio.gather(*(reader.turn(limit) for reader in all_of))
                await asyncio.sleep(0.03)

        await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None and rig.view.discovered)
        await turns(3, limit=5)
        split(client, "orders", id_of(0))  # 2 and 3
        writer.write(3)
        await rig.becomes(lambda: len(rig.view.shards) == 4)
        assert {number: state for number, state in states(rig).items() if number in (2, 3)} == {2: "WAIT", 3: "WAIT"}
        await turns(2, limit=5)

        merge(client, "orders", id_of(3), id_of(1))  # 4, whose parents are a child of 0 and the old 1
        writer.write(3)
        await rig.becomes(lambda: len(rig.view.shards) == 5)
        await turns(1, limit=5)
        await rig.runtime.stop()
        lead(rig, table)
        rig.runtime.apply(spec_of(service))
        await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None and rig.view.discovered)

        async def read() -> bool:
            await turns(1)
            return {key: list(numbers) for key, numbers in sink.items()} == writer.expected

        await rig.comes_true(read, within=30.0)
        await rig.becomes(lambda: [states(rig)[number] for number in (0, 1, 3)] == ["OVER"] * 3)
        assert {number: state for number, state in states(rig).items() if number in (2, 4)} == {
            2: "ALREADY_ALLOC",
            4: "ALREADY_ALLOC",
        }
        assert all((row.checkpoint or 0) > 2**63 for row in rig.view.shards)


async def test_a_group_that_starts_at_the_end_reads_what_comes_after(service: PlayedKinesis, rig: Rig) -> None:
    sink: dict[str, list[int]] = defaultdict(list)
    with stream(service, "orders", 1) as client:
        writer, (reader,) = Writer(client), readers(rig, service, sink, 1)
        writer.write(2)
        rig.runtime.apply(spec_of(service, 1, starting="Latest"))
        await rig.becomes(lambda: bool(rig.runtime.view(IDENTITY) and rig.view.shards and rig.view.shards[0].checkpoint))
        writer.write(1)

        async def read() -> bool:
            await reader.turn()
            return len(sink) == KEYS

        await rig.comes_true(read, within=10.0)
        assert dict(sink) == {f"k{key}": [2] for key in range(KEYS)}


async def test_the_picture_tells_the_lag_in_seconds_and_none_in_records(service: PlayedKinesis, rig: Rig) -> None:
    with stream(service, "orders", 1) as client:
        Writer(client).write(1)
        service.age("orders", "shardId-000000000000", lambda _: 120.0)
        rig.runtime.apply(spec_of(service, 1))
        (reader,) = readers(rig, service, defaultdict(list), 1)
        await rig.becomes(lambda: bool(rig.runtime.view(IDENTITY) and rig.view.shards and rig.view.shards[0].checkpoint))
        await rig.becomes(lambda: rig.view.lag_seconds is not None, within=10.0)

        view = rig.view
        (row,) = view.shards
        assert (view.counts_records, view.source, row.lag_records, row.end, row.open) == (False, "kinesis", None, None, True)
        assert view.lag_seconds is not None

        await reader.turn()
        await rig.comes_true(lambda: _turned(reader, rig), within=10.0)


async def test_what_retention_has_deleted_behind_a_position_keeps_the_shard_where_it_is_until_a_declared_reset(
    service: PlayedKinesis, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardherd.core.group.ages.AGAIN", 0.0)
    sink: dict[str, list[int]] = defaultdict(list)
    with stream(service, "orders", 2) as client:
        hashes = {"low": 0, "high": FULL - 1}
        put(client, "orders", [(key, text) for text in (b"0", b"1") for key in hashes], hashes)
        rig.runtime.apply(spec_of(service, 1))
        (reader,) = readers(rig, service, sink, 1)
        await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None and rig.view.discovered)

        async def read() -> bool:
            await reader.turn()
            return dict(sink) == {"low": [0, 1], "high": [0, 1]}

        await rig.comes_true(read, within=10.0)
        put(client, "orders", [(key, text) for text in (b"2", b"3") for key in hashes], hashes)
        service.trim("orders", "shardId-000000000000", service.numbers("orders", "shardId-000000000000")[3])
        service.age("orders", "shardId-000000000000", lambda _: 23 * 3600.0)
        await rig.becomes(lambda: [each.reason for each in rig.view.withheld] == ["CheckpointLost"], within=10.0)
        assert rig.view.withheld[0].message.startswith("orders/shardId-000000000000: the checkpoint is gone or lies before")
        await reader.turn()
        assert dict(sink) == {"low": [0, 1], "high": [0, 1, 2, 3]}, "the other one is read on"

        declared = replace(spec_of(service, 1), reset=Reset("r1", ResetTo.EARLIEST, shards=(rig.view.shards[0].shard,)))
        rig.runtime.apply(replace(declared, settings=replace(declared.settings, paused=True)))
        await rig.becomes(lambda: [each.reason for each in rig.view.withheld] == ["Paused"], within=10.0)
        rig.runtime.apply(declared)
        reader.positions.clear()

        async def read_on() -> bool:
            await reader.turn()
            return dict(sink) == {"low": [0, 1, 3], "high": [0, 1, 2, 3]}

        await rig.comes_true(read_on, within=10.0)


async def _turned(reader: Reader, rig: Rig) -> bool:
    """Whether all is read, and the picture shows it."""
    await reader.turn()
    return rig.view.lag_seconds == 0
