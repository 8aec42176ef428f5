"""The client against a server that a test scripts: what it sends, and what it makes of every answer."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from shardherd import protocol
from shardherd.client import AsyncConsumerClient, ConsumerClient
from shardherd.coordinator.openapi import OPERATIONS, Operation
from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    InvalidRequestError,
    StaleIncarnationError,
    TooManyRequestsError,
)
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    ConsumerId,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardId,
    ShardState,
    ShardView,
)
from shardherd.core.model.requests import ForceCheckpointReply

RUN = Incarnation("uid-0", 1)
NAME = ConsumerId("clicks-0")
HEARTBEAT = Heartbeat(NAME, RUN, 1, 0)
REPLY = HeartbeatReply(revision=1, confirmed=())
RESET = ResetReport("one", ResetTo.OFFSETS, ResetState.DONE, "café", Seconds(2.5), 1, 3, 0, (ResetRow(ShardId("t/0"), 5, 2),))
VIEW = GroupView(1, 1, (), (), source_reachable=True)

Answer = Callable[[], Awaitable[web.Response]]


@dataclass
class Server:
    """Notes the requests and answers them all alike."""

    url: str = ""
    answer: Answer = field(default=lambda: ok(REPLY))
    requests: list[tuple[str, str, str, bytes]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((request.method, request.path_qs, request.headers["Authorization"], body))
        self.asked.set()
        self.versions.append(request.headers[protocol.PROTOCOL_HEADER])
        try:
            return await self.answer()
        except asyncio.CancelledError:
            self.gone.set()
            raise


async def ok(value: object) -> web.Response:
    return web.Response(body=protocol.dumps(value), content_type="application/json")


async def for_ever() -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def serve(server: Server) -> web.AppRunner:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    runner = await serve(server)
    yield server
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncConsumerClient]:
    client = AsyncConsumerClient(server.url, "demo", "clicks", lambda: "a-token\n", timeout=0.5)
    yield client
    await client.close()


async def test_a_heartbeat_is_posted_with_its_wait_and_token(server: Server, client: AsyncConsumerClient) -> None:
    assert await client.heartbeat(HEARTBEAT, wait=3.0) == REPLY

    path = "/v1/namespaces/demo/consumergroups/clicks/heartbeat?waitMs=3000"
    assert server.requests == [("POST", path, "Bearer a-token", protocol.dumps(HEARTBEAT))]
    assert server.versions == ["4"]


async def test_checkpoints_leaving_and_the_group_have_their_paths(server: Server, client: AsyncConsumerClient) -> None:
    base = "/v1/namespaces/demo/consumergroups/clicks"
    request = CheckpointRequest(NAME, RUN, ())
    server.answer = lambda: ok(CheckpointReply(()))
    assert await client.checkpoint(request) == CheckpointReply(())
    await client.leave(Leave(NAME, RUN))
    server.answer = lambda: ok(VIEW)
    assert await client.group() == VIEW

    assert [(method, path, body) for method, path, _, body in server.requests] == [
        ("POST", f"{base}/checkpoints", protocol.dumps(request)),
        ("POST", f"{base}/leave", protocol.dumps(Leave(NAME, RUN))),
        ("GET", base, b""),
    ]


CALLS: dict[str, tuple[object, Callable[[Any], Any]]] = {
    "heartbeat": (REPLY, lambda client: client.heartbeat(HEARTBEAT, 0.0)),
    "checkpoints": (CheckpointReply(()), lambda client: client.checkpoint(CheckpointRequest(NAME, RUN, ()))),
    "leave": (None, lambda client: client.leave(Leave(NAME, RUN))),
    "view": (VIEW, lambda client: client.group()),
    "shards": ((), lambda client: client.shards()),
    "shard": (ShardView(ShardId("t/0"), ShardState.WAIT), lambda client: client.shard(ShardId("t/0"))),
    "reset": (RESET, lambda client: client.reset()),
    "force": (ForceCheckpointReply(), lambda client: client.force_checkpoint(ShardId("t/0"), 3)),
}
"""For each call of the API what it answers, and how a program makes it."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_every_call_of_the_api_has_a_method_of_both_clients(
    server: Server, client: AsyncConsumerClient, operation: Operation
) -> None:
    answer, call = CALLS[operation.name]
    server.answer = lambda: ok(answer)

    asynchronously = await call(client)
    with await asyncio.to_thread(ConsumerClient, server.url, "demo", "clicks", lambda: "a-token") as plain:
        plainly = await asyncio.to_thread(call, plain)

    expected = None if operation.name == "leave" else "" if operation.name == "force" else answer
    assert (asynchronously, plainly) == (expected, expected)
    path = operation.path.format(namespace="demo", name="clicks", topic="t", partition=0)
    assert [(method, asked.partition("?")[0]) for method, asked, _, _ in server.requests] == [(operation.method, path)] * 2


async def test_without_a_declared_reset_there_is_none_to_look_at(server: Server, client: AsyncConsumerClient) -> None:
    server.answer = lambda: ok(None)

    assert await client.reset() is None


async def test_a_forced_checkpoint_has_its_path_and_gives_its_warning(server: Server, client: AsyncConsumerClient) -> None:
    server.answer = lambda: ok(ForceCheckpointReply("order can break"))

    assert await client.force_checkpoint(ShardId("t/0"), 3) == "order can break"

    ((method, path, _, body),) = server.requests
    assert (method, path) == ("PUT", "/v1/namespaces/demo/consumergroups/clicks/shards/t/0/checkpoint")
    assert json.loads(body) == {"offset": 3}


async def test_the_token_is_read_anew_for_every_request(server: Server) -> None:
    tokens = iter(["first", "second"])
    client = AsyncConsumerClient(server.url, "demo", "clicks", lambda: next(tokens))

    await client.heartbeat(HEARTBEAT, 0)
    await client.heartbeat(HEARTBEAT, 0)

    assert [token for _, _, token, _ in server.requests] == ["Bearer first", "Bearer second"]
    await client.close()


@pytest.mark.parametrize("held", [b"first\nsecond", "t\u00f6ken".encode(), b"\xff", b"a b"])
async def test_what_is_no_token_is_told_as_such_and_not_shown(server: Server, tmp_path: Path, held: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(held)
    async with AsyncConsumerClient(server.url, "demo", "clicks", file.read_text) as client:
        with pytest.raises(CoordinatorUnavailableError) as refused:
            await client.heartbeat(HEARTBEAT, 0)
    assert refused.value.message == (
        "what is to be presented to the coordinator is no token: one line of ASCII without spaces is expected"
    )
    assert server.requests == []


async def test_a_token_that_cannot_be_read_is_told_as_such(server: Server) -> None:
    def missing() -> str:
        raise FileNotFoundError("/var/run/secrets/shardherd/token")

    client = AsyncConsumerClient(server.url, "demo", "clicks", missing)

    with pytest.raises(CoordinatorUnavailableError, match=r"cannot read the token .*/var/run/secrets/shardherd/token"):
        await client.heartbeat(HEARTBEAT, 0)
    assert server.requests == []
    await client.close()


async def test_a_refusal_is_raised_as_the_error_that_it_is(server: Server, client: AsyncConsumerClient) -> None:
    async def refuse() -> web.Response:
        error = StaleIncarnationError("end this process", consumer=NAME)
        return web.Response(status=410, body=protocol.dump_error(error))

    server.answer = refuse

    with pytest.raises(StaleIncarnationError, match="end this process"):
        await client.heartbeat(HEARTBEAT, 0)


async def test_nobody_at_the_address_is_worth_a_retry() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        client = AsyncConsumerClient(url, "demo", "clicks", lambda: "t")

        with pytest.raises(CoordinatorUnavailableError, match=f"no answer from the coordinator at {url}") as error:
            await client.heartbeat(HEARTBEAT, 0)

        assert error.value.retryable
        await client.close()


async def test_no_answer_in_time_is_worth_a_retry(server: Server, client: AsyncConsumerClient) -> None:
    server.answer = for_ever

    with pytest.raises(CoordinatorUnavailableError, match="no answer"):
        await client.heartbeat(HEARTBEAT, 0)


async def test_a_parked_heartbeat_has_its_wait_on_top_of_the_timeout(server: Server, client: AsyncConsumerClient) -> None:
    async def late() -> web.Response:
        await asyncio.sleep(0.8)
        return await ok(REPLY)

    server.answer = late

    assert await client.heartbeat(HEARTBEAT, wait=1.0) == REPLY


async def test_after_silence_a_heartbeat_is_not_parked_until_somebody_answers(
    server: Server, client: AsyncConsumerClient
) -> None:
    server.answer = for_ever
    for _ in range(2):
        with pytest.raises(CoordinatorUnavailableError, match="no answer"):
            await client.heartbeat(HEARTBEAT, wait=0.2)
    server.answer = lambda: ok(REPLY)
    for _ in range(2):
        await client.heartbeat(HEARTBEAT, wait=0.2)

    assert [path.partition("?")[2] for _, path, _, _ in server.requests] == ["waitMs=200", "waitMs=0", "waitMs=0", "waitMs=200"]


async def test_a_connection_that_closes_unanswered_is_worth_a_retry(server: Server, client: AsyncConsumerClient) -> None:
    async def drop() -> web.Response:
        raise web.HTTPBadGateway

    server.answer = drop

    with pytest.raises(CoordinatorUnavailableError, match="status 502"):
        await client.heartbeat(HEARTBEAT, 0)


async def test_an_answer_that_cannot_be_read_is_worth_a_retry(server: Server, client: AsyncConsumerClient) -> None:
    async def garbage() -> web.Response:
        return web.Response(body=b"<html>")

    server.answer = garbage

    with pytest.raises(CoordinatorUnavailableError, match="cannot be read: the body is not JSON"):
        await client.heartbeat(HEARTBEAT, 0)


async def test_a_cancelled_heartbeat_closes_its_request(server: Server, client: AsyncConsumerClient) -> None:
    server.answer = for_ever
    parked = asyncio.create_task(client.heartbeat(HEARTBEAT, wait=60.0))
    await asyncio.wait_for(server.asked.wait(), 5)

    parked.cancel()

    await asyncio.wait_for(server.gone.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await parked


async def test_names_are_quoted_in_the_path(server: Server) -> None:
    client = AsyncConsumerClient(server.url + "/", "demo", "a/b?c", lambda: "t")

    await client.heartbeat(HEARTBEAT, 0)

    assert server.requests[0][1] == "/v1/namespaces/demo/consumergroups/a%2Fb%3Fc/heartbeat?waitMs=0"
    await client.close()


@pytest.fixture
def threaded() -> Iterator[Server]:
    """The same server in a loop and thread of its own, for callers without a loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = Server()
    runner = asyncio.run_coroutine_threadsafe(serve(server), loop).result()
    yield server
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_plain_client_makes_the_same_calls(threaded: Server) -> None:
    client = ConsumerClient(threaded.url, "demo", "clicks", lambda: "a-token")

    assert client.heartbeat(HEARTBEAT, 0) == REPLY
    threaded.answer = lambda: ok(CheckpointReply(()))
    assert client.checkpoint(CheckpointRequest(NAME, RUN, ())) == CheckpointReply(())
    client.leave(Leave(NAME, RUN))
    threaded.answer = lambda: ok(VIEW)
    assert client.group() == VIEW
    threaded.answer = lambda: ok(ForceCheckpointReply())
    assert client.force_checkpoint(ShardId("t/0"), 3) == ""

    client.close()
    client.close()
    assert "shardherd-client" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    "url", ["operator:8443", "ftp://operator", "http://", "http://operator:99999", "https://operator:x", ""]
)
def test_what_is_no_url_of_a_coordinator_is_refused_and_not_tried_for_ever(url: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ConsumerClient(url, "demo", "clicks", lambda: "t")
    assert refused.value.message == f"the coordinator's URL must be as https://host:port, or http://host:port, not {url!r}"
    assert "shardherd-client" not in [thread.name for thread in threading.enumerate()]


def test_the_plain_client_raises_the_same_errors() -> None:
    client = ConsumerClient("http://127.0.0.1:1", "demo", "clicks", lambda: "t")

    with pytest.raises(CoordinatorUnavailableError, match="no answer"):
        client.heartbeat(HEARTBEAT, 0)
    client.close()


async def test_who_called_too_often_waits_for_as_long_as_it_was_told(server: Server, client: AsyncConsumerClient) -> None:
    async def too_often() -> web.Response:
        body = protocol.dump_error(TooManyRequestsError("'clicks-0' calls more often than allowed"))
        return web.Response(status=429, body=body, headers={"Retry-After": "1"})

    server.answer = too_often
    asked = asyncio.get_running_loop().time()
    with pytest.raises(TooManyRequestsError, match="more often than allowed") as refused:
        await client.heartbeat(HEARTBEAT, 0)
    assert refused.value.retryable

    server.answer = lambda: ok(REPLY)
    assert await client.heartbeat(HEARTBEAT, 0) == REPLY
    assert asyncio.get_running_loop().time() - asked >= 1.0
    # And once only.
    assert await asyncio.wait_for(client.heartbeat(HEARTBEAT, 0), 0.9) == REPLY
