"""kafka-python's connection manager as both the coordinator and the source need it.

It takes its credentials anew for every connection, remembers why a broker could not be reached, gives every connection a
deadline, makes no topics, and keeps what goes over the wire out of the logs. Decides nothing about what is worth another try.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import kafka.errors as errors
from kafka.future import Future
from kafka.net.selector import NetworkSelector

from shardherd.core.model.security import Security
from shardherd.source.kafka_python.private import DIRECT, HookedManager, allow_answers, milliseconds_until
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credentials import ClientSettings, of_files

log = logging.getLogger(__name__)

PLAINTEXT = of_files(Security())

GREETING_BYTES = 1024 * 1024
"""Most bytes of an answer before a connection is made: what TLS says to plain text reads like a length of 352 MB."""


def _no_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


# At level DEBUG these two print every request, and with them the password of SASL PLAIN.
for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_no_debug)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last connection to an address failed. `broker` is the number of a broker that advertises the address, or None."""

    address: str
    broker: int | None
    error: BaseException

    def __str__(self) -> str:
        who = self.address if self.broker is None else f"broker {self.broker} at {self.address}, which is what it advertises"
        return f"{who}: {error_text(self.error)}"


class ClientManager(HookedManager):
    """Connections to one cluster. `settings` gives the security settings of the next connection, or raises CredentialsError."""

    def __init__(self, net: NetworkSelector, settings: ClientSettings = PLAINTEXT, **configuration: Any) -> None:
        super().__init__(net, **{"proxy_url": DIRECT, **configuration})
        self._settings = settings
        self._failures: dict[Any, Failure] = {}
        self._failures_before: dict[Any, Failure] = {}
        self._looking_up: Any = None
        # Asking for a topic must not make it, least of all one that was just deleted.
        self.cluster.config["allow_auto_create_topics"] = False

    def failures(self) -> tuple[Failure, ...]:
        """Addresses that could not be reached when they were tried last."""
        return tuple((self._failures or self._failures_before).values())

    def get_connection(self, node_id: Any, *arguments: Any, **options: Any) -> Any:
        known = self.connection_to(node_id)
        if known is None and self.connection_delay(node_id) == 0:
            try:
                self.config.update(self._settings())
            except CredentialsError as error:
                self._note(node_id, error)
                self.update_backoff(node_id)
                raise errors.NodeNotReadyError(str(error)) from error
        found = super().get_connection(node_id, *arguments, **options)
        if found is not known:
            found.config["receive_message_max_bytes"] = GREETING_BYTES
            found.init_future.add_callback(lambda _: allow_answers(found, self.config["receive_message_max_bytes"]))
            found.close_future.add_errback(lambda error: self._note(node_id, error))
            found.init_future.add_callback(lambda _: self._forget(node_id))
        return found

    def send(self, request: Any, node_id: Any = None, request_timeout_ms: int | None = None) -> Any:
        """As kafka-python's; but a broker that the metadata does not name any more is one that is not ready."""
        try:
            return super().send(request, node_id=node_id, request_timeout_ms=request_timeout_ms)
        except errors.UnknownBrokerIdError:
            self.cluster.request_update()
            return Future().failure(errors.NodeNotReadyError(f"broker {node_id} is not part of the cluster now"))

    def bootstrap_async(self, timeout_ms: int | None = None, refresh: bool = True) -> Any:
        found = super().bootstrap_async(timeout_ms, refresh)
        if found is not self._looking_up:
            # What failed before the cluster was looked up anew says nothing of how it is now, but is the cause until more is
            # known: a caller's time may be over before the first address was tried again.
            self._looking_up = found
            self._failures_before = self._failures or self._failures_before
            self._failures = {}
            found.add_callback(self._looked_up)
        return found

    def _looked_up(self, _found: object) -> None:
        self._failures_before = {}

    def _forget(self, node_id: Any) -> None:
        self._failures.pop(node_id, None)
        self._failures_before.pop(node_id, None)

    def _note(self, node_id: Any, error: BaseException) -> None:
        if isinstance(error, errors.InvalidReceiveError):
            error = errors.KafkaConnectionError(
                f"no Kafka listener of {self.config['security_protocol']} ({error}): is it for TLS?"
            )
        if isinstance(error, errors.SaslAuthenticationFailedError) and (keeper := self._settings.keeper) is not None:
            keeper.refused()
        node = self.cluster.broker_metadata(node_id)
        address = f"{node.host}:{node.port}" if node is not None else str(node_id)
        self._failures[node_id] = Failure(address, node_id if isinstance(node_id, int) else None, error)

    async def before_connecting(self, host: str, timeout_at: float | None) -> None:
        """Credentials that expire are there first: authentication takes them at once, or fails."""
        keeper = self._settings.keeper
        if keeper is None:
            return
        known = Future()

        def tell() -> None:
            try:
                self.net.call_soon_threadsafe(lambda: known.success(None))
            except RuntimeError:
                log.debug("credentials came after the connections were closed")

        if not keeper.ready(tell, self._settings.enough_for(host)):
            try:
                await self.wait_for(known, milliseconds_until(timeout_at))
            except errors.KafkaTimeoutError as error:
                raise CredentialsError("no credentials came in time: check that where they come from can be reached") from error
        keeper.current()

    def close(self, node_id: Any = None, timeout_ms: int | None = None) -> None:
        """As kafka-python's; with all connections, what keeps their credentials ends."""
        if node_id is None and (keeper := self._settings.keeper) is not None:
            keeper.close()
        super().close(node_id, timeout_ms)


def error_text(error: BaseException) -> str:
    """The error in one line, by its kind where its text does not say it."""
    text = str(error)
    return text if type(error).__name__ in text else f"{type(error).__name__}: {text}" if text else type(error).__name__
