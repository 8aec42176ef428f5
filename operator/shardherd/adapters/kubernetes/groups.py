"""Whether there is a ConsumerGroup of a name, by the API server's word.

Called by the coordinator for a group that the controller has not announced to it: whatever keeps the controller's watches,
nobody is told that there is no group before that is certain. However many ask, the API server is asked for a name once in a
while, and for a few names at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.adapters.kubernetes.cluster import GROUPS
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.ports import Clock

LASTS = 2.0
"""Seconds for which an answer is taken for true."""

AT_ONCE = 32
"""Names that are asked about at the same time; who comes with another one is to ask again."""

KEPT = 1000
"""Names whose answers are remembered at the most."""

TIMEOUT = 5.0
"""Seconds for one question."""


class KubernetesGroups:
    """Of `namespaces`, or of all if there are none: the operator serves no other. Used on one event loop."""

    def __init__(self, api: KubernetesApi, clock: Clock, namespaces: Sequence[str] = ()) -> None:
        self._api = api
        self._clock = clock
        self._namespaces = frozenset(namespaces)
        self._asking: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._answers: dict[tuple[str, str], tuple[float, bool]] = {}

    async def exists(self, namespace: str, name: str) -> bool:
        """Not if it is being deleted. Raises CoordinatorUnavailableError where the API server does not tell."""
        if self._namespaces and namespace not in self._namespaces:
            return False
        key = (namespace, name)
        at, found = self._answers.get(key, (float("-inf"), False))
        if self._clock.now() - at < LASTS:
            return found
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= AT_ONCE:
                raise _unknown(namespace, name, f"{AT_ONCE} others are being asked about")
            task = self._asking[key] = asyncio.create_task(
                self._ask(namespace, name), name=f"is there a group {namespace}/{name}"
            )
            task.add_done_callback(lambda _: self._asking.pop(key))
        # Whoever asked first may hang up; the others still want to know.
        return await asyncio.shield(task)

    async def _ask(self, namespace: str, name: str) -> bool:
        path = f"{GROUPS}/namespaces/{namespace}/consumergroups/{name}"
        try:
            there = await unless_missing(self._api.acall("GET", path, timeout=TIMEOUT))
        except (ApiError, ApiUnavailableError) as error:
            raise _unknown(namespace, name, str(error)) from error
        found, now = there is not None and "deletionTimestamp" not in there["metadata"], self._clock.now()
        if len(self._answers) >= KEPT:
            self._answers = {each: answer for each, answer in self._answers.items() if now - answer[0] < LASTS}
        self._answers[namespace, name] = (now, found)
        return found


def _unknown(namespace: str, name: str, why: str) -> CoordinatorUnavailableError:
    group = f"{namespace}/{name}"
    return CoordinatorUnavailableError(f"whether there is a group {group} is not known: {why}; ask again", group=group)
