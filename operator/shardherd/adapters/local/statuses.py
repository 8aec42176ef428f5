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

CONSUMERS = ("driver", "worker")
"""What the container is called that is the consumer, of Spark or of Python."""


def made(stateful_set: Json, name: str, now: float) -> Json:
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
        "status": {
            "phase": "Pending",
            "conditions": [_condition("PodScheduled", True), _turned({}, _condition("Ready", False), now)],
        },
    }


def up(pod: Json, running: Running, last: Ended | None, now: float, *, ready: bool) -> Json:
    """Of a pod whose driver runs."""
    state = {"running": {"startedAt": rfc3339(running.began)}}
    before = last if last and last.number < running.number else None
    # Who was not looked at while it was down turned unready with the end of the start before.
    turned = now if _restarts(pod) == running.number - 1 else running.began
    return _status(pod, "Running", running.number, state, before, turned, ready)


def down(pod: Json, ended: Ended, wait: float) -> Json:
    """Of a pod whose driver has ended and is to start again."""
    waiting = {"reason": "CrashLoopBackOff", "message": f"back-off {wait:g}s restarting failed container"}
    return _status(pod, "Running", ended.number, {"waiting": waiting}, ended, ended.ended)


def gone(pod: Json, ended: Ended) -> Json:
    """Of a pod whose driver has ended and is not to start again."""
    phase = "Succeeded" if ended.code == 0 else "Failed"
    return _status(pod, phase, ended.number, {"terminated": _terminated(ended)}, None, ended.ended)


def misconfigured(pod: Json, message: str, ended: Ended | None, now: float) -> Json:
    """Of a pod whose driver cannot start."""
    waiting = {"reason": "CreateContainerConfigError", "message": message}
    return _status(pod, "Pending", ended.number if ended else 1, {"waiting": waiting}, ended, now)


def _status(pod: Json, phase: str, start: int, state: Json, last: Ended | None, now: float, ready: bool = False) -> Json:
    container = {
        "name": driver(pod["spec"])["name"],
        "image": driver(pod["spec"]).get("image", ""),
        "ready": ready,
        "restartCount": start - 1,
        "state": state,
        "lastState": {} if last is None else {"terminated": _terminated(last)},
    }
    return {
        "phase": phase,
        "podIP": "127.0.0.1",
        "conditions": [_condition("PodScheduled", True), _turned(pod, _condition("Ready", ready), now)],
        "containerStatuses": [container],
    }


def _restarts(pod: Json) -> int:
    """How often its driver was started again, as its status has it."""
    return sum(int(status["restartCount"]) for status in pod.get("status", {}).get("containerStatuses", ()))


def _turned(pod: Json, condition: Json, now: float) -> Json:
    """The condition with the time since when it is so."""
    before = (each for each in pod.get("status", {}).get("conditions", ()) if each.items() >= condition.items())
    since = next((each["lastTransitionTime"] for each in before if "lastTransitionTime" in each), rfc3339(now))
    return condition | {"lastTransitionTime": since}


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


def module(container: Mapping[str, Any]) -> bool:
    """Whether Python runs a module in it, and not a file."""
    return bool(container.get("command", [])[3:4] == ["-m"])


def driver(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The driver's container in a pod's spec."""
    found: Mapping[str, Any] = next(item for item in spec["containers"] if item["name"] in CONSUMERS)
    return found
