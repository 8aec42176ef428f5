"""Leadership by a Lease: one holder at a time, certain until a deadline on this machine's own clock.

Called by the composition root and the coordinator through `Leadership`. Another process may take the Lease over once it has
seen no renewal for its whole duration, or once its holder is proven dead; we stop being certain earlier, `renew_deadline` after
the last renewal was sent. The Lease says which start of the holder holds it, so that a proof can name that very process.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
from dataclasses import dataclass
from typing import Any, Protocol

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.ports import Clock

log = logging.getLogger(__name__)


START = "shardherd.dev/start"
"""Annotation of the Lease: which start of the holder's process holds it."""


RELEASES = 3
"""Attempts to give the Lease back: at most one renewal can be on its way."""


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds: for how long others respect the Lease, until when we trust our last renewal, between renewals, and between the
    looks of who waits for it."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0
    look: float = 0.5


class Obituaries(Protocol):
    """Looks up whether the holder of a lease has ended."""

    async def died(self, holder: str, start: str) -> bool:
        """Whether this start of that holder has surely ended. Raises ApiError, ApiUnavailableError."""
        ...


@dataclass(frozen=True)
class _Observed:
    """The Lease as it was when we first saw this version of it."""

    holder: str
    version: str
    at: float


class LeaseLeadership:
    """Leadership by the Lease `name` in `namespace`, held under `identity`, which has the UID of our pod.

    A process that is started again under the same identity holds the Lease at once; `start` names this start of it.
    `obituaries` is asked while the last renewal is not quite new; without it only time tells.
    """

    def __init__(
        self,
        api: KubernetesApi,
        clock: Clock,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        *,
        start: str = "",
        obituaries: Obituaries | None = None,
    ) -> None:
        self._api = api
        self._clock = clock
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._identity = identity
        self._times = times or LeaseTimes()
        self._start = start
        self._obituaries = obituaries
        self._observed: _Observed | None = None
        self._deadline = float("-inf")
        self._held: Any = None
        self._taken_away = False
        self._lost = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """Wait until we hold the Lease, then renew it in the background."""
        while True:
            if await self._attempt():
                break
            await asyncio.sleep(self._times.look)
        log.info("holding the lease %s as %s", self._path, self._identity)
        self._renewing = asyncio.create_task(self._renew(), name="lease")

    def deadline(self) -> float:
        return self._deadline

    async def lost(self) -> None:
        await self._lost.wait()

    async def release(self) -> None:
        """Stop renewing and let the next one have it at once. Does nothing if it is not ours."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
        if self._held is None or self._lost.is_set():
            return
        self._deadline = float("-inf")
        try:
            await self._give_back()
        except (ApiError, ApiUnavailableError) as error:
            log.warning("the lease %s was not released, it runs out by itself: %s", self._path, error)
        self._held = None

    async def _give_back(self) -> None:
        """Write that nobody holds it. A renewal that was on its way may have come first: then over that."""
        for _ in range(RELEASES):
            self._held["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
            try:
                await self._api.acall("PUT", self._path, self._held, timeout=self._times.retry)
                return
            except ApiError as error:
                if error.status != 409:
                    raise
            found = await self._read()
            if found is None or found["spec"].get("holderIdentity") != self._identity:
                return
            self._held = found
        log.warning("the lease %s was not released, it runs out by itself: it kept changing", self._path)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._times.retry)
            try:
                ours = await self._attempt()
            except Exception:
                log.exception("the lease %s is not renewed any more, after a failure of ours", self._path)
                ours, self._taken_away = False, True
            if not ours and (self._taken_away or self._clock.now() >= self._deadline):
                self._deadline = float("-inf")
                self._lost.set()
                return

    async def _attempt(self) -> bool:
        """Take or renew the Lease; False when it is somebody else's or the API server does not answer."""
        try:
            found = await self._read()
            if found is None and self._renewing is not None and self._clock.now() >= self._deadline:
                # While we stood still somebody may have held it, who is gone with it.
                self._taken_away = True
                return False
            if found is None:
                sent = self._clock.now()
                self._held = await self._api.acall("POST", self._collection, self._fresh(), timeout=self._times.retry * 2)
            else:
                if not await self._may_take(found):
                    return False
                sent = self._clock.now()
                self._held = await self._api.acall("PUT", self._path, self._claim(found), timeout=self._times.retry * 2)
        except ApiError as error:
            level = logging.INFO if error.status in (404, 409) else logging.WARNING
            log.log(level, "the lease %s was not taken: %s", self._path, error)
            return False
        except ApiUnavailableError as error:
            log.warning("the lease %s was not taken: %s", self._path, error)
            return False
        self._deadline = sent + self._times.renew_deadline
        return True

    async def _read(self) -> Any:
        return await unless_missing(self._api.acall("GET", self._path, timeout=self._times.retry * 2))

    async def _may_take(self, found: Any) -> bool:
        """Whether the Lease is ours or free, its holder is dead, or it was not renewed for its duration while we watched."""
        holder = found["spec"].get("holderIdentity") or ""
        if self._renewing is not None and holder != self._identity:
            # Also if nobody holds it any more: somebody has, while we stood still, and may have changed what we know.
            self._taken_away = True
            log.error("the lease %s is held by %s now, not by us (%s)", self._path, holder or "nobody", self._identity)
            return False
        if holder in ("", self._identity):
            return True
        version = found["metadata"]["resourceVersion"]
        if self._observed is None or self._observed.holder != holder:
            log.info("waiting for the lease %s, which %s holds", self._path, holder)
        if self._observed is None or self._observed.version != version:
            self._observed = _Observed(holder, version, self._clock.now())
        unrenewed = self._clock.now() - self._observed.at
        duration = float(found["spec"].get("leaseDurationSeconds") or self._times.duration)
        if unrenewed >= duration:
            log.warning("the lease %s was not renewed by %s for %g s: taking it over", self._path, holder, duration)
            return True
        if self._obituaries is None or unrenewed < self._times.retry / 2:
            return False
        # The write that takes it over names the version that we have read: a holder that renews meanwhile keeps it.
        start = found["metadata"].get("annotations", {}).get(START, "")
        dead = await self._obituaries.died(holder, start)
        if dead:
            log.warning("the lease %s is held by %s, which has ended: taking it over", self._path, holder)
        return dead

    def _fresh(self) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "annotations": {START: self._start}},
            "spec": {"leaseTransitions": 0, "acquireTime": self._stamp(), **self._renewal()},
        }

    def _claim(self, found: Any) -> Any:
        spec = dict(found["spec"])
        if spec.get("holderIdentity") != self._identity:
            spec |= {"leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1, "acquireTime": self._stamp()}
        annotations = found["metadata"].get("annotations", {}) | {START: self._start}
        return {**found, "metadata": {**found["metadata"], "annotations": annotations}, "spec": spec | self._renewal()}

    def _renewal(self) -> dict[str, Any]:
        # Whole seconds, and never fewer than ours: another would take it over while we still trust our last renewal.
        duration = math.ceil(self._times.duration)
        return {"holderIdentity": self._identity, "leaseDurationSeconds": duration, "renewTime": self._stamp()}

    def _stamp(self) -> str:
        now = datetime.datetime.fromtimestamp(self._clock.wall(), datetime.UTC)
        return now.isoformat(timespec="microseconds").replace("+00:00", "Z")
