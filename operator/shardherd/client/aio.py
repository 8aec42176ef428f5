"""The coordinator's API for one consumer, as coroutines. Called by a consumer's session and by tests.

Turns every refusal into the error type that the coordinator raised, and every failure to reach it into
CoordinatorUnavailableError. Never retries: when to ask again is the caller's rule.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from shardherd import protocol
from shardherd.client.trust import Trust, TrustUnreadableError
from shardherd.core.model.errors import CoordinatorUnavailableError, InvalidRequestError
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Offset,
    ResetReport,
    ShardId,
    ShardView,
)
from shardherd.core.model.requests import ForceCheckpointReply
from shardherd.settings import can_be_called

T = TypeVar("T")

CONNECT_TIMEOUT = 2.0
"""Seconds for a connection to be made: an address that does not answer belongs to a coordinator that is gone."""

PROBE_TIMEOUT = 3.0
"""Seconds for a heartbeat after silence. It is not parked: who leads by now answers at once, and who does not is gone too."""


LONGEST_WAIT = 10.0
"""Seconds for which a coordinator that is called too often can make us wait."""


class AsyncConsumerClient:
    """A client for one group of the coordinator at `url` (https://host:port). Implements `consumer.ports.Coordinator`.

    `token` is called before every request, since a projected token is replaced while the pod runs. `ca_file` holds the
    authorities that the coordinator is believed by, as PEM, and is read again when it changes; without it the system's are.
    `timeout` bounds each request in seconds; a heartbeat may take its `wait` on top, but after silence neither. `headers` are
    sent beside those of the protocol. Use it within one event loop and close it there.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        group: str,
        token: Callable[[], str],
        *,
        ca_file: Path | None = None,
        timeout: float = 10.0,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Raises InvalidRequestError for a URL that is none: nobody answers there, however often it is asked."""
        if not can_be_called(url):
            raise InvalidRequestError(f"the coordinator's URL must be as https://host:port, or http://host:port, not {url!r}")
        self._base = f"{url.rstrip('/')}/v1/namespaces/{quote(namespace, safe='')}/consumergroups/{quote(group, safe='')}"
        self._group = f"{namespace}/{group}"
        self._address = url.rstrip("/")
        self._token = token
        self._trust = None if ca_file is None else Trust(ca_file)
        self._timeout = timeout
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None
        self._silent = False
        self._not_before = 0.0

    async def __aenter__(self) -> AsyncConsumerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        """Report what is held; the answer comes at once if there is news, else after at most `wait` seconds.

        Cancelling gives the parked request up. Raises StaleIncarnationError when this run must end, and other ShardherdErrors.
        """
        timeout = self._timeout + wait
        if self._silent:
            wait, timeout = 0.0, min(self._timeout, PROBE_TIMEOUT)
        path = f"/heartbeat?waitMs={max(0, round(wait * 1000))}"
        body = await self._request("POST", path, protocol.dumps(heartbeat), timeout)
        return self._read(HeartbeatReply, body)

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        """Make positions durable. Each shard has its own outcome; only a wrong request or caller raises."""
        return self._read(CheckpointReply, await self._request("POST", "/checkpoints", protocol.dumps(request), self._timeout))

    async def leave(self, leave: Leave) -> None:
        """Say that this run goes, and whether all of it has ended."""
        await self._request("POST", "/leave", protocol.dumps(leave), self._timeout)

    async def group(self) -> GroupView:
        """The whole group as it is now."""
        return self._read(GroupView, await self._request("GET", "", None, self._timeout))

    async def shards(self) -> tuple[ShardView, ...]:
        """All shards, with their checkpoints, also those that nobody holds."""
        return self._read(tuple[ShardView, ...], await self._request("GET", "/shards", None, self._timeout))

    async def shard(self, shard: ShardId) -> ShardView:
        """One shard, with its checkpoint. Raises UnknownShardError."""
        return self._read(ShardView, await self._request("GET", f"/shards/{quote(shard)}", None, self._timeout))

    async def reset(self) -> ResetReport | None:
        """The declared reset with all of its rows; once it is made, with the first. None if none is declared."""
        body = await self._request("GET", "/reset", None, self._timeout)
        return None if body == b"null" else self._read(ResetReport, body)

    async def force_checkpoint(self, shard: ShardId, offset: Offset) -> str:
        """Set a shard's checkpoint, whoever holds it; a Role must allow it to the token's owner.

        Durable when this returns. The answer is a warning where the order of keys can break by it, else empty.
        """
        body = protocol.dumps(protocol.ForcedCheckpoint(offset))
        path = f"/shards/{quote(shard)}/checkpoint"
        return self._read(ForceCheckpointReply, await self._request("PUT", path, body, self._timeout)).warning

    async def close(self) -> None:
        """Close the connections; requests under way fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _read(self, kind: type[T], body: bytes) -> T:
        try:
            return protocol.loads(kind, body)
        except InvalidRequestError as error:
            raise CoordinatorUnavailableError(
                f"the coordinator's answer for group {self._group} cannot be read: {error.message}", group=self._group
            ) from error

    def _distrusted(self, error: Exception) -> str:
        """What to say of a coordinator that could not show who it is."""
        cause = getattr(error, "certificate_error", None) or error.__cause__ or error
        by = "the system's authorities" if self._trust is None else f"the authorities in {self._trust.file}"
        if not isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the coordinator at {self._address} does not speak TLS as we do: {cause}; call the port of the Service that is"
                " named api-tls, or use http:// if the operator's tls.mode is disabled"
            )
        return (
            f"the coordinator at {self._address} is not believed, by {by}: {cause.verify_message or cause}; use the key"
            " ca.crt of the ConfigMap shardherd-ca, which the operator keeps in the group's namespace, and the name of the"
            " operator's Service"
        )

    def _read_token(self) -> str:
        try:
            token = self._token().strip()
        except UnicodeDecodeError:
            token = " "
        except OSError as error:
            raise CoordinatorUnavailableError(
                f"cannot read the token to present to the coordinator: {error}", group=self._group
            ) from error
        if not token.isascii() or not token.isprintable() or " " in token:
            # Nothing of it is shown: it may be a secret all the same. None at all is the coordinator's to refuse.
            raise CoordinatorUnavailableError(
                "what is to be presented to the coordinator is no token: one line of ASCII without spaces is expected",
                group=self._group,
            )
        return token

    def _tls(self) -> dict[str, Any]:
        """How the coordinator has to show who it is, as an option of a request."""
        if self._trust is None or not self._address.startswith("https://"):
            return {}
        try:
            return {"ssl": self._trust.context()}
        except TrustUnreadableError as error:
            raise CoordinatorUnavailableError(str(error), group=self._group) from error

    async def _request(self, method: str, path: str, body: bytes | None, timeout: float) -> bytes:
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            await asyncio.sleep(self._not_before - loop.time())
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        url = self._base + path
        headers = {
            "Authorization": f"Bearer {self._read_token()}",
            "Content-Type": "application/json",
            protocol.PROTOCOL_HEADER: str(protocol.PROTOCOL_VERSION),
            **self._headers(),
        }
        try:
            limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT)
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=limits, allow_redirects=False, **self._tls()
            ) as response:
                answer = await response.read()
                status = response.status
                if status == 429:
                    # Retry-After counts, whatever the caller's own retry policy is.
                    self._not_before = loop.time() + _seconds(response.headers.get("Retry-After", ""))
            self._silent = False
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            self._silent = True
            raise CoordinatorUnavailableError(self._distrusted(error), group=self._group) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._silent = True
            why = str(error) or type(error).__name__
            raise CoordinatorUnavailableError(f"no answer from the coordinator at {url}: {why}", group=self._group) from error
        if 200 <= status < 300:
            return answer
        raise protocol.load_error(status, answer)


def _seconds(text: str) -> float:
    """What a Retry-After says; one second where it is none."""
    return min(float(text), LONGEST_WAIT) if text.isascii() and text.isdigit() else 1.0
