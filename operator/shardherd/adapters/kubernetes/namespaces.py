"""The namespaces that a label selector chooses, by the API server's own reading of it, and which groups are in one.

Called by the controller's `Served`. What does not match is not sent to us. Decides nothing, keeps nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.cluster import GROUPS, PAGE, ask


class LabelledNamespaces:
    """`Namespaces`, over the API server."""

    def __init__(self, api: KubernetesApi, selector: str) -> None:
        self._api = api
        self._selector = selector

    async def chosen(self) -> tuple[frozenset[str], int]:
        found: set[str] = set()
        version = 0
        async for page in self._pages("/api/v1/namespaces", labelSelector=self._selector):
            # Every page is of the version of the first.
            version = int(page["metadata"]["resourceVersion"])
            found.update(item["metadata"]["name"] for item in page["items"])
        return frozenset(found), version

    async def groups(self, namespace: str) -> tuple[str, ...]:
        pages = self._pages(f"{GROUPS}/namespaces/{namespace}/consumergroups")
        return tuple([item["metadata"]["name"] async for page in pages for item in page["items"]])

    async def _pages(self, path: str, **query: str) -> AsyncIterator[Any]:
        asked = {"limit": str(PAGE), **query}
        while True:
            page = await ask(self._api, "GET", path, query=asked)
            yield page
            more = page["metadata"].get("continue")
            if not more:
                return
            asked["continue"] = more
