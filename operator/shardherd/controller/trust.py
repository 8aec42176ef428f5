"""Publishes the authorities that consumers trust to every namespace that has groups: one ConfigMap each.

In it are the authorities of the coordinator, and, where not everybody may scrape, the digest of the token of who may.

Called by `reconcile` (is a namespace up to date?) and `apply` (bring them there). Pods mount it beside their token, and the
kubelet renews the files, so a rotation restarts nothing. It is applied again now and then, in case somebody has edited it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from shardherd.controller.manifests import AUTHORITIES, SCRAPERS
from shardherd.controller.names import TRUST
from shardherd.ports import Clock, Cluster

AGAIN = 300.0
"""Seconds after which a namespace is written to although nothing changed."""


class Trust:
    """Publishes what `bundle` says, PEM certificates, and `scrapers`, a digest; each may be nothing."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        bundle: Callable[[], str] = lambda: "",
        scrapers: Callable[[], str] = lambda: "",
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._kept = {AUTHORITIES: bundle, SCRAPERS: scrapers}
        self._published: dict[str, tuple[dict[str, str], float]] = {}
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def current(self, namespace: str) -> bool:
        """Whether this namespace has what it should have."""
        wanted = self._wanted()
        published, at = self._published.get(namespace, ({}, float("-inf")))
        return not wanted or (published == wanted and self._clock.now() - at < AGAIN)

    async def publish(self, namespace: str) -> None:
        """Write it, once for all groups of the namespace that ask at the same time. Raises as Cluster.apply does."""
        async with self._writing[namespace]:
            if self.current(namespace):
                return
            wanted = self._wanted()
            await self._cluster.apply(manifest(namespace, wanted))
            self._published[namespace] = wanted, self._clock.now()

    def forget(self, namespace: str) -> None:
        """Others may write to this namespace from now on: what it has is not known."""
        self._published.pop(namespace, None)

    def _wanted(self) -> dict[str, str]:
        return {key: found for key, read in self._kept.items() if (found := read())}


def manifest(namespace: str, data: dict[str, str]) -> dict[str, Any]:
    """The ConfigMap. It belongs to no group: it stays for the next one."""
    labels = {"app.kubernetes.io/name": "shardherd", "app.kubernetes.io/managed-by": "shardherd"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": TRUST, "namespace": namespace, "labels": labels},
        "data": data,
    }
