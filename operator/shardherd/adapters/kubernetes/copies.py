"""Copies of a group's positions in the ConfigMaps `<group>-offsets-0`, `-1` and so on, owned by the ConsumerGroup.

Used by the ownership's adapter. Each holds so many shards that it stays well below the size that the API server allows. The
last writer wins: the coordinator writes them only while it surely leads, and a copy that is too low does no harm.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import logging
import math
import zlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.configmaps import metadata, owned, path
from shardherd.core.model import GroupIdentity, Offset, ShardId
from shardherd.ports import OwnershipUnavailableError

log = logging.getLogger(__name__)

KEY = "offsets.json.gz"
FORMAT = 1

SHARDS_EACH = 40_000
"""Shards in one ConfigMap: with the longest offsets some 400 KB after compression, of the 1 MiB that the server allows."""

TIMEOUT = 5.0
"""Seconds for one read or write."""


class ConfigMapCopies:
    """The part of an OwnershipStore that keeps copies of positions."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def load_copies(self, group: GroupIdentity) -> Mapping[ShardId, Offset]:
        """See OwnershipStore. A damaged copy, and one of a format that is not ours, counts as none."""
        copies: dict[ShardId, Offset] = {}
        for number in count():
            try:
                found = await self._api.acall("GET", path(group, f"offsets-{number}"), timeout=TIMEOUT)
            except (ApiError, ApiUnavailableError) as error:
                if isinstance(error, ApiError) and error.status == 404:
                    break
                raise OwnershipUnavailableError(f"cannot read the copied positions of group {group}: {error}") from error
            if owned(found, group):
                copies |= _unpack(found, group)
        return copies

    async def save_copies(
        self, group: GroupIdentity, copies: Mapping[ShardId, Offset], before: Mapping[ShardId, Offset] | None = None
    ) -> None:
        """See OwnershipStore. `before` says which ConfigMaps there are: of a group of few shards one request writes all."""
        shards = sorted(copies)
        parts = [shards[at : at + SHARDS_EACH] for at in range(0, len(shards), SHARDS_EACH)] or [[]]
        there = None if before is None else math.ceil(len(before) / SHARDS_EACH)
        try:
            for number, part in enumerate(parts):
                await self._write(group, f"offsets-{number}", part, copies, new=there is not None and number >= there)
            if there is None or there > len(parts):
                await self._remove(group, f"offsets-{len(parts)}")
        except (ApiError, ApiUnavailableError) as error:
            raise OwnershipUnavailableError(f"cannot copy the positions of group {group}: {error}") from error

    async def _write(
        self, group: GroupIdentity, part: str, shards: Sequence[ShardId], copies: Mapping[ShardId, Offset], *, new: bool
    ) -> None:
        """Write one ConfigMap. `new`: it is likely not there yet; else it likely is."""
        stored = {"format": FORMAT, "shards": shards, "offsets": [copies[shard] for shard in shards]}
        packed = gzip.compress(json.dumps(stored, separators=(",", ":")).encode(), compresslevel=6, mtime=0)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(group, part),
            "binaryData": {KEY: base64.b64encode(packed).decode()},
        }
        replace = ("PUT", path(group, part))
        create = ("POST", f"/api/v1/namespaces/{group.namespace}/configmaps")
        likely, otherwise = (create, replace) if new else (replace, create)
        try:
            await self._api.acall(*likely, body, timeout=TIMEOUT)
        except ApiError as error:
            if error.status != (409 if new else 404):
                raise
            await self._api.acall(*otherwise, body, timeout=TIMEOUT)

    async def _remove(self, group: GroupIdentity, part: str) -> None:
        """The part after the last, if there were more shards before."""
        try:
            await self._api.acall("DELETE", path(group, part), timeout=TIMEOUT)
        except ApiError as error:
            if error.status != 404:
                raise


def _unpack(found: Any, group: GroupIdentity) -> dict[ShardId, Offset]:
    try:
        stored = json.loads(gzip.decompress(base64.b64decode(found["binaryData"][KEY])))
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']!r}, this version reads {FORMAT}")
        return {ShardId(shard): int(offset) for shard, offset in zip(stored["shards"], stored["offsets"], strict=True)}
    except (KeyError, TypeError, ValueError, EOFError, OSError, zlib.error, binascii.Error) as error:
        log.warning("group %s: a copy of its positions cannot be read and is left aside: %r", group, error)
        return {}
