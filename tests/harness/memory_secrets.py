"""The twin of the Secrets with Kafka credentials."""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.ports import CREDENTIALS_LABEL, SecretRefusedError, SecretUnavailableError


class MemorySecrets:
    """SecretReader over a dictionary: (namespace, name) -> data. `unlabelled` are there, but not for the operator."""

    def __init__(self) -> None:
        self.data: dict[tuple[str, str], dict[str, bytes]] = {}
        self.unlabelled: set[tuple[str, str]] = set()
        self.reads = 0
        self.available = True

    async def read(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """See SecretReader."""
        self.reads += 1
        if not self.available:
            raise SecretUnavailableError(f"Secret {name!r} in namespace {namespace!r} cannot be read now")
        if (namespace, name) not in self.data:
            raise SecretRefusedError(f"there is no Secret {name!r} in namespace {namespace!r}: create it")
        if (namespace, name) in self.unlabelled:
            raise SecretRefusedError(f"Secret {name!r} in namespace {namespace!r} has no label {CREDENTIALS_LABEL}=true")
        return dict(self.data[namespace, name])
