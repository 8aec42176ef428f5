"""Spans of consumers' requests: of what they were asked, how it was decided, and which writes they waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from shardherd import protocol
from shardherd.adapters.traces.requests import RequestTraces
from shardherd.adapters.traces.stores import TracedConnector, TracedOwnership
from shardherd.client import AsyncConsumerClient
from shardherd.client.traced import CarriesNothing, TracedCoordinator, headers
from shardherd.coordinator import CoordinatorServer
from shardherd.core.model.errors import CoordinatorUnavailableError, StaleIncarnationError
from shardherd.core.model.nouns import (
    CheckpointRequest,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    HeldShard,
    Incarnation,
    Leave,
    ShardCheckpoint,
)
from shardherd.ports import Caller, OwnershipUnavailableError
from tests.harness.spans import Shown, Spans
from tests.unit.coordinator.rig import IDENTITY, Rig, spec_of

BASE = "/v1/namespaces/demo/consumergroups/clicks"
NAME, RUN = ConsumerId("clicks-0"), Incarnation("uid-0", 1)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Watched:
    """A coordinator whose spans stay here, with a consumer that holds all of its shards."""

    rig: Rig
    server: CoordinatorServer
    spans: Spans
    client: AsyncConsumerClient
    reply: HeartbeatReply | None = None

    def heartbeat(self, seq: int) -> Heartbeat:
        confirmed = self.reply.confirmed if self.reply is not None else ()
        held = tuple(HeldShard(each.shard, each.owner_epoch) for each in confirmed)
        return Heartbeat(NAME, RUN, seq, self.reply.revision if self.reply else 0, held, group_uid=IDENTITY.uid)

    def checkpoint(self, offset: int) -> CheckpointRequest:
        assert self.reply is not None
        wanted = tuple(ShardCheckpoint(each.shard, each.owner_epoch, offset) for each in self.reply.confirmed)
        return CheckpointRequest(NAME, RUN, wanted, IDENTITY.uid)

    async def beat(self, seq: int) -> None:
        self.reply = await self.client.heartbeat(self.heartbeat(seq), 0)

    async def post(self, call: str, body: bytes, **headers: str) -> int:
        """The status of a call as it stands here."""
        said = {protocol.PROTOCOL_HEADER: "3", "Authorization": "Bearer a-token", **headers}
        url = f"http://127.0.0.1:{self.server.port}{BASE}/{call}"
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=said) as response:
            await response.read()
            return response.status


async def served(rig: Rig, **settings: str) -> AsyncIterator[Watched]:
    rig.tokens.callers["a-token"] = Caller("demo", "default", NAME, RUN.pod_uid, "clicks", group_uid=IDENTITY.uid)
    spans = Spans(**settings)
    traces = RequestTraces(spans.tracer)
    ports = replace(
        rig.ports,
        ownership=TracedOwnership(rig.ownership, traces),
        connector=TracedConnector(rig.ports.connector, traces),
        observer=traces,
    )
    server = CoordinatorServer(ports, host="127.0.0.1", port=0, discovery_interval=0.01, unknown_group_grace=0.0)
    await server.start()
    server.coordination.apply(spec_of())
    await server.lead()
    await rig.becomes(lambda: (view := server.coordination.view(IDENTITY)) is not None and len(view.shards) == 4)
    await rig.becomes(lambda: all(row.checkpoint == 0 for row in server.coordination.views()[IDENTITY].shards))
    client = AsyncConsumerClient(f"http://127.0.0.1:{server.port}", "demo", "clicks", lambda: "a-token")
    yield Watched(rig, server, spans, client)
    await client.close()
    await server.stop()


@pytest.fixture
async def watched(rig: Rig) -> AsyncIterator[Watched]:
    async for each in served(rig):
        yield each


def of_heartbeat(seq: int, *, held: int, confirmed: int, revision: int, status: int = 200) -> dict[str, Any]:
    return {
        "shardherd.group": "demo/clicks",
        "shardherd.consumer": "clicks-0",
        "shardherd.heartbeat": seq,
        "shardherd.shards.held": held,
        "shardherd.phase": "",
        "shardherd.wait": 0.0,
        "shardherd.outcome": "ok",
        "shardherd.revision": revision,
        "shardherd.shards.confirmed": confirmed,
        "http.request.method": "POST",
        "http.response.status_code": status,
    }


def decided(changed: int = 0, *, persists: bool = False, positions: int = 0, causes: tuple[str, ...] = ()) -> Shown:
    return Shown(
        "decide",
        {
            "shardherd.outcome": "ok",
            "shardherd.shards.changed": changed,
            "shardherd.persists": persists,
            "shardherd.positions": positions,
            **({"shardherd.rebalance": causes} if causes else {}),
        },
    )


async def test_a_heartbeat_shows_its_decision_and_the_write_of_the_ownership_that_it_waited_for(watched: Watched) -> None:
    await watched.beat(1)
    assert watched.reply is not None
    (heartbeat,) = watched.spans.shown()
    (_, write) = heartbeat.children

    assert heartbeat == Shown(
        "heartbeat",
        of_heartbeat(1, held=0, confirmed=4, revision=watched.reply.revision),
        (
            decided(4, persists=True, causes=("ShardsAppeared",)),
            Shown(
                "write ownership",
                {
                    "shardherd.write.bytes": write.attributes["shardherd.write.bytes"],
                    "shardherd.write.requests": 1,
                    "shardherd.outcome": "ok",
                },
            ),
        ),
    )
    assert write.attributes["shardherd.write.bytes"] > 100


async def test_a_heartbeat_that_changes_nothing_waits_for_no_write(watched: Watched) -> None:
    await watched.beat(1)
    watched.spans.exporter.clear()
    await watched.beat(2)
    assert watched.reply is not None

    assert watched.spans.shown() == [
        Shown("heartbeat", of_heartbeat(2, held=4, confirmed=4, revision=watched.reply.revision), (decided(),))
    ]


async def test_a_checkpoint_shows_the_commit_of_its_offsets(watched: Watched) -> None:
    await watched.beat(1)
    watched.spans.exporter.clear()
    await watched.client.checkpoint(watched.checkpoint(10))

    assert watched.spans.shown() == [
        Shown(
            "checkpoint",
            {
                "shardherd.group": "demo/clicks",
                "shardherd.consumer": "clicks-0",
                "shardherd.shards": 4,
                "shardherd.outcome": "ok",
                "shardherd.checkpoints.ok": 4,
                "http.request.method": "POST",
                "http.response.status_code": 200,
            },
            (
                decided(positions=4),
                Shown("commit offsets", {"shardherd.shards": 4, "shardherd.write.requests": 1, "shardherd.outcome": "ok"}),
            ),
        )
    ]


async def test_checkpoints_that_share_a_commit_have_a_span_of_it_each(watched: Watched) -> None:
    await watched.beat(1)
    watched.spans.exporter.clear()
    before = watched.rig.kafka.faults.entered["commit"]
    commit = watched.rig.kafka.faults.hold("commit")
    whole = watched.checkpoint(10)
    parts = [of_shards(whole, whole.checkpoints[at]) for at in (slice(0, 1), slice(1, 2), slice(2, 4))]
    first = asyncio.create_task(watched.client.checkpoint(parts[0]))
    await watched.rig.becomes(lambda: watched.rig.kafka.faults.entered["commit"] > before)
    rest = [asyncio.create_task(watched.client.checkpoint(each)) for each in parts[1:]]
    await watched.rig.becomes(lambda: named(watched.spans.ended).count("decide") == 3)
    commit.set()
    await asyncio.gather(first, *rest)

    commits = [dict(span.attributes or {}) for span in watched.spans.ended if span.name == "commit offsets"]
    alone = {"shardherd.shards": 1, "shardherd.write.requests": 1, "shardherd.outcome": "ok"}
    shared = {"shardherd.shards": 3, "shardherd.write.requests": 2, "shardherd.outcome": "ok"}
    assert commits == [alone, shared, shared]
    assert [len(each.children) for each in watched.spans.shown()] == [2, 2, 2]


async def test_a_write_that_fails_says_with_what(watched: Watched) -> None:
    watched.rig.ownership.faults.fail("save", OwnershipUnavailableError("the API server is away"), times=2)
    with pytest.raises(CoordinatorUnavailableError):
        await watched.beat(1)
    (heartbeat,) = watched.spans.shown()

    assert heartbeat.attributes["shardherd.outcome"] == "CoordinatorUnavailable"
    assert [(each.name, each.attributes["shardherd.outcome"]) for each in heartbeat.children] == [
        ("decide", "ok"),
        ("write ownership", "OwnershipUnavailableError"),
        ("write ownership", "OwnershipUnavailableError"),
    ]
    assert {span.name for span in watched.spans.ended if span.status.status_code is StatusCode.ERROR} == {
        "heartbeat",
        "write ownership",
    }


async def test_a_refusal_says_with_which_code(watched: Watched) -> None:
    await watched.beat(1)
    await watched.client.leave(Leave(NAME, RUN, IDENTITY.uid))
    watched.spans.exporter.clear()
    with pytest.raises(StaleIncarnationError):
        await watched.beat(2)
    (heartbeat,) = watched.spans.shown()

    assert heartbeat.attributes["shardherd.outcome"] == "StaleIncarnation"
    assert heartbeat.children == (Shown("decide", {"shardherd.outcome": "StaleIncarnation"}),)


async def test_a_heartbeat_that_its_consumer_gives_up_says_so(watched: Watched) -> None:
    await watched.beat(1)
    await watched.beat(2)
    watched.spans.exporter.clear()
    parked = asyncio.create_task(watched.client.heartbeat(watched.heartbeat(3), 30.0))
    await watched.rig.becomes(lambda: "decide" in named(watched.spans.ended))
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)
    await watched.rig.becomes(lambda: "heartbeat" in named(watched.spans.ended))
    (heartbeat,) = watched.spans.shown()

    assert heartbeat.attributes["shardherd.outcome"] == "given up"


async def test_a_request_is_part_of_the_trace_of_its_consumer(watched: Watched) -> None:
    body = protocol.dumps(Leave(NAME, RUN, IDENTITY.uid))
    assert await watched.post("leave", body, traceparent=PARENT) == 204
    leave = next(span for span in watched.spans.ended if span.name == "leave")

    assert leave.parent is not None
    assert leave.context is not None
    assert leave.kind is SpanKind.SERVER
    assert f"00-{leave.context.trace_id:032x}-{leave.parent.span_id:016x}-01" == PARENT


async def test_consumer_and_coordinator_have_one_trace_together(watched: Watched) -> None:
    await watched.beat(1)
    watched.spans.exporter.clear()
    client = AsyncConsumerClient(
        f"http://127.0.0.1:{watched.server.port}", "demo", "clicks", lambda: "a-token", headers=headers
    )
    traced = TracedCoordinator(client, watched.spans.tracer, "demo/clicks", CarriesNothing())
    await traced.checkpoint(watched.checkpoint(10))
    await client.close()
    await watched.rig.becomes(lambda: len(watched.spans.ended) == 4)
    (sent,) = watched.spans.shown()
    (answered,) = sent.children

    assert (sent.name, answered.name) == ("checkpoint", "checkpoint")
    assert [each.name for each in answered.children] == ["decide", "commit offsets"]


async def test_who_shows_no_valid_token_leaves_no_trace(watched: Watched) -> None:
    body = protocol.dumps(watched.heartbeat(1))
    assert await watched.post("heartbeat", body, Authorization="Bearer another", traceparent=PARENT) == 401

    assert watched.spans.ended == ()


async def test_what_is_not_sampled_leaves_no_trace_and_what_its_consumer_samples_does(rig: Rig) -> None:
    settings = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
    async for watched in served(rig, **settings):
        await watched.beat(1)
        await watched.client.checkpoint(watched.checkpoint(10))
        assert watched.spans.ended == ()
        await watched.post("heartbeat", protocol.dumps(watched.heartbeat(2)), traceparent=PARENT)
        assert named(watched.spans.ended) == ["decide", "heartbeat"]


async def test_nothing_of_a_request_is_kept_when_it_is_over(watched: Watched) -> None:
    await watched.beat(1)
    await watched.client.checkpoint(watched.checkpoint(10))
    await watched.client.leave(Leave(NAME, RUN, IDENTITY.uid))
    with pytest.raises(StaleIncarnationError):
        await watched.beat(2)
    observer = watched.server._ports.observer
    assert isinstance(observer, RequestTraces)

    assert observer._asked == {}


async def test_what_is_no_request_of_a_consumer_has_no_span(watched: Watched) -> None:
    await watched.client.group()
    await watched.client.shards()

    assert watched.spans.ended == ()


def named(spans: tuple[ReadableSpan, ...]) -> list[str]:
    return [span.name for span in spans]


def of_shards(request: CheckpointRequest, checkpoints: tuple[ShardCheckpoint, ...]) -> CheckpointRequest:
    return CheckpointRequest(request.consumer, request.incarnation, checkpoints, request.group_uid)
