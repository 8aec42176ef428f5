"""The coordinator over HTTP, on the twins: what may be looked at, and when no answer goes out."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from dev.cluster.ports import free_ports
from shardherd import coordinator, protocol
from shardherd.adapters.memory import MemoryKafka
from shardherd.client import AsyncConsumerClient
from shardherd.coordinator import CoordinatorServer, Tls, limits, openapi
from shardherd.coordinator.auth import REMEMBER
from shardherd.core.group.liveness import KEPT_FOR
from shardherd.core.model.errors import CoordinatorUnavailableError, NotLeadingError, ShardherdError, UnknownGroupError
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Heartbeat, HeldShard, Incarnation, ShardId
from shardherd.ports import Caller
from tests.harness.authorities import HOST, Switched, secret, write_bundle
from tests.harness.slow_callers import outlast
from tests.harness.tcp_proxy import TcpProxy
from tests.unit.coordinator.rig import IDENTITY, Rig, spec_of

BASE = "/v1/namespaces/demo/consumergroups/clicks"
HEARTBEAT = Heartbeat(ConsumerId("clicks-0"), Incarnation("uid-0", 1), 1, 0, group_uid=IDENTITY.uid)


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
        headers = {protocol.PROTOCOL_HEADER: "3", "Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as session, session.get(self.url + path, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def settled(self) -> None:
        """The group's shards are discovered."""
        await self.rig.becomes(lambda: (view := self.server.coordination.view(IDENTITY)) is not None and len(view.shards) == 4)


@pytest.fixture
async def service(rig: Rig) -> AsyncIterator[Service]:
    rig.tokens.callers["a-token"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
    server = CoordinatorServer(rig.ports, host="127.0.0.1", port=0, discovery_interval=0.01, unknown_group_grace=0.0)
    await server.start()
    yield Service(rig, server)
    await server.stop()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncConsumerClient]:
    client = AsyncConsumerClient(service.url, "demo", "clicks", lambda: "a-token")
    yield client
    await client.close()


async def test_it_is_ready_to_lead_and_while_it_leads_once_its_groups_are_loaded(service: Service) -> None:
    assert await service.get("/healthz") == (200, "ok\n")
    assert await service.get("/readyz") == (200, "standing by\n")

    loading = service.rig.ownership.faults.hold("load")
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    assert await service.get("/readyz") == (503, "groups are being loaded\n")
    loading.set()
    await service.settled()

    assert await service.get("/readyz") == (200, "ok\n")


@dataclass
class Listed:
    """The API server's word on which groups there are."""

    names: set[str]
    available: bool = True
    asked: int = 0

    async def exists(self, namespace: str, name: str) -> bool:
        self.asked += 1
        if not self.available:
            raise CoordinatorUnavailableError("the API server does not answer")
        return f"{namespace}/{name}" in self.names


async def test_nobody_is_told_that_there_is_no_group_while_the_controller_has_not_come_to_it(rig: Rig) -> None:
    """A consumer that has not joined ends by that answer, and the controller of a busy machine may take a minute."""
    rig.tokens.callers["a-token"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
    listed = Listed({"demo/clicks"})
    server = CoordinatorServer(rig.ports, host="127.0.0.1", port=0, unknown_group_grace=0.0, exists=listed.exists)
    await server.start()
    client = AsyncConsumerClient(f"http://127.0.0.1:{server.port}", "demo", "clicks", lambda: "a-token")
    service = Service(rig, server)
    try:
        await server.lead()
        with pytest.raises(
            CoordinatorUnavailableError, match="demo/clicks is not known yet: the controller has not come to it"
        ):
            await client.heartbeat(HEARTBEAT, 0)
        assert (await service.get(BASE))[0] == 503
        listed.available = False
        with pytest.raises(CoordinatorUnavailableError, match="the API server does not answer"):
            await client.heartbeat(HEARTBEAT, 0)
        listed.available, listed.names = True, set()
        with pytest.raises(UnknownGroupError, match="there is no ConsumerGroup 'clicks' in namespace 'demo'"):
            await client.heartbeat(HEARTBEAT, 0)
        assert (await service.get(BASE))[0] == 404
        server.coordination.apply(spec_of())
        await service.settled()
        asked = listed.asked
        await client.heartbeat(HEARTBEAT, 0)
        assert (await service.get(BASE))[0] == 200
        assert listed.asked == asked, "what is announced is not asked about"
    finally:
        await client.close()
        await server.stop()


async def test_who_may_not_know_of_a_group_has_nobody_asked_about_it(rig: Rig) -> None:
    rig.tokens.callers["a-token"] = Caller("elsewhere", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
    listed = Listed({"demo/clicks"})
    server = CoordinatorServer(rig.ports, host="127.0.0.1", port=0, unknown_group_grace=0.0, exists=listed.exists)
    await server.start()
    try:
        await server.lead()
        service = Service(rig, server)
        assert ((await service.get(BASE))[0], (await service.get("/v1/namespaces/demo/consumergroups/no"))[0]) == (403, 403)
        assert listed.asked == 0
    finally:
        await server.stop()


async def test_a_group_that_cannot_be_loaded_does_not_make_the_others_wait(service: Service) -> None:
    service.kafka.reachable = False
    service.server.coordination.apply(spec_of())
    await service.server.lead()

    await service.rig.becomes(lambda: service.server.coordination.view(IDENTITY) is not None)

    assert await service.get("/readyz") == (200, "ok\n")


async def test_before_it_leads_it_says_so(service: Service, client: AsyncConsumerClient) -> None:
    with pytest.raises(NotLeadingError, match="ask again"):
        await client.heartbeat(HEARTBEAT, 0)


async def test_a_connection_to_one_that_does_not_lead_is_not_gone_on_with_and_one_to_the_leader_is(service: Service) -> None:
    """A Service's connection stays with the pod that it was made to, whoever leads since: only a new one finds the leader."""
    (port,) = free_ports(1)
    way = TcpProxy(f"127.0.0.1:{port}", f"127.0.0.1:{service.server.port}")
    way.start()
    client = AsyncConsumerClient(f"http://127.0.0.1:{port}", "demo", "clicks", lambda: "a-token")
    try:
        for _ in range(3):
            with pytest.raises(NotLeadingError):
                await client.heartbeat(HEARTBEAT, 0)
        assert way.connections == 3
        service.server.coordination.apply(spec_of())
        await service.server.lead()
        await service.settled()
        for seq in range(2, 5):
            await client.heartbeat(replace(HEARTBEAT, seq=seq), 0)
        assert way.connections == 4
    finally:
        await client.close()
        way.close()


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
        "present": True,
        "stateAgeMs": 0,
        "zone": "",
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


async def test_who_waits_to_be_told_to_send_its_body_is_told(service: Service) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()
    headers = {protocol.PROTOCOL_HEADER: "3", "Authorization": "Bearer a-token"}

    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{service.url}{BASE}/heartbeat", data=protocol.dumps(HEARTBEAT), headers=headers, expect100=True
        ) as response,
    ):
        assert response.status == 200


async def test_a_refusal_before_the_call_is_looked_at_names_the_group(service: Service) -> None:
    status, body = await service.get(f"{BASE}/shards")
    assert (status, body["error"]["code"], body["error"]["group"]) == (503, "NotLeading", "demo/clicks")


async def test_what_a_path_encodes_without_need_is_read(service: Service) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()

    assert (await service.get("/health%7A"))[0] == 200
    assert (await service.get(f"{BASE}/sh%61rds/%74/0"))[0] == 200
    status, body = await service.get(f"{BASE}/shards/t%2F/%FF")
    assert (status, body["error"]["shard"]) == (404, "t//%FF")


async def test_health_may_be_asked_for_without_its_text(service: Service) -> None:
    async with aiohttp.ClientSession() as session, session.head(f"{service.url}/healthz") as response:
        assert (response.status, await response.text()) == (200, "")
    async with aiohttp.ClientSession() as session, session.post(f"{service.url}/healthz") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")
    async with aiohttp.ClientSession() as session, session.get(f"{service.url}/metrics") as response:
        assert response.status == 404


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a%2F..%2Fkube-system/consumergroups/clicks", "the namespace in the path is 'a/../kube-system'"),
        ("demo/consumergroups/clicks%2F..", "the name in the path is 'clicks/..'"),
        ("demo/consumergroups/Clicks", "the name in the path is 'Clicks'"),
        ("demo/consumergroups/-clicks", "the name in the path is '-clicks'"),
        ("demo/consumergroups/clicks-", "the name in the path is 'clicks-'"),
        (f"demo/consumergroups/{'a' * 64}", f"the name in the path is '{'a' * 64}'"),
        (f"{'a' * 1000}/consumergroups/clicks", f"the namespace in the path is '{'a' * 80}'"),
    ],
)
async def test_what_cannot_name_a_group_gets_no_further_than_the_path(service: Service, path: str, message: str) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()

    status, body = await service.get(f"/v1/namespaces/{path}")

    remedy = "; it must be that of a ConsumerGroup: lower-case letters, digits and '-', at most 63"
    assert (status, body) == (400, {"error": {"code": "InvalidRequest", "message": message + remedy}})


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


async def test_resigning_refuses_what_is_parked_answers_nothing_more_and_releases_the_lease(
    service: Service, client: AsyncConsumerClient
) -> None:
    service.server.coordination.apply(spec_of())
    await service.server.lead()
    await service.settled()
    await client.heartbeat(HEARTBEAT, 0)
    reply = await client.heartbeat(replace(HEARTBEAT, seq=2), 0)
    held = tuple(HeldShard(each.shard, each.owner_epoch) for each in reply.confirmed)
    service.rig.clock.advance(1.0)
    parked = asyncio.create_task(client.heartbeat(replace(HEARTBEAT, seq=3, revision=reply.revision, held=held), 30.0))
    await service.rig.becomes(lambda: service.server.coordination.views()[IDENTITY].consumers[0].heartbeat_age == 0.0)

    await service.server.resign()

    with pytest.raises(CoordinatorUnavailableError):
        await parked
    with pytest.raises(NotLeadingError):
        await client.heartbeat(replace(HEARTBEAT, seq=4), 0)
    assert service.rig.leadership.released
    assert await service.get("/readyz") == (503, "not leading\n")


async def test_a_group_that_is_applied_after_resigning_is_not_served(service: Service) -> None:
    await service.server.lead()
    await service.server.resign()

    service.server.coordination.apply(spec_of())

    assert service.server.coordination.view(IDENTITY) is None
    assert service.rig.ownership.saves == 0


async def test_stopping_releases_the_lease(service: Service) -> None:
    await service.server.lead()

    await service.server.stop()

    assert service.rig.leadership.released


ADMIN = Caller("ops", "admin", "", "", "", "system:serviceaccount:ops:admin")


async def leading(service: Service, spec: GroupSpec | None = None) -> None:
    """The group is served, and the positions of its shards are known."""
    service.server.coordination.apply(spec or spec_of())
    await service.server.lead()
    await service.settled()
    await service.rig.becomes(lambda: all(row.checkpoint == 0 for row in service.server.coordination.views()[IDENTITY].shards))


async def send(
    service: Service, method: str, path: str, body: bytes | AsyncIterator[bytes], **headers: str
) -> tuple[int, Any, Any]:
    """Status, headers and decoded JSON."""
    sent = {protocol.PROTOCOL_HEADER: "3", "Authorization": "Bearer a-token"} | headers
    async with aiohttp.ClientSession() as session, session.request(method, service.url + path, data=body, headers=sent) as got:
        return got.status, got.headers, json.loads(await got.text())


async def test_a_checkpoint_is_forced_by_whom_a_role_allows_it_and_fences_the_holder(
    service: Service, client: AsyncConsumerClient
) -> None:
    await leading(service)
    await client.heartbeat(HEARTBEAT, 0)
    service.rig.tokens.callers["admin"] = ADMIN
    service.rig.tokens.rights.add((ADMIN.user, "update", "demo", "clicks"))

    answer = await send(service, "PUT", f"{BASE}/shards/t/1/checkpoint", b'{"offset":7}', Authorization="Bearer admin")

    assert (answer[0], answer[2]) == (200, {"warning": ""})
    (row,) = [each for each in service.server.coordination.views()[IDENTITY].shards if each.shard == "t/1"]
    assert (row.checkpoint, row.owner_epoch, row.holder) == (7, 2, "clicks-0")


async def test_no_consumer_may_force_a_checkpoint(service: Service) -> None:
    await leading(service)

    status, _, body = await send(service, "PUT", f"{BASE}/shards/t/1/checkpoint", b'{"offset":7}')

    assert (status, body["error"]["code"], body["error"]["group"]) == (403, "Forbidden", "demo/clicks")
    assert body["error"]["message"] == (
        "'default' may not update consumergroups/checkpoints of it; a Role must allow that for group demo/clicks"
    )


async def test_a_forced_checkpoint_that_was_not_written_is_not_acknowledged(service: Service) -> None:
    await leading(service)
    service.rig.tokens.callers["admin"] = ADMIN
    service.rig.tokens.rights.add((ADMIN.user, "update", "demo", "clicks"))
    service.kafka.reachable = False

    answer = await send(service, "PUT", f"{BASE}/shards/t/1/checkpoint", b'{"offset":7}', Authorization="Bearer admin")

    assert (answer[0], answer[2]["error"]["shard"], answer[2]["error"]["group"]) == (503, "t/1", "demo/clicks")
    assert "was not written; ask again" in answer[2]["error"]["message"]


@pytest.mark.parametrize(("rights", "status"), [({"get"}, 200), ({"update"}, 403), (set(), 403)])
async def test_who_is_no_consumer_looks_at_a_group_if_a_role_allows_it(service: Service, rights: set[str], status: int) -> None:
    await leading(service)
    service.rig.tokens.callers["admin"] = ADMIN
    service.rig.tokens.rights |= {(ADMIN.user, verb, "demo", "clicks") for verb in rights}

    answered, _ = await service.get(f"{BASE}/shards", token="admin")

    assert answered == status


async def test_a_body_of_the_limit_is_read_and_one_byte_more_is_refused(rig: Rig) -> None:
    rig.tokens.callers["a-token"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
    server = CoordinatorServer(rig.ports, host="127.0.0.1", port=0, unknown_group_grace=0.0, max_body=2048)
    await server.start()
    service = Service(rig, server)
    await leading(service)
    whole = protocol.dumps(HEARTBEAT)

    fits = await send(service, "POST", f"{BASE}/heartbeat", whole + b" " * (2048 - len(whole)))
    over = await send(service, "POST", f"{BASE}/heartbeat", whole + b" " * (2049 - len(whole)))
    await server.stop()

    assert fits[0] == 200
    assert (over[0], over[2]["error"]["code"], over[2]["error"]["group"]) == (413, "InvalidRequest", "demo/clicks")
    assert over[2]["error"]["message"] == (
        "the body is larger than 2048 bytes, which api.maxBodyBytes of the chart allows; name fewer shards"
    )


async def test_a_large_body_that_does_not_arrive_is_refused_and_the_next_one_is_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_WITHIN", 0.05)
    await leading(service)
    whole, go_on = protocol.dumps(HEARTBEAT), asyncio.Event()

    async def never() -> AsyncIterator[bytes]:
        yield whole[:10]
        await go_on.wait()
        yield whole[10:]

    status, _, answer = await asyncio.wait_for(send(service, "POST", f"{BASE}/heartbeat", never()), timeout=10)
    go_on.set()
    after = await send(service, "POST", f"{BASE}/heartbeat", whole + b" " * (limits.LARGE + 1))

    assert (status, answer["error"]["code"], after[0]) == (408, "CoordinatorUnavailable", 200)
    assert answer["error"]["message"] == "the body did not arrive within 0.05 s; send it again"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity, gzip", "x-unknown"])
async def test_a_body_that_would_have_to_be_unpacked_is_refused_unread(service: Service, encoding: str) -> None:
    await leading(service)

    status, _, body = await send(
        service, "POST", f"{BASE}/heartbeat", gzip.compress(protocol.dumps(HEARTBEAT)), **{"Content-Encoding": encoding}
    )

    message = f"header Content-Encoding is {encoding!r}; leave it out, and send the body as plain JSON"
    assert (status, body) == (415, {"error": {"code": "InvalidRequest", "message": message, "group": "demo/clicks"}})


async def test_a_zone_that_no_view_could_show_is_refused_and_the_group_may_be_looked_at(service: Service) -> None:
    await leading(service)
    sent = json.dumps(protocol.encode(HEARTBEAT) | {"zone": "\ud800"}).encode()

    status, _, body = await send(service, "POST", f"{BASE}/heartbeat", sent)

    message = r'field Heartbeat.zone is "\ud800"; it must be a string of printable characters'
    assert (status, body) == (400, {"error": {"code": "InvalidRequest", "message": message, "group": "demo/clicks"}})
    assert (await service.get(BASE))[0] == 200


async def test_a_body_that_is_sent_as_it_is_may_be_called_so(service: Service) -> None:
    await leading(service)

    answer = await send(
        service, "POST", f"{BASE}/heartbeat", protocol.dumps(HEARTBEAT), **{"Content-Encoding": "identity", "Accept": "*/*"}
    )

    assert answer[0] == 200


async def test_a_body_that_breaks_the_rules_of_http_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    await leading(service)

    async def broken(_self: web.BaseRequest) -> bytes:
        raise web.RequestPayloadError("400, message:\n  Invalid chunk size")

    monkeypatch.setattr(web.BaseRequest, "read", broken)

    status, _, body = await send(service, "POST", f"{BASE}/heartbeat", protocol.dumps(HEARTBEAT))

    message = (
        "the body is not sent as HTTP has it: '400, message: Invalid chunk size'; send it whole, or in chunks of the"
        " lengths told"
    )
    assert (status, body) == (400, {"error": {"code": "InvalidRequest", "message": message, "group": "demo/clicks"}})


async def first_line(service: Service, sent: bytes) -> bytes:
    """The first line of the answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    writer.write(sent)
    answer = await asyncio.wait_for(until_its_end(reader), timeout=10)
    writer.close()
    return answer.splitlines()[0]


async def test_what_is_no_http_is_one_line_of_the_log_however_often_it_is_sent(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = b"GET / HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n"

    answers = [await first_line(service, wrong) for _ in range(5)]

    assert answers == [b"HTTP/1.0 400 Bad Request"] * 5
    lines = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert [(each.name, each.exc_info) for each in lines] == [("shardherd.coordinator.server", None)]
    assert lines[0].getMessage().startswith("a request from 127.0.0.1 is no HTTP: ")


async def until_its_end(reader: asyncio.StreamReader) -> bytes:
    """All that is received. A connection that is closed while we still send is reset."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(4096):
            received += part
    return received


async def drip(service: Service, length: int) -> tuple[bytes, bytes]:
    """Send a heartbeat's body byte by byte until the connection is ended. Returns the answer's head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    head = f"POST {BASE}/heartbeat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a-token\r\nContent-Length: {length}\r\n"
    writer.write(f"{head}{protocol.PROTOCOL_HEADER}: 3\r\n\r\n".encode())
    answered = asyncio.ensure_future(until_its_end(reader))
    while not answered.done():
        writer.write(b" ")
        await asyncio.wait([answered], timeout=0.005)
    writer.close()
    answer, _, body = (await answered).partition(b"\r\n\r\n")
    return answer, body


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for nobody for long."""
    monkeypatch.setattr(limits, "BODY_WITHIN", 0.2)
    monkeypatch.setattr(coordinator.server, "LINGER", 0.1)


@pytest.mark.parametrize("length", [limits.LARGE, limits.LARGE + 1])
@pytest.mark.usefixtures("brief")
async def test_who_sends_a_body_byte_by_byte_is_told_so_and_loses_the_connection(service: Service, length: int) -> None:
    await leading(service)

    head, body = await asyncio.wait_for(drip(service, length), timeout=10)

    assert head.splitlines()[0] == b"HTTP/1.1 408 Request Timeout"
    message = "the body did not arrive within 0.2 s; send it again"
    assert json.loads(body) == {"error": {"code": "CoordinatorUnavailable", "message": message, "group": "demo/clicks"}}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for no request for long."""
    monkeypatch.setattr(coordinator.server, "HEAD_WITHIN", 0.2)


@pytest.mark.usefixtures("impatient")
async def test_who_sends_the_head_of_a_request_byte_by_byte_loses_the_connection(service: Service) -> None:
    await leading(service)
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

    for begun in (b"GET /healthz HTTP/1.1\r\nX-Slow: ", whole + b"GET"):
        await asyncio.wait_for(asyncio.to_thread(outlast, service.server.port, 3, begun), timeout=10)

    assert (await service.get("/healthz"))[0] == 200


@pytest.mark.parametrize("query", ["waitMs=999999999", "trace=7&waitMs=999999999", "waitMs=%39%3999&seq=2"])
async def test_a_heartbeat_is_parked_no_longer_than_the_api_allows(
    service: Service, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(openapi, "MAX_WAIT", 0.05)
    await leading(service)
    first = await send(service, "POST", f"{BASE}/heartbeat", protocol.dumps(HEARTBEAT))
    held = [{key: each[key] for key in ("shard", "ownerEpoch")} for each in first[2]["confirmed"]]
    body = protocol.encode(HEARTBEAT) | {"seq": 2, "revision": first[2]["revision"], "held": held}

    answer = await asyncio.wait_for(send(service, "POST", f"{BASE}/heartbeat?{query}", json.dumps(body).encode()), timeout=5)

    assert (answer[0], answer[2]["confirmed"]) == (200, first[2]["confirmed"])


@pytest.mark.parametrize("wrong", ["soon", "-1", "1.5", "1234567890", ""])
async def test_a_time_to_wait_that_is_no_number_of_milliseconds_is_refused(service: Service, wrong: str) -> None:
    await leading(service)

    status, _, body = await send(service, "POST", f"{BASE}/heartbeat?waitMs={wrong}", protocol.dumps(HEARTBEAT))

    message = f"query parameter waitMs is {wrong!r}; it must be a number of milliseconds, 0 or more"
    assert (status, body) == (400, {"error": {"code": "InvalidRequest", "message": message, "group": "demo/clicks"}})


async def test_a_caller_whose_pod_is_gone_by_the_time_its_body_has_arrived_is_refused(service: Service) -> None:
    """The list of superseded pods may forget its UID soon; what was believed when the request began does not count."""
    await leading(service)
    tokens, whole = service.rig.tokens, protocol.dumps(HEARTBEAT)

    async def slow() -> AsyncIterator[bytes]:
        yield whole[:10]
        await service.rig.becomes(lambda: tokens.reviews == 1)
        del tokens.callers["a-token"]
        service.rig.clock.advance(REMEMBER)
        yield whole[10:]

    status, _, answer = await send(service, "POST", f"{BASE}/heartbeat", slow())

    assert (status, answer["error"]["code"]) == (401, "Unauthenticated")
    assert service.server.coordination.views()[IDENTITY].consumers == ()


def test_the_list_of_superseded_pods_remembers_for_longer_than_a_token_is_believed() -> None:
    assert KEPT_FOR > 2 * REMEMBER


@pytest.mark.parametrize(("asked", "status"), [("2", 426), ("3", 200), ("4", 200), ("5", 426)])
async def test_a_coordinator_serves_its_version_and_the_one_before(service: Service, asked: str, status: int) -> None:
    await leading(service)

    answer = await send(service, "POST", f"{BASE}/heartbeat", protocol.dumps(HEARTBEAT), **{protocol.PROTOCOL_HEADER: asked})

    assert answer[0] == status
    if status == 426:
        assert answer[1]["Upgrade"] == "shardherd/4"
        assert answer[2]["error"]["code"] == "ProtocolVersion"
        assert f"names version '{asked}', this coordinator serves version 3 and 4" in answer[2]["error"]["message"]


@pytest.mark.parametrize(("asked", "status"), [("3", 426), ("4", 200)])
async def test_a_consumer_that_would_read_past_the_end_of_a_shard_is_refused(service: Service, asked: str, status: int) -> None:
    spec = spec_of()
    await leading(service, dataclasses.replace(spec, source=dataclasses.replace(spec.kafka, ending_timestamp=1_700_000_000.0)))

    answer = await send(service, "POST", f"{BASE}/heartbeat", protocol.dumps(HEARTBEAT), **{protocol.PROTOCOL_HEADER: asked})

    assert answer[0] == status
    if status == 426:
        assert "consumers read past the spec.source.kafka.endingTimestamp of group" in answer[2]["error"]["message"]


class TestTls:
    """The same coordinator over TLS, and over plain HTTP as it was before."""

    async def serve(self, rig: Rig, switched: Switched, *, accept_plain: bool, certified: bool = True) -> CoordinatorServer:
        rig.tokens.callers["a-token"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
        tls = Tls(switched.context, 0, lambda: certified, accept_plain)
        server = CoordinatorServer(rig.ports, host=HOST, port=0, discovery_interval=0.01, unknown_group_grace=0.0, tls=tls)
        await server.start()
        return server

    @pytest.mark.parametrize("accept_plain", [True, False])
    async def test_a_call_over_tls_is_answered(self, rig: Rig, tmp_path: Path, accept_plain: bool) -> None:
        data = secret()
        server = await self.serve(rig, Switched(data), accept_plain=accept_plain)
        await leading(Service(rig, server))
        ca_file = write_bundle(tmp_path / "ca.crt", data)
        url = f"https://{HOST}:{server.tls_port}"
        async with AsyncConsumerClient(url, "demo", "clicks", lambda: "a-token", ca_file=ca_file) as client:
            assert (await client.heartbeat(HEARTBEAT, 0)).session_timeout == 45.0
        await server.stop()

    @pytest.mark.parametrize(("accept_plain", "status"), [(True, 200), (False, 403)])
    async def test_a_call_over_plain_http_is_answered_where_that_is_allowed(
        self, rig: Rig, accept_plain: bool, status: int
    ) -> None:
        server = await self.serve(rig, Switched(secret()), accept_plain=accept_plain)
        service = Service(rig, server)
        await leading(service)
        answered, body = await service.get(BASE)
        assert answered == status
        if not accept_plain:
            assert body["error"]["message"] == (
                "this coordinator answers over HTTPS only (tls.acceptPlain of the chart is false); delete this pod, and the one"
                " that is made in its place knows the address"
            )
            assert rig.registry.get_sample_value("shardherd_callers_refused_total", {"reason": "PlainHttp"}) == 1
        assert await service.get("/readyz") == (200, "ok\n")
        await server.stop()

    async def test_it_is_not_ready_before_it_has_a_certificate(self, rig: Rig) -> None:
        server = await self.serve(rig, Switched(secret()), accept_plain=True, certified=False)
        service = Service(rig, server)
        assert await service.get("/healthz") == (200, "ok\n")
        assert await service.get("/readyz") == (503, "there is no certificate to serve with yet; the log says why\n")
        await server.stop()


async def test_who_calls_too_often_is_told_when_to_come_again_and_counted(rig: Rig) -> None:
    rig.tokens.callers |= {
        f"token-{number}": Caller("demo", "default", f"clicks-{number}", f"uid-{number}", "clicks", group_uid=IDENTITY.uid)
        for number in range(2)
    }
    server = CoordinatorServer(rig.ports, host=HOST, port=0, unknown_group_grace=0.0, requests_per_second=0.4)
    await server.start()
    service = Service(rig, server)
    await leading(service)
    mine, other = {"Authorization": "Bearer token-0"}, {"Authorization": "Bearer token-1"}

    assert [(await send(service, "GET", BASE, b"", **mine))[0] for _ in range(2)] == [200, 200]
    status, headers, answer = await send(service, "GET", BASE, b"", **mine)
    assert (await send(service, "GET", BASE, b"", **other))[0] == 200
    refused = rig.registry.get_sample_value("shardherd_callers_refused_total", {"reason": "TooManyRequests"})
    rig.clock.advance(2.5)
    again = await send(service, "GET", BASE, b"", **mine)
    await server.stop()

    assert (status, headers["Retry-After"], answer["error"]["code"]) == (429, "3", "TooManyRequests")
    assert answer["error"]["message"] == (
        "'clicks-0' calls more often than api.requestsPerSecond of the chart allows; call again after 2.50 s"
    )
    assert refused == 1
    assert again[0] == 200


async def test_an_address_that_shows_unknown_tokens_too_often_is_told_so_and_the_known_go_on(rig: Rig) -> None:
    rig.tokens.callers["known"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
    server = CoordinatorServer(rig.ports, host=HOST, port=0, unknown_group_grace=0.0, requests_per_second=1)
    await server.start()
    service = Service(rig, server)
    await leading(service)

    async def shown(token: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        return await send(service, "GET", BASE, b"", Authorization=f"Bearer {token}")

    assert (await shown("known"))[0] == 200
    assert [(await shown(f"forged-{number}"))[0] for number in range(4)] == [401] * 4
    reviewed = rig.tokens.reviews
    status, headers, answer = await shown("forged-4")
    forged_before = (await shown("forged-0"))[0]
    known = (await shown("known"))[0]
    rig.clock.advance(1.0)
    again = (await shown("forged-4"))[0]
    await server.stop()

    assert (status, headers["Retry-After"], answer["error"]["code"]) == (429, "1", "TooManyRequests")
    assert answer["error"]["message"] == (
        f"{HOST} shows tokens that are not known more often than api.requestsPerSecond of the chart allows; "
        "call again after 1.00 s"
    )
    assert (forged_before, known, again) == (401, 200, 401)
    assert (reviewed, rig.tokens.reviews) == (5, 6)
    assert rig.registry.get_sample_value("shardherd_callers_refused_total", {"reason": "TooManyRequests"}) == 1


async def test_of_a_group_that_it_does_not_have_it_says_what_it_is_told_to_say_and_of_others_nothing(rig: Rig) -> None:
    rig.tokens.callers["a-token"] = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
    asked: list[tuple[str, str]] = []

    def refusal(namespace: str, name: str) -> ShardherdError | None:
        asked.append((namespace, name))
        return UnknownGroupError(f"{namespace} is not served here") if name == "clicks" else None

    server = CoordinatorServer(rig.ports, host=HOST, port=0, discovery_interval=0.01, unknown_group_grace=0.0, refusal=refusal)
    await server.start()
    try:
        service = Service(rig, server)
        await server.lead()
        status, said = await service.get(BASE)
        assert (status, said["error"]["code"], said["error"]["message"]) == (404, "UnknownGroup", "demo is not served here")
        _, said = await service.get("/v1/namespaces/demo/consumergroups/views")
        assert said["error"]["message"].startswith("there is no ConsumerGroup 'views' in namespace 'demo'")
        asked.clear()
        server.coordination.apply(spec_of())
        await service.settled()
        assert (await service.get(BASE))[0] == 200
        assert asked == []
    finally:
        await server.stop()
