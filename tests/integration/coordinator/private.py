"""A coordinator that serves over TLS from a Secret, and consumers that believe it or not, for the tests of TLS."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

from cryptography import x509

from shardherd.adapters import certificates
from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.cluster import KubernetesCluster
from shardherd.adapters.kubernetes.serving import ServingCertificate
from shardherd.client import AsyncConsumerClient
from shardherd.clock import SystemClock
from shardherd.controller.trust import Trust
from shardherd.coordinator import Tls
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Heartbeat, Incarnation
from shardherd.core.planning.certificates import Lifetimes
from tests.harness.authorities import HOST, write_bundle
from tests.integration.coordinator.rig import Coordinator, Rig, becomes


class Earlier(SystemClock):
    """A clock that goes late by so many seconds. What is made under it is valid under the real one too."""

    late = 0.0

    def wall(self) -> float:
        return time.time() - self.late

    def now(self) -> float:
        return super().now() - self.late


class Private:
    """A coordinator over TLS, the Secret that it serves from, and the file that a consumer believes it by."""

    def __init__(self, rig: Rig, secret: str, folder: Path, *, ours: bool = True) -> None:
        """Unless it is `ours`, somebody else keeps the Secret."""
        self.rig = rig
        self.clock = Earlier()
        self.api: KubernetesApi = rig.kubernetes.api
        self.ca_file = folder / "ca.crt"
        self.secret = secret
        self._lifetimes = Lifetimes() if ours else None
        self.serving = self.operator()
        self._published = Trust(KubernetesCluster(self.api), self.clock, self.serving.bundle)
        self.coordinator: Coordinator

    def operator(self) -> ServingCertificate:
        """What one more operator would serve with."""
        return ServingCertificate(self.api, self.clock, self.rig.namespace, self.secret, frozenset({HOST}), self._lifetimes)

    async def start(self, spec: GroupSpec) -> None:
        if self._lifetimes is not None:
            await self.api.acall(
                "POST", f"/api/v1/namespaces/{self.rig.namespace}/secrets", {"metadata": {"name": self.secret}}
            )
        await self.look()
        tls = Tls(self.serving.context, 0, lambda: self.serving.ready, accept_plain=False)
        self.coordinator = await self.rig.coordinator(tls=tls)
        self.coordinator.server.coordination.apply(spec)
        await becomes(lambda: self.coordinator.server.coordination.view(spec.identity) is not None)

    async def look(self) -> None:
        """A minute of the operator, and of the kubelet that brings the ConfigMap to a pod."""
        assert await self.serving.look() == ""
        if not self._published.current(self.rig.namespace):
            await self._published.publish(self.rig.namespace)
        path = f"/api/v1/namespaces/{self.rig.namespace}/configmaps/shardherd-ca"
        found = await self.api.acall("GET", path)
        write_bundle(self.ca_file, {certificates.BUNDLE: found["data"]["ca.crt"].encode()})

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.coordinator.server.tls_port}"

    async def served(self) -> x509.Certificate:
        """The certificate that a new connection is shown."""
        port = self.coordinator.server.tls_port
        return x509.load_pem_x509_certificate((await asyncio.to_thread(ssl.get_server_certificate, (HOST, port))).encode())


class Beating:
    """A consumer with a real token, over TLS."""

    def __init__(self, private: Private, spec: GroupSpec, pod: str, uid: str, token: str, ca_file: Path) -> None:
        self.client = AsyncConsumerClient(
            private.url, private.rig.namespace, spec.identity.name, lambda: token, ca_file=ca_file
        )
        self._who = ConsumerId(pod), Incarnation(uid, 1), spec.identity.uid
        self._seq = 0

    async def beat(self) -> float:
        self._seq += 1
        consumer, incarnation, group_uid = self._who
        reply = await self.client.heartbeat(Heartbeat(consumer, incarnation, self._seq, 0, group_uid=group_uid), 0)
        return reply.session_timeout


async def consumer(private: Private, spec: GroupSpec, ca_file: Path) -> Beating:
    rig, name = private.rig, f"{spec.identity.name}-0"
    pod = await rig.kubernetes.api.acall("GET", f"/api/v1/namespaces/{rig.namespace}/pods/{name}")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)
    return Beating(private, spec, name, pod["metadata"]["uid"], token, ca_file)
