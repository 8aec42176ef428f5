"""What goes wrong around a coordinator: restarts, rivals, a source that is away, foreign members."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import CheckpointResult, Condition, GroupSpec
from tests.integration.contract.labs import eventually
from tests.integration.coordinator.rig import Consumer, Coordinator, Rig, becomes, grant, settle, shards


async def test_a_restart_moves_no_shard_and_loses_no_checkpoint(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)
    await first.commit(dict.fromkeys(first.held, 7))
    await asyncio.gather(first.heartbeat(), second.heartbeat())
    before = dict(first.held), dict(second.held)
    await coordinator.stop()

    again = await rig.coordinator()
    again.server.coordination.apply(spec)
    first.client = (await rig.consumer(again, spec, 0)).client
    second.client = (await rig.consumer(again, spec, 1)).client
    await becomes(lambda: (view := again.server.coordination.view(spec.identity)) is not None and view.source_reachable)
    await settle([first, second], lambda: True)
    started = time.monotonic()
    while time.monotonic() - started < 2.0:
        await asyncio.gather(first.heartbeat(), second.heartbeat(wait=0.2))
        assert (first.held, second.held) == before

    assert first.positions == dict.fromkeys(first.held, 7)
    assert again.view(spec.identity).moves == 0
    assert [each.result for each in await first.commit(dict.fromkeys(first.held, 8))] == [CheckpointResult.OK] * 2


async def test_of_two_coordinators_the_older_steps_down_and_commits_nothing(rig: Rig, name: str, topic: str) -> None:
    older = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    older.server.coordination.apply(spec)
    consumer = await rig.consumer(older, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.commit(dict.fromkeys(consumer.held, 5))

    newer = await rig.coordinator()
    newer.server.coordination.apply(spec)
    latest = await rig.consumer(newer, spec, 0)
    latest.seq, latest.revision, latest.held = consumer.seq, consumer.revision, dict(consumer.held)
    await settle_through_reloads(latest, lambda: latest.positions == dict.fromkeys(consumer.held, 5))
    with pytest.raises(CoordinatorUnavailableError):
        await consumer.commit(dict.fromkeys(consumer.held, 99))

    assert "was written by another coordinator" in await asyncio.wait_for(older.server.lost(), 60)
    assert await rig.kafka.connector.offsets(spec).read(shards(topic, 0, 1, 2, 3)) == dict.fromkeys(
        shards(topic, 0, 1, 2, 3), 5
    )
    assert [each.result for each in await latest.commit(dict.fromkeys(latest.held, 6))] == [CheckpointResult.OK] * 4


async def test_a_topic_that_was_made_anew_is_given_up_by_whoever_reads_it(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.commit(dict.fromkeys(consumer.held, 5))
    held = dict(consumer.held)

    await rig.kafka.recreate(topic, 4)
    await settle([consumer], lambda: not consumer.held)
    # It may have been given up before, when there was no topic of that name.
    await becomes(lambda: [cause.reason for cause in coordinator.view(spec.identity).withheld] == ["SourceRecreated"])
    consumer.held = held
    outcomes = await consumer.commit(dict.fromkeys(held, 6))

    assert [each.result for each in outcomes] == [CheckpointResult.WITHHELD] * 4


async def test_an_ownership_that_is_deleted_under_its_leader_is_written_anew_as_it_was(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first], lambda: len(first.held) == 4)
    config_map = f"/api/v1/namespaces/{rig.namespace}/configmaps/{spec.identity.name}-state"

    rig.kubernetes.delete(config_map)
    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)

    found = await rig.kubernetes.api.acall("GET", config_map)
    assert found["metadata"]["ownerReferences"][0]["uid"] == spec.identity.uid
    assert {*first.held.values(), *second.held.values()} == {1, 2}, "the epochs go on"


async def test_an_ownership_that_was_deleted_while_no_operator_ran_is_rebuilt_and_nothing_moves(
    rig: Rig, name: str, topic: str
) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)
    await first.commit(dict.fromkeys(first.held, 7))
    before = dict(first.held), dict(second.held)
    await coordinator.stop()
    rig.kubernetes.delete(f"/api/v1/namespaces/{rig.namespace}/configmaps/{spec.identity.name}-state")

    again = await rig.coordinator()
    again.server.coordination.apply(spec)
    first.client = (await rig.consumer(again, spec, 0)).client
    second.client = (await rig.consumer(again, spec, 1)).client
    await becomes(lambda: (view := again.server.coordination.view(spec.identity)) is not None and view.discovered)

    assert [condition.reason for condition in again.view(spec.identity).withheld] == ["OwnershipRebuilding"]
    for _ in range(3):
        await asyncio.gather(first.heartbeat(), second.heartbeat())
        assert (first.held, second.held) == before
    assert first.positions == dict.fromkeys(first.held, 7)
    assert [each.result for each in await first.commit(dict.fromkeys(first.held, 8))] == [CheckpointResult.WITHHELD] * 2


async def test_a_forced_checkpoint_is_where_the_holder_reads_on(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    (shard,) = shards(topic, 2)
    await consumer.commit({shard: 7})
    editor = await grant(rig, f"{name}-editor", spec.identity.name, "update")

    assert await rig.client(coordinator, spec, editor).force_checkpoint(shard, 3) == ""

    assert await rig.kafka.connector.offsets(spec).read([shard]) == {shard: 3}
    assert [each.result for each in await consumer.commit({shard: 9})] == [CheckpointResult.FENCED]
    await consumer.heartbeat()
    assert (consumer.positions[shard], consumer.held[shard]) == (3, 2)


async def test_past_the_lease_a_parked_heartbeat_is_closed_unanswered(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.heartbeat()

    parked = asyncio.create_task(consumer.heartbeat(wait=3.0))
    await becomes(lambda: coordinator.parked(spec.identity, consumer.name))
    coordinator.leadership.lose()

    with pytest.raises(CoordinatorUnavailableError, match="no answer from the coordinator"):
        await parked
    assert "lease" in await asyncio.wait_for(coordinator.server.lost(), 60)


async def test_a_group_with_live_members_is_granted_nothing_until_they_are_gone(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    consumer = await rig.consumer(coordinator, spec, 0)

    async with rig.kafka.member(topic, spec.kafka.group_id):
        coordinator.server.coordination.apply(spec)
        await becomes(lambda: (view := coordinator.server.coordination.view(spec.identity)) is not None and bool(view.shards))
        for _ in range(10):
            assert (await consumer.heartbeat(wait=0.2)).confirmed == ()
        withheld = coordinator.view(spec.identity).withheld
        assert [condition.reason for condition in withheld] == ["GroupHasLiveMembers"]
        assert f"'{spec.kafka.group_id}' has live members (a-member at " in withheld[0].message

    await settle([consumer], lambda: len(consumer.held) == 4)
    assert coordinator.view(spec.identity).withheld == ()


async def test_an_unreachable_broker_is_a_state_and_a_corrected_address_is_taken_up(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1, servers="127.0.0.1:1")
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)

    await becomes(lambda: "127.0.0.1:1" in source_error(coordinator, spec))
    assert (await consumer.heartbeat()).confirmed == ()
    assert "check spec.source.kafka.bootstrapServers" in source_error(coordinator, spec)

    coordinator.server.coordination.apply(replace(spec, source=replace(spec.kafka, bootstrap_servers=rig.kafka.servers)))

    await settle_through_reloads(consumer, lambda: len(consumer.held) == 4)
    assert coordinator.view(spec.identity).source_reachable


async def test_a_topic_that_does_not_exist_is_a_state_until_it_is_created(rig: Rig, name: str) -> None:
    coordinator = await rig.coordinator()
    missing = f"{rig.namespace}-{name}-later"
    spec = await rig.group(name, (missing,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)

    await becomes(lambda: f"topic '{missing}' does not exist" in source_error(coordinator, spec))
    assert (await consumer.heartbeat()).confirmed == ()
    await rig.kafka.create(missing, 2)

    await settle([consumer], lambda: len(consumer.held) == 2)
    assert coordinator.view(spec.identity).source_reachable

    async def recorded() -> bool:
        return "SourceUnavailable" in [reason for reason, *_ in await asyncio.to_thread(rig.kubernetes.events, spec.identity)]

    await eventually(recorded)


async def test_a_broker_that_hangs_withholds_checkpoints_and_none_is_lost(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.commit(dict.fromkeys(consumer.held, 5))
    held = dict(consumer.held)

    rig.cluster.signal("kafka", signal.SIGSTOP)
    try:
        hanging = asyncio.create_task(consumer.commit(dict.fromkeys(held, 6)))
        await becomes(lambda: hanging.done() or coordinator.commits(spec.identity, held))
        assert not hanging.done(), hanging
        await consumer.heartbeat()
        assert not hanging.done(), "heartbeats are answered while a commit hangs"
        await becomes(lambda: source_error(coordinator, spec) != "")
        await consumer.heartbeat()
        assert consumer.held == held
    finally:
        rig.cluster.signal("kafka", signal.SIGCONT)

    durable = {outcome.shard: outcome.result for outcome in await hanging}
    read = await rig.kafka.connector.offsets(spec).read(list(held))
    assert read == {shard: 6 if result is CheckpointResult.OK else 5 for shard, result in durable.items()}
    await becomes(lambda: source_error(coordinator, spec) == "")
    assert {each.result for each in await consumer.commit(dict.fromkeys(held, 7))} == {CheckpointResult.OK}
    await consumer.heartbeat()
    assert consumer.held == held


async def test_a_broker_that_restarts_is_committed_to_again(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    held = dict(consumer.held)

    async with beating(consumer):
        await asyncio.to_thread(rig.cluster.stop_kafka)
        try:
            assert {each.result for each in await consumer.commit(dict.fromkeys(held, 5))} == {CheckpointResult.WITHHELD}
            await becomes(lambda: source_error(coordinator, spec) != "")
            assert consumer.held == held
        finally:
            await asyncio.to_thread(rig.cluster.start_kafka)

    async def committed() -> bool:
        await consumer.heartbeat()
        return {each.result for each in await consumer.commit(dict.fromkeys(held, 5))} == {CheckpointResult.OK}

    await eventually(committed)
    assert consumer.held == held
    await becomes(lambda: source_error(coordinator, spec) == "")


async def test_a_broker_that_is_away_while_the_coordinator_starts_moves_nothing(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.commit(dict.fromkeys(consumer.held, 5))
    held = dict(consumer.held)
    await coordinator.stop()

    rig.cluster.signal("kafka", signal.SIGSTOP)
    try:
        again = await rig.coordinator()
        again.server.coordination.apply(spec)
        consumer.client = (await rig.consumer(again, spec, 0)).client
        await becomes(lambda: source_error(again, spec) != "")
        with pytest.raises(CoordinatorUnavailableError, match="no Kafka broker answers"):
            await consumer.heartbeat()
    finally:
        rig.cluster.signal("kafka", signal.SIGCONT)

    await settle_through_reloads(consumer, lambda: True)
    assert consumer.held == held
    assert consumer.positions == dict.fromkeys(held, 5)


async def test_a_stranger_under_our_transactional_id_is_named(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    stranger = rig.kafka.connector.offsets(spec)

    for offset in (1, 2, 3):
        await stranger.take_over()
        outcomes = await consumer.commit(dict.fromkeys(consumer.held, offset))
        assert {each.result for each in outcomes} == {CheckpointResult.WITHHELD}

    await becomes(lambda: [condition.reason for condition in coordinator.view(spec.identity).withheld] == ["GroupIdInUse"])
    assert isinstance(coordinator.view(spec.identity).withheld[0], Condition)
    assert f"'shardherd.{spec.kafka.group_id}'" in coordinator.view(spec.identity).withheld[0].message


@asynccontextmanager
async def beating(consumer: Consumer) -> AsyncIterator[None]:
    """The consumer heartbeats while the context lasts."""

    async def beat() -> None:
        while True:
            await consumer.heartbeat(wait=0.5)

    task = asyncio.create_task(beat())
    try:
        yield
        assert not task.done(), f"the heartbeats ended: {task.exception()!r}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def source_error(coordinator: Coordinator, spec: GroupSpec) -> str:
    view = coordinator.server.coordination.view(spec.identity)
    return view.source_error if view is not None else ""


async def settle_through_reloads(consumer: Consumer, until: Callable[[], bool]) -> None:
    """Heartbeat until `until` holds, also while the group is being loaded."""

    async def step() -> bool:
        try:
            await consumer.heartbeat()
        except CoordinatorUnavailableError:
            return False
        return until()

    await eventually(step)
