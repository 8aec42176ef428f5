"""Declared resets on a real broker: by time, of a topic that was made anew, and made once whoever leads."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from shardherd.core.model.nouns import CheckpointResult, GroupSpec, Reset, ResetReport, ResetState, ResetTo
from tests.integration.coordinator.rig import Coordinator, Rig, becomes, settle, shards


def declaring(spec: GroupSpec, reset: Reset | None, *, paused: bool = True) -> GroupSpec:
    return replace(spec, settings=replace(spec.settings, paused=paused), reset=reset)


async def concluded(coordinator: Coordinator, spec: GroupSpec, id: str) -> ResetReport:
    """The report of this reset, once it is refused or made."""

    def found() -> ResetReport | None:
        view = coordinator.server.coordination.view(spec.identity)
        return view.reset if view is not None and view.reset is not None and view.reset.id == id else None

    await becomes(lambda: (report := found()) is not None and report.state in (ResetState.DONE, ResetState.REFUSED))
    report = found()
    assert report is not None
    return report


async def test_a_reset_by_time_is_where_the_holder_reads_on_and_is_made_once(rig: Rig, name: str, topic: str) -> None:
    early = float(int(time.time())) - 1000.0
    first, second, *_ = shards(topic, 0, 1, 2, 3)
    await rig.kafka.append(topic, 0, 10, since=early)
    await rig.kafka.append(topic, 1, 10, since=early - 500.0)
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.commit({first: 9, second: 8})

    declared = declaring(spec, Reset("r1", ResetTo.TIMESTAMP, timestamp=early + 3.0, manager="kubectl-edit"))
    coordinator.server.coordination.apply(declared)
    report = await concluded(coordinator, spec, "r1")

    assert (report.state, report.shards, report.repeated, report.skipped) == (ResetState.DONE, 4, 6, 2)
    offsets = rig.kafka.connector.offsets(spec)
    assert await offsets.read([first, second]) == {first: 3, second: 10}
    assert [each.result for each in await consumer.commit({first: 9})] == [CheckpointResult.FENCED]
    await consumer.heartbeat()
    assert (consumer.positions[first], consumer.positions[second], consumer.held[first]) == (3, 10, 2)

    # Another coordinator with the same declaration leaves alone what was read since.
    coordinator.server.coordination.apply(declaring(spec, declared.reset, paused=False))
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.commit({first: 7})
    await coordinator.stop()
    again = await rig.coordinator()
    again.server.coordination.apply(declared)
    assert (await concluded(again, spec, "r1")).time == report.time
    await becomes(lambda: again.view(spec.identity).discovered)
    assert await offsets.read([first]) == {first: 7}


async def test_a_topic_that_was_made_anew_is_read_after_a_reset(rig: Rig, name: str, topic: str) -> None:
    await rig.kafka.append(topic, 2, 5)
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.commit(dict.fromkeys(shards(topic, 2), 5))
    (before,) = consumer.topic_ids

    await rig.kafka.recreate(topic, 4)

    def reasons() -> list[str]:
        return [cause.reason for cause in coordinator.view(spec.identity).withheld]

    await becomes(lambda: "SourceRecreated" in reasons(), within=30.0)
    coordinator.server.coordination.apply(declaring(spec, Reset("wrong", ResetTo.OFFSETS, offsets=((shards(topic, 2)[0], 9),))))
    refused = await concluded(coordinator, spec, "wrong")
    assert refused.message == (
        f"Nothing was changed: spec.reset.offsets sets {topic}/2 to 9, and it has 0 to 0. Correct it, with another id."
    )
    coordinator.server.coordination.apply(declaring(spec, Reset("r1", ResetTo.EARLIEST)))
    assert (await concluded(coordinator, spec, "r1")).state is ResetState.DONE
    coordinator.server.coordination.apply(declaring(spec, None, paused=False))

    await becomes(lambda: reasons() == [])
    await settle([consumer], lambda: set(consumer.positions.values()) == {0} and len(consumer.held) == 4)
    assert await rig.kafka.connector.offsets(spec).read(shards(topic, 0, 1, 2, 3)) == dict.fromkeys(
        shards(topic, 0, 1, 2, 3), 0
    )
    (now,) = consumer.topic_ids
    assert uuid.UUID(str(now)) != uuid.UUID(str(before)), "who reads is told of which topic the positions are"
