"""A driver that makes its executors' pods on a real API server. There is no node.

A test reads from a pod how its executor is to be started, and starts it as its image would.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyspark

from dev.cluster import Cluster
from dev.cluster.ports import free_ports
from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.harness.objects import FOLDER
from tests.integration.spark.drivers import START, Driver, Site

ENTRYPOINT = Path(__file__).parents[3] / "docker" / "executor-entrypoint.sh"
SECRET = "_SPARK_AUTH_SECRET"
JOINED = "Successfully registered with driver"
HERE = "127.0.0.1"

PLAYED = {"image": "played-by-a-test", "resources": {"limits": {"cpu": "1m", "memory": "1Mi"}}}
RULES = [{"apiGroups": [""], "resources": ["pods", "configmaps", "persistentvolumeclaims"], "verbs": ["*"]}]

Environment = dict[str, str]


class Executor:
    """An executor's JVM, started as its image would start it."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        folder.mkdir()
        self.log = folder / "log"
        java = Path("/usr/bin/java").resolve().parents[1]
        home = {"JAVA_HOME": str(java), "SPARK_HOME": str(Path(pyspark.__file__).parent), "PATH": os.environ["PATH"]}
        places = {"SPARK_LOCAL_DIRS": str(folder), "NUMBA_CACHE_DIR": str(FOLDER), "SPARK_EXECUTOR_POD_IP": HERE}
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
        self.process.wait(60)


class Herd:
    """A driver that waits for its one executor, and whoever claims to be it."""

    def __init__(self, cluster: Cluster, site: Site, namespace: str) -> None:
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        self._cluster, self._site, self._namespace = cluster, site, namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._executors: list[Executor] = []
        self.ports = free_ports(2)
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})

    def start(self, conf: Environment | None = None, cpu_limit: str = "") -> Driver:
        """The driver, and the account and the pod that it has on the API server."""
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
            "spec": {"serviceAccountName": "drivers", "containers": [{"name": "driver", **PLAYED}]},
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
            SHARDHERD_EXECUTOR_CPU_LIMIT=cpu_limit,
            SHARDHERD_IMAGE="played-by-a-test",
            SHARDHERD_SPARK_CONF=json.dumps({**access, **(conf or {})}),
        )

    def has_quota(self, hard: Environment) -> None:
        """Allow the namespace so much; returns once it is counted."""
        path = f"/api/v1/namespaces/{self._namespace}/resourcequotas"
        self.api.call("POST", path, {"metadata": {"name": "limits"}, "spec": {"hard": hard}})
        counted = f"{path}/limits"
        self._site.wait_until(lambda: "used" in self.api.call("GET", counted).get("status", {}), "the quota is counted")

    def pod(self) -> dict[str, Any]:
        """The pod of the driver's executor, once there is one."""
        found: list[dict[str, Any]] = []

        def made() -> bool:
            found[:] = self.api.call("GET", self._pods, query={"labelSelector": "app.kubernetes.io/component=executor"})[
                "items"
            ]
            return bool(found)

        self._site.wait_until(made, "the driver has made an executor's pod", START)
        return found[0]

    def environment(self) -> Environment:
        """What it says to whoever starts it."""
        pod = self.pod()
        variables = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        return variables | {"SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"]}

    def run(self, environment: Environment) -> Executor:
        executor = Executor(self._site.folder / f"executor-{len(self._executors)}", environment)
        self._executors.append(executor)
        return executor

    def is_refused(self, environment: Environment) -> None:
        """Run a stranger until it ends, which it must do without having joined."""
        stranger = self.run(environment)
        self._site.wait_until(lambda: stranger.joined or stranger.process.poll() is not None, "the stranger is answered", START)
        log = stranger.log.read_text()
        assert not stranger.joined, log[-4000:]
        assert stranger.process.returncode != 0, log[-4000:]

    def close(self) -> None:
        for executor in self._executors:
            executor.close()
        self.api.call("DELETE", f"/api/v1/namespaces/{self._namespace}")
        self.api.close()
