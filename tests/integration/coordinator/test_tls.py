"""TLS with a real Secret and real tokens: whom consumers believe, and rotation that neither side needs a restart for."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509

from shardherd.adapters import certificates
from shardherd.adapters.clock import SystemClock
from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.cluster import KubernetesCluster
from shardherd.adapters.kubernetes.serving import ServingCertificate
from shardherd.client import AsyncConsumerClient
from shardherd.controller.trust import Trust
from shardherd.coordinator import Tls
from shardherd.core.certificates import DAY, Lifetimes
from shardherd.core.errors import CoordinatorUnavailableError
from shardherd.core.model import ConsumerId, GroupSpec, Heartbeat, Incarnation
from tests.harness.authorities import HOST, secret, write_bundle
from tests.harness.cluster import Names
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

    def __init__(self, rig: Rig, secret: str, folder: Path) -> None:
        self.rig = rig
        self.clock = Earlier()
        self.api: KubernetesApi = rig.kubernetes.api
        self.ca_file = folder / "ca.crt"
        self._secret = secret
        self.serving = self.operator()
        self._published = Trust(KubernetesCluster(self.api), self.clock, self.serving.bundle)
        self.coordinator: Coordinator

    def operator(self) -> ServingCertificate:
        """What one more operator would serve with."""
        return ServingCertificate(self.api, self.clock, self.rig.namespace, self._secret, frozenset({HOST}), Lifetimes())

    async def start(self, spec: GroupSpec) -> None:
        await self.api.acall("POST", f"/api/v1/namespaces/{self.rig.namespace}/secrets", {"metadata": {"name": self._secret}})
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


@pytest.fixture
async def spec(rig: Rig, name: str, topic: str) -> GroupSpec:
    return await rig.group(name, (topic,), consumers=1)


@pytest.fixture
def private(rig: Rig, names: Names, tmp_path: Path) -> Private:
    return Private(rig, names.fresh("serving"), tmp_path)


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


async def test_a_heartbeat_goes_to_a_coordinator_that_is_believed_and_to_no_other(
    private: Private, spec: GroupSpec, tmp_path: Path
) -> None:
    await private.start(spec)
    ours = await consumer(private, spec, private.ca_file)
    async with ours.client:
        assert await ours.beat() == spec.settings.session_timeout

    stranger = await consumer(private, spec, write_bundle(tmp_path / "another.crt", secret()))
    async with stranger.client:
        with pytest.raises(CoordinatorUnavailableError, match=f"the coordinator at {private.url} is not believed"):
            await stranger.beat()
    ok = {"namespace": spec.identity.namespace, "consumergroup": spec.identity.name, "result": "ok"}
    assert private.coordinator.counted("shardherd_heartbeats_total", **ok) == 1


async def test_a_certificate_and_its_authority_are_replaced_under_a_consumer_that_notices_nothing(
    private: Private, spec: GroupSpec
) -> None:
    private.clock.late = 246 * DAY
    await private.start(spec)
    first = await private.served()
    private.clock.late = 2 * DAY
    await private.look()
    second = await private.served()
    both = certificates.certificates(private.ca_file.read_bytes())
    assert second.public_key() != first.public_key()
    assert second.issuer == first.issuer
    assert len(both) == 2
    second.verify_directly_issued_by(both[1])

    beating = await consumer(private, spec, private.ca_file)
    async with beating.client:
        await beating.beat()
        private.clock.late = 0.5 * DAY
        await private.look()
        third = await private.served()
        third.verify_directly_issued_by(both[0])
        for _ in range(2):
            await beating.beat()
            # The next request makes a connection of its own.
            await beating.client.close()


async def test_of_two_operators_that_start_at_once_one_writes_and_both_serve_the_same(
    private: Private, rig: Rig, names: Names, tmp_path: Path
) -> None:
    both = Private(rig, names.fresh("shared"), tmp_path)
    name = both._secret
    await rig.kubernetes.api.acall("POST", f"/api/v1/namespaces/{rig.namespace}/secrets", {"metadata": {"name": name}})
    one, other = both.operator(), both.operator()
    assert list(await asyncio.gather(one.look(), other.look())) == ["", ""]
    assert one.bundle() == other.bundle() != ""
    assert one.until == other.until
    assert await one.look() == ""
    assert one.bundle() == other.bundle()
