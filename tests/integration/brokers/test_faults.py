"""What the source does when brokers restart, leaders move, logs are cut and topics go: each on real brokers.

Where Spark adds nothing the reader is run in this process, batch by batch, so that a fault comes in the middle of one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from dev.cluster.kafka import KafkaTrio
from dev.demo.report import await_that
from shardherd.adapters.kafka import connection
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.core.model.security import Security
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka import cluster_connection
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.leader_epochs import Mark
from shardherd.source.kafka.raw_fetch import RawFetch
from shardherd.source.reading import lost_records, range_reader
from shardherd.source.reading.fetch_sizing import FetchSizing
from shardherd.source.reading.lost_records import RangeLostError
from shardherd.source.reading.ranges import ShardRange
from tests.harness.kafka import KafkaLab
from tests.harness.long import long
from tests.harness.memory_secrets import MemorySecrets
from tests.integration.brokers.conftest import Connect, Coordinate
from tests.integration.brokers.reading import Reading, operators_refusal, read, refusal, sent, whole
from tests.integration.contract.labs import eventually


class Sparing(FetchSizing):
    """Asks for a little of every shard, whatever was seen of it."""

    def wanted(
        self, left: Mapping[ShardId, Offset], stops: Mapping[ShardId, Offset], hungry: Collection[ShardId]
    ) -> dict[ShardId, int]:
        return dict.fromkeys(left, 5_000)


@pytest.fixture(autouse=True)
def _small_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Fetch brings a few batches of a shard, so that reading a topic takes many."""
    monkeypatch.setattr(range_reader, "_sizing", Sparing())


def several(kafka: KafkaLab, *on: int, partitions: int = 2, count: int = 200) -> str:
    """A topic of many small batches on these brokers, the first of which leads."""
    topic = kafka.create(partitions, on=on)
    kafka.send(topic, partitions, count, batch=2_000)
    return topic


def test_a_leader_that_stops_in_the_middle_of_a_batch_costs_no_record(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect
) -> None:
    moving, alone = several(kafka, 1, 2, 3), several(kafka, 1)
    reading = Reading(connect(trio.bootstrap()), *whole(moving, 2, 200), *whole(alone, 2, 200))
    for _ in range(6):
        reading.step()
    assert sum(map(len, reading.rows.values())) < 400, "it is in the middle"

    trio.stop(1)
    moved = Reading(connect(trio.bootstrap()), *whole(moving, 2, 200))
    assert moved.rest() == sent(moving, 2, 0, 200), "what has another replica is read without the broker"
    reading.go_on()
    trio.start(1)

    assert reading.finish() == {**sent(moving, 2, 0, 200), **sent(alone, 2, 0, 200)}, "the rest waits for it"


def test_records_are_read_from_the_replica_in_our_zone_and_from_the_leader_when_that_is_gone(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = several(kafka, 1, 2, partitions=1)
    near = connect(trio.bootstrap(), rack="zone-2")
    asked: list[int] = []
    send = near._manager.send

    def counted(request: Any, node_id: Any = None, **options: Any) -> Any:
        if isinstance(request, RawFetch):
            asked.append(node_id)
        return send(request, node_id=node_id, **options)

    monkeypatch.setattr(near._manager, "send", counted)
    reading = Reading(near, *whole(topic, 1, 200))
    for _ in range(4):
        reading.step()
    assert len(reading.rows[f"{topic}/0"]) < 200, "it is in the middle"
    assert (asked[0], set(asked[1:])) == (1, {2}), "the leader says who is near, and sends no record"

    trio.kill(2)

    assert reading.rest() == sent(topic, 1, 0, 200)
    assert asked[-1] == 1


@long
def test_a_leader_that_is_killed_is_noticed_by_the_others(trio: KafkaTrio, kafka: KafkaLab, connect: Connect) -> None:
    topic = several(kafka, 2, 3)
    source = connect(trio.bootstrap(nodes=[2]))
    reading = Reading(source, *whole(topic, 2, 200))
    reading.step()

    trio.kill(2)

    assert reading.rest() == sent(topic, 2, 0, 200)
    assert source.end_offsets([ShardId(f"{topic}/0")], 20) == {f"{topic}/0": 200}, "also where all bootstrap addresses are gone"


@long
def test_a_leader_that_hangs_is_given_up(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_connection, "ANSWER_TIMEOUT", 2.0)
    topic = several(kafka, 3, 1)
    reading = Reading(connect(trio.bootstrap()), *whole(topic, 2, 200))
    reading.step()

    trio.signal(3, signal.SIGSTOP)

    assert reading.rest() == sent(topic, 2, 0, 200)


def test_a_log_that_lost_its_end_is_an_error_or_is_read_as_far_as_it_goes(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_records, "TRUNCATED_AFTER", 1.0)
    topic = several(kafka, 2, partitions=1)
    early = connect(trio.bootstrap(nodes=[2]))
    trio.kill(2)
    log = trio.folder / "data-2" / f"{topic}-0" / "00000000000000000000.log"
    os.truncate(log, log.stat().st_size // 2)
    (shard,) = whole(topic, 1, 200)

    refusal(lambda: early.end_offsets([shard.shard], 1), "ECONNREFUSED")
    trio.start(2)

    def seen() -> Mapping[ShardId, Offset] | None:
        # The broker takes a while to listen again, and one call gives up before.
        with contextlib.suppress(BrokersUnavailableError):
            return early.end_offsets([shard.shard], 20)
        return None

    end = await_that("the broker says where the log ends", seen, within=60)[shard.shard]
    assert 0 < end < 200
    with pytest.raises(
        RangeLostError, match=rf"shard {topic}/0: the records from offset {end} up to 200 are lost; it ends at {end}"
    ):
        read(early, shard)
    with pytest.raises(RangeLostError, match=rf"the records from offset 190 up to 200 are lost; it ends at {end}"):
        read(early, ShardRange(shard.shard, 190, 200))
    assert Reading(early, shard, fail_on_data_loss=False).rest() == sent(topic, 1, 0, end)
    assert Reading(early, ShardRange(shard.shard, 190, 200), fail_on_data_loss=False).rest() == {shard.shard: []}


def test_a_log_that_lost_its_end_and_has_grown_past_it_is_an_error_all_the_same(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect
) -> None:
    topic = several(kafka, 2, partitions=1)
    (shard,) = whole(topic, 1, 200)
    early = connect(trio.bootstrap())
    end_offsets = early.end_offsets([shard.shard], 20)
    mark = Mark(200, end_offsets.leaders[shard.shard])
    assert Reading(early, shard, marks={shard.shard: [mark]}).rest() == sent(topic, 1, 0, 200)

    trio.kill(2)
    log = trio.folder / "data-2" / f"{topic}-0" / "00000000000000000000.log"
    os.truncate(log, log.stat().st_size // 2)
    trio.start(2)
    kafka.send(topic, 1, 300)

    late = connect(trio.bootstrap())
    grown = late.end_offsets([shard.shard], 20)
    assert grown[shard.shard] > 300, "nobody could tell by the end alone"
    assert grown.leaders[shard.shard] > mark.epoch
    cut = late.cuts({shard.shard: mark}, 20)[shard.shard]
    assert 0 < cut < 200
    for brokers in (early, late):
        with pytest.raises(
            RangeLostError, match=rf"an unclean election cut its log off at offset {cut}; the records from there"
        ):
            Reading(brokers, ShardRange(shard.shard, 190, 200), marks={shard.shard: [mark]}).rest()
    after = Mark(grown[shard.shard], grown.leaders[shard.shard])
    on = ShardRange(shard.shard, 200, grown[shard.shard])
    with pytest.raises(
        RangeLostError, match=rf"cut its log off at offset {cut}; the records from there up to offset {on.stop}"
    ):
        Reading(late, on, marks={shard.shard: [mark, after]}).rest()
    assert len(Reading(late, on, marks={shard.shard: [after]}).rest()[shard.shard]) == on.stop - 200


def test_records_that_retention_deletes_meanwhile_are_an_error_or_skipped(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect
) -> None:
    topic = several(kafka, 1, 2)
    source = connect(trio.bootstrap())
    strict, lenient = Reading(source, *whole(topic, 2, 200)), Reading(source, *whole(topic, 2, 200), fail_on_data_loss=False)
    strict.step()
    lenient.step()
    assert len(lenient.rows[f"{topic}/0"]) < 150

    kafka.admin.delete_records({TopicPartition(topic, 0): 150})

    with pytest.raises(
        RangeLostError, match=rf"shard {topic}/0: the records from offset \d+ up to 150 are lost; it starts at 150"
    ):
        strict.rest()
    rows, everything = lenient.rest(), sent(topic, 2, 0, 200)
    assert rows[f"{topic}/1"] == everything[f"{topic}/1"]
    assert [row for row in rows[f"{topic}/0"] if row[0] >= 150] == everything[f"{topic}/0"][150:]
    assert rows[f"{topic}/0"] == sorted(set(rows[f"{topic}/0"])), "nothing twice"


def test_a_topic_that_is_made_anew_in_the_middle_of_a_batch_is_never_read_for_the_old_one(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect
) -> None:
    topic = several(kafka, 1, 2)
    source = connect(trio.bootstrap())
    reading = Reading(source, *whole(topic, 2, 200))
    reading.step()

    kafka.admin.delete_topics([topic])
    kafka.create(2, on=(1, 2), name=topic)
    kafka.send(topic, 2, 300)

    with pytest.raises(RangeLostError, match=f"topic '{topic}' was deleted and made anew"):
        reading.rest()
    with pytest.raises(RangeLostError, match=f"topic '{topic}' was deleted and made anew"):
        Reading(source, *whole(topic, 2, 200), topic_ids={topic: "the-id-it-had"}).rest()
    assert read(source, *whole(topic, 2, 300)) == sent(topic, 2, 0, 300), "a task that was planned for the new one reads it"


def test_a_topic_that_is_deleted_is_named_in_the_end(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT", 5.0)
    topic = several(kafka, 2, 3)
    reading = Reading(connect(trio.bootstrap()), *whole(topic, 2, 200))
    reading.step()

    kafka.admin.delete_topics([topic])
    # The controller answers before the brokers that have the records hear of it, and they go on giving them until then.
    await_that("no broker has a log of it", lambda: not any(trio.folder.glob(f"data-*/{topic}-[01]")), within=60)

    with pytest.raises(BrokersUnavailableError, match=f"topic '{topic}' of shard {topic}/. does not exist"):
        reading.rest()
    assert topic not in kafka.admin.list_topics(), "asking for it does not make it"


def test_partitions_that_are_added_are_read(trio: KafkaTrio, kafka: KafkaLab, connect: Connect) -> None:
    topic = several(kafka, 1, 2, partitions=1)
    source = connect(trio.bootstrap())
    reading = Reading(source, *whole(topic, 1, 200))
    reading.step()

    kafka.admin.create_partitions({topic: 3})
    kafka.admin.wait_for_topics([topic])
    kafka.send(topic, 3, 10)

    assert reading.rest() == sent(topic, 1, 0, 200)
    end_offsets = source.end_offsets([ShardId(f"{topic}/{number}") for number in range(3)], 20)
    assert end_offsets == {f"{topic}/0": 210, f"{topic}/1": 10, f"{topic}/2": 10}


def test_an_address_that_a_broker_advertises_in_vain_is_named(trio: KafkaTrio, kafka: KafkaLab, connect: Connect) -> None:
    topic = several(kafka, 2)

    brokers = connect(trio.bootstrap("ASTRAY"))

    refusal(
        lambda: brokers.end_offsets([ShardId(f"{topic}/0")], 1.5),
        r"broker 2 at 127\.0\.0\.1:1, which is what it advertises: .*ECONNREFUSED",
    )


async def test_the_coordinator_names_it_too(
    trio: KafkaTrio, kafka: KafkaLab, coordinate: Coordinate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 1.5)
    topic = several(kafka, 2)

    source = coordinate(MemorySecrets()).source(kafka.group(topic, "ASTRAY"))

    await operators_refusal(source.discover, r"broker \d at 127\.0\.0\.1:1, which is what it advertises: .*ECONNREFUSED")


@long
async def test_the_coordinator_goes_on_when_the_broker_of_its_offsets_is_gone(
    trio: KafkaTrio, kafka: KafkaLab, coordinate: Coordinate
) -> None:
    topic = several(kafka, 1, 2, 3)
    connector, spec = coordinate(MemorySecrets()), kafka.group(topic)
    offsets, shard = connector.offsets(spec), ShardId(f"{topic}/0")
    await offsets.take_over()
    await offsets.commit({shard: 1}, {})

    trio.stop(3)
    position = 1
    for _ in range(20):
        position += 1
        try:
            await offsets.commit({shard: position}, {})
            break
        except SourceUnavailableError:
            await offsets.take_over()

    assert await offsets.read([shard]) == {shard: position}
    await connector.source(spec).discover()


async def test_a_partition_without_a_leader_keeps_nothing_of_the_others_from_the_coordinator(
    trio: KafkaTrio, kafka: KafkaLab, coordinate: Coordinate
) -> None:
    away, there = several(kafka, 2), several(kafka, 1, 3)
    spec = kafka.group(away)
    spec = replace(spec, source=replace(spec.kafka, topics=(away, there)))
    earlier = coordinate(MemorySecrets()).source(spec)
    known = await earlier.discover()
    assert len(known.shards) == 4

    trio.stop(2)

    source = earlier

    async def leaderless() -> bool:
        """A coordinator that begins now learns of everything but how far that partition reaches."""
        nonlocal source
        source = coordinate(MemorySecrets()).source(spec)
        try:
            found = await source.discover()
        except SourceUnavailableError:
            return False  # the brokers still find out that one of them is gone
        return found.unlooked == (f"{away}/0", f"{away}/1")

    await eventually(leaderless)
    found = await source.discover()
    assert [(info.shard, info.end) for info in found.shards] == [(f"{there}/0", 200), (f"{there}/1", 200)]
    still = await earlier.discover()
    assert [(info.shard, info.end) for info in still.shards] == [(info.shard, info.end) for info in known.shards]
    assert still.unlooked == (), "what was seen before it went is as it was"
    for each in (source, earlier):
        with pytest.raises(SourceUnavailableError, match=f"{away}/0 has no leader; start its broker"):
            await each.positions_at(1.0)

    offsets = coordinate(MemorySecrets()).offsets(spec)
    await offsets.take_over()
    await offsets.commit({ShardId(f"{away}/0"): 5, ShardId(f"{there}/0"): 6}, {})

    trio.start(2)

    async def led() -> bool:
        try:
            return (await source.discover()).unlooked == ()
        except SourceUnavailableError:
            return False  # its broker is there, but does not lead it yet

    await eventually(led)
    end_offsets = {info.shard: info.end for info in (await source.discover()).shards}
    assert end_offsets == {ShardId(f"{topic}/{number}"): 200 for topic in (away, there) for number in range(2)}


def test_a_certificate_that_is_renewed_is_used_at_the_next_connection(
    trio: KafkaTrio, kafka: KafkaLab, connect: Connect, tmp_path: Path
) -> None:
    topic = several(kafka, 1, 2)
    ca = tmp_path / "ca.crt"
    ca.write_bytes((trio.certificates / "stranger.crt").read_bytes())
    security = kafka.files(tmp_path, "SSL").as_dict() | {"ca_file": str(ca)}
    source = connect(trio.bootstrap("SSL"), Security.from_dict(security))
    reading = Reading(source, *whole(topic, 2, 200))
    reading.go_on()
    refusal(lambda: source.end_offsets([ShardId(f"{topic}/0")], 3.0), "certificate verify failed")

    ca.write_bytes((trio.certificates / "ca.crt").read_bytes())

    assert reading.finish() == sent(topic, 2, 0, 200)
