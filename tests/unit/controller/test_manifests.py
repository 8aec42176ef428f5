"""The objects of a group, as they are applied."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from shardherd.controller.declared import InvalidGroupError, pod_inputs, template_hash, with_pod_inputs
from shardherd.controller.manifests import Manifests
from tests.unit.controller.builders import MANIFESTS, resource
from tests.unit.core.planning.builders import UID

LABELS = {
    "app.kubernetes.io/name": "shardherd",
    "app.kubernetes.io/managed-by": "shardherd",
    "app.kubernetes.io/component": "consumer",
    "shardherd.dev/consumergroup": "clicks",
}
SELECTOR = {"shardherd.dev/consumergroup": "clicks", "shardherd.dev/role": "driver"}
OWNER = {
    "apiVersion": "shardherd.dev/v1alpha1",
    "kind": "ConsumerGroup",
    "name": "clicks",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}


def pod(**spec: Any) -> dict[str, Any]:
    """The spec of a driver's pod."""
    template: dict[str, Any] = MANIFESTS.stateful_set(resource(**spec), 2)["spec"]["template"]["spec"]
    return template


def driver(**spec: Any) -> dict[str, Any]:
    """The container of a driver."""
    container: dict[str, Any] = pod(**spec)["containers"][0]
    return container


def environment(**spec: Any) -> dict[str, Any]:
    """The environment of a driver: values, or the field that a value comes from."""
    return {
        item["name"]: item["value"] if "value" in item else item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in driver(**spec)["env"]
    }


def without_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest without its own hash, which is checked to be there."""
    assert len(manifest["metadata"]["annotations"].pop("shardherd.dev/manifest-hash")) == 16
    return manifest


def test_the_service_gives_every_driver_a_name_ready_or_not() -> None:
    assert without_hash(MANIFESTS.service(resource())) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "clicks", "namespace": "shop", "labels": LABELS, "annotations": {}, "ownerReferences": [OWNER]},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": SELECTOR,
            "ports": [{"name": "metrics", "port": 8090, "targetPort": 8090, "protocol": "TCP"}],
        },
    }


def test_nodes_are_drained_one_consumer_at_a_time() -> None:
    assert without_hash(MANIFESTS.budget(resource())) == {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "clicks", "namespace": "shop", "labels": LABELS, "annotations": {}, "ownerReferences": [OWNER]},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": SELECTOR},
        },
    }


def test_the_stateful_set_leaves_replacing_pods_to_the_controller() -> None:
    made = without_hash(MANIFESTS.stateful_set(resource(), 3))
    template = made["spec"].pop("template")
    assert made["metadata"] == {
        "name": "clicks",
        "namespace": "shop",
        "labels": LABELS,
        "annotations": {},
        "ownerReferences": [OWNER],
    }
    assert made["spec"] == {
        "replicas": 3,
        "serviceName": "clicks",
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": SELECTOR},
    }
    assert template["metadata"] == {
        "labels": LABELS | SELECTOR,
        "annotations": {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": "8090",
            "prometheus.io/path": "/metrics",
            "shardherd.dev/template-hash": template_hash(resource()["spec"]),
        },
    }


def test_the_pod_satisfies_the_restricted_standard() -> None:
    made = pod()
    container = made.pop("containers")[0]
    assert container["securityContext"] == RESTRICTED
    assert {key: value for key, value in made.items() if key != "volumes"} == {
        "serviceAccountName": "shardherd-spark",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 90,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "fsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def test_only_a_driver_that_makes_executors_may_talk_to_the_api_server() -> None:
    assert pod(application={"executor": {"instances": 2}})["automountServiceAccountToken"] is True


@pytest.mark.parametrize(
    ("executor", "expected"),
    [
        ({"instances": 2}, {"SHARDHERD_EXECUTOR_INSTANCES": "2"}),
        (
            {"instances": 1, "dynamicAllocation": {"maxExecutors": 4}},
            {"SHARDHERD_EXECUTOR_INSTANCES": "4", "SHARDHERD_EXECUTOR_LEAST": "1"},
        ),
        (
            {"instances": 1, "dynamicAllocation": {"minExecutors": 0, "maxExecutors": 4}},
            {"SHARDHERD_EXECUTOR_INSTANCES": "4", "SHARDHERD_EXECUTOR_LEAST": "0"},
        ),
    ],
)
def test_the_driver_is_told_how_many_executors_it_may_have(executor: dict[str, Any], expected: dict[str, str]) -> None:
    made = pod(application={"executor": executor})
    environment = {item["name"]: item.get("value") for item in made["containers"][0]["env"]}
    names = ("SHARDHERD_EXECUTOR_INSTANCES", "SHARDHERD_EXECUTOR_LEAST")
    assert {name: environment[name] for name in names if name in environment} == expected
    assert made["automountServiceAccountToken"] is True


def test_the_driver_is_started_by_the_entrypoint_with_its_arguments() -> None:
    made = driver(application={"arguments": ["--sink", "/data"]})
    assert made["command"] == ["tini", "--", "/opt/shardherd/driver-entrypoint.sh", "/opt/app/app.py", "--sink", "/data"]
    assert (made["terminationMessagePath"], made["terminationMessagePolicy"]) == ("/dev/termination-log", "File")
    assert made["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8090, "scheme": "HTTP"}
    assert "livenessProbe" not in made


def test_the_driver_finds_what_it_needs_mounted() -> None:
    assert {volume.pop("name"): volume for volume in pod()["volumes"]} == {
        "run": {"emptyDir": {}},
        "tmp": {"emptyDir": {}},
        "work": {"emptyDir": {}},
        "token": {
            "projected": {
                "sources": [{"serviceAccountToken": {"audience": "shardherd", "expirationSeconds": 3600, "path": "token"}}]
            }
        },
        "checkpoint": {"emptyDir": {}},
    }
    assert {mount["name"]: mount["mountPath"] for mount in driver()["volumeMounts"]} == {
        "run": "/run/shardherd",
        "tmp": "/tmp",
        "work": "/var/lib/shardherd/work",
        "token": "/var/run/secrets/shardherd",
        "checkpoint": "/var/lib/shardherd/checkpoint",
    }


def test_the_environment_says_everything_that_the_application_has_to_know() -> None:
    made = environment(ordered=True, application={"sparkConf": {"spark.ui.enabled": "false"}, "driver": {"cores": 2}})
    executor = json.loads(made.pop("SHARDHERD_EXECUTOR_TEMPLATE"))
    assert made == {
        "SHARDHERD_CONSUMER": "metadata.name",
        "SHARDHERD_POD_UID": "metadata.uid",
        "SHARDHERD_POD_IP": "status.podIP",
        "SHARDHERD_ZONE": "metadata.labels['topology.kubernetes.io/zone']",
        "SHARDHERD_CAPACITY": "metadata.annotations['shardherd.dev/capacity']",
        "SHARDHERD_GROUP": "clicks",
        "SHARDHERD_GROUP_UID": UID,
        "SHARDHERD_NAMESPACE": "shop",
        "SHARDHERD_COORDINATOR_URL": "http://shardherd.system.svc:8080",
        "SHARDHERD_TOKEN_FILE": "/var/run/secrets/shardherd/token",
        "SHARDHERD_RUN_DIR": "/run/shardherd",
        "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
        "SHARDHERD_HEARTBEAT_INTERVAL_MS": "3000",
        "SHARDHERD_SESSION_TIMEOUT_MS": "45000",
        "SHARDHERD_COORDINATOR_LOSS_LIMIT_MS": "300000",
        "SHARDHERD_DRAIN_TIMEOUT_MS": "60000",
        "SHARDHERD_GRACE_PERIOD_MS": "90000",
        "SHARDHERD_ORDERED": "true",
        "SHARDHERD_SPARK_CONF": '{"spark.ui.enabled":"false"}',
        "SHARDHERD_CHECKPOINT_PATH": "/var/lib/shardherd/checkpoint",
        "SHARDHERD_DRIVER_HOST": "$(SHARDHERD_CONSUMER).clicks.shop.svc",
        "SHARDHERD_DRIVER_CORES": "2",
        "SHARDHERD_DRIVER_MEMORY": "1g",
        "SHARDHERD_EXECUTOR_INSTANCES": "0",
        "SHARDHERD_EXECUTOR_CORES": "1",
        "SHARDHERD_EXECUTOR_MEMORY": "1g",
        "SHARDHERD_EXECUTOR_SERVICE_ACCOUNT": "shardherd-spark",
        "SHARDHERD_IMAGE": "example/clicks:1",
        "SHARDHERD_IMAGE_PULL_POLICY": "IfNotPresent",
        "SHARDHERD_METRICS_PORT": "8090",
    }
    assert executor["metadata"] == {"labels": LABELS}
    assert executor["spec"]["containers"][0]["securityContext"] == RESTRICTED
    zone = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}
    assert executor["spec"]["containers"][0]["env"] == [{"name": "SHARDHERD_ZONE", "valueFrom": zone}]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, None),
        ({"isolationLevel": "ReadCommitted"}, "read_committed"),
        ({"isolationLevel": "ReadUncommitted"}, "read_uncommitted"),
    ],
)
def test_an_isolation_level_that_is_declared_is_told_by_the_name_that_kafkas_clients_have_for_it(
    declared: dict[str, str], expected: str | None
) -> None:
    kafka = {"bootstrapServers": "kafka:9092", "topics": ["clicks"], "startingPosition": "Earliest", **declared}
    assert environment(source={"kafka": kafka}).get("SHARDHERD_KAFKA_ISOLATION_LEVEL") == expected


def test_with_tls_a_driver_finds_the_authorities_beside_its_token() -> None:
    made = Manifests("https://shardherd.system.svc:8443", "shardherd", trust=True).stateful_set(resource(), 1)
    spec = made["spec"]["template"]["spec"]
    expected = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
    assert expected["SHARDHERD_COORDINATOR_URL"] == "https://shardherd.system.svc:8443"
    assert expected["SHARDHERD_COORDINATOR_CA_FILE"] == "/var/run/secrets/shardherd/ca.crt"
    (token,) = [volume for volume in spec["volumes"] if volume["name"] == "token"]
    assert token["projected"]["sources"] == [
        {"serviceAccountToken": {"audience": "shardherd", "expirationSeconds": 3600, "path": "token"}},
        {"configMap": {"name": "shardherd-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]


def test_a_driver_finds_by_what_to_know_who_may_scrape_it_and_starts_without() -> None:
    made = Manifests("http://shardherd.system.svc:8080", "shardherd", scrapers=True).stateful_set(resource(), 1)
    spec = made["spec"]["template"]["spec"]
    expected = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
    assert expected["SHARDHERD_METRICS_DIGEST_FILE"] == "/var/run/secrets/shardherd/scrapers.sha256"
    (token,) = [volume for volume in spec["volumes"] if volume["name"] == "token"]
    items = [{"key": "scrapers.sha256", "path": "scrapers.sha256"}]
    assert token["projected"]["sources"][1:] == [{"configMap": {"name": "shardherd-ca", "items": items, "optional": True}}]


def test_pods_from_before_tls_are_not_made_anew_for_it() -> None:
    plain = MANIFESTS.stateful_set(resource(), 1)["spec"]["template"]["metadata"]["annotations"]
    private = Manifests("https://shardherd.system.svc:8443", "shardherd", trust=True).stateful_set(resource(), 1)
    hashed = private["spec"]["template"]["metadata"]["annotations"]
    assert hashed["shardherd.dev/template-hash"] == plain["shardherd.dev/template-hash"]


def test_pods_name_their_operator_only_if_another_one_may_follow_it_and_are_not_made_anew_for_that() -> None:
    url = "http://shardherd.system.svc:8080"
    template = {"metadata": {"annotations": {"shardherd.dev/served-by": "somebody"}}}
    declared = resource(application={"driver": {"template": template}})

    def annotations(**options: Any) -> dict[str, str]:
        manifests = Manifests(url, "shardherd", operator="system/shardherd", **options)
        found: dict[str, str] = manifests.stateful_set(declared, 1)["spec"]["template"]["metadata"]["annotations"]
        return found

    marked, unmarked = annotations(marked=True), annotations()
    assert "shardherd.dev/served-by" not in unmarked, "it would be another operator's, and replaced for ever"
    assert marked == unmarked | {"shardherd.dev/served-by": "system/shardherd"}
    assert Manifests(url, "shardherd", operator="system/shardherd").stateful_set(resource(), 1) == Manifests(
        url, "shardherd"
    ).stateful_set(resource(), 1)


def test_values_of_the_pod_come_first_so_that_others_may_refer_to_them() -> None:
    names = [item["name"] for item in driver(application={"env": [{"name": "MINE", "value": "$(SHARDHERD_CONSUMER)"}]})["env"]]
    assert names.index("SHARDHERD_CONSUMER") < names.index("SHARDHERD_DRIVER_HOST") < names.index("MINE")


class TestState:
    CLAIM: ClassVar[dict[str, Any]] = {"state": {"cells": 6, "checkpoint": {"claimName": "clicks-state"}}}
    STORE: ClassVar[dict[str, Any]] = {"state": {"cells": 6, "checkpoint": {"uri": "s3a://bucket/state/"}}}

    def test_a_claim_is_mounted_in_drivers_and_in_executors_whose_state_stores_write_there(self) -> None:
        volume = {"name": "state", "persistentVolumeClaim": {"claimName": "clicks-state"}}
        mount = {"name": "state", "mountPath": "/var/lib/shardherd/state"}
        executor = json.loads(environment(**self.CLAIM)["SHARDHERD_EXECUTOR_TEMPLATE"])["spec"]
        assert volume in pod(**self.CLAIM)["volumes"]
        assert volume in executor["volumes"]
        assert mount in driver(**self.CLAIM)["volumeMounts"]
        assert mount in executor["containers"][0]["volumeMounts"]
        assert environment(**self.CLAIM)["SHARDHERD_STATE_LOCATION"] == "/var/lib/shardherd/state"

    def test_a_store_is_named_and_nothing_is_mounted(self) -> None:
        assert environment(**self.STORE)["SHARDHERD_STATE_LOCATION"] == "s3a://bucket/state"
        assert "state" not in {volume["name"] for volume in pod(**self.STORE)["volumes"]}

    def test_a_group_without_state_has_pods_as_before(self) -> None:
        assert "SHARDHERD_STATE_LOCATION" not in environment()
        assert "state" not in {volume["name"] for volume in pod()["volumes"]}

    def test_pods_are_replaced_when_the_place_changes_and_can_go_back_to_the_one_before(self) -> None:
        before, after = resource(**self.CLAIM), resource(**self.STORE)
        assert template_hash(before["spec"]) != template_hash(after["spec"])
        assert with_pod_inputs(after, pod_inputs(before["spec"]))["spec"]["state"] == self.CLAIM["state"]


class TestCheckpoint:
    def test_a_path_is_the_users_to_mount(self) -> None:
        spec = {"application": {"checkpoint": {"path": "/data/checkpoints"}}}
        assert environment(**spec)["SHARDHERD_CHECKPOINT_PATH"] == "/data/checkpoints"
        assert "checkpoint" not in {volume["name"] for volume in pod(**spec)["volumes"]}
        assert "checkpoint" not in {mount["name"] for mount in driver(**spec)["volumeMounts"]}

    def test_a_claim_gives_every_consumer_a_volume_that_goes_with_the_group(self) -> None:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        spec: dict[str, Any] = {"application": {"checkpoint": {"volumeClaimTemplate": claim}}}
        made = MANIFESTS.stateful_set(resource(**spec), 1)["spec"]
        assert [template["spec"] for template in made["volumeClaimTemplates"]] == [claim]
        assert made["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Delete"}
        assert "checkpoint" not in {volume["name"] for volume in pod(**spec)["volumes"]}
        assert "/var/lib/shardherd/checkpoint" in {mount["mountPath"] for mount in driver(**spec)["volumeMounts"]}


class TestOverrides:
    template: ClassVar[dict[str, Any]] = {
        "metadata": {"labels": {"team": "web", "shardherd.dev/role": "other"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [
                {
                    "name": "driver",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "resources": {"limits": {"cpu": 1}},
                }
            ],
        },
    }

    def test_a_template_adds_to_the_drivers_pod(self) -> None:
        made = pod(application={"driver": {"template": self.template}})
        assert made["nodeSelector"] == {"disk": "ssd"}
        assert made["volumes"][-1] == {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        assert made["containers"][0]["volumeMounts"][-1] == {"name": "data", "mountPath": "/data"}
        assert made["containers"][0]["resources"] == {
            "requests": {"cpu": "250m", "memory": "2176Mi"},
            "limits": {"cpu": 1, "memory": "2176Mi"},
        }
        assert len(made["containers"]) == 1

    def test_but_cannot_take_our_labels_away(self) -> None:
        made = MANIFESTS.stateful_set(resource(application={"driver": {"template": self.template}}), 1)
        assert made["spec"]["template"]["metadata"]["labels"] == {"team": "web"} | LABELS | SELECTOR

    def test_a_template_adds_to_the_executors_pods(self) -> None:
        mount = {"name": "data", "mountPath": "/data"}
        template = {"spec": {"containers": [{"name": "executor", "volumeMounts": [mount]}]}}
        made = json.loads(environment(application={"executor": {"template": template}})["SHARDHERD_EXECUTOR_TEMPLATE"])
        assert made["spec"]["containers"][0]["volumeMounts"][-1] == mount
        assert made["kind"] == "Pod"


def test_executors_may_have_an_account_of_their_own() -> None:
    made = environment(application={"executor": {"serviceAccountName": "without-rights"}})
    assert made["SHARDHERD_EXECUTOR_SERVICE_ACCOUNT"] == "without-rights"


@pytest.mark.parametrize(
    ("template", "field", "wrong"),
    [
        ({"spec": "a pod"}, ".spec", "expected `object`, got `str`"),
        ({"metadata": {"labels": ["team"]}}, ".metadata.labels", "expected `object | null`, got `array`"),
        ({"spec": {"containers": ["driver"]}}, ".spec.containers[0]", "expected `object`, got `str`"),
        ({"spec": {"containers": 1}}, ".spec.containers", "expected `array`, got `int`"),
        ({"spec": {"containers": [{"image": "a"}]}}, ".spec.containers[0]", "object missing required field `name`"),
        ({"spec": {"containers": [{"name": ["a"]}]}}, ".spec.containers[0].name", "expected `str`, got `array`"),
        (
            {"spec": {"containers": [{"name": "driver", "resources": ["1Gi"]}]}},
            ".spec.containers[0].resources",
            "expected `object | null`, got `array`",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["driver", "executor"])
def test_a_template_that_is_none_of_a_pod_is_refused_by_the_name_of_its_field(
    role: str, template: dict[str, Any], field: str, wrong: str
) -> None:
    with pytest.raises(InvalidGroupError) as refusal:
        MANIFESTS.check(resource(application={role: {"template": template}}))
    assert str(refusal.value) == f"spec.application.{role}.template{field} is not as in a PodTemplateSpec: {wrong}"


def test_what_is_null_in_a_template_removes_something_of_ours_and_is_no_mistake() -> None:
    template = {"metadata": {"annotations": {"prometheus.io/scrape": None}, "labels": None}, "spec": {"volumes": None}}
    MANIFESTS.check(resource(application={"driver": {"template": template}}))


def test_an_unchanged_spec_gives_the_same_manifests() -> None:
    assert json.dumps(MANIFESTS.stateful_set(resource(), 2)) == json.dumps(MANIFESTS.stateful_set(resource(), 2))


def test_the_number_of_replicas_is_no_part_of_the_hash() -> None:
    two, three = (MANIFESTS.stateful_set(resource(), replicas)["metadata"]["annotations"] for replicas in (2, 3))
    assert two == three


class TestResources:
    """Memory is what the heap, the JVM, the Python processes and the tasks need at most; see docs/sizing.md."""

    @pytest.mark.parametrize(
        ("heap", "cores", "executor", "memory"),
        [
            ("512m", 1, {"instances": 0}, "1664Mi"),
            ("1g", 1, {"instances": 0}, "2176Mi"),
            ("1g", 4, {"instances": 0}, "3328Mi"),
            ("8G", 1, {"instances": 0}, "11468Mi"),
            ("1g", 1, {"instances": 2}, "1792Mi"),
            ("1g", 4, {"dynamicAllocation": {"maxExecutors": 2}}, "1792Mi"),
        ],
    )
    def test_a_driver_gets_the_memory_that_it_needs_and_no_more(
        self, heap: str, cores: int, executor: dict[str, Any], memory: str
    ) -> None:
        made = driver(application={"driver": {"memory": heap, "cores": cores}, "executor": executor})
        assert made["resources"] == {"requests": {"cpu": f"{250 * cores}m", "memory": memory}, "limits": {"memory": memory}}

    def test_a_limit_on_its_cpu_is_set_on_request(self) -> None:
        made = driver(application={"driver": {"cores": 2, "cpuLimit": 3}})
        assert made["resources"] == {
            "requests": {"cpu": "500m", "memory": "2560Mi"},
            "limits": {"cpu": "3", "memory": "2560Mi"},
        }

    def test_a_limit_on_the_cpu_of_executors_is_told_to_the_driver_that_makes_them(self) -> None:
        assert "SHARDHERD_EXECUTOR_CPU_LIMIT" not in environment(application={"executor": {"instances": 1}})
        made = environment(application={"executor": {"instances": 1, "cpuLimit": 2}})
        assert made["SHARDHERD_EXECUTOR_CPU_LIMIT"] == "2"

    @pytest.mark.parametrize(
        ("said", "requests", "limits"),
        [
            ({"requests": {"memory": "4Gi"}}, {"cpu": "250m", "memory": "4Gi"}, {"memory": "4Gi"}),
            ({"limits": {"memory": "1Gi"}}, {"cpu": "250m", "memory": "1Gi"}, {"memory": "1Gi"}),
            (
                {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
                {"cpu": "250m", "memory": "1Gi"},
                {"memory": "2Gi"},
            ),
            ({"limits": {"memory": None}}, {"cpu": "250m", "memory": "2176Mi"}, {}),
            ({"limits": None}, {"cpu": "250m", "memory": "2176Mi"}, {}),
            ({"requests": {"cpu": "1"}}, {"cpu": "1", "memory": "2176Mi"}, {"memory": "2176Mi"}),
        ],
        ids=["more", "less", "both", "no-limit", "no-limits", "cpu-alone"],
    )
    def test_a_template_that_says_one_of_request_and_limit_means_both(
        self, said: dict[str, Any], requests: dict[str, Any], limits: dict[str, Any]
    ) -> None:
        template = {"spec": {"containers": [{"name": "driver", "resources": said}]}}
        made = driver(application={"driver": {"template": template}})["resources"]
        assert (made["requests"], made.get("limits", {})) == (requests, limits)
