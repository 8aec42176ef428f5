"""Traces on a real cluster: the operator's by the chart's values, a consumer's by its variables, both as docs/traces.md has it.

The collector is played, on this machine, behind the Service that the page names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import yaml

from dev.demo.kube import Json
from dev.demo.lab import LEADER, RELEASE, SYSTEM, Lab, service_to
from tests.e2e.groups import NAMESPACES
from tests.e2e.plain import prepare, reading
from tests.harness.long import long
from tests.harness.otlp import Collector, Received, collecting
from tests.harness.typed import ROOT

pytestmark = [pytest.mark.timeout(300), long]

PAGE = (ROOT / "docs" / "traces.md").read_text()


def values() -> list[str]:
    """What the page has the chart's user type after the chart's archive."""
    (typed,) = re.findall(r"^helm upgrade shardherd \S+ -n \S+ (.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    words: list[str] = typed.replace("\\\n", " ").split()
    return words


def variables() -> list[Json]:
    """What the page has a group's user declare, but for the sampling: here all is traced."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    found: list[Json] = yaml.safe_load(block)["spec"]["application"]["env"]
    return [each for each in found if not each["name"].startswith("OTEL_TRACES_SAMPLER")]


@pytest.fixture
def collector(installed: Lab) -> Iterator[Collector]:
    """A collector where the page says that it is, to which the operators send."""
    (endpoint,) = {each["value"] for each in variables()}
    assert f"tracing.endpoint={endpoint}" in values()
    name, namespace = str(urlsplit(endpoint).hostname).split(".")
    with collecting(installed.cluster.addresses.machine) as collector:
        installed.make_namespace(namespace)
        metadata, port = {"name": name, "namespace": namespace}, urlsplit(endpoint).port
        assert port is not None
        installed.kube.apply(*service_to(installed.cluster.addresses.machine, collector.port, metadata, port))
        try:
            installed.cluster.helm("upgrade", RELEASE, str(ROOT / "charts" / "shardherd"), "-n", SYSTEM, *values())
            installed.kube.run("rollout", "status", f"deployment/{RELEASE}", "-n", SYSTEM, "--timeout=120s", timeout=130)
            yield collector
        finally:
            installed.install(NAMESPACES)
            installed.kube.run("delete", "namespace", namespace, "--wait=false")


def test_a_trace_goes_from_a_consumers_pod_through_the_operators_into_the_commit(installed: Lab, collector: Collector) -> None:
    prepare(installed)
    with reading(installed, "traced", consumers=1, shards=2, application__env=variables()) as group:
        consumer = f"{group.name}-0"

        def followed() -> tuple[Received, Received] | None:
            """A request for a checkpoint and the operator's answer, which has committed offsets."""
            return next(
                (
                    (sent, answered)
                    for sent in collector.named("checkpoint", shardherd__consumer=consumer)
                    for answered in collector.children(sent, "checkpoint")
                    if collector.children(answered, "commit offsets")
                ),
                None,
            )

        sent, answered = group.until("is traced into the commit of its offsets", followed, 150)
        (leader,) = (each["metadata"]["name"] for each in installed.kube.pods(SYSTEM, LEADER))
        group.finish()
    of_pod = (sent.service, sent.resource["k8s.namespace.name"], sent.resource["k8s.pod.name"])
    assert (sent.parent, of_pod) == (b"", (group.name, group.namespace, consumer))
    assert (answered.service, answered.resource["k8s.pod.name"]) == ("shardherd-operator", leader)
    assert answered.attributes["shardherd.group"] == f"{group.namespace}/{group.name}"
    assert sorted(collector.below(answered)) == ["commit offsets", "decide"]
    begun = next(each for each in collector.named("heartbeat") if "write ownership" in collector.below(each))
    assert begun.service == "shardherd-operator"
    assert {each.service for each in collector.spans} == {group.name, "shardherd-operator"}
