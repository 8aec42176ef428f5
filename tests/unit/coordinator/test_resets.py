"""A declared reset through the runtime: decided before it is written, finished by whoever leads, and made once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from shardherd import protocol
from shardherd.coordinator import CoordinatorServer
from shardherd.core.group.ownership import loads
from shardherd.core.model.nouns import GroupSpec, Reset, ResetReport, ResetRow, ResetState, ResetTo, ShardId
from shardherd.ports import Caller, OutcomeUnknownError, SourceUnavailableError
from tests.unit.coordinator.rig import IDENTITY, Rig, drain, spec_of

T0, T1 = ShardId("t/0"), ShardId("t/1")


def declaring(reset: Reset | None, *, paused: bool = True) -> GroupSpec:
    return replace(spec_of(paused=paused), reset=reset)


def report(rig: Rig) -> ResetReport:
    found = rig.view.reset
    assert found is not None
    return found


async def comes_to(rig: Rig, state: ResetState) -> None:
    await rig.becomes(lambda: rig.view.reset is not None and rig.view.reset.state is state)


async def reading(rig: Rig) -> None:
    """A consumer has read 40 of the 100 records of each of the four shards."""
    for partition in range(4):
        rig.kafka.append("t", partition, 100)
    (consumer,) = await rig.serving()
    await rig.becomes(lambda: all(row.end == 100 for row in rig.view.shards))
    await consumer.commit(40)


def committed(rig: Rig) -> dict[ShardId, int]:
    return rig.kafka.committed["demo.clicks"]


async def test_a_reset_is_durable_and_told(rig: Rig) -> None:
    await reading(rig)
    rig.runtime.apply(declaring(Reset("r1", ResetTo.LATEST, shards=(T0, T1))))
    await comes_to(rig, ResetState.DONE)

    assert sorted(committed(rig).items()) == [(T0, 100), (T1, 100), (ShardId("t/2"), 40), (ShardId("t/3"), 40)]
    (event,) = [each for each in rig.events.events if each.reason == "ResetDone"]
    message = "reset r1 to Latest: The positions of 2 shards were set, 0 records are read again and 120 not at all: "
    assert (event.message, event.warning) == (f"{message}t/0 40 -> 100, t/1 40 -> 100.", True)
    assert report(rig).time == rig.clock.wall()


async def test_a_time_is_looked_up_at_the_source(rig: Rig) -> None:
    await reading(rig)
    rig.kafka.times[T0] = [float(number) for number in range(100)]
    rig.runtime.apply(declaring(Reset("r1", ResetTo.TIMESTAMP, timestamp=62.5)))
    await comes_to(rig, ResetState.DONE)

    assert sorted(committed(rig).values()) == [63, 100, 100, 100]


async def test_a_time_that_cannot_be_looked_up_now_is_looked_up_again(rig: Rig) -> None:
    await reading(rig)
    rig.kafka.faults.fail("positions_at", SourceUnavailableError("no Kafka broker answers"))
    rig.runtime.apply(declaring(Reset("r1", ResetTo.TIMESTAMP, timestamp=62.5)))
    await comes_to(rig, ResetState.DONE)
    assert set(committed(rig).values()) == {100}


async def test_what_was_decided_is_stored_before_it_is_written_and_finished_by_the_next_leader(rig: Rig) -> None:
    await reading(rig)
    rig.kafka.faults.hold("commit")
    rig.runtime.apply(declaring(Reset("r1", ResetTo.LATEST)))
    await comes_to(rig, ResetState.APPLYING)
    await drain()
    stored = await rig.ownership.load(IDENTITY)
    decided = loads(stored.data).group.reset if stored is not None else None
    assert decided is not None
    assert (decided.state, decided.rows[0]) == (ResetState.APPLYING, ResetRow(T0, 40, 100))
    assert set(committed(rig).values()) == {40}

    await rig.runtime.stop()
    rig.kafka.faults.gates.clear()
    for partition in range(4):
        rig.kafka.append("t", partition, 50)
    again = Rig(beside=rig)
    again.runtime.apply(declaring(None))
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.view.last_reset is not None)
    assert set(committed(rig).values()) == {100}
    assert (again.view.last_reset or report(again)).rows[0] == ResetRow(T0, 40, 100)
    await again.runtime.stop()


@pytest.mark.parametrize("done", [True, False])
async def test_after_a_commit_of_unknown_outcome_it_is_made_all_the_same(rig: Rig, *, done: bool) -> None:
    await reading(rig)
    rig.kafka.faults.fail("commit", OutcomeUnknownError("the broker did not answer"), done=done)
    rig.runtime.apply(declaring(Reset("r1", ResetTo.EARLIEST)))
    await comes_to(rig, ResetState.DONE)
    assert set(committed(rig).values()) == {0}


async def test_a_reset_that_was_made_is_not_made_again_after_a_change_of_leaders(rig: Rig) -> None:
    await reading(rig)
    declared = declaring(Reset("r1", ResetTo.EARLIEST))
    rig.runtime.apply(declared)
    await comes_to(rig, ResetState.DONE)
    await rig.runtime.stop()

    again = Rig(beside=rig)
    rig.kafka.committed["demo.clicks"][T0] = 77
    again.runtime.apply(declared)
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.view.discovered)
    for _ in range(5):
        await drain()
    assert committed(rig)[T0] == 77
    assert report(again).state is ResetState.DONE
    await again.runtime.stop()


@pytest.fixture
async def served(rig: Rig) -> AsyncIterator[CoordinatorServer]:
    for partition in range(4):
        rig.kafka.append("t", partition, 100)
    rig.tokens.callers["a-token"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
    server = CoordinatorServer(rig.ports, host="127.0.0.1", port=0, discovery_interval=0.01, unknown_group_grace=0.0)
    await server.start()
    await server.lead()
    yield server
    await server.stop()


async def test_the_whole_plan_is_looked_at_over_http(rig: Rig, served: CoordinatorServer) -> None:
    url = f"http://127.0.0.1:{served.port}/v1/namespaces/demo/consumergroups/clicks/reset"
    headers = {protocol.PROTOCOL_HEADER: "3", "Authorization": "Bearer a-token"}

    async def get() -> object:
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
            assert response.status == 200
            return json.loads(await response.text())

    served.coordination.apply(declaring(None, paused=False))
    await rig.becomes(lambda: (view := served.coordination.view(IDENTITY)) is not None and view.discovered)
    assert await get() is None

    served.coordination.apply(declaring(Reset("r1", ResetTo.LATEST, dry_run=True), paused=False))

    def planned() -> bool:
        view = served.coordination.view(IDENTITY)
        return view is not None and view.reset is not None and view.reset.state is ResetState.PLANNED

    await rig.becomes(planned)
    body = await get()
    assert isinstance(body, dict)
    assert body["rows"] == [{"shard": f"t/{number}", "before": 0, "after": 100} for number in range(4)]
    assert (body["id"], body["state"], body["skipped"], body["timeMs"]) == (
        "r1",
        "Planned",
        400,
        round(rig.clock.wall() * 1000),
    )
