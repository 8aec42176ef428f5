"""The pods of plain Python consumers: what they have as those of Spark have it, and what of Spark they do not have."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.controller.declared import InvalidGroupError
from shardherd.controller.manifests import Manifests
from tests.unit.controller.builders import MANIFESTS, python_resource, resource


def pod(**application: Any) -> dict[str, Any]:
    """The template of a consumer's pod."""
    made: dict[str, Any] = MANIFESTS.stateful_set(python_resource(application=application), 2)["spec"]["template"]
    return made


def worker(**application: Any) -> dict[str, Any]:
    """The container that is the consumer."""
    (container,) = pod(**application)["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def environment(**application: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in worker(**application)["env"]}


def test_the_process_is_started_by_the_entrypoint_that_counts_its_starts() -> None:
    assert (worker()["name"], worker()["command"]) == (
        "worker",
        ["tini", "--", "/opt/shardherd/driver-entrypoint.sh", "-m", "shardherd.worker", "clicks:Clicks"],
    )


def test_a_file_that_calls_run_is_started_with_its_arguments() -> None:
    found = worker(processor=None, mainApplicationFile="/opt/app/app.py", arguments=["--fast"])
    assert found["command"][3:] == ["/opt/app/app.py", "--fast"]


def test_all_but_sparks_own_variables_are_those_of_a_driver() -> None:
    spark = MANIFESTS.stateful_set(resource(), 2)["spec"]["template"]["spec"]["containers"][0]["env"]
    of_spark = {
        "SHARDHERD_SPARK_CONF",
        "SHARDHERD_CHECKPOINT_PATH",
        "SHARDHERD_IMAGE",
        "SHARDHERD_IMAGE_PULL_POLICY",
        *(item["name"] for item in spark if item["name"].startswith(("SHARDHERD_DRIVER_", "SHARDHERD_EXECUTOR_"))),
    }
    assert environment().keys() == {item["name"] for item in spark} - of_spark | {"SHARDHERD_LOG_FORMAT"}
    assert [item for item in worker()["env"] if "valueFrom" in item] == [item for item in spark if "valueFrom" in item]


def test_logs_are_json_unless_text_is_declared() -> None:
    assert environment()["SHARDHERD_LOG_FORMAT"] == "json"
    assert environment(worker={"logFormat": "text"})["SHARDHERD_LOG_FORMAT"] == "text"


def test_options_are_told_by_the_variables_that_a_worker_reads() -> None:
    found = environment(worker={"options": {"save_interval": "5", "batch_size": "100"}})
    assert {name: value for name, value in found.items() if name.startswith("SHARDHERD_WORKER_")} == {
        "SHARDHERD_WORKER_BATCH_SIZE": "100",
        "SHARDHERD_WORKER_SAVE_INTERVAL": "5",
    }


def test_what_the_process_needs_is_requested_and_its_memory_is_its_limit() -> None:
    assert worker()["resources"] == {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}
    assert worker(worker={"cpu": "2", "memory": "1Gi"})["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi"},
        "limits": {"memory": "1Gi"},
    }


def test_it_has_an_account_without_rights_whose_token_for_the_api_server_is_not_mounted() -> None:
    spec = pod()["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("shardherd-worker", False)
    assert pod(serviceAccountName="clicks")["spec"]["serviceAccountName"] == "clicks"


def test_nothing_of_sparks_checkpoint_is_mounted() -> None:
    spec = pod()["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["run", "tmp", "work", "token"]
    assert [mount["name"] for mount in worker()["volumeMounts"]] == ["run", "tmp", "work", "token"]


def test_the_pod_the_probe_and_the_metrics_port_are_those_of_a_driver() -> None:
    spark = MANIFESTS.stateful_set(resource(), 2)["spec"]["template"]
    ours, theirs = worker(), spark["spec"]["containers"][0]
    for name in ("securityContext", "readinessProbe", "ports", "workingDir", "terminationMessagePath"):
        assert ours[name] == theirs[name]
    for name in ("securityContext", "terminationGracePeriodSeconds", "enableServiceLinks"):
        assert pod()["spec"][name] == spark["spec"][name]
    assert pod()["metadata"]["labels"] == spark["metadata"]["labels"]
    assert pod()["metadata"]["annotations"].items() >= {"prometheus.io/scrape": "true", "prometheus.io/port": "8090"}.items()
    for made in (MANIFESTS.service, MANIFESTS.budget):
        assert made(python_resource()) == made(resource())


def test_a_template_adds_to_the_pod() -> None:
    given = {
        "metadata": {"labels": {"team": "web"}},
        "spec": {
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "containers": [
                {"name": "worker", "resources": {"limits": {"memory": "2Gi"}}, "env": [{"name": "A", "value": "b"}]},
                {"name": "sidecar", "image": "proxy"},
            ],
        },
    }
    found = pod(worker={"template": given})
    ours, sidecar = found["spec"]["containers"]
    assert found["metadata"]["labels"]["team"] == "web"
    assert found["spec"]["topologySpreadConstraints"] == [{"maxSkew": 1}]
    assert (ours["name"], sidecar["name"]) == ("worker", "sidecar")
    assert {"name": "A", "value": "b"} in ours["env"]
    assert ours["resources"]["requests"]["memory"] == ours["resources"]["limits"]["memory"] == "2Gi"


def test_a_container_that_would_be_taken_for_a_spark_driver_is_refused() -> None:
    template = {"spec": {"containers": [{"name": "driver", "image": "proxy"}]}}
    with pytest.raises(InvalidGroupError) as refused:
        MANIFESTS.check(python_resource(application={"worker": {"template": template}}))
    assert str(refused.value) == (
        "spec.application.worker.template has a container 'driver', as that of a Spark driver is called: the process runs in"
        " 'worker'; give the other one another name"
    )
    MANIFESTS.check(python_resource())


def test_authorities_and_scrapers_are_beside_its_token() -> None:
    made = Manifests("https://coordinator", "shardherd", trust=True, scrapers=True).stateful_set(python_resource(), 1)
    spec = made["spec"]["template"]["spec"]
    (token,) = (volume for volume in spec["volumes"] if volume["name"] == "token")
    assert [next(iter(source)) for source in token["projected"]["sources"]] == ["serviceAccountToken", "configMap", "configMap"]
    names = {item["name"] for item in spec["containers"][0]["env"]}
    assert {"SHARDHERD_COORDINATOR_CA_FILE", "SHARDHERD_METRICS_DIGEST_FILE"} <= names
