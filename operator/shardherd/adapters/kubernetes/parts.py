"""The parts of an ownership that does not fit into one ConfigMap, in `<group>-state-<generation>-0`, `-1` and so on.

Used by the ownership's adapter, which writes them first and then the one object that names them, by compare-and-swap: that
object, the head, is the truth. A part is written once and never changed, under a generation that no other write ever uses.
Before the first part of a generation is written the head announces it; so whoever reads the head knows of every part that
there may be, also of those that a coordinator left when it ended in the middle. See docs/design/0010.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from shardherd.adapters.kubernetes.api import KubernetesApi, unless_missing
from shardherd.adapters.kubernetes.configmaps import body, collection, owned, path
from shardherd.core.model.nouns import GroupIdentity

log = logging.getLogger(__name__)

PART = "part"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

MOST_PARTS = 1000
"""More than any ownership has; whoever says so has damaged what names them."""

TIMEOUT = 5.0
"""Seconds for one read or write."""


class PartsDamagedError(Exception):
    """What the head names is not there, or is not what was written. The message says which part."""


@dataclass(frozen=True, slots=True)
class Index:
    """What the head says of parts: those that the ownership is in, if any, and generations of which there may be others."""

    generation: str = ""
    parts: int = 0
    sha256: str = ""
    announced: tuple[str, ...] = ()

    def dumps(self) -> str:
        """As the head keeps it."""
        return json.dumps(
            {"generation": self.generation, "parts": self.parts, "sha256": self.sha256, "announced": list(self.announced)}
        )

    @classmethod
    def loads(cls, text: str) -> Index:
        """What `dumps` gave. Raises PartsDamagedError for anything else."""
        try:
            found = json.loads(text)
            index = cls(found["generation"], found["parts"], found["sha256"], tuple(found["announced"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PartsDamagedError(f"what names its parts cannot be read: {error!r}") from error
        texts = (index.generation, index.sha256, *index.announced)
        number = index.parts if isinstance(index.parts, int) else -1
        if not all(isinstance(each, str) for each in texts) or not 0 <= number <= MOST_PARTS:
            raise PartsDamagedError(f"what names its parts cannot be read: {text[:100]}")
        return index


def fresh() -> str:
    """A generation that nobody ever used."""
    return secrets.token_hex(8)


def digest(packed: bytes) -> str:
    """By which it is seen whether the parts are what was written."""
    return hashlib.sha256(packed).hexdigest()


class Parts:
    """The ConfigMaps of generations. Errors of the API server are the caller's to judge."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def write(self, group: GroupIdentity, generation: str, chunks: Sequence[bytes]) -> None:
        """Write them one after the other: should it end in the middle, those that are there are the first ones."""
        for number, chunk in enumerate(chunks):
            made = body(group, _name(generation, number), PART, chunk) | {"immutable": True}
            await self._api.acall("POST", collection(group), made, timeout=TIMEOUT)

    async def read(self, group: GroupIdentity, index: Index) -> bytes:
        """What was written. Raises PartsDamagedError if a part is missing or another, ApiError, ApiUnavailableError."""
        names = [_name(index.generation, number) for number in range(index.parts)]
        found = await asyncio.gather(*(self._read(group, name) for name in names))
        for name, chunk in zip(names, found, strict=True):
            if chunk is None:
                raise PartsDamagedError(
                    f"ConfigMap {group.name}-{name}, one of the {index.parts} parts of the ownership, was deleted or damaged"
                )
        packed = b"".join(chunk for chunk in found if chunk is not None)
        if digest(packed) != index.sha256:
            raise PartsDamagedError(f"the {index.parts} parts of the ownership are not what was written into them")
        return packed

    async def remove(self, group: GroupIdentity, generation: str, parts: int | None) -> None:
        """Remove a generation of so many parts, None: of those that are found. The last one first, as in `write`."""
        number = await self._count(group, generation) if parts is None else parts
        while number > 0:
            number -= 1
            await unless_missing(self._api.acall("DELETE", path(group, _name(generation, number)), timeout=TIMEOUT))

    async def _count(self, group: GroupIdentity, generation: str) -> int:
        number = 0
        while True:
            where = path(group, _name(generation, number))
            if await unless_missing(self._api.acall("GET", where, timeout=TIMEOUT, accept=METADATA)) is None:
                return number
            number += 1

    async def _read(self, group: GroupIdentity, name: str) -> bytes | None:
        found = await unless_missing(self._api.acall("GET", path(group, name), timeout=TIMEOUT))
        try:
            return base64.b64decode(found["binaryData"][PART]) if found is not None and owned(found, group) else None
        except (KeyError, TypeError, binascii.Error) as error:
            log.warning("ConfigMap %s-%s of namespace %s is damaged: %r", group.name, name, group.namespace, error)
        return None


def _name(generation: str, number: int) -> str:
    return f"state-{generation}-{number}"
