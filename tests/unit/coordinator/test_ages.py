"""The age of the lag in pictures of a group: it is looked up beside all else, and what it costs is bounded."""

from __future__ import annotations

import asyncio

import pytest

from shardherd.adapters.memory import MemoryConnector, MemoryKafka
from shardherd.coordinator import ages
from shardherd.coordinator.ages import LagAge
from shardherd.core.group.group import Group
from shardherd.core.model.nouns import ShardId
from shardherd.core.model.verdicts import Verdict
from shardherd.ports import ShardSource, SourceUnavailableError
from tests.unit.coordinator.rig import IDENTITY, Rig, drain, spec_of

SHARD = ShardId("t/0")


def write(rig: Rig, records: int, *, ago: float) -> None:
    """So many records more in the first shard, written that long ago."""
    rig.kafka.append("t", 0, records)
    rig.kafka.times.setdefault(SHARD, []).extend([rig.clock.wall() - ago] * records)


def fill(rig: Rig, records: int) -> None:
    """So many records more in each other shard: a checkpoint of all is then above no end."""
    for partition in range(1, 4):
        rig.kafka.append("t", partition, records)


async def test_a_group_that_has_read_all_has_no_age_to_look_up(rig: Rig) -> None:
    await rig.serving()
    await rig.looked()

    assert rig.view.lag_seconds == 0
    assert rig.kafka.faults.entered["written_at"] == 0


async def test_a_backlog_from_before_the_group_is_as_old_as_its_first_record(rig: Rig) -> None:
    write(rig, 1, ago=120.0)
    write(rig, 10_000, ago=3.0)
    await rig.serving()

    await rig.becomes(lambda: rig.view.lag_seconds == 120)
    rig.clock.advance(15.0)

    assert rig.view.lag_seconds == 135


async def test_the_age_is_gone_with_the_lag_and_not_later(rig: Rig) -> None:
    write(rig, 10, ago=640.0)
    (consumer,) = await rig.serving()
    await rig.becomes(lambda: rig.view.lag_seconds == 640)

    await consumer.commit(10)

    assert ([shard.lag_records for shard in rig.view.shards], rig.view.lag_seconds) == ([0, 0, 0, 0], 0)


async def test_the_age_is_that_of_what_is_left_once_some_is_read(rig: Rig) -> None:
    write(rig, 10, ago=640.0)
    write(rig, 10, ago=7.0)
    (consumer,) = await rig.serving()
    await rig.becomes(lambda: rig.view.lag_seconds == 640)

    await consumer.commit(10)

    await rig.becomes(lambda: rig.view.lag_seconds == 7)


async def test_while_nothing_moves_nothing_is_looked_up(rig: Rig) -> None:
    write(rig, 10, ago=640.0)
    await rig.serving()
    await rig.becomes(lambda: rig.view.lag_seconds == 640)
    before = rig.kafka.faults.entered["written_at"]

    for _ in range(10):
        await rig.looked()

    assert rig.kafka.faults.entered["written_at"] == before == 1


async def test_a_look_that_fails_withholds_nothing_and_is_made_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig.kafka.faults.fail("written_at", SourceUnavailableError("Kafka at broker:9092: cannot read the times of records"))
    write(rig, 10, ago=640.0)
    (consumer,) = await rig.serving()
    assert len(consumer.held) == 4

    await rig.becomes(lambda: rig.view.lag_seconds == 640)

    assert (rig.view.source_reachable, rig.view.source_error) == (True, "")
    labels = {"namespace": "demo", "consumergroup": "clicks", "op": "written_at"}
    assert rig.registry.get_sample_value("shardherd_source_errors_total", labels) == 1
    assert "how old its lag is was not found out: Kafka at broker:9092" in caplog.text


async def test_looks_that_fail_come_ever_later_and_one_that_does_not_as_before(rig: Rig) -> None:
    write(rig, 10, ago=640.0)
    await rig.serving()
    assert rig.group.mailbox is not None
    group = rig.group.mailbox.group
    age = LagAge(rig.ports, IDENTITY, 1.0, group=lambda: group)
    # One of its own: the group looks too.
    kafka = MemoryKafka(topics=rig.kafka.topics, topic_ids=rig.kafka.topic_ids, times=rig.kafka.times)
    kafka.faults.fail("written_at", SourceUnavailableError("it takes too long"), times=5)
    source = MemoryConnector(kafka).source(spec_of())

    waits = [0.02]  # after a look that took longer than the interval
    for _ in range(6):
        waits.append(await age.look(group, source, waits[-1]))

    assert waits == [0.02, 10.0, 20.0, 40.0, 60.0, 60.0, 5.0]
    assert age.shown(group.view(rig.clock.now())).lag_seconds == 640


async def test_a_look_that_hangs_keeps_nobody_from_seeing_the_group(rig: Rig) -> None:
    gate = rig.kafka.faults.hold("written_at")
    write(rig, 10, ago=640.0)
    (consumer,) = await rig.serving()
    await rig.becomes(lambda: rig.kafka.faults.entered["written_at"] == 1)

    await consumer.commit(4)
    await rig.looked()

    assert (rig.view.lag_seconds, rig.view.shards[0].lag_records) == (None, 6)
    gate.set()
    await drain()


async def test_how_shards_are_read_is_in_every_picture(rig: Rig) -> None:
    write(rig, 10, ago=640.0)
    (consumer,) = await rig.serving()
    assert (rig.view.verdict, rig.view.verdicts) == (Verdict.UNKNOWN, ())
    await rig.becomes(lambda: [each.verdict for each in rig.view.verdicts] == [Verdict.UNKNOWN])

    fill(rig, 4)
    await consumer.commit(4)
    await rig.becomes(lambda: (rig.view.verdict, rig.view.verdicts) == (Verdict.OK, ()))

    for _ in range(5):
        await consumer.heartbeat()
        await rig.serve(20.0)
    await rig.becomes(lambda: (rig.view.verdict, [each.shard for each in rig.view.verdicts]) == (Verdict.STALLED, [SHARD]))

    fill(rig, 6)
    await consumer.commit(10)
    await rig.becomes(lambda: (rig.view.verdict, rig.view.verdicts) == (Verdict.OK, ()))


async def test_a_heartbeat_judges_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    look, between = LagAge.look, asyncio.Lock()

    async def look_alone(age: LagAge, group: Group, source: ShardSource, waited: float) -> float:
        async with between:
            return await look(age, group, source, waited)

    monkeypatch.setattr(LagAge, "look", look_alone)
    write(rig, 10, ago=640.0)
    (consumer,) = await rig.serving()
    await rig.becomes(lambda: rig.view.lag_seconds == 640)
    looks: list[float] = []

    async with between:
        monkeypatch.setattr(ages, "looked", lambda *_: looks.append(rig.clock.now()))
        for _ in range(100):
            await consumer.heartbeat()

        assert looks == []
