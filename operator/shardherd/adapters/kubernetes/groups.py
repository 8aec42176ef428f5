"""Whether there is a ConsumerGroup of a name, by the API server's word.

Called by the coordinator for a group that the controller has not announced to it: whatever keeps the controller's watches,
nobody is told that there is no group before that is certain. However many ask, the API server is asked for a name once in
a while.
"""

from __future__ import annotations

import asyncio

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.adapters.kubernetes.cluster import GROUPS
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.ports import Clock

LASTS = 2.0
"""Seconds for which an answer is taken for true."""

KEPT = 1000
"""Names that are remembered at the most."""

TIMEOUT = 5.0
"""Seconds for one question."""


class KubernetesGroups:
    """Of all namespaces. Used on one event loop."""

    def __init__(self, api: KubernetesApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._asked: dict[tuple[str, str], tuple[float, asyncio.Task[bool]]] = {}

    async def exists(self, namespace: str, name: str) -> bool:
        """Not if it is being deleted, or in a namespace in which this operator may not read groups, and so serves none.

        Raises CoordinatorUnavailableError where the API server does not tell.
        """
        now, key = self._clock.now(), (namespace, name)
        at, task = self._asked.get(key, (float("-inf"), None))
        if task is None or now - at >= LASTS:
            if len(self._asked) >= KEPT:
                self._asked = {each: found for each, found in self._asked.items() if now - found[0] < LASTS}
            task = asyncio.create_task(self._ask(namespace, name), name=f"is there a group {namespace}/{name}")
            self._asked[key] = (now, task)
        # Whoever asked first may hang up; the others still want to know.
        return await asyncio.shield(task)

    async def _ask(self, namespace: str, name: str) -> bool:
        path = f"{GROUPS}/namespaces/{namespace}/consumergroups/{name}"
        try:
            found = await unless_missing(self._api.acall("GET", path, timeout=TIMEOUT), 403)
        except (ApiError, ApiUnavailableError) as error:
            raise CoordinatorUnavailableError(
                f"whether there is a group {namespace}/{name} is not known: {error}; ask again", group=f"{namespace}/{name}"
            ) from error
        return found is not None and "deletionTimestamp" not in found["metadata"]
