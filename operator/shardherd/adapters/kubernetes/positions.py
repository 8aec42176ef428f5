"""The positions of groups whose source keeps none, in the ConfigMap `<group>-positions` of each, owned by the ConsumerGroup.

A `PositionTable`: it keeps bytes, and knows nothing of what they mean. All of a group's positions are in one ConfigMap, so that
a write is all or nothing.
"""

from __future__ import annotations

import base64
import binascii

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.adapters.kubernetes.configmaps import body, collection, owned, path
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import OutcomeUnknownError, OwnershipConflictError, OwnershipUnavailableError

PART = "positions"
KEY = "positions.json.gz"

TIMEOUT = 5.0
"""Seconds for one read or write."""


class ConfigMapPositions:
    """PositionTable over the API server."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def load(self, group: GroupIdentity) -> tuple[bytes, str] | None:
        """See PositionTable. What a deleted group of the same name left counts as none."""
        try:
            found = await unless_missing(self._api.acall("GET", path(group, PART), timeout=TIMEOUT))
        except (ApiError, ApiUnavailableError) as error:
            raise OwnershipUnavailableError(f"cannot read the positions of group {group}: {error}") from error
        if found is None or not owned(found, group):
            return None
        try:
            data = base64.b64decode((found.get("binaryData") or {}).get(KEY, ""), validate=True)
        except (binascii.Error, ValueError):
            data = b""  # as unreadable as what is not there
        return data, str(found["metadata"]["resourceVersion"])

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None) -> str:
        """See PositionTable."""
        made = body(group, PART, KEY, data, expected)
        try:
            if expected is None:
                written = await self._api.acall("POST", collection(group), made, timeout=TIMEOUT)
            else:
                written = await self._api.acall("PUT", path(group, PART), made, timeout=TIMEOUT)
        except ApiUnavailableError as error:
            raise OutcomeUnknownError(f"the positions of group {group} may or may not be written: {error}") from error
        except ApiError as error:
            message = f"cannot write the positions of group {group}: {error}"
            if error.status == 409 or (error.status == 404 and expected is not None):
                raise OwnershipConflictError(message) from error
            raise (OutcomeUnknownError if error.status >= 500 else OwnershipUnavailableError)(message) from error
        return str(written["metadata"]["resourceVersion"])
