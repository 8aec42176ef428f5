"""Who may join a driver as an executor. The driver is real, and it makes its executors' pods on a real API server.

There is no node: the test reads from a pod how its executor is to be started, and starts it here as its image would, or a
stranger's.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.harness.cluster import Names
from tests.integration.spark.drivers import START, Driver, Site, produce
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_consumers import warm

ENTRYPOINT = Path(__file__).parents[3] / "docker" / "executor-entrypoint.sh"
SECRET = "_SPARK_AUTH_SECRET"
JOINED = "Successfully registered with driver"
HERE = "127.0.0.1"

RULES = [{"apiGroups": [""], "resources": ["pods", "configmaps", "persistentvolumeclaims"], "verbs": ["*"]}]

Environment = dict[str, str]


class Executor:
    """An executor's JVM, started as its image would start it."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        folder.mkdir()
        self.log = folder / "log"
        java = Path("/usr/bin/java").resolve().parents[1]
        home = {"JAVA_HOME": str(java), "SPARK_HOME": str(Path(pyspark.__file__).parent), "PATH": os.environ["PATH"]}
        places = {"SPARK_LOCAL_DIRS": str(folder), "NUMBA_CACHE_DIR": str(folder / "numba"), "SPARK_EXECUTOR_POD_IP": HERE}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [ENTRYPOINT, "executor"], env={**environment, **home, **places}, stdout=log, stderr=log, cwd=folder
            )

    @property
    def joined(self) -> bool:
        """Whether the driver has taken it as an executor of its own."""
        return JOINED in self.log.read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)


class Herd:
    """A driver that waits for its one executor, and whoever claims to be it."""

    def __init__(self, cluster: Cluster, site: Site, namespace: str) -> None:
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        self._cluster, self._site, self._namespace = cluster, site, namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._executors: list[Executor] = []
        self.ports = [_free_port(), _free_port()]

    def start(self, **conf: str) -> Driver:
        """The driver, and the account and the pod that it has on the API server."""
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": self._namespace}})
        within = f"namespaces/{self._namespace}"
        named = {"metadata": {"name": "drivers"}}
        rights = f"/apis/rbac.authorization.k8s.io/v1/{within}"
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "drivers"}
        subject = {"kind": "ServiceAccount", "name": "drivers", "namespace": self._namespace}
        self.api.call("POST", f"/api/v1/{within}/serviceaccounts", named)
        self.api.call("POST", f"{rights}/roles", {**named, "rules": RULES})
        self.api.call("POST", f"{rights}/rolebindings", {**named, "roleRef": reference, "subjects": [subject]})
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self._site.folder / "account"
        token.write_text(self.api.call("POST", f"/api/v1/{within}/serviceaccounts/drivers/token", asked)["status"]["token"])
        pod = {
            "metadata": {"name": "clicks-0"},
            "spec": {"serviceAccountName": "drivers", "containers": [{"name": "driver", "image": "played-by-this-test"}]},
        }
        self.api.call("POST", self._pods, pod)
        access = {
            "spark.master": f"k8s://{self._cluster.api_url}",
            "spark.kubernetes.authenticate.caCertFile": str(self._cluster.layout.certificates / "ca.crt"),
            "spark.kubernetes.authenticate.oauthTokenFile": str(token),
            "spark.driver.port": str(self.ports[0]),
            "spark.driver.blockManager.port": str(self.ports[1]),
            "spark.executor.heartbeatInterval": "5s",
            "spark.sql.shuffle.partitions": "1",
        }
        return self._site.start(
            "clicks-0",
            SHARDHERD_NAMESPACE=self._namespace,
            SHARDHERD_POD_IP=HERE,
            SHARDHERD_DRIVER_HOST=HERE,
            SHARDHERD_DRIVER_MEMORY="512m",
            SHARDHERD_EXECUTOR_INSTANCES="1",
            SHARDHERD_EXECUTOR_MEMORY="512m",
            SHARDHERD_IMAGE="played-by-this-test",
            SHARDHERD_SPARK_CONF=json.dumps({**access, **conf}),
        )

    def told(self) -> Environment:
        """What the pod of the driver's executor says to whoever starts it, once there is one."""
        found: list[dict[str, Any]] = []

        def made() -> bool:
            found[:] = self.api.call("GET", self._pods, query={"labelSelector": "app.kubernetes.io/component=executor"})[
                "items"
            ]
            return bool(found)

        self._site.wait_until(made, "the driver has made an executor's pod", START)
        pod = found[0]
        variables = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        return variables | {"SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"]}

    def run(self, environment: Environment) -> Executor:
        executor = Executor(self._site.folder / f"executor-{len(self._executors)}", environment)
        self._executors.append(executor)
        return executor

    def is_refused(self, environment: Environment) -> str:
        """Run a stranger until it ends, which it must do without having joined. Returns what it says of it."""
        stranger = self.run(environment)
        self._site.wait_until(lambda: stranger.joined or stranger.process.poll() is not None, "the stranger is answered", START)
        log = stranger.log.read_text()
        assert not stranger.joined, log[-4000:]
        assert stranger.process.returncode != 0
        return log

    def close(self) -> None:
        for executor in self._executors:
            executor.close()
        self.api.call("DELETE", f"/api/v1/namespaces/{self._namespace}")
        self.api.close()


CALL = struct.pack(">qbqi", 8 + 1 + 8 + 4, 3, 7, 0)
"""A call on a connection that nobody has authenticated, as Spark frames it: length, type, number, and no content."""


def answer(port: int, frame: bytes) -> bytes:
    """The first frame of what is answered."""
    with socket.create_connection((HERE, port), timeout=30.0) as line:
        line.sendall(frame)
        received = line.makefile("rb")
        (length,) = struct.unpack(">q", received.read(8))
        return received.read(length - 8)


def _free_port() -> int:
    with socket.create_server((HERE, 0)) as listening:
        return int(listening.getsockname()[1])


def without_authentication(told: Environment) -> Environment:
    """What a pod has that knows where the driver is, and nothing else: Spark as it is by default."""
    options = ("-Dspark.authenticate", "-Dspark.network.crypto.")
    kept = {name: value for name, value in told.items() if not value.startswith(options) and name != SECRET}
    return kept | {"SPARK_EXECUTOR_ID": "99"}


@pytest.fixture
def herd(cluster: Cluster, site: Site, names: Names) -> Iterator[Herd]:
    found = Herd(cluster, site, names.fresh(f"strangers-{uuid.uuid4().hex[:6]}"))
    yield found
    site.close()
    found.close()


@pytest.mark.timeout(900)
def test_only_an_executor_with_the_secret_of_this_run_is_taken(
    herd: Herd, site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    driver = herd.start()
    told = herd.told()

    herd.is_refused(without_authentication(told))
    assert "Authentication failed." in herd.is_refused(told | {SECRET: uuid.uuid4().hex, "SPARK_EXECUTOR_ID": "99"})
    unencrypted = {name: value for name, value in told.items() if not value.startswith("-Dspark.network.crypto.")}
    assert "Unknown challenge message." in herd.is_refused(unencrypted | {"SPARK_EXECUTOR_ID": "99"})
    for port in herd.ports:
        assert b"Unknown challenge message." in answer(port, CALL), port

    assert re.fullmatch(r"[0-9a-f]{64}", told[SECRET])
    own = herd.run(told)
    warm(coordinator, driver)
    assert own.joined
    coordinator.grant("clicks-0", f"{topic}/0", f"{topic}/1")
    written = produce(site.bootstrap, topic, 2, 50)
    site.wait_until(lambda: site.counted() == written, "its executor reads all records", START)
    assert driver.terminate() == 0


@pytest.mark.timeout(900)
def test_who_switches_it_off_takes_anybody(herd: Herd, site: Site) -> None:
    herd.start(**{"spark.authenticate": "false"})
    told = herd.told()
    assert SECRET not in told
    stranger = herd.run(without_authentication(told))
    site.wait_until(lambda: stranger.joined, "the stranger has joined", START)
