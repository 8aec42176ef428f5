"""TLS with the chart's Certificate and cert-manager's own controllers, which issue and renew it."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import Cluster
from dev.demo.report import await_that
from shardherd.adapters.kubernetes.api import MERGE_PATCH
from tests.chart.rendering import IMAGE
from tests.harness.authorities import HOST
from tests.harness.cluster import Names
from tests.harness.definition import established
from tests.harness.long import long
from tests.integration.contract.labs import eventually
from tests.integration.coordinator.private import Private, consumer
from tests.integration.coordinator.rig import Rig

CHART = Path(__file__).resolve().parents[3] / "charts" / "shardherd"
AUTHORITY = {
    "apiVersion": "cert-manager.io/v1",
    "kind": "Certificate",
    "metadata": {"name": "company"},
    "spec": {
        "secretName": "company",
        "commonName": "company",
        "isCA": True,
        "privateKey": {"algorithm": "ECDSA", "size": 256},
        "issuerRef": {"name": "root"},
    },
}
MODE = ("tls.mode=certManager", "tls.certManager.issuerRef.name=company")


@pytest.fixture
def cert_manager(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """cert-manager's resources and controllers."""
    program = cluster.tools.cert_manager
    for definition in sorted(cluster.tools.cert_manager_definitions.glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "-f", str(definition))
    for resource in ("certificates.cert-manager.io", "issuers.cert-manager.io"):
        await_that(f"{resource} is established", functools.partial(established, cluster, resource), within=30)
    with (tmp_path / "cert-manager.log").open("wb") as log:
        running = subprocess.Popen([program, cluster.kubeconfig], stdout=log, stderr=log)
    yield
    running.terminate()
    running.wait(30)


@long
async def test_the_certificate_of_an_issuer_is_served_and_its_renewal_is_noticed_by_no_consumer(
    cluster: Cluster, cert_manager: None, rig: Rig, names: Names, name: str, topic: str, tmp_path: Path
) -> None:
    certificate = _certificate(cluster, rig.namespace)
    certificate["spec"]["ipAddresses"] = [HOST]
    kept = _kept(rig.namespace)
    for kind, body in (
        ("issuers", _issuer("root", {"selfSigned": {}})),
        ("certificates", AUTHORITY),
        ("issuers", _issuer("company", {"ca": {"secretName": "company"}})),
        ("certificates", certificate),
    ):
        await rig.kubernetes.api.acall("POST", f"{kept}/{kind}", body)
    path = f"{kept}/certificates/{certificate['metadata']['name']}"

    async def issued() -> bool:
        return _condition(await rig.kubernetes.api.acall("GET", path), "Ready") == "True"

    await eventually(issued, 60)
    private = Private(rig, certificate["spec"]["secretName"], tmp_path, ours=False)
    spec = await rig.group(name, (topic,), consumers=1)
    await private.start(spec)
    first = await private.served()
    beating = await consumer(private, spec, private.ca_file)

    async with beating.client:
        await beating.beat()
        renew = {"status": {"conditions": [{"type": "Issuing", "status": "True", "reason": "Asked", "message": ""}]}}
        await rig.kubernetes.api.acall("PATCH", f"{path}/status", renew, content_type=MERGE_PATCH)

        async def renewed() -> bool:
            await private.look()
            return await private.served() != first

        await eventually(renewed, 60)
        assert (await private.served()).public_key() != first.public_key()
        await beating.client.close()  # the next request makes a connection of its own
        await beating.beat()


def _certificate(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """What the chart asks cert-manager for."""
    options = [word for setting in MODE for word in ("--set", setting)]
    text = cluster.helm(
        "template", "shardherd", str(CHART), "--namespace", namespace, "-s", "templates/tls.yaml", *IMAGE, *options
    )
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _issuer(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": name}, "spec": spec}


def _kept(namespace: str) -> str:
    return f"/apis/cert-manager.io/v1/namespaces/{namespace}"


def _condition(found: dict[str, Any], kind: str) -> str | None:
    conditions = found.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), None)
