"""Copies of a group's positions in the ConfigMaps `<group>-offsets-0`, `-1` and so on, owned by the ConsumerGroup.

Used by the ownership's adapter. Each holds so many shards that it stays well below the size that the API server allows, and is
written over one version only, so that a write that arrives late is refused. The first is written last and says how many there
are: what lies beyond, or behind one that is missing, is not read, whoever left it or wrote it late.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import logging
import math
import zlib
from collections.abc import Sequence
from itertools import count
from typing import Any

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.adapters.kubernetes.configmaps import body, collection, owned, path
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, Offset, ShardId
from shardherd.core.model.positions import from_json
from shardherd.ports import OutcomeUnknownError, OwnershipConflictError, OwnershipUnavailableError, StoredCopies

log = logging.getLogger(__name__)

KEY = "offsets.json.gz"
FORMAT = 1
"""Versions before this one wrote no more than `format`, `shards` and `offsets`, and replaced whatever was there."""

SHARDS_EACH = 40_000
"""Shards in one ConfigMap: with the longest offsets some 400 KB after compression, of the 1 MiB that the server allows."""

TIMEOUT = 5.0
"""Seconds for one read or write."""


class ConfigMapCopies:
    """The part of an OwnershipStore that keeps copies of positions. The version is that of each ConfigMap, between slashes,
    empty for one that is missing."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        # By UID, the number of one that was in the way: there may be none before it.
        self._met: dict[str, int] = {}

    async def load_copies(self, group: GroupIdentity) -> StoredCopies:
        """See OwnershipStore. A damaged copy, and one of a format that is not ours, counts as none."""
        versions: list[str] = []
        parts: list[dict[str, Any]] = []
        for number in count():
            try:
                found = await unless_missing(self._api.acall("GET", path(group, f"offsets-{number}"), timeout=TIMEOUT))
            except (ApiError, ApiUnavailableError) as error:
                raise OwnershipUnavailableError(f"cannot read the copied positions of group {group}: {error}") from error
            if found is None and number >= self._met.get(group.uid, 0):
                break
            if found is not None and len(parts) == number:
                parts.append(_unpack(found, group) if owned(found, group) else {})
            versions.append("" if found is None else str(found["metadata"]["resourceVersion"]))
        self._met.pop(group.uid, None)
        return StoredCopies(_together(parts), "/".join(versions))

    async def save_copies(self, group: GroupIdentity, copies: PositionCopies, expected: str) -> str:
        """See OwnershipStore. Of a group of few shards one request writes all."""
        shards = sorted(copies.offsets)
        parts = [shards[at : at + SHARDS_EACH] for at in range(0, len(shards), SHARDS_EACH)] or [[]]
        there = expected.split("/") if expected else []
        versions = [""] * len(parts)
        try:
            for number in [*range(1, len(parts)), 0]:
                before = there[number] if number < len(there) else ""
                data = _packed(parts[number], copies, len(parts))
                versions[number] = await self._write(group, f"offsets-{number}", data, before)
            # The last one first: wherever this ends, those that are left follow each other.
            for number in reversed(range(len(parts), len(there))):
                if there[number]:
                    await self._remove(group, f"offsets-{number}", there[number])
        except ApiUnavailableError as error:
            raise OutcomeUnknownError(f"the positions of group {group} may or may not be copied: {error}") from error
        except ApiError as error:
            message = f"cannot copy the positions of group {group}: {error}"
            if error.status == 409:
                self._met[group.uid] = number
                raise OwnershipConflictError(message) from error
            raise (OutcomeUnknownError if error.status >= 500 else OwnershipUnavailableError)(message) from error
        return "/".join(versions)

    async def _write(self, group: GroupIdentity, part: str, data: bytes, before: str) -> str:
        """Write one ConfigMap over the version `before`, or make it. Returns its version."""
        made = body(group, part, KEY, data, before or None)
        if before:
            try:
                written = await self._api.acall("PUT", path(group, part), made, timeout=TIMEOUT)
            except ApiError as error:
                if error.status != 404:
                    raise
                raise OwnershipConflictError(f"the copied positions of group {group} were deleted: {error}") from error
        else:
            written = await self._api.acall("POST", collection(group), made, timeout=TIMEOUT)
        return str(written["metadata"]["resourceVersion"])

    async def _remove(self, group: GroupIdentity, part: str, version: str) -> None:
        """One that is not needed any more."""
        only = {"preconditions": {"resourceVersion": version}}
        await unless_missing(self._api.acall("DELETE", path(group, part), only, timeout=TIMEOUT))


def _packed(shards: Sequence[ShardId], copies: PositionCopies, parts: int) -> bytes:
    stored = {
        "format": FORMAT,
        "parts": parts,
        "leaderEpoch": copies.leader_epoch,
        "revision": copies.revision,
        "refreshed": copies.refreshed,
        "shards": shards,
        "offsets": [copies.offsets[shard] for shard in shards],
    }
    return gzip.compress(json.dumps(stored, separators=(",", ":")).encode(), compresslevel=6, mtime=0)


def _together(parts: Sequence[dict[str, Any]]) -> PositionCopies:
    """The copies of all ConfigMaps that count; what was written of one group in several writes is no less true."""
    first = parts[0] if parts else {}
    offsets: dict[ShardId, Offset] = {}
    for part in parts[: first.get("parts", len(parts))]:
        offsets |= part.get("offsets", {})
    return PositionCopies(offsets, first.get("leader_epoch", 0), first.get("revision", 0), first.get("refreshed", 0.0))


def _unpack(found: Any, group: GroupIdentity) -> dict[str, Any]:
    """What one ConfigMap says; nothing if it cannot be read."""
    try:
        stored = json.loads(gzip.decompress(base64.b64decode(found["binaryData"][KEY])))
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']!r}, this version reads {FORMAT}")
        shards, offsets = map(_shard, stored["shards"]), map(from_json, stored["offsets"])
        said: dict[str, Any] = {
            "offsets": dict(zip(shards, offsets, strict=True)),
            "leader_epoch": from_json(stored.get("leaderEpoch", 0)),
            "revision": from_json(stored.get("revision", 0)),
            "refreshed": float(stored.get("refreshed", 0.0)),
        }
        if not math.isfinite(said["refreshed"]):
            raise ValueError(f"refreshed is {said['refreshed']}")
        return said | ({"parts": from_json(stored["parts"])} if "parts" in stored else {})
    except _DAMAGE as error:
        log.warning(
            "ConfigMap %s, a copy of positions of group %s, cannot be read and is left aside until the next replaces it: %r",
            found["metadata"].get("name"),
            group,
            error,
        )
        return {}


def _shard(name: object) -> ShardId:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no shard")
    return ShardId(name)


_DAMAGE = (
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    EOFError,
    OSError,
    zlib.error,
    binascii.Error,
)
"""What reading raises of bytes that somebody has put there."""
