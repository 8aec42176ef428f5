"""What the values do to the rendered manifests, and that nothing changes unnoticed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import ClusterError
from shardherd.core.model.selectors import parse
from shardherd.settings import load
from shardherd.telemetry import tracing
from tests.chart.rendering import EVERYTHING, ROLES_ONLY, ROOT, SELECTED, Chart, Json, selected

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, Json] = {"default": {}, "everything": EVERYTHING, "roles-only": ROLES_ONLY}

RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
RESTRICTED_POD = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.mark.parametrize("name", CASES)
def test_it_renders_what_it_rendered_before(chart: Chart, name: str) -> None:
    file = GOLDEN / f"{name}.yaml"
    rendered = chart.text(CASES[name])
    if os.environ.get("SHARDHERD_UPDATE_GOLDEN"):
        file.write_text(rendered)
    assert rendered == file.read_text(), "if that is meant: SHARDHERD_UPDATE_GOLDEN=1 pytest tests/chart/test_rendered.py"


@pytest.mark.parametrize("name", CASES)
def test_no_two_manifests_are_the_same_object(chart: Chart, name: str) -> None:
    objects = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in chart.render(CASES[name])]
    assert len(objects) == len(set(objects))


@pytest.mark.parametrize("name", CASES)
def test_everything_says_whose_it_is(chart: Chart, name: str) -> None:
    for manifest in chart.render(CASES[name]):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "shardherd"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels.get("team") == ("data" if name == "everything" else None)


class _EachOnce(yaml.SafeLoader):
    """Refuses a key that stands twice, as kustomize does, and whatever passes manifests through it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(names) == len(set(names)), (node.start_mark, names)
        return super().construct_mapping(node, deep)


def test_a_label_or_annotation_of_the_charts_own_is_set_by_values_and_stands_once(chart: Chart) -> None:
    values: Json = {
        "commonLabels": {"team": "data", "release": "ours"},
        "podLabels": {"team": "pods"},
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "prometheus": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}, "alertLabels": {"severity": "page"}},
        },
    }
    rendered = [item for item in yaml.load_all(chart.text(values), _EachOnce) if item]
    one = {item["kind"]: item for item in rendered}
    pod = one["Deployment"]["spec"]["template"]["metadata"]
    assert (pod["labels"]["team"], pod["labels"]["release"]) == ("pods", "ours")
    assert (pod["annotations"]["prometheus.io/scrape"], pod["annotations"]["prometheus.io/port"]) == ("false", "9090")
    found = {kind: one[kind]["metadata"]["labels"]["release"] for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule")}
    assert found == dict.fromkeys(found, "prometheus")
    assert {rule["labels"]["severity"] for rule in one["PrometheusRule"]["spec"]["groups"][0]["rules"]} == {"page"}


class TestOperators:
    def test_there_are_two_and_none_goes_before_the_next_is_ready(self, chart: Chart) -> None:
        spec = chart.one("Deployment")["spec"]
        assert spec["replicas"] == 2
        assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}

    def test_the_api_leads_to_the_leader_and_the_metrics_to_all(self, chart: Chart) -> None:
        deployment = chart.one("Deployment")["spec"]
        template = deployment["template"]["metadata"]["labels"]
        api, metrics = chart.one("Service")["spec"], chart.one("Service", "shardherd-metrics")["spec"]
        leader = api["selector"].pop("shardherd.dev/leader")
        assert leader == "true"
        assert "shardherd.dev/leader" not in template
        assert api["selector"] == metrics["selector"] == deployment["selector"]["matchLabels"]
        assert api["selector"].items() <= template.items()
        assert [port["name"] for port in api["ports"]] == ["api-tls"]
        plain = chart.one("Service", values={"tls": {"acceptPlain": True}})["spec"]["ports"]
        assert [port["name"] for port in plain] == ["api-tls", "api"]
        assert [port["name"] for port in metrics["ports"]] == ["metrics"]

    def test_the_page_is_off_unless_it_is_asked_for(self, chart: Chart) -> None:
        assert [item["metadata"]["name"] for item in chart.render() if item["metadata"]["name"].endswith("-page")] == []
        assert "SHARDHERD_PAGE_PORT" not in chart.text()

    def test_the_page_leads_to_the_leader_and_who_is_bound_to_its_role_may_ask_for_it(self, chart: Chart) -> None:
        values: Json = {"page": {"enabled": True, "port": 8182}}
        service = chart.one("Service", "shardherd-page", values)
        assert service["spec"]["selector"]["shardherd.dev/leader"] == "true"
        assert service["spec"]["ports"] == [{"name": "page", "port": 8182, "targetPort": "page"}]
        (container,) = chart.one("Deployment", values=values)["spec"]["template"]["spec"]["containers"]
        assert {"name": "page", "containerPort": 8182} in container["ports"]
        settings = load({each["name"]: each.get("value", "x") for each in container["env"]})
        assert settings.page_port == 8182
        assert chart.one("Role", "shardherd-page", values)["rules"] == [
            {
                "apiGroups": [""],
                "resources": ["services/proxy"],
                "resourceNames": ["http:shardherd-page:8182"],
                "verbs": ["get"],
            }
        ]

    def test_there_are_no_traces_unless_they_are_asked_for(self, chart: Chart) -> None:
        assert "OTEL_" not in chart.text()
        assert "OTEL_" not in chart.text({"tracing": {"endpoint": "http://otel-collector.monitoring:4318"}})

    def test_traces_go_where_the_values_say_as_many_as_they_say(self, chart: Chart) -> None:
        collector = "https://collector.example.com:4318/otlp"
        values: Json = {"tracing": {"enabled": True, "endpoint": collector, "sampleRatio": 0.005}}
        (container,) = chart.one("Deployment", values=values)["spec"]["template"]["spec"]["containers"]
        environment = {each["name"]: each.get("value", "x") for each in container["env"]}

        assert {name: value for name, value in environment.items() if name.startswith("OTEL_")} == {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.005",
        }
        assert tracing.wanted(environment)
        tracing.check(environment)

    @pytest.mark.parametrize(
        ("endpoint", "port"),
        [("http://collector:4318", 4318), ("http://collector/otlp", 80), ("https://collector.example.com", 443)],
    )
    def test_the_network_lets_traces_through(self, chart: Chart, endpoint: str, port: int) -> None:
        def ports(values: Json) -> list[int]:
            policy = chart.one("NetworkPolicy", values={"networkPolicy": {"enabled": True}, **values})
            return [each["port"] for rule in policy["spec"]["egress"] for each in rule["ports"]]

        assert ports({"tracing": {"enabled": True, "endpoint": endpoint}}) == [*ports({}), port]

    @pytest.mark.parametrize(
        "tracing",
        [
            {"enabled": True},
            {"enabled": True, "endpoint": ""},
            {"enabled": True, "endpoint": "collector:4318"},
            {"sampleRatio": 2},
            {"sampleRatio": "all"},
            {"ratio": 1},
        ],
    )
    def test_wrong_values_of_traces_are_refused(self, chart: Chart, tracing: Json) -> None:
        with pytest.raises(ClusterError, match="tracing"):
            chart.text({"tracing": tracing})

    def test_nothing_else_of_the_release_is_taken_for_an_operator(self, chart: Chart) -> None:
        selector = chart.one("Deployment")["spec"]["selector"]["matchLabels"].items()
        assert not selector <= chart.one("Pod", "shardherd-test")["metadata"]["labels"].items()

    def test_they_lend_their_identity_at_aws_only_if_that_is_said(self, chart: Chart) -> None:
        def identity(values: dict[str, object]) -> list[str]:
            pod = chart.one("Deployment", values=values)["spec"]["template"]["spec"]
            return [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "SHARDHERD_OWN_AWS_IDENTITY"]

        assert identity({}) == []
        assert identity({"kafkaCredentials": {"ownAwsIdentity": True}}) == ["true"]

    def test_they_keep_apart_where_they_can(self, chart: Chart) -> None:
        spec = chart.one("Deployment")["spec"]["template"]["spec"]
        selector = {"matchLabels": chart.one("Deployment")["spec"]["selector"]["matchLabels"]}
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
        assert spec["affinity"] == {
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
        }
        (spread,) = spec["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["whenUnsatisfiable"], spread["labelSelector"]) == (
            "topology.kubernetes.io/zone",
            "ScheduleAnyway",
            selector,
        )

    def test_one_of_them_may_be_evicted_at_a_time(self, chart: Chart) -> None:
        spec = chart.one("PodDisruptionBudget")["spec"]
        assert spec == {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": chart.one("Deployment")["spec"]["selector"]["matchLabels"]},
        }

    def test_a_single_one_does_not_keep_a_node_from_being_drained(self, chart: Chart) -> None:
        assert "PodDisruptionBudget" not in chart.kinds({"replicaCount": 1})
        assert "PodDisruptionBudget" not in chart.kinds({"podDisruptionBudget": {"enabled": False}})

    def test_the_pods_are_restricted(self, chart: Chart) -> None:
        pods = [chart.one("Deployment")["spec"]["template"]["spec"], chart.one("Pod", "shardherd-test")["spec"]]
        for pod in pods:
            (container,) = pod["containers"]
            assert pod["securityContext"] == RESTRICTED_POD
            assert container["securityContext"] == RESTRICTED_CONTAINER
            assert container["resources"]["limits"]["memory"]
            assert pod["enableServiceLinks"] is False
        assert pods[1]["automountServiceAccountToken"] is False

    def test_each_has_an_account_of_its_own_and_only_the_operators_gets_a_token(self, chart: Chart) -> None:
        rendered = chart.render({"applicationNamespaces": ["shop"]})
        accounts = {
            item["metadata"]["name"]: item.get("automountServiceAccountToken", True)
            for item in rendered
            if item["kind"] == "ServiceAccount"
        }
        assert accounts == {
            "shardherd": True,
            "shardherd-test": False,
            "shardherd-spark": True,
            "shardherd-spark-executor": False,
            "shardherd-worker": False,
        }
        assert chart.one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "shardherd"
        assert chart.one("Pod", "shardherd-test")["spec"]["serviceAccountName"] == "shardherd-test"
        subjects = [s["name"] for item in rendered if item["kind"].endswith("Binding") for s in item.get("subjects", ())]
        assert sorted(subjects) == ["shardherd", "shardherd", "shardherd", "shardherd-spark"]

    def test_values_that_users_of_other_charts_know_have_their_effect(self, chart: Chart) -> None:
        values = {
            "applicationNamespaces": ["shop"],
            "replicaCount": 3,
            "image": {"digest": "sha256:" + "a" * 64},
            "imagePullSecrets": [{"name": "registry"}],
            "fullnameOverride": "herd",
            "serviceAccount": {"create": False, "name": "given"},
            "priorityClassName": "system-cluster-critical",
            "podLabels": {"cost": "data"},
            "podAnnotations": {"note": "one"},
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
            "volumes": [{"name": "plug-ins", "emptyDir": {}}],
            "volumeMounts": [{"name": "plug-ins", "mountPath": "/plug-ins"}],
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [{"maxSkew": 2}],
            "service": {"annotations": {"of": "service"}},
            "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}],
        }
        deployment = chart.one("Deployment", "herd", values)
        template, spec = deployment["spec"]["template"]["metadata"], deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert deployment["spec"]["replicas"] == 3
        assert container["image"] == "registry.example.com/shardherd/operator@sha256:" + "a" * 64
        assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("given", "system-cluster-critical")
        assert (template["labels"]["cost"], template["annotations"]["note"]) == ("data", "one")
        assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in container["env"]
        assert {"name": "plug-ins", "emptyDir": {}} in spec["volumes"]
        assert {"name": "plug-ins", "mountPath": "/plug-ins"} in container["volumeMounts"]
        assert (spec["nodeSelector"], spec["affinity"]) == ({"pool": "system"}, {"nodeAffinity": {}})
        assert (spec["tolerations"], spec["topologySpreadConstraints"]) == (values["tolerations"], [{"maxSkew": 2}])
        assert chart.one("Service", "herd", values)["metadata"]["annotations"] == {"of": "service"}
        assert chart.one("ConfigMap", "shardherd-more", values)["kind"] == "ConfigMap"
        accounts = [item["metadata"]["name"] for item in chart.render(values) if item["kind"] == "ServiceAccount"]
        assert accounts == ["shardherd-spark", "shardherd-spark-executor", "shardherd-worker"]
        subjects = {
            s["name"] for item in chart.render(values) if item["kind"].endswith("RoleBinding") for s in item["subjects"]
        }
        assert subjects == {"given", "shardherd-spark"}

    def test_the_operator_and_its_lease_have_the_releases_name(self, chart: Chart) -> None:
        environment = {
            item["name"]: item.get("value")
            for item in chart.one("Deployment", "prod-shardherd", release="prod")["spec"]["template"]["spec"]["containers"][0][
                "env"
            ]
        }
        assert environment["SHARDHERD_LEASE_NAME"] == "prod-shardherd"
        assert environment["SHARDHERD_COORDINATOR_URL"] == "https://prod-shardherd.system.svc:8443"


def test_with_cert_manager_the_certificate_is_its_business_and_the_operator_reads_it_only(chart: Chart) -> None:
    issuer = {"name": "company", "kind": "ClusterIssuer"}
    values = {"tls": {"mode": "certManager", "certManager": {"issuerRef": issuer, "duration": "720h", "renewBefore": "240h"}}}
    certificate = chart.one("Certificate", "shardherd-tls", values)
    assert certificate["spec"] == {
        "secretName": "shardherd-tls",
        "dnsNames": ["shardherd.system.svc"],
        "usages": ["digital signature", "key encipherment", "server auth"],
        "privateKey": {"rotationPolicy": "Always"},
        "duration": "720h",
        "renewBefore": "240h",
        "issuerRef": {"group": "cert-manager.io", **issuer},
    }
    assert "Secret" not in chart.kinds(values)
    rights = [rule for rule in chart.one("Role", "shardherd-leader", values)["rules"] if "secrets" in rule["resources"]]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in rights] == [(["shardherd-tls"], ["get"])]
    (container,) = chart.one("Deployment", values=values)["spec"]["template"]["spec"]["containers"]
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert (environment["SHARDHERD_TLS"], environment["SHARDHERD_TLS_SECRET"]) == ("secret", "shardherd-tls")


def test_the_hook_pings_the_address_that_consumers_call(chart: Chart) -> None:
    pod = chart.one("Pod", "shardherd-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    operator = chart.one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    (url,) = [item["value"] for item in operator["env"] if item["name"] == "SHARDHERD_COORDINATOR_URL"]
    assert (container["image"], container["args"]) == (operator["image"], ["ping", url, "--ca-file=/run/shardherd/ca.crt"])
    (volume,) = pod["spec"]["volumes"]
    assert volume["secret"] == {"secretName": "shardherd-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicaCount": 0}, "replicaCount"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"networkPolicy": {"kafkaPorts": []}}, "kafkaPorts"),
        ({"prometheus": {"serviceMonitor": {"interval": "often"}}}, "interval"),
        ({"prometheus": {"rules": {"lagSeconds": 0}}}, "lagSeconds"),
        ({"podDisruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable"),
        ({"lease": None}, "missing property 'lease'"),
        ({"metrics": {"port": 8080}}, "api.port and metrics.port are both 8080: give each a port of its own"),
        ({"api": {"port": 8443}}, "api.port and tls.port are both 8443: give each a port of its own"),
        ({"page": {"enabled": True, "port": 9090}}, "metrics.port and page.port are both 9090: give each a port of its own"),
        ({"rbac": {"confineDrivers": None}}, "at '/rbac': missing property 'confineDrivers'"),
        ({"networkPolicy": {"enabled": True, "kafkaPorts": None}}, "at '/networkPolicy': missing property 'kafkaPorts'"),
        (
            {"rbac": {"clusterRoles": False}, "watchAllNamespaces": True},
            "name the namespaces to serve in watchNamespaces and set watchAllNamespaces=false",
        ),
        ({"watchNamespaces": ["shop"], "watchAllNamespaces": True}, "leave watchNamespaces empty"),
        (SELECTED | {"watchNamespaces": ["shop"]}, "chooses namespaces by their labels: leave watchNamespaces empty"),
        (SELECTED | {"watchAllNamespaces": True}, "set it to false to have watchNamespaceSelector choose among them"),
        (SELECTED | {"rbac": {"clusterRoles": False}}, "watchNamespaceSelector needs a ClusterRole"),
        (SELECTED | {"rbac": {"create": False}, "watchAllNamespaces": True}, "watchAllNamespaces=true serves all namespaces"),
        (selected(matchLabels={"team": "no/good"}), "watchNamespaceSelector/matchLabels/team"),
        (selected(matchLabels={"team": 7}), "watchNamespaceSelector/matchLabels/team"),
        (selected(matchLabels={"Example.com/team": "a"}), "watchNamespaceSelector/matchLabels"),
        (selected(matchLabels={"x" * 64: "a"}), "watchNamespaceSelector/matchLabels"),
        (selected(matchExpressions=[{"key": "team", "operator": "In"}]), "values"),
        (selected(matchExpressions=[{"key": "team", "operator": "In", "values": []}]), "values"),
        (selected(matchExpressions=[{"key": "team", "operator": "Exists", "values": ["a"]}]), "values"),
        (selected(matchExpressions=[{"key": "team", "operator": "Gt", "values": ["1"]}]), "operator"),
        ({"watchNamespaceSelector": {"team": "a"}}, "team"),
    ],
)
def test_a_wrong_value_is_refused_by_name(chart: Chart, values: Json, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        chart.text(values)


def test_the_port_of_what_is_off_may_be_that_of_another(chart: Chart) -> None:
    values = {"tls": {"mode": "disabled"}, "api": {"port": 8443}, "metrics": {"port": 8082}, "page": {"enabled": False}}
    (container,) = chart.one("Deployment", values=values)["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "api", "containerPort": 8443}, {"name": "metrics", "containerPort": 8082}]


def test_a_selector_is_given_to_the_operator_as_kubectl_takes_it(chart: Chart) -> None:
    expressions = [
        {"key": "team", "operator": "In", "values": ["red", "blue"]},
        {"key": "size", "operator": "NotIn", "values": ["x", ""]},
        {"key": "served", "operator": "Exists"},
        {"key": "retired", "operator": "DoesNotExist", "values": []},
    ]
    values = selected(matchLabels={"shardherd.dev/operator": "a", "bare": ""}, matchExpressions=expressions)

    def environment(values: Json | None) -> dict[str, str]:
        (container,) = chart.one("Deployment", values=values)["spec"]["template"]["spec"]["containers"]
        return {item["name"]: item.get("value", "from elsewhere") for item in container["env"]}

    given = environment(values)
    text = "bare=,shardherd.dev/operator=a,team in (red,blue),size notin (x,),served,!retired"
    assert given["SHARDHERD_WATCH_NAMESPACE_SELECTOR"] == text
    assert given["SHARDHERD_WATCH_NAMESPACES"] == ""
    assert load(given).watch_namespace_selector == text
    assert parse(text).matches({"bare": "", "shardherd.dev/operator": "a", "team": "red", "served": "yes"})
    without = environment(None) | {"SHARDHERD_WATCH_NAMESPACE_SELECTOR": text, "SHARDHERD_WATCH_NAMESPACES": ""}
    assert given == without, "it is all that differs"


def test_a_selector_gives_the_rights_of_all_namespaces_and_reading_these(chart: Chart) -> None:
    rules, everywhere = (
        chart.one("ClusterRole", values=values)["rules"] for values in (SELECTED, {"watchAllNamespaces": True})
    )
    assert rules == [*everywhere, {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]}]
    assert [item["metadata"]["name"] for item in chart.render(SELECTED) if item["kind"] == "Role"] == ["shardherd-leader"]
    assert [item for item in chart.render(SELECTED) if item["metadata"]["name"].startswith("shardherd-spark")] == []


def test_with_a_selector_policies_hold_in_every_namespace_and_monitors_look_into_every_one(chart: Chart) -> None:
    values = SELECTED | {"prometheus": {"podMonitor": {"enabled": True}}, "networkPolicy": {"enabled": True}}
    rendered = chart.render(values)
    bindings = {
        item["metadata"]["name"]: item["spec"].get("matchResources")
        for item in rendered
        if item["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    beside = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "system"}}}
    assert bindings == {
        "shardherd-leader.system": beside,
        "shardherd-state.system": None,
        "shardherd-executors.system": None,
    }
    (monitor,) = [item for item in rendered if item["kind"] == "PodMonitor"]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    (network,) = [item for item in rendered if item["kind"] == "NetworkPolicy"]
    consumers = network["spec"]["ingress"][0]["from"][0]
    assert consumers == {
        "podSelector": {"matchLabels": {"shardherd.dev/role": "driver"}},
        "namespaceSelector": SELECTED["watchNamespaceSelector"],
    }


def test_every_value_has_a_schema() -> None:
    schema = json.loads((ROOT / "charts" / "shardherd" / "values.schema.json").read_text())
    values = yaml.safe_load((ROOT / "charts" / "shardherd" / "values.yaml").read_text())

    def unknown(value: Json, of: Json, path: str) -> list[str]:
        if of.get("additionalProperties") is not False:
            return []
        wrong = [f"{path}{name}" for name in set(value) ^ set(of["properties"])]
        below = ((name, item) for name, item in value.items() if isinstance(item, dict))
        return wrong + list(
            itertools.chain.from_iterable(
                unknown(item, of["properties"].get(name, {}), f"{path}{name}.") for name, item in below
            )
        )

    assert unknown(values, schema, "") == ["global"]


NONE_MEANS_NONE = {
    "watchNamespaceSelector",
    "resources",
    "podSecurityContext",
    "securityContext",
    "tls.certManager.issuerRef.group",
    "tls.certManager.issuerRef.kind",
    "prometheus.serviceMonitor",
    "prometheus.podMonitor",
    "prometheus.rules",
    "dashboards",
    "networkPolicy",
    "networkPolicy.metricsFrom",
}
"""Values with a default of which null makes nothing: no selector, no limits, nothing that is off by default anyway."""


def test_no_default_can_be_taken_away_by_null_without_a_word() -> None:
    schema = json.loads((ROOT / "charts" / "shardherd" / "values.schema.json").read_text())
    values = yaml.safe_load((ROOT / "charts" / "shardherd" / "values.yaml").read_text())

    def lacking(value: Json, of: Json, path: str) -> list[str]:
        if of.get("additionalProperties") is not False:
            return []
        given = [(f"{path}{name}", name, item) for name, item in value.items() if item]
        wrong = [place for place, name, _ in given if place not in NONE_MEANS_NONE and name not in of.get("required", ())]
        below = ((place, name, item) for place, name, item in given if isinstance(item, dict))
        return wrong + list(
            itertools.chain.from_iterable(lacking(item, of["properties"][name], f"{place}.") for place, name, item in below)
        )

    assert lacking(values, schema, "") == []


@pytest.mark.parametrize(
    "values", [{"watchNamespaces": None}, {"nodeSelector": None, "prometheus": {"rules": None}, "networkPolicy": None}]
)
def test_null_in_the_place_of_what_is_empty_or_off_by_default_changes_nothing(chart: Chart, values: Json) -> None:
    assert chart.text(values) == chart.text()
