"""Builders of what the API server gives the controller: a resource and its pods. Each makes something ordinary."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from shardherd.controller.manifests import Manifests
from shardherd.controller.merge import merge
from shardherd.core.model.nouns import Incarnation
from tests.unit.core.planning.builders import UID

MANIFESTS = Manifests("http://shardherd.system.svc:8080", "shardherd")

_SPEC: dict[str, Any] = {
    "source": {
        "kafka": {
            "bootstrapServers": "kafka:9092",
            "topics": ["clicks"],
            "startingPosition": "Earliest",
            "growth": {"cutover": "AfterSettle", "settle": "7m"},
        }
    },
    "ordered": False,
    "assignor": "Sticky",
    "assignorOptions": {"zones": "Prefer", "weights": "Records"},
    "heartbeatInterval": "3s",
    "sessionTimeout": "45s",
    "rejoinGrace": "0s",
    "releaseTimeout": "60s",
    "progressTimeout": "5m",
    "sinkTimeout": "30m",
    "coordinatorLossLimit": "5m",
    "initialAssignmentDelay": "10s",
    "drainTimeout": "60s",
    "paused": False,
    "rollout": {"strategy": "Drain", "progressDeadline": "10m"},
    "scaling": {
        "mode": "Shards",
        "minReplicas": 1,
        "maxReplicas": 10,
        "stabilizationWindow": "5m",
        "recommendOnly": False,
    },
    "application": {
        "image": "example/clicks:1",
        "imagePullPolicy": "IfNotPresent",
        "type": "Spark",
        "mainApplicationFile": "/opt/app/app.py",
        "driver": {"cores": 1, "memory": "1g"},
        "executor": {"instances": 0, "cores": 1, "memory": "1g"},
    },
}


def resource(*, status: Mapping[str, Any] | None = None, generation: int = 1, uid: str = UID, **spec: Any) -> dict[str, Any]:
    """A ConsumerGroup as the API server gives it, defaults filled in; `spec` is merged over."""
    made: dict[str, Any] = {
        "apiVersion": "shardherd.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "clicks", "namespace": "shop", "uid": uid, "generation": generation},
        "spec": merge(copy.deepcopy(_SPEC), spec),
    }
    if status is not None:
        made["status"] = dict(status)
    return made


def python_resource(*, application: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """The same group of plain Python consumers."""
    python = {"type": "Python", "mainApplicationFile": None, "processor": "clicks:Clicks", "executor": {"instances": 1}}
    return resource(application=python | dict(application or {}), **spec)


def driver_pod(
    ordinal: int = 0, *, uid: str = "", ready: bool = False, template_hash: str = "", **status: Any
) -> dict[str, Any]:
    """The pod of a driver; `status` is merged into its container's status."""
    container = {"name": "driver", "image": "example/clicks:1", "restartCount": 0, "state": {"running": {}}, **status}
    return {
        "metadata": {
            "name": f"clicks-{ordinal}",
            "namespace": "shop",
            "uid": uid or f"aaaaaaaa-0000-0000-0000-00000000000{ordinal}",
            "labels": {"shardherd.dev/consumergroup": "clicks", "shardherd.dev/role": "driver"},
            "annotations": {"shardherd.dev/template-hash": template_hash},
            "ownerReferences": [{"uid": "set", "controller": True}],
        },
        "spec": {"nodeName": "node", "containers": [{"name": "driver", "image": "example/clicks:1"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [container],
        },
    }


def executor_pod(number: int, incarnation: Incarnation, *, node: str = "node", **state: Any) -> dict[str, Any]:
    """The pod of an executor of this incarnation; `state` is its container's."""
    statuses = [{"name": "executor", "state": state or {"running": {}}}]
    return {
        "metadata": {
            "name": f"clicks-0-{incarnation.start}-exec-{number}",
            "namespace": "shop",
            "uid": f"eeeeeeee-0000-0000-0000-00000000000{number}",
            "labels": {
                "shardherd.dev/consumergroup": "clicks",
                "shardherd.dev/incarnation": f"{incarnation.pod_uid}.{incarnation.start}",
            },
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Running", "containerStatuses": statuses if node else []},
    }


def terminated(start: int | None, *, code: int = 137, reason: str = "Error") -> dict[str, Any]:
    """The state of a container that ended; `start` is what our entrypoint wrote to its termination message."""
    message = "" if start is None else f'{{"start": {start}}}\n'
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}
