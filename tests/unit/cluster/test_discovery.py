"""Which pods Prometheus scrapes, and where."""

from typing import Any

from dev.cluster.discovery import targets


def pod(name: str, phase: str = "Running", ip: str | None = "10.89.1.5", **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "annotations": {f"prometheus.io/{key}": value for key, value in annotations.items()},
        },
        "status": {"phase": phase, **({"podIP": ip} if ip else {})},
    }


def test_an_annotated_pod_is_scraped_at_its_port_and_path() -> None:
    assert targets([pod("a-0", scrape="true", port="8090", path="/m")]) == [
        {"targets": ["10.89.1.5:8090"], "labels": {"namespace": "demo", "pod": "a-0", "__metrics_path__": "/m"}}
    ]


def test_the_path_is_metrics_unless_said_otherwise() -> None:
    (group,) = targets([pod("a-0", scrape="true", port="8090")])
    assert group["labels"]["__metrics_path__"] == "/metrics"


def test_pods_that_cannot_answer_or_did_not_ask_are_left_alone() -> None:
    unasked = {"metadata": {"name": "b", "namespace": "demo"}, "status": {"phase": "Running", "podIP": "10.89.1.6"}}
    others = [
        pod("off", scrape="false", port="1"),
        pod("no-port", scrape="true"),
        pod("done", phase="Succeeded", scrape="true", port="1"),
        pod("no-address", ip=None, scrape="true", port="1"),
        unasked,
    ]
    assert targets(others) == []
