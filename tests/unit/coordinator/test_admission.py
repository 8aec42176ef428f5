"""Groups that may not be served beside others: what they are told, and that nobody is disturbed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace

import pytest

from shardherd.coordinator.runtime import Runtime
from shardherd.core.group.admission import refused
from shardherd.core.model.nouns import Condition, ConsumerId, GroupIdentity, GroupSpec, Heartbeat, HeartbeatReply, Incarnation
from tests.unit.coordinator.rig import IDENTITY, Rig, drain, spec_of


@pytest.fixture
async def strict(rig: Rig) -> AsyncIterator[Runtime]:
    """A runtime that serves one group a topic."""
    runtime = Runtime(rig.ports, discovery_interval=0.01, unknown_group_grace=0.0, max_groups_per_source=1)
    runtime.lead()
    yield runtime
    await runtime.stop()


def named(name: str, created: str, group_id: str = "") -> GroupSpec:
    spec = spec_of()
    identity = GroupIdentity("demo", name, f"uid-of-{name}")
    return replace(spec, identity=identity, source=replace(spec.kafka, group_id=group_id or f"demo.{name}"), created=created)


def reasons(runtime: Runtime, identity: GroupIdentity) -> list[str]:
    view = runtime.view(identity)
    return [] if view is None else [condition.reason for condition in view.withheld]


async def beat(runtime: Runtime, group: GroupSpec, seq: int) -> HeartbeatReply:
    name = ConsumerId(f"{group.identity.name}-0")
    heartbeat = Heartbeat(name, Incarnation(f"uid-{name}", 1), seq, 0)
    return await runtime.group("demo", group.identity.name).heartbeat(heartbeat, 0)


async def test_a_second_group_of_a_topic_is_granted_nothing_until_the_first_goes(rig: Rig, strict: Runtime) -> None:
    first, second = named("first", "2026-01-01T00:00:00Z"), named("second", "2026-01-02T00:00:00Z")
    strict.apply(second)
    strict.apply(first)
    await rig.becomes(lambda: reasons(strict, second.identity) == ["TooManyGroups"] and strict.ready)
    await rig.becomes(lambda: (view := strict.view(first.identity)) is not None and len(view.shards) == 4)
    await rig.becomes(lambda: all(row.checkpoint == 0 for row in strict.views()[first.identity].shards))

    assert len((await beat(strict, first, 1)).confirmed) == 4
    assert (await beat(strict, second, 1)).confirmed == ()
    assert "TooManyGroups" in rig.events.reasons()

    strict.forget(first.identity)
    await rig.becomes(lambda: reasons(strict, second.identity) == [])
    await rig.becomes(lambda: strict.views()[second.identity].discovered)
    await rig.becomes(lambda: all(row.checkpoint == 0 for row in strict.views()[second.identity].shards))
    assert len((await beat(strict, second, 2)).confirmed) == 4


async def test_groups_that_come_at_once_are_looked_at_together_and_not_served_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def slow(specs: Iterable[GroupSpec], most: int) -> Mapping[GroupIdentity, Condition]:
        rig.clock.advance(0.025)
        looks.append(len(known := tuple(specs)))
        return refused(known, most)

    monkeypatch.setattr("shardherd.coordinator.runtime.admission.refused", slow)
    (consumer,) = await rig.serving()
    twins = [named(f"twin-{number}", "2026-01-02T00:00:00Z", group_id="demo.clicks") for number in range(3)]
    for twin in twins:
        rig.runtime.apply(twin)
    await drain()
    assert looks == [1], "the look took 25 ms, so the next is 500 ms later"
    assert {str(result) for result in await consumer.commit(7)} == {"ok"}, "none of them has fenced the first"

    await rig.becomes(lambda: [reasons(rig.runtime, twin.identity) for twin in twins] == [["GroupIdTaken"]] * 3)
    assert looks == [1, 4]
    assert {str(result) for result in await consumer.commit(8)} == {"ok"}


async def test_a_look_that_took_very_long_does_not_keep_new_groups_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(specs: Iterable[GroupSpec], most: int) -> Mapping[GroupIdentity, Condition]:
        rig.clock.advance(3600.0)
        return refused(specs, most)

    monkeypatch.setattr("shardherd.coordinator.runtime.admission.refused", slow)
    monkeypatch.setattr("shardherd.coordinator.runtime.ADMIT_MOST", 0.01)
    rig.runtime.apply(named("first", "2026-01-01T00:00:00Z"))
    twin = named("twin", "2026-01-02T00:00:00Z", group_id="demo.first")
    rig.runtime.apply(twin)
    await rig.becomes(lambda: reasons(rig.runtime, twin.identity) == ["GroupIdTaken"])


async def test_a_group_that_would_share_the_positions_of_another_does_not_fence_it(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    twin = named("twin", "2026-01-02T00:00:00Z", group_id="demo.clicks")
    rig.runtime.apply(twin)
    await rig.becomes(lambda: reasons(rig.runtime, twin.identity) == ["GroupIdTaken"])
    await drain()

    assert {str(result) for result in await consumer.commit(7)} == {"ok"}
    assert rig.runtime.view(IDENTITY) is not None
    assert reasons(rig.runtime, IDENTITY) == []
