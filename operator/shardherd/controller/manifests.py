"""The objects of a group: StatefulSet of consumers, headless Service, PodDisruptionBudget; and the pod that they run.

Called by `wanted` (is what exists as wanted?), `apply` and `inspect.rendering`. Pure: the same resource gives the same
manifests byte for byte, so an unchanged spec never restarts a pod. Pods satisfy the Pod Security standard `restricted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.controller import credentials, names, needs, pod_templates
from shardherd.controller.declared import (
    InvalidGroupError,
    account,
    compact,
    digest,
    executors,
    is_python,
    kafka_security,
    seconds,
    template_hash,
)
from shardherd.controller.guard import NO_GUARD, Guard
from shardherd.controller.merge import merge

RUN = "/run/shardherd"
WORK = "/var/lib/shardherd/work"
CHECKPOINT = "/var/lib/shardherd/checkpoint"
STATE = "/var/lib/shardherd/state"
"""The group's claim for state, in the driver and in executors: its state stores write there, too."""
TOKEN = "/var/run/secrets/shardherd"
AUTHORITIES = "ca.crt"
"""File beside the token, and key of the ConfigMap: by whom the coordinator is believed."""
SCRAPERS = "scrapers.sha256"
"""The same: the digest of the token that scrapers show."""

METRICS_PORT = 8090

USER = 10001
"""The user of the images."""

TOKEN_SECONDS = 3600
GRACE_AFTER_DRAIN = 30
"""Seconds after the drain until the kubelet kills: for the last checkpoint, and to end the driver and its executors."""

_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

Resource = Mapping[str, Any]


LEAST_EXECUTORS = 1
"""Where `dynamicAllocation.minExecutors` is not given. A default of the schema would stand for dynamicAllocation itself."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """Renders the objects of groups for an operator that consumers reach at `coordinator_url` with tokens for `audience`.

    With `trust` they find the authorities to believe it by in the ConfigMap that `controller.trust` keeps, with `scrapers` by
    what they know who may scrape them. What is in it is no part of what is rendered. No group gets what `guard` names.

    `operator` is its name among all of the cluster, which pods bear if `marked`: another one may serve their group later.
    """

    coordinator_url: str
    audience: str
    trust: bool = False
    scrapers: bool = False
    guard: Guard = NO_GUARD
    operator: str = ""
    marked: bool = False

    def check(self, resource: Resource) -> None:
        """Raises declared.InvalidGroupError for a group whose pods would have what is the operator's own, or cannot be made."""
        application = resource["spec"]["application"]
        pod_templates.check(application)
        if is_python(application) and names.DRIVER_CONTAINER in _containers(application.get("worker", {}).get("template", {})):
            raise InvalidGroupError(
                f"spec.application.worker.template has a container {names.DRIVER_CONTAINER!r}, as that of a Spark driver is"
                f" called: the process runs in {names.WORKER_CONTAINER!r}; give the other one another name"
            )
        pods = [self._pod(resource)] if is_python(application) else [self._pod(resource), _executor(resource)]
        self.guard.check(resource, *pods)

    def service(self, resource: Resource) -> dict[str, Any]:
        """The headless Service that gives drivers their names, ready or not: executors look them up at once."""
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.driver_selector(resource["metadata"]["name"]),
            "ports": [{"name": "metrics", "port": METRICS_PORT, "targetPort": METRICS_PORT, "protocol": "TCP"}],
        }
        return _manifest("v1", "Service", resource, spec)

    def budget(self, resource: Resource) -> dict[str, Any]:
        """The PodDisruptionBudget: nodes are drained one consumer at a time."""
        spec = {
            "maxUnavailable": 1,
            # A consumer that does not run must not keep its node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.driver_selector(resource["metadata"]["name"])},
        }
        return _manifest("policy/v1", "PodDisruptionBudget", resource, spec)

    def stateful_set(self, resource: Resource, replicas: int, remembered: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The StatefulSet. The controller itself replaces pods (OnDelete), in the order that the plan decides.

        `remembered` are annotations that do not make it another one.
        """
        name = resource["metadata"]["name"]
        claim = resource["spec"]["application"].get("checkpoint", {}).get("volumeClaimTemplate")
        spec: dict[str, Any] = {
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": names.driver_selector(name)},
            "template": self._pod(resource),
        }
        if claim is not None:
            spec["volumeClaimTemplates"] = [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": "checkpoint", "labels": names.group_labels(name)},
                    "spec": claim,
                }
            ]
            spec["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": "Delete", "whenScaled": "Delete"}
        manifest = _manifest("apps/v1", "StatefulSet", resource, spec)
        manifest["spec"]["replicas"] = replicas
        manifest["metadata"]["annotations"] |= remembered or {}
        return manifest

    def _pod(self, resource: Resource) -> dict[str, Any]:
        """The pod of a consumer: of a Spark driver, or of a plain Python process."""
        name, application = resource["metadata"]["name"], resource["spec"]["application"]
        labels = names.group_labels(name) | names.driver_selector(name)
        template = {
            "metadata": {
                "labels": labels,
                "annotations": {
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": str(METRICS_PORT),
                    "prometheus.io/path": "/metrics",
                },
            },
            "spec": {
                "serviceAccountName": account(application),
                # Only a driver that makes executors talks to the API server.
                "automountServiceAccountToken": executors(application) > 0,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": _grace(resource),
                "securityContext": dict(_POD_SECURITY),
                **_pull_secrets(application),
                "containers": [self._container(resource)],
                "volumes": [
                    *self._volumes(application),
                    *credentials.volumes_of(resource["spec"]["source"], kafka_security(resource["spec"])),
                    *_state_volumes(resource["spec"]),
                ],
            },
        }
        given = application.get("worker" if is_python(application) else "driver", {}).get("template", {})
        template = _agreed(merge(template, given), given)
        template["metadata"]["labels"] = template["metadata"].get("labels", {}) | labels
        annotations = template["metadata"].setdefault("annotations", {})
        annotations[names.TEMPLATE_HASH] = template_hash(resource["spec"])
        # A pod that named another operator would be replaced as soon as it is made.
        annotations.pop(names.SERVED_BY, None)
        if self.marked:
            annotations[names.SERVED_BY] = self.operator
        return template

    def _container(self, resource: Resource) -> dict[str, Any]:
        application = resource["spec"]["application"]
        mounts = [
            {"name": "run", "mountPath": RUN},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "work", "mountPath": WORK},
            {"name": "token", "mountPath": TOKEN, "readOnly": True},
            *credentials.mounts_of(resource["spec"]["source"], kafka_security(resource["spec"])),
            *_state_mounts(resource["spec"]),
        ]
        python = is_python(application)
        if not python and "path" not in application.get("checkpoint", {}):
            mounts.append({"name": "checkpoint", "mountPath": CHECKPOINT})
        return {
            "name": names.WORKER_CONTAINER if python else names.DRIVER_CONTAINER,
            "image": application["image"],
            "imagePullPolicy": application["imagePullPolicy"],
            "command": ["tini", "--", "/opt/shardherd/driver-entrypoint.sh", *_program(application)],
            "workingDir": WORK,
            "env": [*self._environment(resource), *application.get("env", ())],
            "ports": [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
            "readinessProbe": {
                "httpGet": {"path": "/readyz", "port": METRICS_PORT, "scheme": "HTTP"},
                "periodSeconds": 2,
                "timeoutSeconds": 2,
                "successThreshold": 1,
                "failureThreshold": 3,
            },
            "resources": needs.worker(application) if python else needs.driver(application),
            "securityContext": dict(_CONTAINER_SECURITY),
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "volumeMounts": mounts,
        }

    def _volumes(self, application: Mapping[str, Any]) -> list[dict[str, Any]]:
        token = {"audience": self.audience, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
        trusted: list[dict[str, Any]] = []
        if self.trust:
            trusted.append({"configMap": {"name": names.TRUST, "items": [{"key": AUTHORITIES, "path": AUTHORITIES}]}})
        if self.scrapers:
            # Who cannot be scraped still works.
            known = {"name": names.TRUST, "items": [{"key": SCRAPERS, "path": SCRAPERS}], "optional": True}
            trusted.append({"configMap": known})
        volumes: list[dict[str, Any]] = [
            {"name": "run", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "work", "emptyDir": {}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}, *trusted]}},
        ]
        if not is_python(application) and not application.get("checkpoint"):
            volumes.append({"name": "checkpoint", "emptyDir": {}})
        return volumes

    def _environment(self, resource: Resource) -> list[dict[str, Any]]:
        metadata, spec = resource["metadata"], resource["spec"]
        application = spec["application"]
        values = {
            "SHARDHERD_GROUP": metadata["name"],
            "SHARDHERD_GROUP_UID": metadata["uid"],
            "SHARDHERD_NAMESPACE": metadata["namespace"],
            "SHARDHERD_COORDINATOR_URL": self.coordinator_url,
            **({"SHARDHERD_COORDINATOR_CA_FILE": f"{TOKEN}/{AUTHORITIES}"} if self.trust else {}),
            "SHARDHERD_TOKEN_FILE": f"{TOKEN}/token",
            "SHARDHERD_RUN_DIR": RUN,
            **_of_source(spec["source"]),
            "SHARDHERD_HEARTBEAT_INTERVAL_MS": _millis(spec["heartbeatInterval"]),
            "SHARDHERD_SESSION_TIMEOUT_MS": _millis(spec["sessionTimeout"]),
            "SHARDHERD_COORDINATOR_LOSS_LIMIT_MS": _millis(spec["coordinatorLossLimit"]),
            "SHARDHERD_DRAIN_TIMEOUT_MS": _millis(spec["drainTimeout"]),
            "SHARDHERD_GRACE_PERIOD_MS": str(1000 * _grace(resource)),
            "SHARDHERD_ORDERED": "true" if spec["ordered"] else "false",
            **_state_location(spec),
            **(_of_worker(application) if is_python(application) else _of_driver(resource)),
            "SHARDHERD_METRICS_PORT": str(METRICS_PORT),
            **({"SHARDHERD_METRICS_DIGEST_FILE": f"{TOKEN}/{SCRAPERS}"} if self.scrapers else {}),
            **credentials.environment(kafka_security(spec)),
            **credentials.kinesis_environment(spec["source"]),
        }
        # What comes from the pod itself stands first, so that the other values may refer to it.
        return [
            _from_field("SHARDHERD_CONSUMER", "metadata.name"),
            _from_field("SHARDHERD_POD_UID", "metadata.uid"),
            _from_field("SHARDHERD_POD_IP", "status.podIP"),
            # Empty where the pod has none; a variable of the user's of the same name comes later and wins.
            _from_field("SHARDHERD_ZONE", f"metadata.labels['{names.ZONE}']"),
            _from_field("SHARDHERD_CAPACITY", f"metadata.annotations['{names.CAPACITY}']"),
            *({"name": name, "value": value} for name, value in values.items()),
        ]


def _of_source(source: Mapping[str, Any]) -> dict[str, str]:
    """Where the shards are."""
    if "kinesis" in source:
        kinesis = source["kinesis"]
        return {
            "SHARDHERD_KINESIS_STREAM": kinesis["streamName"] if "streamName" in kinesis else kinesis["streamARN"],
            "SHARDHERD_KINESIS_REGION": kinesis["region"],
            **({"SHARDHERD_KINESIS_ENDPOINT": kinesis["endpoint"]} if "endpoint" in kinesis else {}),
        }
    kafka = source["kafka"]
    return {"SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": kafka["bootstrapServers"], **_isolation(kafka)}


def _isolation(kafka: Mapping[str, Any]) -> dict[str, str]:
    """The isolation level by the name that Kafka's clients have for it, if the group declares one."""
    levels = {"ReadCommitted": "read_committed", "ReadUncommitted": "read_uncommitted"}
    return {"SHARDHERD_KAFKA_ISOLATION_LEVEL": levels[kafka["isolationLevel"]]} if "isolationLevel" in kafka else {}


def _claim_of_state(spec: Mapping[str, Any]) -> str | None:
    """The claim that the state of a group's cells is in, None if it is elsewhere or there are no cells."""
    claim: str | None = spec.get("state", {}).get("checkpoint", {}).get("claimName")
    return claim


def _state_location(spec: Mapping[str, Any]) -> dict[str, str]:
    """Below what the state of a group's cells is, if it has any."""
    if "state" not in spec:
        return {}
    uri = spec["state"]["checkpoint"].get("uri")
    return {"SHARDHERD_STATE_LOCATION": STATE if uri is None else uri.rstrip("/")}


def _state_volumes(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    claim = _claim_of_state(spec)
    return [] if claim is None else [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}]


def _state_mounts(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [] if _claim_of_state(spec) is None else [{"name": "state", "mountPath": STATE}]


def _program(application: Mapping[str, Any]) -> list[str]:
    """What Python is started with."""
    if "processor" in application:
        return ["-m", "shardherd.worker", application["processor"]]
    return [application["mainApplicationFile"], *application.get("arguments", ())]


def _of_worker(application: Mapping[str, Any]) -> dict[str, str]:
    """The part of the environment that plain Python consumers have alone: logs for machines, and the user's options."""
    worker = application.get("worker", {})
    return {
        "SHARDHERD_LOG_FORMAT": worker.get("logFormat", "json"),
        **{f"SHARDHERD_WORKER_{name.upper()}": value for name, value in sorted(worker.get("options", {}).items())},
    }


def _of_driver(resource: Resource) -> dict[str, str]:
    """The part of the environment that Spark drivers have alone."""
    metadata, application = resource["metadata"], resource["spec"]["application"]
    driver, executor = application["driver"], application["executor"]
    return {
        "SHARDHERD_SPARK_CONF": compact(application.get("sparkConf", {})),
        "SHARDHERD_CHECKPOINT_PATH": application.get("checkpoint", {}).get("path", CHECKPOINT),
        "SHARDHERD_DRIVER_HOST": f"$(SHARDHERD_CONSUMER).{metadata['name']}.{metadata['namespace']}.svc",
        "SHARDHERD_DRIVER_CORES": str(driver["cores"]),
        "SHARDHERD_DRIVER_MEMORY": driver["memory"],
        "SHARDHERD_EXECUTOR_INSTANCES": str(executors(application)),
        **_least_executors(executor),
        **({"SHARDHERD_EXECUTOR_CPU_LIMIT": str(executor["cpuLimit"])} if "cpuLimit" in executor else {}),
        "SHARDHERD_EXECUTOR_CORES": str(executor["cores"]),
        "SHARDHERD_EXECUTOR_MEMORY": executor["memory"],
        "SHARDHERD_EXECUTOR_TEMPLATE": compact(_executor(resource)),
        "SHARDHERD_EXECUTOR_SERVICE_ACCOUNT": executor.get("serviceAccountName", account(application)),
        "SHARDHERD_IMAGE": application["image"],
        "SHARDHERD_IMAGE_PULL_POLICY": application["imagePullPolicy"],
    }


def _executor(resource: Resource) -> dict[str, Any]:
    """The pod template that Spark makes executors from. Spark adds name, image, environment, resources and local folders."""
    name, application = resource["metadata"]["name"], resource["spec"]["application"]
    labels = names.group_labels(name)
    security = kafka_security(resource["spec"])
    template: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": dict(_POD_SECURITY),
            **_pull_secrets(application),
            "containers": [
                {
                    "name": names.EXECUTOR_CONTAINER,
                    "workingDir": WORK,
                    # An executor may be in another zone than its driver, and reads from the brokers of its own.
                    "env": [_from_field("SHARDHERD_ZONE", f"metadata.labels['{names.ZONE}']")],
                    "securityContext": dict(_CONTAINER_SECURITY),
                    "volumeMounts": [
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "work", "mountPath": WORK},
                        *credentials.mounts_of(resource["spec"]["source"], security),
                        *_state_mounts(resource["spec"]),
                    ],
                }
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "work", "emptyDir": {}},
                *credentials.volumes_of(resource["spec"]["source"], security),
                *_state_volumes(resource["spec"]),
            ],
        },
    }
    template = merge(template, application["executor"].get("template", {}))
    template["metadata"]["labels"] = template["metadata"].get("labels", {}) | labels
    return template


def _agreed(pod: dict[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The pod, whose consumer's container has a request and a limit of memory that agree, whatever the user's template says."""
    for container in template.get("spec", {}).get("containers", ()):
        ours = pod["spec"]["containers"][0]
        if container.get("name") == ours["name"] and container.get("resources"):
            ours["resources"] = needs.agreed(ours["resources"], container["resources"])
    return pod


def _containers(template: Mapping[str, Any]) -> set[str]:
    return {str(each.get("name")) for each in template.get("spec", {}).get("containers", ())}


def _manifest(api_version: str, kind: str, resource: Resource, spec: Mapping[str, Any]) -> dict[str, Any]:
    """An object of the group, owned by it and annotated with the hash of all this."""
    group = resource["metadata"]
    owner = {
        "apiVersion": f"{names.API_GROUP}/{names.API_VERSION}",
        "kind": names.KIND,
        "name": group["name"],
        "uid": group["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata: dict[str, Any] = {
        "name": group["name"],
        "namespace": group["namespace"],
        "labels": names.group_labels(group["name"]),
        "annotations": {},
        "ownerReferences": [owner],
    }
    manifest: dict[str, Any] = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
    metadata["annotations"][names.MANIFEST_HASH] = digest(manifest)
    return manifest


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _least_executors(executor: Mapping[str, Any]) -> dict[str, str]:
    # Only if it is set, so that other groups keep the hash, and with it the pods, that they had.
    dynamic = executor.get("dynamicAllocation")
    return {} if dynamic is None else {"SHARDHERD_EXECUTOR_LEAST": str(dynamic.get("minExecutors", LEAST_EXECUTORS))}


def _pull_secrets(application: Mapping[str, Any]) -> dict[str, Any]:
    secrets = application.get("imagePullSecrets")
    return {"imagePullSecrets": secrets} if secrets else {}


def _grace(resource: Resource) -> int:
    return round(seconds(resource["spec"]["drainTimeout"])) + GRACE_AFTER_DRAIN


def _millis(duration: str) -> str:
    return str(round(1000 * seconds(duration)))
