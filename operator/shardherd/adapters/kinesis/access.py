"""The access key of one stream as a group's Secret has it, for the client that its groups share.

Called by `stream` before it asks Kinesis. It reads at the first use, once a minute, and after a failure: a key was replaced, or
is wrong. The values stay in memory. Decides nothing about what a failure means for the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardherd.clock import boot_time
from shardherd.ports import SecretReader, SecretRefusedError, SecretUnavailableError, SourceUnavailableError
from shardherd.source.kinesis.client import AccessKeys

MAX_AGE = 60.0
"""Seconds after which the Secret is read again while all is well, as often as the kubelet does it for a pod's volumes."""

LEAST_PAUSE = 1.0
"""Seconds between two readings: many groups may share a stream, and all of them try again after a failure."""

ID, SECRET, TOKEN = "accessKeyId", "secretAccessKey", "sessionToken"
"""Keys of the Secret. The last is for the keys of a role, and need not be there."""


class Access:
    """What the Secret `name` of `namespace` has; without a name, who this process is at AWS, if it may be that for groups.

    `stranger` is an endpoint to which this process does not show who it is; empty if the group's is none.
    """

    def __init__(
        self,
        secrets: SecretReader,
        namespace: str,
        name: str,
        *,
        own_identity: bool = False,
        stranger: str = "",
        monotonic: Callable[[], float] = boot_time,
    ) -> None:
        self._secrets = secrets
        self._namespace = namespace
        self._name = name
        self._own_identity = own_identity
        self._stranger = stranger
        self._monotonic = monotonic
        self._keys: AccessKeys | None = None
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")

    def keys(self) -> AccessKeys | None:
        """Those that were read last."""
        return self._keys

    async def ready(self, *, failing: bool) -> None:
        """Have keys to ask with; after a failure, those that the Secret holds now. Raises SourceUnavailableError."""
        if not self._name:
            if not self._own_identity:
                raise SourceUnavailableError(
                    "spec.source.kinesis names no access key, and the operator may not use its own identity at AWS for groups:"
                    " name one by credentials.secretRef, or set kafkaCredentials.ownAwsIdentity of the chart"
                )
            if self._stranger:
                raise SourceUnavailableError(
                    "spec.source.kinesis names no access key, and the operator shows its own identity only to AWS, over TLS,"
                    f" which {self._stranger} is not: name a key by credentials.secretRef, or remove the endpoint"
                )
            return
        async with self._reading:
            age = self._monotonic() - self._read_at
            if self._keys is None or age >= (LEAST_PAUSE if failing else MAX_AGE):
                await self._read()

    async def _read(self) -> None:
        try:
            found = await self._secrets.read(self._namespace, self._name)
            texts = {key: self._text(found, key) for key in (ID, SECRET)}
            self._keys = AccessKeys(texts[ID], texts[SECRET], self._text(found, TOKEN) if TOKEN in found else "")
        except SecretRefusedError as error:
            self._keys = None
            raise SourceUnavailableError(str(error)) from error
        except SecretUnavailableError as error:
            if self._keys is None:
                raise SourceUnavailableError(str(error)) from error
        self._read_at = self._monotonic()

    def _text(self, found: object, key: str) -> str:
        value = found.get(key) if hasattr(found, "get") else None
        if not value:
            raise SecretRefusedError(
                f"Secret {self._name!r} in namespace {self._namespace!r} has no key {key!r}: spec.source.kinesis.credentials"
                f" needs {ID} and {SECRET}, and for a role {TOKEN}"
            )
        try:
            return str(value.decode("ascii")).strip()
        except UnicodeDecodeError as error:
            raise SecretRefusedError(
                f"key {key!r} of Secret {self._name!r} in namespace {self._namespace!r} is no text"
            ) from error
