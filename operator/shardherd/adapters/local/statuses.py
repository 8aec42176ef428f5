"""Pods as a StatefulSet's controller makes them, and statuses as a kubelet reports them. Used by `node`. Pure, but for UIDs."""

from __future__ import annotations

import copy
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from shardherd.adapters.local.containers import Ended, Running
from shardherd.adapters.local.objects import POD, STATEFUL_SET, Json
from shardherd.core.model.times import rfc3339

DRIVER = "driver"


def made(stateful_set: Json, name: str) -> Json:
    """The pod of this name that the StatefulSet's template gives, placed on this machine."""
    metadata, template = stateful_set["metadata"], copy.deepcopy(stateful_set["spec"]["template"])
    owner = {
        "apiVersion": "apps/v1",
        "kind": STATEFUL_SET,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": POD,
        "metadata": {
            **template["metadata"],
            "name": name,
            "namespace": metadata["namespace"],
            "uid": str(uuid.uuid4()),
            "ownerReferences": [owner],
        },
        "spec": {**template["spec"], "nodeName": socket.gethostname()},
        "status": {"phase": "Pending", "conditions": [_condition("PodScheduled", True), _condition("Ready", False)]},
    }


def up(pod: Json, running: Running, last: Ended | None, *, ready: bool) -> Json:
    state = {"running": {"startedAt": rfc3339(running.began)}}
    return _status(pod, "Running", running.number, state, last if last and last.number < running.number else None, ready)


def down(pod: Json, ended: Ended, wait: float) -> Json:
    waiting = {"reason": "CrashLoopBackOff", "message": f"back-off {wait:g}s restarting failed container"}
    return _status(pod, "Running", ended.number, {"waiting": waiting}, ended)


def gone(pod: Json, ended: Ended) -> Json:
    return _status(pod, "Succeeded" if ended.code == 0 else "Failed", ended.number, {"terminated": _terminated(ended)}, None)


def misconfigured(pod: Json, message: str, ended: Ended | None) -> Json:
    waiting = {"reason": "CreateContainerConfigError", "message": message}
    return _status(pod, "Pending", ended.number if ended else 1, {"waiting": waiting}, ended)


def _status(pod: Json, phase: str, start: int, state: Json, last: Ended | None, ready: bool = False) -> Json:
    container = {
        "name": DRIVER,
        "image": driver(pod["spec"]).get("image", ""),
        "ready": ready,
        "restartCount": start - 1,
        "state": state,
        "lastState": {} if last is None else {"terminated": _terminated(last)},
    }
    return {
        "phase": phase,
        "podIP": "127.0.0.1",
        "conditions": [_condition("PodScheduled", True), _condition("Ready", ready)],
        "containerStatuses": [container],
    }


def _terminated(ended: Ended) -> Json:
    found: Json = {
        "exitCode": ended.code,
        "reason": "Completed" if ended.code == 0 else "Error",
        "message": ended.message,
        "startedAt": rfc3339(ended.began),
        "finishedAt": rfc3339(ended.ended),
    }
    return found | ({"signal": ended.signal} if ended.signal else {})


def _condition(kind: str, holds: bool) -> Json:
    return {"type": kind, "status": "True" if holds else "False"}


def driver(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The driver's container in a pod's spec."""
    found: Mapping[str, Any] = next(item for item in spec["containers"] if item["name"] == DRIVER)
    return found
