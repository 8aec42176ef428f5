"""The credentials of one Kafka cluster as a group's Secrets have them, for the connection that groups share.

Called by `connection` before it connects. It reads at the first use, whenever a connection failed (a password was rotated, or
is wrong), and once a minute; the values stay in memory. Decides nothing about what a failure means for the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shardherd.clock import boot_time
from shardherd.core.model.security import AWS_MSK_IAM, KafkaSecurity, SecretKey
from shardherd.ports import SecretReader, SecretRefusedError, SecretUnavailableError, SourceUnavailableError
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credentials import ClientSettings, Credentials, as_text

log = logging.getLogger(__name__)

MAX_AGE = 60.0
"""Seconds after which the Secrets are read again while all is well, as often as the kubelet does it for a pod's volumes."""

LEAST_PAUSE = 1.0
"""Seconds between two readings: many groups share one connection, and all of them try again after a failure."""


class Access:
    """What `security` names in the Secrets of `namespace`.

    `own_identity`: whether groups that name no access key of AWS may be served with the one of this process. Who may make
    groups then has at Kafka, through the coordinator, what this process may do there.
    """

    def __init__(
        self,
        secrets: SecretReader,
        namespace: str,
        security: KafkaSecurity,
        monotonic: Callable[[], float] = boot_time,
        *,
        own_identity: bool = False,
    ) -> None:
        self._secrets = secrets
        self._namespace = namespace
        self._security = security
        self._monotonic = monotonic
        self._own_identity = own_identity
        self._credentials: Credentials | None = None
        self._refused: SecretRefusedError | None = None
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None
        self.settings = ClientSettings(security, self._current)
        """kafka-python's settings with the credentials that were read last."""

    async def ready(self, *, failing: bool) -> None:
        """Have credentials to connect with; after a failure, those that the Secrets hold now.

        Raises SourceUnavailableError if the Secrets may not be used, lack a key, or were never read.
        """
        age = self._monotonic() - self._read_at
        if self._credentials is None or self._refused is not None or failing:
            if age >= LEAST_PAUSE:
                await self._read()
            if self._refused is not None:
                raise SourceUnavailableError(str(self._refused)) from self._refused
        elif age >= MAX_AGE and (self._background is None or self._background.done()):
            # Commits must not wait for the API server.
            self._background = asyncio.create_task(self._read(), name=f"credentials in {self._namespace}")

    async def close(self) -> None:
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)

    async def _read(self) -> None:
        async with self._reading:
            if self._monotonic() - self._read_at < LEAST_PAUSE:
                return
            try:
                found = await self._find()
            except SecretRefusedError as error:
                self._refused = error
            except SecretUnavailableError as error:
                if self._credentials is None:
                    raise SourceUnavailableError(str(error)) from error
                log.warning("going on with the Kafka credentials that were read before: %s", error)
            else:
                if self._credentials not in (None, found):
                    log.info("the Kafka credentials in namespace %s have changed; new connections use them", self._namespace)
                self._credentials, self._refused = found, None
            self._read_at = self._monotonic()

    async def _find(self) -> Credentials:
        security = self._security
        if security.mechanism == AWS_MSK_IAM and not security.has_password and not self._own_identity:
            raise SecretRefusedError(
                "spec.source.kafka.security.sasl names no access key, and the operator may not use its own identity at AWS for"
                " groups: name one by secretRef, or set kafkaCredentials.ownAwsIdentity of the chart"
            )
        keys = (
            security.username_key,
            security.password_key,
            security.ca_key,
            security.certificate_key,
            security.private_key,
            security.issuer_ca_key,
            security.keytab_key,
        )
        secrets = {name: await self._secrets.read(self._namespace, name) for name in sorted({key.name for key in keys if key})}

        def value(key: SecretKey | None) -> bytes:
            if key is None:
                return b""
            if not (found := secrets[key.name].get(key.key)):
                raise SecretRefusedError(
                    f"Secret {key.name!r} in namespace {self._namespace!r} has no key {key.key!r}: add it, or name another key"
                    " in spec.source.kafka.security"
                )
            return found

        def text(key: SecretKey | None) -> str:
            try:
                return as_text(value(key), "" if key is None else f"key {key.key!r} of Secret {key.name!r}")
            except CredentialsError as error:
                raise SecretRefusedError(str(error)) from error

        return Credentials(
            username=security.username or text(security.username_key),
            password=text(security.password_key),
            ca=value(security.ca_key),
            certificate=value(security.certificate_key),
            key=value(security.private_key),
            issuer_ca=value(security.issuer_ca_key),
            keytab=value(security.keytab_key),
        )

    def _current(self) -> Credentials:
        return self._credentials or Credentials()
