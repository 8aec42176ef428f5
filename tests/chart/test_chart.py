"""The chart: linted, rendered, and applied to a real API server that enforces the restricted standard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
import yaml

from dev.cluster import Cluster, ClusterError
from shardherd.settings import TlsSettings, load
from tests.chart.rendering import IMAGE
from tests.harness.cluster import Names
from tests.integration.controller.bench import unique

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "shardherd"
CRD = ROOT / "crds" / "consumergroup.yaml"
RESOURCE = "consumergroups.shardherd.dev"

Json = dict[str, Any]


def rendered(cluster: Cluster, *options: str, release: str = "shardherd", namespace: str = "system") -> list[Json]:
    """What the chart renders, as the manifests of a release."""
    text = cluster.helm("template", release, str(CHART), "--namespace", namespace, *IMAGE, *options)
    return [item for item in yaml.safe_load_all(text) if item]


def one(manifests: list[Json], kind: str, name: str = "shardherd") -> Json:
    """The only manifest of this kind and name."""
    (found,) = [item for item in manifests if item["kind"] == kind and item["metadata"]["name"] == name]
    return found


@pytest.fixture
def namespace(cluster: Cluster, names: Names) -> Iterator[str]:
    """A namespace that enforces the restricted standard."""
    name = unique(names, "chart")
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def test_lint_finds_nothing(cluster: Cluster) -> None:
    said = cluster.helm("lint", "--strict", str(CHART), *IMAGE)
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


def test_the_definition_is_the_one_of_the_repository_and_is_kept(cluster: Cluster) -> None:
    definition = one(rendered(cluster), "CustomResourceDefinition", RESOURCE)
    assert definition == yaml.safe_load(CRD.read_text())
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_definition_can_be_left_out(cluster: Cluster) -> None:
    kinds = {item["kind"] for item in rendered(cluster, "--set", "crds.enabled=false")}
    assert "CustomResourceDefinition" not in kinds


def test_a_cluster_without_kafka_credentials_gives_no_right_to_secrets_but_its_own(cluster: Cluster) -> None:
    roles = [
        item for item in rendered(cluster, "--set", "kafkaCredentials.enabled=false") if item["kind"] in ("Role", "ClusterRole")
    ]
    own = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["shardherd-tls"], "verbs": ["get", "patch"]}
    assert [rule for role in roles for rule in role["rules"] if "secrets" in rule["resources"]] == [own]


def test_watching_some_namespaces_gives_rights_in_those_only(cluster: Cluster) -> None:
    manifests = rendered(cluster, "--set", "watchNamespaces={a,b}")
    clusterwide = one(manifests, "ClusterRole")
    assert clusterwide["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    ]
    roles = {
        item["metadata"]["namespace"]: item["rules"]
        for item in manifests
        if item["metadata"]["name"] == "shardherd-groups" and item["kind"] == "Role"
    }
    everywhere = one(rendered(cluster, "--set", "watchAllNamespaces=true"), "ClusterRole")["rules"][1:]
    assert roles == {"a": everywhere, "b": everywhere}


def test_applications_get_their_account_where_they_are(cluster: Cluster) -> None:
    def places(*options: str) -> list[tuple[str, str]]:
        names = ("shardherd-spark", "shardherd-spark-executor", "shardherd-worker")
        found = [item for item in rendered(cluster, *options) if item["metadata"]["name"] in names]
        return [(item["kind"], item["metadata"]["namespace"]) for item in found]

    kinds = ("ServiceAccount", "ServiceAccount", "ServiceAccount", "Role", "RoleBinding")
    assert places() == places("--set", "watchAllNamespaces=true") == [], "a driver beside the operator could become it"
    assert places("--set", "watchNamespaces={system}") == []
    assert places("--set", "applicationNamespaces={system}") == [(kind, "system") for kind in kinds]
    everywhere = [(kind, place) for place in ("shop", "web") for kind in kinds]
    assert sorted(places("--set", "applicationNamespaces={shop,web}")) == sorted(everywhere)
    assert sorted(places("--set", "watchNamespaces={shop,system,web}")) == sorted(everywhere)


@pytest.mark.parametrize(
    ("options", "served"),
    [
        ((), ("system",)),
        (("--set", "applicationNamespaces={shop,web}"), ("shop", "web")),
        (("--set", "watchNamespaces={a},applicationNamespaces={shop}"), ("a",)),
        (("--set", "watchAllNamespaces=true,applicationNamespaces={shop}"), ()),
    ],
)
def test_the_operator_serves_where_it_has_rights(cluster: Cluster, options: tuple[str, ...], served: tuple[str, ...]) -> None:
    manifests = rendered(cluster, *options)
    container = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    (watched,) = [item["value"] for item in container["env"] if item["name"] == "SHARDHERD_WATCH_NAMESPACES"]
    roles = [
        item["metadata"]["namespace"]
        for item in manifests
        if item["kind"] == "Role" and item["metadata"]["name"] == "shardherd-groups"
    ]
    cluster_wide = len(one(manifests, "ClusterRole")["rules"]) > 1
    assert (watched, tuple(roles), cluster_wide) == (",".join(served), served, not served)


def test_the_operator_understands_the_settings_that_it_is_given(cluster: Cluster) -> None:
    manifests = rendered(
        cluster,
        "--set",
        "lease.duration=30,api.port=1080,log.format=text,watchNamespaces={a,b},metrics.kafkaExporterNames=true",
    )
    container = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    environment = {item["name"]: item.get("value", f"from {item['name']}") for item in container["env"]}
    settings = load(environment)
    assert settings.api.coordinator_url == "https://shardherd.system.svc:8443"
    assert settings.tls == TlsSettings("auto", 8443, "shardherd-tls", accept_plain=False)
    assert (settings.lease.duration, settings.lease.renew_deadline, settings.lease.retry) == (30.0, 10.0, 2.0)
    assert (settings.telemetry.log_format, settings.watch_namespaces) == ("text", ("a", "b"))
    assert settings.telemetry.kafka_names
    known = set(re.findall(r"SHARDHERD_[A-Z_]+", (ROOT / "operator" / "shardherd" / "settings.py").read_text()))
    assert set(environment) <= known


def test_two_releases_do_not_share_names(cluster: Cluster) -> None:
    def names_of(release: str) -> set[tuple[str, str]]:
        found = rendered(cluster, "--set", "crds.enabled=false", release=release)
        names = ((item["kind"], item["metadata"]["name"]) for item in found)
        return {(kind, name) for kind, name in names if not name.startswith("shardherd-spark")}

    assert names_of("shardherd") & names_of("second") == set()


class TestValues:
    schema: ClassVar[Json] = json.loads((CHART / "values.schema.json").read_text())
    values: ClassVar[Json] = yaml.safe_load((CHART / "values.yaml").read_text())

    def test_the_defaults_satisfy_the_schema_and_the_schema_names_them_all(self) -> None:
        jsonschema.validate(self.values, self.schema)
        assert set(self.schema["properties"]) - set(self.values) == {"global"}

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            ("api.port=70000", "maximum"),
            ("log.format=xml", "log/format"),
            ("image.pullPolicy=Sometimes", "pullPolicy"),
            ("lease.retry=0", "lease/retry"),
            ("tls.mode=on", "tls/mode"),
            ("tls.mode=certManager", "issuerRef.name"),
            ("watchNamespaces={Not_A_Name}", "watchNamespaces"),
            ("imagee.tag=x", "imagee"),
        ],
    )
    def test_a_wrong_value_is_refused_by_name(self, cluster: Cluster, option: str, said: str) -> None:
        with pytest.raises(ClusterError) as refused:
            rendered(cluster, "--set", option)
        assert said in str(refused.value)


@pytest.mark.parametrize("options", [(), ("--set", "crds.enabled=false")])
def test_the_api_server_accepts_what_is_rendered(cluster: Cluster, namespace: str, options: tuple[str, ...]) -> None:
    manifests = yaml.safe_dump_all(rendered(cluster, *options, namespace=namespace, release=namespace))
    # The account of the hook's pod has to be there, which a dry run does not make.
    cluster.kubectl("-n", namespace, "create", "serviceaccount", f"{namespace}-shardherd-test")
    said = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict", "-f", "-", input=manifests
    )
    assert f"deployment.apps/{namespace}-shardherd serverside-applied (server dry run)" in said


def test_an_installed_release_gets_its_pod_under_the_restricted_standard(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    said = cluster.helm("install", namespace, str(CHART), "--namespace", namespace, *IMAGE, "--set", "crds.enabled=false")
    assert f"kubectl -n {namespace} rollout status deployment/{namespace}-shardherd" in said
    deployment = f"deployment/{namespace}-shardherd"
    # There is no node, so the pod stays Pending; that it was made at all is the point.
    cluster.kubectl("-n", namespace, "wait", deployment, "--for=jsonpath={.status.unavailableReplicas}=2", "--timeout=60s")
    selector = f"app.kubernetes.io/instance={namespace}"
    cluster.kubectl("-n", namespace, "wait", "pod", "-l", selector, "--for=jsonpath={.status.phase}=Pending", "--timeout=60s")
    cluster.helm("uninstall", namespace, "--namespace", namespace)
    assert cluster.kubectl("-n", namespace, "get", "deployment,service,role", "--ignore-not-found", "-o", "name") == ""


def test_an_upgrade_leaves_the_operators_authority_alone(cluster: Cluster, namespace: str) -> None:
    """The chart makes the Secret empty; what is in it is the operator's."""
    secret = ("-n", namespace, "secret", f"{namespace}-shardherd-tls")
    options = ("--namespace", namespace, *IMAGE, "--set", "crds.enabled=false")
    cluster.helm("install", namespace, str(CHART), *options)
    cluster.kubectl("patch", *secret, "-p", '{"stringData": {"ca.crt": "an authority"}}')
    cluster.helm("upgrade", namespace, str(CHART), *options, "--set", "log.level=DEBUG")
    assert cluster.kubectl("get", *secret, "-o", "jsonpath={.data}") == '{"ca.crt":"YW4gYXV0aG9yaXR5"}'
    cluster.helm("rollback", namespace, "1", "--namespace", namespace)
    assert cluster.kubectl("get", *secret, "-o", "jsonpath={.data}") == '{"ca.crt":"YW4gYXV0aG9yaXR5"}'
    cluster.helm("uninstall", namespace, "--namespace", namespace)


def test_uninstalling_keeps_the_definition(cluster: Cluster, namespace: str) -> None:
    cluster.helm("install", namespace, str(CHART), "--namespace", namespace, *IMAGE, "--take-ownership")
    cluster.helm("uninstall", namespace, "--namespace", namespace)
    assert (
        cluster.kubectl("get", "crd", RESOURCE, "-o", "name").strip()
        == f"customresourcedefinition.apiextensions.k8s.io/{RESOURCE}"
    )
