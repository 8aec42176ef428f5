"""The coordinator over HTTP, on the twins: what may be looked at, and when no answer goes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest

from shardherd import protocol
from shardherd.adapters.memory import MemoryKafka
from shardherd.client import AsyncConsumerClient
from shardherd.coordinator import CoordinatorServer
from shardherd.core.errors import CoordinatorUnavailableError, ForbiddenError, NotLeadingError, UnknownShardError
from shardherd.core.model import ConsumerId, Heartbeat, HeldShard, Incarnation, ShardId
from shardherd.ports import Caller
from tests.unit.coordinator.rig import IDENTITY, Rig, spec_of

BASE = "/v1/namespaces/demo/consumergroups/clicks"
HEARTBEAT = Heartbeat(ConsumerId("clicks-0"), Incarnation("uid-0", 1), 1, 0)


@dataclass
class Service:
    """A server on the twins of a rig."""

    rig: Rig
    server: CoordinatorServer

    @property
    def kafka(self) -> MemoryKafka:
        return self.rig.kafka

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def get(self, path: str, token: str = "a-token") -> tuple[int, Any]:
        """Status and decoded JSON, or text."""
        headers = {protocol.PROTOCOL_HEADER: "1", "Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as session, session.get(self.url + path, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def settled(self) -> None:
        """The group's shards are discovered."""
        await self.rig.becomes(lambda: (view := self.server.coordination.view(IDENTITY)) is not None and len(view.shards) == 4)


@pytest.fixture
async def service(rig: Rig) -> AsyncIterator[Service]:
    rig.tokens.callers["a-token"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks")
    server = CoordinatorServer(rig.ports, host="127.0.0.1", port=0, discovery_interval=0.01, unknown_group_grace=0.0)
    await server.start()
    yield Service(rig, server)
    await server.stop()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncConsumerClient]:
    client = AsyncConsumerClient(service.url, "demo", "clicks", lambda: "a-token")
    yield client
    await client.close()


async def test_it_is_alive_before_it_leads_and_ready_once_its_groups_are_loaded(service: Service) -> None:
    assert await service.get("/healthz") == (200, "ok\n")
    assert await service.get("/readyz") == (503, "not leading\n")

    loading = service.rig.ownership.faults.hold("load")
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    assert await service.get("/readyz") == (503, "groups are being loaded\n")
    loading.set()
    await service.settled()

    assert await service.get("/readyz") == (200, "ok\n")


async def test_a_group_that_cannot_be_loaded_does_not_make_the_others_wait(service: Service) -> None:
    service.kafka.reachable = False
    service.server.coordination.apply(spec_of())
    await service.server.lead()

    await service.rig.becomes(lambda: service.server.coordination.view(IDENTITY) is not None)

    assert await service.get("/readyz") == (200, "ok\n")


async def test_before_it_leads_it_says_so(service: Service, client: AsyncConsumerClient) -> None:
    with pytest.raises(NotLeadingError, match="ask again"):
        await client.heartbeat(HEARTBEAT, 0)


async def test_shards_may_be_looked_at(service: Service, client: AsyncConsumerClient) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()
    await service.rig.becomes(lambda: all(row.checkpoint == 0 for row in service.server.coordination.views()[IDENTITY].shards))
    await client.heartbeat(HEARTBEAT, 0)

    status, everything = await service.get(f"{BASE}/shards")
    one_status, one = await service.get(f"{BASE}/shards/t/2")
    _, group = await service.get(BASE)

    assert (status, one_status) == (200, 200)
    assert [row["shard"] for row in everything] == ["t/0", "t/1", "t/2", "t/3"]
    assert one | {"stateAgeMs": 0} == {
        "shard": "t/2",
        "state": "ALREADY_ALLOC",
        "holder": "clicks-0",
        "nextConsumer": None,
        "ownerEpoch": 1,
        "checkpoint": 0,
        "begin": 0,
        "end": 0,
        "lagRecords": 0,
        "open": True,
        "stateAgeMs": 0,
    }
    assert [row["consumer"] for row in group["consumers"]] == ["clicks-0"]


async def test_checkpoints_are_read_one_by_one_and_all_at_once_also_without_an_owner(service: Service) -> None:
    service.kafka.committed["demo.clicks"] = {ShardId(f"t/{number}"): 10 + number for number in range(4)}
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()

    _, everything = await service.get(f"{BASE}/shards")
    _, one = await service.get(f"{BASE}/shards/t/2")

    assert {row["shard"]: (row["checkpoint"], row["holder"]) for row in everything} == {
        f"t/{number}": (10 + number, None) for number in range(4)
    }
    assert one["checkpoint"] == 12


async def test_a_checkpoint_is_forced_by_a_pod_of_the_group_alone(service: Service, client: AsyncConsumerClient) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()
    shard = ShardId("t/0")
    service.kafka.append("t", 0, 20)
    await service.rig.becomes(lambda: service.server.coordination.views()[IDENTITY].shards[0].checkpoint == 0)

    assert await client.force_checkpoint(shard, 9) == ""
    assert service.kafka.committed["demo.clicks"][shard] == 9

    stranger = AsyncConsumerClient(service.url, "demo", "clicks", lambda: "another-token")
    service.rig.tokens.callers["another-token"] = Caller("demo", "default", "other-0", "uid-9", "other")
    with pytest.raises(ForbiddenError, match="not by the group's StatefulSet"):
        await stranger.force_checkpoint(shard, 5)
    with pytest.raises(UnknownShardError, match="t/9"):
        await client.force_checkpoint(ShardId("t/9"), 5)
    assert service.kafka.committed["demo.clicks"][shard] == 9
    await stranger.close()


async def test_a_shard_that_does_not_exist_is_named(service: Service) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()

    status, body = await service.get(f"{BASE}/shards/t/9")

    assert status == 404
    assert body["error"] == {
        "code": "UnknownShard",
        "message": "group demo/clicks has no shard t/9; list them at .../shards",
        "group": "demo/clicks",
        "shard": "t/9",
    }


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), (f"{BASE}/heartbeat", 405)])
async def test_a_path_that_does_not_exist_is_refused_as_json(service: Service, path: str, status: int) -> None:
    await service.server.lead()

    answered, body = await service.get(path)

    assert (answered, body["error"]["code"]) == (status, "InvalidRequest")


async def test_an_answer_that_comes_too_late_for_the_lease_is_not_sent(service: Service, client: AsyncConsumerClient) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()
    await client.heartbeat(HEARTBEAT, 0)
    reply = await client.heartbeat(replace(HEARTBEAT, seq=2), 0)
    held = tuple(HeldShard(each.shard, each.owner_epoch) for each in reply.confirmed)
    beat = replace(HEARTBEAT, seq=3, revision=reply.revision, held=held)
    parked = asyncio.create_task(client.heartbeat(beat, 0.3))
    await asyncio.sleep(0.1)
    assert not parked.done()

    service.rig.leadership.until = service.rig.clock.now()

    with pytest.raises(CoordinatorUnavailableError, match="no answer from the coordinator"):
        await parked


async def test_losing_the_lease_is_told_to_the_process(service: Service) -> None:
    await service.server.lead()

    service.rig.leadership.lose()

    assert "lease" in await asyncio.wait_for(service.server.lost(), 5)
    assert await service.get("/readyz") == (503, "not leading\n")


async def test_stopping_releases_the_lease(service: Service) -> None:
    await service.server.lead()

    await service.server.stop()

    assert service.rig.leadership.released
