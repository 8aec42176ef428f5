"""Who reaches what, by the rendered NetworkPolicies."""

from __future__ import annotations

import pytest

from tests.chart.policies import OUTSIDE, Endpoint, Json, reaches
from tests.chart.rendering import EVERYTHING, Chart

OPERATOR = Endpoint(
    "system",
    {
        "app.kubernetes.io/name": "shardherd",
        "app.kubernetes.io/instance": "shardherd",
        "app.kubernetes.io/component": "operator",
    },
)
HELM_TEST = Endpoint("system", {"app.kubernetes.io/instance": "shardherd", "app.kubernetes.io/component": "test"})
DRIVER = Endpoint("shop", {"shardherd.dev/consumergroup": "clicks", "shardherd.dev/role": "driver"})
EXECUTOR = Endpoint("shop", {"shardherd.dev/consumergroup": "clicks"})
FOREIGN_DRIVER = Endpoint("elsewhere", {"shardherd.dev/consumergroup": "clicks", "shardherd.dev/role": "driver"})
SHOP_POD = Endpoint("shop", {"app": "web"})
PROMETHEUS = Endpoint("monitoring", {"app": "prometheus"})
API_SERVER = Endpoint("api-servers", {"app": "konnectivity"})
DNS = Endpoint("kube-system", {"k8s-app": "kube-dns"})
KAFKA = Endpoint("kafka", {"app": "kafka"})


def policies(chart: Chart, values: Json) -> list[Json]:
    return [item for item in chart.render(values) if item["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("source", "target", "port", "allowed"),
    [
        pytest.param(DRIVER, OPERATOR, 8443, True, id="a driver calls the coordinator"),
        pytest.param(DRIVER, OPERATOR, 8080, False, id="it does not over plain HTTP"),
        pytest.param(HELM_TEST, OPERATOR, 8443, True, id="the chart's test calls the coordinator"),
        pytest.param(FOREIGN_DRIVER, OPERATOR, 8443, False, id="a driver of a namespace that is not served does not"),
        pytest.param(EXECUTOR, OPERATOR, 8443, False, id="an executor does not"),
        pytest.param(SHOP_POD, OPERATOR, 8443, False, id="another pod of the same namespace does not"),
        pytest.param(PROMETHEUS, OPERATOR, 8443, False, id="nor does Prometheus"),
        pytest.param(OUTSIDE, OPERATOR, 8443, False, id="nor the world outside"),
        pytest.param(PROMETHEUS, OPERATOR, 9090, True, id="Prometheus reads the operator's metrics"),
        pytest.param(DRIVER, OPERATOR, 9090, False, id="a driver does not"),
        pytest.param(API_SERVER, OPERATOR, 8082, True, id="an API server reaches the page"),
        pytest.param(SHOP_POD, OPERATOR, 8082, False, id="another pod does not reach the page"),
        pytest.param(PROMETHEUS, OPERATOR, 8082, False, id="nor does Prometheus reach the page"),
        pytest.param(PROMETHEUS, DRIVER, 8090, True, id="Prometheus reads a driver's metrics"),
        pytest.param(SHOP_POD, DRIVER, 8090, False, id="another pod does not"),
        pytest.param(PROMETHEUS, DRIVER, 7078, False, id="Prometheus does not speak to Spark"),
        pytest.param(EXECUTOR, DRIVER, 7078, True, id="an executor speaks to its driver"),
        pytest.param(DRIVER, EXECUTOR, 40123, True, id="a driver speaks to its executors"),
        pytest.param(SHOP_POD, EXECUTOR, 40123, False, id="another pod does not"),
        pytest.param(OPERATOR, KAFKA, 9092, True, id="the operator commits to Kafka"),
        pytest.param(EXECUTOR, KAFKA, 9093, True, id="an executor reads Kafka"),
        pytest.param(OPERATOR, OUTSIDE, 6443, True, id="the operator calls the API server"),
        pytest.param(DRIVER, OUTSIDE, 443, True, id="a driver calls the API server"),
        pytest.param(OPERATOR, OUTSIDE, 80, False, id="the operator calls nobody else"),
        pytest.param(DRIVER, OUTSIDE, 80, False, id="nor does a driver"),
        pytest.param(OPERATOR, DRIVER, 8090, False, id="the operator does not call drivers"),
    ],
)
def test_who_reaches_what(chart: Chart, source: Endpoint, target: Endpoint, port: int, allowed: bool) -> None:
    assert reaches(policies(chart, EVERYTHING), source, target, port) is allowed


@pytest.mark.parametrize("source", [OPERATOR, DRIVER, EXECUTOR])
@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_names_are_looked_up(chart: Chart, source: Endpoint, protocol: str) -> None:
    assert reaches(policies(chart, EVERYTHING), source, DNS, 53, protocol)


def test_when_all_namespaces_are_served_drivers_of_all_call(chart: Chart) -> None:
    everywhere = policies(chart, {"networkPolicy": {"enabled": True}, "watchAllNamespaces": True})
    assert reaches(everywhere, FOREIGN_DRIVER, OPERATOR, 8443)
    assert not reaches(everywhere, SHOP_POD, OPERATOR, 8443)


@pytest.mark.parametrize(
    ("tls", "open_ports"),
    [({}, [8443]), ({"port": 443}, [443]), ({"acceptPlain": True}, [8080, 8443]), ({"mode": "disabled"}, [8080])],
)
def test_only_the_ports_that_are_served_are_open(chart: Chart, tls: Json, open_ports: list[int]) -> None:
    rendered = policies(chart, {**EVERYTHING, "tls": tls})
    assert [port for port in (443, 8080, 8443) if reaches(rendered, DRIVER, OPERATOR, port)] == open_ports


def test_sinks_and_other_ports_are_opened_by_values(chart: Chart) -> None:
    sink = {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "minio"}}}]}
    values = {
        "applicationNamespaces": ["shop"],
        "networkPolicy": {
            "enabled": True,
            "applications": True,
            "kafkaPorts": [29092],
            "applicationsExtraEgress": [sink],
            "extraEgress": [{"ports": [{"protocol": "TCP", "port": 3128}]}],
        },
    }
    opened = policies(chart, values)
    assert reaches(opened, EXECUTOR, Endpoint("minio"), 9000)
    assert not reaches(opened, OPERATOR, Endpoint("minio"), 9000)
    assert reaches(opened, OPERATOR, OUTSIDE, 3128)
    assert reaches(opened, EXECUTOR, KAFKA, 29092)
    assert not reaches(opened, EXECUTOR, KAFKA, 9092)
