"""A group's ownership in the ConfigMap `<group>-state`, owned by the ConsumerGroup and written by compare-and-swap.

Called by the coordinator through `OwnershipStore`. The bytes are gzipped as they are; what they mean is the core's matter.
"""

from __future__ import annotations

import base64
import gzip
import logging
import zlib
from typing import Any

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError
from shardherd.adapters.kubernetes.configmaps import foreign, metadata, owned, path
from shardherd.adapters.kubernetes.copies import ConfigMapCopies
from shardherd.core.model import GroupIdentity
from shardherd.ports import (
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

LIMIT = 900 * 1024
"""Bytes after compression; the API server refuses a ConfigMap of over 1 MiB."""

TIMEOUT = 5.0
"""Seconds for one read or write; well below the time for which a renewed lease is certain."""


class ConfigMapOwnership(ConfigMapCopies):
    """OwnershipStore in ConfigMaps; the version is the resourceVersion."""

    async def load(self, group: GroupIdentity) -> StoredOwnership | None:
        """The stored ownership of this very group; one of a deleted group of the same name counts as none.

        What somebody has damaged is empty.
        """
        try:
            found = await self._api.acall("GET", _path(group), timeout=TIMEOUT)
        except ApiError as error:
            if error.status == 404:
                return None
            raise OwnershipUnavailableError(f"cannot read the ownership of group {group}: {error}") from error
        except ApiUnavailableError as error:
            raise OwnershipUnavailableError(f"cannot read the ownership of group {group}: {error}") from error
        if not owned(found, group):
            return None
        return StoredOwnership(_unpack(found, group), found["metadata"]["resourceVersion"], foreign(found, KEY))

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None) -> str:
        """See OwnershipStore. A leftover of a deleted group of the same name is replaced."""
        body = _config_map(group, data, expected)
        try:
            if expected is not None:
                written = await self._api.acall("PUT", _path(group), body, timeout=TIMEOUT)
            else:
                written = await self._create(group, body)
        except ApiUnavailableError as error:
            raise OutcomeUnknownError(f"the ownership of group {group} may or may not be written: {error}") from error
        except ApiError as error:
            if error.status == 404 and expected is not None:
                raise OwnershipGoneError(f"the ownership of group {group} was deleted: {error}") from error
            if error.status == 409 and error.reason in ("Conflict", "AlreadyExists"):
                raise OwnershipConflictError(
                    f"the ownership of group {group} was changed by another writer: {error}"
                ) from error
            if error.status >= 500:
                raise OutcomeUnknownError(f"the ownership of group {group} may or may not be written: {error}") from error
            raise OwnershipUnavailableError(f"cannot write the ownership of group {group}: {error}") from error
        return str(written["metadata"]["resourceVersion"])

    async def _create(self, group: GroupIdentity, body: dict[str, Any]) -> Any:
        """Create the ConfigMap. What a deleted group of the same name left is removed first, unless that happens by itself."""
        collection = f"/api/v1/namespaces/{group.namespace}/configmaps"
        try:
            return await self._api.acall("POST", collection, body, timeout=TIMEOUT)
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
            return await self._api.acall("POST", collection, body, timeout=TIMEOUT)


def _path(group: GroupIdentity) -> str:
    return path(group, "state")


def _unpack(found: Any, group: GroupIdentity) -> bytes:
    try:
        return gzip.decompress(base64.b64decode(found["binaryData"][KEY]))
    except (KeyError, TypeError, ValueError, EOFError, OSError, zlib.error) as error:
        log.error("the ownership of group %s is damaged: %r", group, error)  # noqa: TRY400
        return b""


def _config_map(group: GroupIdentity, data: bytes, version: str | None) -> dict[str, Any]:
    packed = gzip.compress(data, compresslevel=6, mtime=0)
    if len(packed) > LIMIT:
        raise OwnershipTooLargeError(
            f"the ownership of group {group} takes {len(packed)} bytes compressed, over the limit of {LIMIT}; consume fewer"
            " shards in this group"
        )
    about = metadata(group, "state")
    if version is not None:
        about["resourceVersion"] = version
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "binaryData": {KEY: base64.b64encode(packed).decode()},
    }
