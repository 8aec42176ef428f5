"""What a driver may write: Spark's own driver makes and removes its executors, and each attack on another group is refused.

Two groups of one namespace, under the account that the chart gives drivers, on a real API server. Their StatefulSets are those
that the controller makes, their pods are made by Kubernetes, and the tokens are bound to them as the kubelet's are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import APPLY, MERGE_PATCH, ApiError, KubernetesApi
from shardherd.controller.manifests import Manifests
from shardherd.spark.application import LONGEST_PREFIX, spark_conf
from shardherd.spark.pod import read_pod
from tests.chart.installed import Installed, install
from tests.chart.rendering import Chart, Json
from tests.harness.cluster import Names
from tests.integration.controller.bench import configuration_of, until

OURS, THEIRS = "ours", "theirs"
LONG = "o" * 40
"""No group has a longer name."""

DRIVER = f"{OURS}-0"
ACCOUNT = "shardherd-spark"
START = 120.0
MANIFESTS = Manifests("https://shardherd.system.svc:8443", "shardherd", trust=True)


def group(name: str) -> Json:
    """A ConsumerGroup of one driver with executors."""
    return {
        "apiVersion": "shardherd.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {
            "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": [name]}},
            "application": {
                "image": "example/app:1",
                "mainApplicationFile": "/app.py",
                "executor": {"instances": 2, "serviceAccountName": "shardherd-spark-executor"},
            },
        },
    }


class Site:
    """The namespace, its two groups, and what the driver of one says to the API server."""

    def __init__(self, installed: Installed) -> None:
        self.installed = installed
        self.api = installed.api
        self.namespace = installed.served
        self._apis: list[KubernetesApi] = []
        for name in (OURS, THEIRS, LONG):
            self._group(name)
        self.pods = {pod: self.get("pods", pod) for pod in (DRIVER, f"{THEIRS}-0", f"{LONG}-0")}
        self.driver = self.as_pod(DRIVER)

    def close(self) -> None:
        for api in self._apis:
            api.close()

    def path(self, kind: str, name: str = "") -> str:
        base = {"statefulsets": "/apis/apps/v1", "consumergroups": "/apis/shardherd.dev/v1alpha1"}.get(kind, "/api/v1")
        return f"{base}/namespaces/{self.namespace}/{kind}{'/' if name else ''}{name}"

    def get(self, kind: str, name: str) -> Any:
        return self.api.call("GET", self.path(kind, name))

    def _group(self, name: str) -> None:
        resource = self.api.call("POST", self.path("consumergroups"), group(name))
        manifest = MANIFESTS.stateful_set(resource, 1)
        self.api.call(
            "PATCH",
            self.path("statefulsets", name),
            manifest,
            query={"fieldManager": "shardherd", "force": "true"},
            content_type=APPLY,
        )
        until(lambda: self.there("pods", f"{name}-0"), within=60)

    def there(self, kind: str, name: str) -> bool:
        try:
            self.get(kind, name)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def token(self, pod: str) -> str:
        """A token of the drivers' account, bound to this pod unless the name is empty."""
        spec: Json = {"audiences": [], "expirationSeconds": 3600}
        if pod:
            uid = self.get("pods", pod)["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        path = f"{self.path('serviceaccounts', ACCOUNT)}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.api.call("POST", path, body)["status"]["token"])

    def as_pod(self, pod: str) -> KubernetesApi:
        """The API server as this pod's driver reaches it."""
        self._apis.append(KubernetesApi(configuration_of(self.installed.cluster, self.token(pod))))
        return self._apis[-1]

    def owner(self, pod: str = DRIVER) -> Json:
        """The reference by which Spark says whose executors they are."""
        uid = self.pods[pod]["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}

    def executor(self, number: int = 1, **metadata: Any) -> Json:
        """An executor of our driver as Spark makes it, with other metadata."""
        labels = {
            "shardherd.dev/consumergroup": OURS,
            "shardherd.dev/consumer": DRIVER,
            "shardherd.dev/incarnation": f"{self.pods[DRIVER]['metadata']['uid']}.1",
            "of": "ours",
        }
        secured = {"allowPrivilegeEscalation": False}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{DRIVER}-1-exec-{number}",
                "labels": labels,
                "ownerReferences": [self.owner()],
                **metadata,
            },
            "spec": {
                "serviceAccountName": "shardherd-spark-executor",
                "containers": [{"name": "executor", "image": "example/app:1", "securityContext": secured}],
            },
        }

    def stray(self) -> Json:
        """A pod of nobody's that looks like an executor."""
        pod = self.executor(name="stray", ownerReferences=[])
        del pod["spec"]["serviceAccountName"]
        return pod

    def owned(self, name: str, **metadata: Any) -> Json:
        """A ConfigMap or a claim of our driver's."""
        return {"metadata": {"name": name, "labels": {"of": "ours"}, "ownerReferences": [self.owner()], **metadata}}

    def said(self, method: str, path: str, body: Any = None, **options: Any) -> str:
        """What the API server says to our driver; empty if it is done."""
        try:
            self.driver.call(method, path, body, **options)
        except ApiError as error:
            if error.status != 403:
                raise
            return str(error)
        return ""


CLAIM: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"}


@pytest.fixture(scope="module")
def installed(chart: Chart, cluster: Cluster, names: Names) -> Iterator[Installed]:
    yield from install(chart, cluster, names, {})


@pytest.fixture(scope="module")
def site(installed: Installed) -> Iterator[Site]:
    bindings = installed.cluster.kubectl("get", "validatingadmissionpolicybindings", "-o", "name").split()
    # Tests of other tiers leave theirs, which would refuse the same in the place of the one that is tried here.
    for left in (name for name in bindings if "-executors." in name and not name.endswith(f".{installed.own}")):
        installed.cluster.kubectl("delete", left)
    site = Site(installed)
    # The policy takes a moment to hold. In its own words: without its rights the driver would be refused, too.
    probe = {"metadata": {"generateName": "probe-"}}
    until(lambda: "only that it owns itself" in site.said("POST", site.path("configmaps"), probe))
    yield site
    site.close()


def settings(site: Site, folder: Path) -> dict[str, str]:
    """What a driver gives Spark in this pod, but for the ways to the API server and to itself."""
    pod = site.pods[DRIVER]
    fields = {
        "metadata.name": DRIVER,
        "metadata.uid": pod["metadata"]["uid"],
        "status.podIP": "127.0.0.1",
    }
    variables = pod["spec"]["containers"][0]["env"]
    environment = {
        each["name"]: each["value"] if "value" in each else fields.get(each["valueFrom"]["fieldRef"]["fieldPath"], "")
        for each in variables
    }
    found = read_pod({name: value for name, value in environment.items() if value} | {"SHARDHERD_START": "1"})
    (folder / "token").write_text(site.token(DRIVER))
    configuration = configuration_of(site.installed.cluster, "")
    claims = "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1"
    return {
        **spark_conf(found),
        "spark.master": f"k8s://{configuration.host}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.port": "0",
        "spark.driver.blockManager.port": "0",
        "spark.driver.memory": "512m",
        "spark.local.dir": str(folder),
        "spark.kubernetes.authenticate.oauthTokenFile": str(folder / "token"),
        "spark.kubernetes.authenticate.caCertFile": str(configuration.ssl_ca_cert),
        # No node runs the pods: nobody becomes ready, and nobody registers.
        "spark.kubernetes.allocation.driver.readinessTimeout": "1s",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
        f"{claims}.options.claimName": "OnDemand",
        f"{claims}.options.storageClass": "none",
        f"{claims}.options.sizeLimit": "1Gi",
        f"{claims}.mount.path": "/data",
    }


def names_of(site: Site, kind: str, selector: str = "spark-app-selector") -> list[str]:
    """What there is of Spark's, by name."""
    items = site.api.call("GET", site.path(kind), query={"labelSelector": selector})["items"]
    return sorted(item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"])


def fail(site: Site, pod: str) -> None:
    """As the kubelet would say it."""
    name = site.get("pods", pod)["spec"]["containers"][0]["name"]
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    status = {"name": name, "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
    change = {"status": {"phase": "Failed", "containerStatuses": [status]}}
    site.api.call("PATCH", f"{site.path('pods', pod)}/status", change, content_type=MERGE_PATCH)


@pytest.mark.parametrize("deletes", ["true", "false"])
def test_spark_itself_makes_replaces_and_removes_its_executors(site: Site, tmp_path: Path, deletes: str) -> None:
    conf = {**settings(site, tmp_path), "spark.kubernetes.executor.deleteOnTermination": deletes}
    (tmp_path / "conf.json").write_text(json.dumps(conf))
    program = [sys.executable, str(Path(__file__).with_name("spark_driver.py")), str(tmp_path / "conf.json")]
    pods = [f"{DRIVER}-1-exec-{number}" for number in (1, 2, 3)]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=tmp_path) as driver,
    ):
        try:
            until(lambda: names_of(site, "pods") == pods[:2], lambda: (tmp_path / "log").read_text(), within=START)
            until(lambda: len(names_of(site, "persistentvolumeclaims")) == 2, within=START)
            assert len(names_of(site, "configmaps")) == 1
            fail(site, pods[0])
            until(lambda: pods[2] in names_of(site, "pods"), lambda: (tmp_path / "log").read_text(), within=START)
            if deletes == "true":
                until(lambda: names_of(site, "pods") == pods[1:], within=START)
            else:
                inactive = "spark-exec-inactive=true"
                until(lambda: names_of(site, "pods", inactive) == pods[:1], within=START)
            until(lambda: "started" in (tmp_path / "log").read_text(), within=START)
            assert driver.stdin is not None
            driver.stdin.close()
            assert driver.wait(START) == 0
        finally:
            driver.kill()
    text = (tmp_path / "log").read_text()
    assert "orbidden" not in text, text
    left = pods if deletes == "false" else []
    until(lambda: names_of(site, "pods") == left, lambda: str(names_of(site, "pods")), within=START)
    until(lambda: names_of(site, "persistentvolumeclaims") == [], within=START)
    # With the executors it leaves their settings, too; both go with the driver's pod.
    assert len(names_of(site, "configmaps")) == (1 if left else 0)
    for kind in ("pods", "configmaps"):
        for name in names_of(site, kind):
            site.api.call("DELETE", site.path(kind, name), {"gracePeriodSeconds": 0})


class TestAttacks:
    """A driver that somebody else has taken over gets nothing of another group of its namespace."""

    @pytest.mark.parametrize("pod", [f"{THEIRS}-0", DRIVER])
    def test_it_changes_no_drivers_pod(self, site: Site, pod: str) -> None:
        evil = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil:1"}]
        patch = "application/json-patch+json"
        assert "only that it owns itself" in site.said("PATCH", site.path("pods", pod), evil, content_type=patch)
        mark = [{"op": "add", "path": "/metadata/labels/shardherd.dev~1cordoned", "value": "true"}]
        assert "only that it owns itself" in site.said("PATCH", site.path("pods", pod), mark, content_type=patch)

    def test_it_deletes_none(self, site: Site) -> None:
        assert "only that it owns itself" in site.said("DELETE", site.path("pods", f"{THEIRS}-0"))
        selector = {"labelSelector": f"shardherd.dev/consumergroup={THEIRS}"}
        assert "only that it owns itself" in site.said("DELETE", site.path("pods"), query=selector)
        assert site.get("pods", f"{THEIRS}-0")["metadata"].get("deletionTimestamp") is None

    def test_it_makes_no_pod_that_the_other_groups_stateful_set_seems_to_control(self, site: Site) -> None:
        uid = site.get("statefulsets", THEIRS)["metadata"]["uid"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": THEIRS, "uid": uid, "controller": True}
        forged = site.executor(name=f"{THEIRS}-9", ownerReferences=[owner])
        forged["metadata"]["labels"] |= {"shardherd.dev/consumergroup": THEIRS, "shardherd.dev/role": "driver"}
        forged["spec"]["serviceAccountName"] = ACCOUNT
        assert "only that it owns itself" in site.said("POST", site.path("pods"), forged)
        forged["metadata"]["ownerReferences"] = [{**owner, "controller": False}, site.owner()]
        assert "only that it owns itself" in site.said("POST", site.path("pods"), forged)

    def test_nor_gives_its_executor_another_owner_afterwards(self, site: Site) -> None:
        assert site.said("POST", site.path("pods"), site.executor(7)) == ""
        uid = site.get("statefulsets", THEIRS)["metadata"]["uid"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": THEIRS, "uid": uid, "controller": True}
        path = site.path("pods", f"{DRIVER}-1-exec-7")
        change: Json = {"metadata": {"ownerReferences": [owner]}}
        assert "only that it owns itself" in site.said("PATCH", path, change, content_type=MERGE_PATCH)
        change = {"metadata": {"labels": {"shardherd.dev/consumergroup": THEIRS}}}
        assert "labelled as executors of its own" in site.said("PATCH", path, change, content_type=MERGE_PATCH)
        assert site.said("DELETE", path) == ""

    @pytest.mark.parametrize(
        ("label", "value"),
        [
            ("shardherd.dev/consumergroup", THEIRS),
            ("shardherd.dev/consumergroup", None),
            ("shardherd.dev/consumer", f"{THEIRS}-0"),
            ("shardherd.dev/incarnation", "11111111-0000-0000-0000-000000000000.1"),
            ("shardherd.dev/role", "driver"),
        ],
    )
    def test_its_executors_pass_for_nobody_elses(self, site: Site, label: str, value: str | None) -> None:
        forged = site.executor()
        labels = forged["metadata"]["labels"]
        labels.pop(label, None)
        if value is not None:
            labels[label] = value
        assert "labelled as executors of its own" in site.said("POST", site.path("pods"), forged)

    @pytest.mark.parametrize("name", [f"{THEIRS}-9", f"{OURS}-1", f"{THEIRS}-0-1-exec-1", f"{DRIVER}-exec-1"])
    def test_it_takes_nobody_elses_name(self, site: Site, name: str) -> None:
        assert f"may not make pods of the name {name}" in site.said("POST", site.path("pods"), site.executor(name=name))

    def test_it_takes_no_name_of_a_consumers_claim(self, site: Site) -> None:
        claim = {**site.owned(f"checkpoint-{THEIRS}-1"), "spec": CLAIM}
        assert "may not make persistentvolumeclaims" in site.said("POST", site.path("persistentvolumeclaims"), claim)

    def test_its_executors_get_no_account_with_more_rights(self, site: Site) -> None:
        def kubectl(*command: str) -> None:
            site.installed.cluster.kubectl("-n", site.namespace, *command)

        def said() -> str:
            return site.said("POST", site.path("pods"), greedy, query={"dryRun": "All"})

        kubectl("create", "serviceaccount", "mighty")
        greedy = site.executor()
        greedy["spec"]["serviceAccountName"] = "mighty"
        for verb, resource in (("get", "secrets"), ("create", "pods")):
            assert said() == ""
            kubectl("create", "role", "might", f"--verb={verb}", f"--resource={resource}")
            kubectl("create", "rolebinding", "might", "--role=might", f"--serviceaccount={site.namespace}:mighty")
            until(lambda: "may not have the service account mighty" in said())
            kubectl("delete", "role/might", "rolebinding/might")
            until(lambda: said() == "")

    @pytest.mark.parametrize("kind", ["configmaps", "persistentvolumeclaims"])
    def test_it_makes_and_removes_what_is_its_own_alone(self, site: Site, kind: str) -> None:
        spec = {"spec": CLAIM} if kind == "persistentvolumeclaims" else {}
        name = f"{DRIVER}-1-exec-1-pvc-0"
        theirs = {**site.owned(name, ownerReferences=[site.owner(f"{THEIRS}-0")]), **spec}
        assert "only that it owns itself" in site.said("POST", site.path(kind), theirs)
        site.api.call("POST", site.path(kind), theirs)
        assert "only that it owns itself" in site.said("DELETE", site.path(kind), query={"labelSelector": "of=ours"})
        assert site.there(kind, name)
        site.api.call("DELETE", site.path(kind, name))

    @pytest.mark.parametrize(
        ("method", "kind", "name"),
        [
            ("POST", "services", ""),
            ("POST", "secrets", ""),
            ("GET", "secrets", f"{THEIRS}-secret"),
            ("GET", "configmaps", "kube-root-ca.crt"),
            ("GET", "configmaps", ""),
            ("DELETE", "services", THEIRS),
            ("PUT", "pods", DRIVER),
            ("POST", "pods", f"{THEIRS}-0/exec"),
            ("POST", "pods", f"{THEIRS}-0/eviction"),
            ("POST", "serviceaccounts", f"{ACCOUNT}/token"),
        ],
    )
    def test_its_role_has_nothing_that_spark_does_not_need(self, site: Site, method: str, kind: str, name: str) -> None:
        assert f'"system:serviceaccount:{site.namespace}:{ACCOUNT}" cannot' in site.said(method, site.path(kind, name), {})

    def test_a_token_that_is_bound_to_no_pod_writes_nothing(self, site: Site) -> None:
        unbound = site.as_pod("")
        with pytest.raises(ApiError, match="needs a token that is bound to its pod"):
            unbound.call("POST", site.path("pods"), site.executor())

    def test_another_driver_of_the_group_writes_nothing_of_its(self, site: Site) -> None:
        other = site.as_pod(f"{THEIRS}-0")
        assert site.said("POST", site.path("pods"), site.executor(8)) == ""
        with pytest.raises(ApiError, match=f"pod {THEIRS}-0 may write pods only that it owns itself"):
            other.call("DELETE", site.path("pods", f"{DRIVER}-1-exec-8"))
        assert site.said("DELETE", site.path("pods", f"{DRIVER}-1-exec-8")) == ""


def test_names_whose_beginning_spark_cuts_off_are_known(site: Site) -> None:
    driver, start = f"{LONG}-0", 12345
    long = site.as_pod(driver)
    prefix = f"{driver}-{start}"[-LONGEST_PREFIX:]
    assert not prefix.startswith(driver)
    executor = site.executor(name=f"{prefix}-exec-1", ownerReferences=[site.owner(driver)])
    executor["metadata"]["labels"] |= {
        "shardherd.dev/consumergroup": LONG,
        "shardherd.dev/consumer": driver,
        "shardherd.dev/incarnation": f"{site.pods[driver]['metadata']['uid']}.{start}",
    }
    long.call("POST", site.path("pods"), executor, query={"dryRun": "All"})
    executor["metadata"]["name"] = f"{prefix[8:]}-exec-1"
    with pytest.raises(ApiError, match="may not make pods of the name"):
        long.call("POST", site.path("pods"), executor, query={"dryRun": "All"})


def test_an_account_that_may_make_stateful_sets_is_no_driver(site: Site) -> None:
    """It could have them make any pod: to keep it from making one itself would protect nothing, and break other tools."""
    cluster, namespace = site.installed.cluster, site.namespace
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "deployer")
    cluster.kubectl(
        *("-n", namespace, "create", "rolebinding", "deployer", "--clusterrole=cluster-admin"),
        f"--serviceaccount={namespace}:deployer",
    )
    token = cluster.kubectl("-n", namespace, "create", "token", "deployer").strip()
    api = KubernetesApi(configuration_of(cluster, token))

    def made() -> bool:
        try:
            api.call("POST", site.path("configmaps"), {"metadata": {"name": "by-the-deployer"}})
        except ApiError as error:
            if '" cannot create resource' in str(error):
                return False  # the API server has not heard of the binding yet
            raise
        return True

    try:
        until(made)
    finally:
        api.close()


def test_where_there_is_no_group_everybody_makes_pods_as_before(site: Site) -> None:
    site.api.call("POST", f"/api/v1/namespaces/{site.installed.elsewhere}/pods", site.stray(), query={"dryRun": "All"})


def test_an_administrator_makes_pods_of_any_kind_beside_groups(site: Site) -> None:
    site.api.call("POST", site.path("pods"), site.stray(), query={"dryRun": "All"})
