"""The client over TLS: whom it believes, what it says of who is not believed, and how it learns of new authorities."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from shardherd.adapters.certificates import BUNDLE
from shardherd.client import AsyncConsumerClient, ConsumerClient
from shardherd.core.model.errors import CoordinatorUnavailableError
from tests.harness.authorities import HOST, Switched, secret, write_bundle
from tests.unit.client.test_client import HEARTBEAT, REPLY, Server

FIRST, SECOND = secret(), secret()


@web.middleware
async def each_on_its_own(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A connection for each request, so that each is a handshake."""
    response = await handler(request)
    response.force_close()
    return response


@pytest.fixture
async def switched() -> Switched:
    return Switched(FIRST)


@pytest.fixture
async def server(switched: Switched) -> AsyncIterator[Server]:
    server, application = Server(), web.Application(middlewares=[each_on_its_own])
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0, ssl_context=switched.context).start()
    server.url = f"https://{HOST}:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "ca.crt", FIRST)


def client(server: Server, ca_file: Path | None) -> AsyncConsumerClient:
    return AsyncConsumerClient(server.url, "demo", "clicks", lambda: "a-token", ca_file=ca_file, timeout=5.0)


async def test_a_coordinator_of_the_right_authority_is_believed(server: Server, ca_file: Path) -> None:
    async with client(server, ca_file) as caller:
        assert await caller.heartbeat(HEARTBEAT, 0) == REPLY


async def test_one_of_another_authority_is_told_nothing_and_named(server: Server, ca_file: Path, switched: Switched) -> None:
    switched.data = SECOND
    said = (
        f"the coordinator at {server.url} is not believed, by the authorities in {ca_file}: self-signed certificate in"
        " certificate chain|unable to get local issuer certificate"
    )
    remedy = "use the key ca.crt of the ConfigMap shardherd-ca, which the operator keeps in the group's namespace"
    async with client(server, ca_file) as caller:
        with pytest.raises(CoordinatorUnavailableError, match=said) as refused:
            await caller.heartbeat(HEARTBEAT, 0)
    assert remedy in refused.value.message
    assert server.requests == []


async def test_one_under_another_name_is_not_believed(server: Server, tmp_path: Path, switched: Switched) -> None:
    switched.data = secret(hosts=frozenset({"another.system.svc"}))
    async with client(server, write_bundle(tmp_path / "other.crt", switched.data)) as caller:
        with pytest.raises(
            CoordinatorUnavailableError, match=f"IP address mismatch.*'{re.escape(HOST)}'.*name of the operator's"
        ):
            await caller.heartbeat(HEARTBEAT, 0)
    assert server.requests == []


async def test_without_a_file_the_systems_authorities_decide(server: Server) -> None:
    async with client(server, None) as caller:
        with pytest.raises(CoordinatorUnavailableError, match="is not believed, by the system's authorities"):
            await caller.heartbeat(HEARTBEAT, 0)


async def test_a_new_authority_is_believed_as_soon_as_the_file_names_it(
    server: Server, ca_file: Path, switched: Switched
) -> None:
    async with client(server, ca_file) as caller:
        await caller.heartbeat(HEARTBEAT, 0)
        switched.data = SECOND
        with pytest.raises(CoordinatorUnavailableError, match="is not believed"):
            await caller.heartbeat(HEARTBEAT, 0)
        write_bundle(ca_file, FIRST, SECOND)
        assert await caller.heartbeat(HEARTBEAT, 0) == REPLY
        switched.data = FIRST
        assert await caller.heartbeat(HEARTBEAT, 0) == REPLY


async def test_a_file_that_is_not_there_is_named_and_read_once_it_is(server: Server, tmp_path: Path) -> None:
    late = tmp_path / "late.crt"
    async with client(server, late) as caller:
        with pytest.raises(CoordinatorUnavailableError, match=f"No such file.*{late} must hold PEM certificates"):
            await caller.heartbeat(HEARTBEAT, 0)
        write_bundle(late, FIRST)
        assert await caller.heartbeat(HEARTBEAT, 0) == REPLY


@pytest.mark.parametrize("content", [b"", b"no certificate"])
async def test_a_file_that_is_damaged_later_leaves_what_it_said(server: Server, ca_file: Path, content: bytes) -> None:
    async with client(server, ca_file) as caller:
        await caller.heartbeat(HEARTBEAT, 0)
        write_bundle(ca_file, {BUNDLE: content})
        assert await caller.heartbeat(HEARTBEAT, 0) == REPLY


async def test_a_server_that_does_not_speak_tls_is_told_apart(ca_file: Path) -> None:
    server, application = Server(), web.Application()
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    server.url = f"https://{HOST}:{runner.addresses[0][1]}"
    async with client(server, ca_file) as caller:
        with pytest.raises(CoordinatorUnavailableError, match=r"does not speak TLS as we do: .*named api-tls, or use http://"):
            await caller.heartbeat(HEARTBEAT, 0)
    await runner.cleanup()


async def test_plain_http_needs_no_file(tmp_path: Path) -> None:
    """A pod of a release with TLS off."""
    async with AsyncConsumerClient("http://127.0.0.1:1", "demo", "clicks", lambda: "t", ca_file=tmp_path / "none") as caller:
        with pytest.raises(CoordinatorUnavailableError, match="no answer from the coordinator at http:"):
            await caller.heartbeat(HEARTBEAT, 0)


def test_the_plain_client_takes_the_same_file(tmp_path: Path) -> None:
    with (
        ConsumerClient("https://127.0.0.1:1", "demo", "clicks", lambda: "t", ca_file=tmp_path / "none") as caller,
        pytest.raises(CoordinatorUnavailableError, match=f"{tmp_path / 'none'} must hold PEM certificates"),
    ):
        caller.heartbeat(HEARTBEAT, 0)
