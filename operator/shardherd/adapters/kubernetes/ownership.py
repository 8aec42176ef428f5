"""A group's ownership in the ConfigMap `<group>-state`, owned by the ConsumerGroup and written by compare-and-swap.

Called by the coordinator through `OwnershipStore`. The bytes are gzipped as they are; what they mean is the core's matter. What
does not fit into one ConfigMap is in parts, which the ConfigMap names: see `parts` and docs/design/0010. It is one write then
too: nothing counts before `<group>-state` names it.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.adapters.kubernetes.configmaps import body, collection, foreign, owned, path
from shardherd.adapters.kubernetes.copies import ConfigMapCopies
from shardherd.adapters.kubernetes.parts import Index, Parts, PartsDamagedError, digest, fresh
from shardherd.clock import boot_time
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import (
    GROWTH_LIMIT,
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipTooLargeError,
    OwnershipUnavailableError,
    StoredOwnership,
)

log = logging.getLogger(__name__)

KEY = "ownership.json.gz"
"""To look at it: kubectl get configmap NAME-state -o jsonpath='{.binaryData.ownership\\.json\\.gz}' | base64 -d | gunzip"""

INDEX = "parts.json"
"""Which parts there are, or may be. Only where there are any."""

NOTICE = b'{"format":2,"note":"the ownership is in parts, which parts.json names"}'
"""What KEY has then: a version that knows of no parts refuses to serve the group, and says so."""

LIMIT = 900 * 1024
"""Bytes after compression in one ConfigMap; the API server refuses one of over 1 MiB."""

LARGE = 1024 * 1024
"""Bytes from which on compressing takes so long that it is done beside the event loop."""

TIMEOUT = 5.0
"""Seconds for one read or write; well below the time for which a renewed lease is certain."""

LATE = 60.0
"""Seconds after which a request that had no answer is not carried out any more."""

LOOKS = 5
"""Attempts to read parts of which one is missing: another write may just have replaced them."""

LEFT = 16
"""With so many generations that could not be removed yet no further one is begun."""


@dataclass(frozen=True, slots=True)
class _Left:
    """A generation of parts that nothing names, or soon nothing will: how many, if that is known, and when to remove them."""

    parts: int | None
    after: float = 0.0


@dataclass(slots=True)
class _Head:
    """What is known of a group's `<group>-state`.

    `version` is the one that the coordinator knows, `actual` that of our own announcement since. `generation` was announced by
    us and is not used yet. `left` are those of which there may be parts besides the ones that it names.
    """

    version: str | None = None
    actual: str | None = None
    index: Index = field(default_factory=Index)
    generation: str = ""
    left: dict[str, _Left] = field(default_factory=dict)

    def replaced(self) -> dict[str, _Left]:
        """What is left once it names something else."""
        return self.left | ({self.index.generation: _Left(self.index.parts)} if self.index.generation else {})


class ConfigMapOwnership(ConfigMapCopies):
    """OwnershipStore in ConfigMaps; the version is the resourceVersion."""

    def __init__(self, api: KubernetesApi, now: Callable[[], float] = boot_time) -> None:
        super().__init__(api)
        self._parts = Parts(api)
        self._now = now
        self._heads: dict[GroupIdentity, _Head] = {}

    async def load(self, group: GroupIdentity) -> StoredOwnership | None:
        """The stored ownership of this very group; one of a deleted group of the same name counts as none.

        What somebody has damaged is empty, with the reason.
        """
        damaged = ""
        for _ in range(LOOKS):
            found = await self._look(group)
            if found is None:
                return None
            self._heads[group].version = version = str(found["metadata"]["resourceVersion"])
            try:
                return StoredOwnership(await self._data(group, found), version, foreign=foreign(found, KEY))
            except PartsDamagedError as error:
                # Whoever wrote the next one removes the parts of this.
                if damaged == version:
                    log.error("the ownership of group %s is damaged: %s", group, error)  # noqa: TRY400
                    return StoredOwnership(b"", version, f"the stored ownership is damaged: {error}")
                damaged = version
            except (ApiError, ApiUnavailableError) as error:
                raise OwnershipUnavailableError(f"cannot read the ownership of group {group}: {error}") from error
        raise OwnershipUnavailableError(f"the ownership of group {group} is being written by another coordinator")

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None, *, grows: bool = False) -> str:
        """See OwnershipStore. A leftover of a deleted group of the same name is replaced."""
        packed = await _pack(data)
        if grows and len(packed) > GROWTH_LIMIT:
            raise OwnershipTooLargeError(
                f"the ownership of group {group} would take {len(packed)} bytes compressed, over the limit of {GROWTH_LIMIT}"
            )
        head = await self._known(group, expected)
        if len(packed) <= LIMIT:
            index = Index(announced=tuple(head.replaced()))
            after = _Head(index=index, left=head.replaced())
        else:
            index = await self._write_parts(group, head, packed)
            left = head.replaced()
            del left[index.generation]
            after = _Head(index=index, generation=index.announced[0], left=left)
            packed = await _pack(NOTICE)
        made = _config_map(group, packed, index, head.actual)
        after.version = after.actual = await self._write_head(group, made, head.actual)
        self._heads[group] = after
        await self._tidy(group, after)
        return after.version

    async def _write_parts(self, group: GroupIdentity, head: _Head, packed: bytes) -> Index:
        """Write them, under a generation that was announced; what the head is to say now. Surely nothing counts yet."""
        if len(head.left) >= LEFT:
            await self._tidy(group, head)
        if len(head.left) >= LEFT:
            raise OwnershipUnavailableError(f"parts of the ownership of group {group} that are not used cannot be removed")
        if not head.generation:
            await self._announce(group, head)
        generation, head.generation = head.generation, ""
        chunks = [packed[at : at + LIMIT] for at in range(0, len(packed), LIMIT)]
        head.left[generation] = _Left(len(chunks), self._now() + LATE)
        try:
            await self._parts.write(group, generation, chunks)
        except (ApiError, ApiUnavailableError) as error:
            if isinstance(error, ApiError) and error.status < 500:
                head.left[generation] = _Left(len(chunks))
                await self._tidy(group, head)
            raise OwnershipUnavailableError(f"cannot write the ownership of group {group}: {error}") from error
        head.left[generation] = _Left(len(chunks))
        following = fresh()
        others = [each for each in head.replaced() if each != generation]
        return Index(generation, len(chunks), digest(packed), (following, *others))

    async def _announce(self, group: GroupIdentity, head: _Head) -> None:
        """Note in the head, which else stays as it is, that there may be parts of a new generation."""
        generation = fresh()
        announced = (generation, *head.left)
        if head.actual is None:
            index = Index(announced=announced)
            made = _config_map(group, await _pack(NOTICE), index, None)
        else:
            found = await self._look(group)
            if found is None:
                raise OwnershipGoneError(f"the ownership of group {group} was deleted")
            if self._heads[group] is not head:
                raise OwnershipConflictError(f"the ownership of group {group} was changed by another writer")
            index = replace(head.index, announced=announced)
            made = _config_map(group, b"", index, head.actual) | {"binaryData": found.get("binaryData", {})}
        head.actual = await self._write_head(group, made, head.actual)
        head.index, head.generation = index, generation
        self._heads[group] = head

    async def _tidy(self, group: GroupIdentity, head: _Head) -> None:
        """Remove the parts that nothing names any more. The head forgets them with the next write."""
        for generation, left in list(head.left.items()):
            if self._now() < left.after:
                continue
            try:
                await self._parts.remove(group, generation, left.parts)
            except (ApiError, ApiUnavailableError) as error:
                log.warning("group %s: parts of an earlier ownership are removed another time: %s", group, error)
                return
            del head.left[generation]

    async def _known(self, group: GroupIdentity, expected: str | None) -> _Head:
        """The head of this version. Raises OwnershipConflictError if it surely is another."""
        head = self._heads.get(group)
        if head is not None and head.version == expected:
            return head
        if expected is None:
            return _Head()
        if await self._look(group) is None:
            raise OwnershipGoneError(f"the ownership of group {group} was deleted")
        head = self._heads[group]
        if head.actual != expected:
            raise OwnershipConflictError(f"the ownership of group {group} was changed by another writer")
        head.version = expected
        return head

    async def _look(self, group: GroupIdentity) -> Any | None:
        """Read the head, and take note of it. None if there is none of this very group."""
        try:
            found = await unless_missing(self._api.acall("GET", _path(group), timeout=TIMEOUT))
        except (ApiError, ApiUnavailableError) as error:
            raise OwnershipUnavailableError(f"cannot read the ownership of group {group}: {error}") from error
        if found is None or not owned(found, group):
            self._forget(group)
            return None
        version, known = str(found["metadata"]["resourceVersion"]), self._heads.get(group)
        if known is None or known.actual != version:
            index = _index(found)
            late = self._now() + LATE
            left = {generation: _Left(None, late) for generation in index.announced}
            self._heads[group] = _Head(version, version, index, left=left)
        return found

    def _forget(self, group: GroupIdentity) -> None:
        """The head is gone. What it named is not, and is removed when there is one again."""
        head = self._heads.pop(group, None)
        if head is not None and head.replaced():
            self._heads[group] = _Head(left=head.replaced())

    async def _data(self, group: GroupIdentity, found: Any) -> bytes:
        index = self._heads[group].index
        try:
            packed = base64.b64decode(found["binaryData"][KEY])
            if index.generation:
                packed = await self._parts.read(group, index)
            data = await _unpack(packed)
        except (KeyError, TypeError, ValueError, EOFError, OSError, zlib.error) as error:
            raise PartsDamagedError(repr(error)) from error
        if data == NOTICE:
            raise PartsDamagedError(f"it is in parts, and {INDEX} does not say in which")
        return data

    async def _write_head(self, group: GroupIdentity, made: dict[str, Any], expected: str | None) -> str:
        """Write the head; its new version. What is not known to be as before is looked at again."""
        try:
            if expected is not None:
                written = await self._api.acall("PUT", _path(group), made, timeout=TIMEOUT)
            else:
                written = await self._create(group, made)
        except ApiUnavailableError as error:
            self._heads.pop(group, None)
            raise OutcomeUnknownError(f"the ownership of group {group} may or may not be written: {error}") from error
        except ApiError as error:
            if error.status == 404 and expected is not None:
                self._forget(group)
                raise OwnershipGoneError(f"the ownership of group {group} was deleted: {error}") from error
            if error.status == 409 and error.reason in ("Conflict", "AlreadyExists"):
                self._heads.pop(group, None)
                raise OwnershipConflictError(
                    f"the ownership of group {group} was changed by another writer: {error}"
                ) from error
            if error.status >= 500:
                self._heads.pop(group, None)
                raise OutcomeUnknownError(f"the ownership of group {group} may or may not be written: {error}") from error
            raise OwnershipUnavailableError(f"cannot write the ownership of group {group}: {error}") from error
        return str(written["metadata"]["resourceVersion"])

    async def _create(self, group: GroupIdentity, made: dict[str, Any]) -> Any:
        """Create the ConfigMap. What a deleted group of the same name left is removed first, unless that happens by itself."""
        try:
            return await self._api.acall("POST", collection(group), made, timeout=TIMEOUT)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            try:
                found = await self._api.acall("GET", _path(group), timeout=TIMEOUT)
                if owned(found, group):
                    raise
                leftover = {"preconditions": {"uid": found["metadata"]["uid"]}}
                await self._api.acall("DELETE", _path(group), leftover, timeout=TIMEOUT)
            except ApiError as gone:
                if gone.status != 404:
                    raise
            return await self._api.acall("POST", collection(group), made, timeout=TIMEOUT)


def _path(group: GroupIdentity) -> str:
    return path(group, "state")


def _index(found: Any) -> Index:
    """What the head says of its parts; nothing if that is damaged."""
    try:
        text = (found.get("data") or {}).get(INDEX)
        return Index() if text is None else Index.loads(text)
    except PartsDamagedError as error:
        log.warning("ConfigMap %s: %s", found["metadata"]["name"], error)
        return Index()


async def _pack(data: bytes) -> bytes:
    if len(data) < LARGE:
        return gzip.compress(data, compresslevel=6, mtime=0)
    return await asyncio.to_thread(gzip.compress, data, compresslevel=6, mtime=0)


async def _unpack(packed: bytes) -> bytes:
    if len(packed) < LARGE // 4:
        return gzip.decompress(packed)
    return await asyncio.to_thread(gzip.decompress, packed)


def _config_map(group: GroupIdentity, packed: bytes, index: Index, version: str | None) -> dict[str, Any]:
    made = body(group, "state", KEY, packed, version)
    return made if index == Index() else made | {"data": {INDEX: index.dumps()}}
