"""The certificate that the coordinator serves with, and the bundle by which consumers know it, from one Secret.

Made by the composition root in every operator, whether it leads or not: all serve from the same Secret. In `ours` mode whoever
looks first does what is due (`core.planning.certificates`); of two who do it at once the Secret's version lets one through, and
the other reads what that one wrote. Otherwise somebody else keeps the Secret, for example cert-manager, and it is only read.

A certificate by an authority that consumers may not have heard of yet is taken up only after a while, as long as the one before
it holds. What is served changes for new connections, without a restart.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from shardherd.adapters import certificates
from shardherd.adapters.certificates import BUNDLE, CHAIN, Data
from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.secrets import contents
from shardherd.core.planning.certificates import Lifetimes
from shardherd.ports import Clock

log = logging.getLogger(__name__)

LOOK = 60.0
"""Seconds between looks at the Secret."""

FIRST_LOOKS = 1.0
"""Seconds between looks while there is nothing to serve with, and after a look that failed."""

ANNOUNCED = 300.0
"""Seconds for consumers to learn of an authority: the operator applies it within seconds, kubelets within two minutes."""

TIMEOUT = 5.0
"""Seconds for one call."""


@dataclass
class _Trusted:
    """An authority that was seen in the Secret, and since when (monotonic seconds)."""

    certificate: x509.Certificate
    since: float = field(default=float("-inf"))


class ServingCertificate:
    """Keeps `context` and `bundle` as the Secret `name` in `namespace` has them, for a coordinator called by these `hosts`."""

    def __init__(
        self,
        api: KubernetesApi,
        clock: Clock,
        namespace: str,
        name: str,
        hosts: frozenset[str],
        lifetimes: Lifetimes | None,
    ) -> None:
        """Without `lifetimes` the Secret is somebody else's."""
        self._api = api
        self._clock = clock
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        self._secret = f"Secret {name!r} in namespace {namespace!r}"
        self._hosts = hosts
        self._lifetimes = lifetimes
        self._trusted: dict[str, _Trusted] = {}
        self._bundle = ""
        self._served: ssl.SSLContext | None = None
        self._leaf: x509.Certificate | None = None
        self._authority_until = 0.0
        self._there = asyncio.Event()
        self._logged = ""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """What to listen with, from the beginning; without a certificate connections are refused."""
        self.context.sni_callback = self._choose

    @property
    def ready(self) -> bool:
        """Whether there is something to serve with."""
        return self._served is not None

    @property
    def until(self) -> float:
        """When the certificate that is served ends (wall seconds), 0 if there is none."""
        return 0.0 if self._leaf is None else certificates.until(self._leaf)

    @property
    def authority_until(self) -> float:
        """When the authority ends by which consumers believe what is served (wall seconds), 0 if there is none."""
        return self._authority_until

    def bundle(self) -> str:
        """All authorities that are to be trusted, as PEM; empty if none is known. May be called from any thread."""
        return self._bundle

    async def available(self) -> None:
        """Wait until there is something to serve with."""
        await self._there.wait()

    async def run(self) -> None:
        """Look at the Secret for ever. Cancel to stop."""
        while True:
            try:
                said = await self.look()
            except (ApiError, ApiUnavailableError) as error:
                said = f"the serving certificate cannot be read or kept: {error}"
            if said and said != self._logged:
                log.warning("%s", said)
            self._logged = said
            await asyncio.sleep(LOOK if self.ready and not said else FIRST_LOOKS)

    async def look(self) -> str:
        """Read the Secret, do what is due, and take up what is new; what is wrong with it, or an empty string.

        Raises ApiError, ApiUnavailableError.
        """
        data = await self._keep() if self._lifetimes is not None else contents(await self._get())
        return self._take(data)

    async def _get(self) -> Any:
        try:
            return await self._api.acall("GET", self._path, timeout=TIMEOUT)
        except ApiError as error:
            if error.status != 404:
                raise
            remedy = "the chart makes it" if self._lifetimes is not None else "whoever keeps it has not made it yet"
            raise ApiError(f"there is no {self._secret}: {remedy}", error.status, error.reason) from error

    async def _keep(self) -> Data:
        assert self._lifetimes is not None
        while True:
            found = await self._get()
            data = contents(found)
            wanted = certificates.rotated(data, self._clock.wall(), self._hosts, self._lifetimes)
            if wanted is None:
                return data
            body = {
                "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
                "data": {key: base64.b64encode(value).decode() for key, value in wanted.items()},
            }
            try:
                await self._api.acall("PATCH", self._path, body, content_type=MERGE_PATCH, timeout=TIMEOUT)
            except ApiError as error:
                if error.status == 409:
                    continue  # the other operator was first: its work is as good as ours
                raise
            log.info("made what was due of %s", self._secret)
            return wanted

    def _take(self, data: Data) -> str:
        said = self._take_up(data)
        if self._leaf is not None:
            trusted = (each.certificate for each in self._trusted.values())
            self._authority_until = certificates.trusted_until(self._leaf, trusted)
        return said

    def _take_up(self, data: Data) -> str:
        leaf = certificates.serving(data)
        if leaf is None:
            return f"{self._secret} holds no {CHAIN} with its tls.key: nothing new is served"
        authorities = certificates.certificates(data.get(BUNDLE, b""))
        if not authorities:
            return f"{self._secret} holds no {BUNDLE}, by which consumers would know us: use an issuer that gives it"
        now, wall = self._clock.now(), self._clock.wall()
        since = now if self._served is not None else float("-inf")
        for each in authorities:
            self._trusted.setdefault(certificates.fingerprint(each), _Trusted(each, since))
        known = (each.certificate for each in self._trusted.values())
        self._bundle = certificates.bundle(each for each in known if certificates.until(each) > wall)
        if self._leaf is not None and leaf == self._leaf:
            return ""
        fresh = max(self._trusted[certificates.fingerprint(each)].since for each in authorities) + ANNOUNCED
        if self._served is not None and now < fresh and wall + ANNOUNCED < self.until:
            return ""
        try:
            self._served = certificates.context(data)
        except ssl.SSLError as error:
            return f"{self._secret} cannot be served with: {error}"
        self._leaf = leaf
        log.info("serving with a certificate that ends at %s", leaf.not_valid_after_utc.isoformat())
        self._there.set()
        return ""

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        """For each new connection: the certificate that is served now."""
        if self._served is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = self._served
        return None
