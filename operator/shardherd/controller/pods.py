"""Reads pods: which are drivers and which executors, and why a driver is not ready, named as a user would ask for it.

Called by `observe`. Pure: manifests in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardherd.controller import names
from shardherd.core.model import reasons
from shardherd.core.model.nouns import ConsumerId, Incarnation
from shardherd.core.planning.observed import ConsumerPod, ExecutorPod, Trouble
from shardherd.core.planning.status import ROLE_LABEL

Pod = Mapping[str, Any]

_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_EXCEPTION = re.compile(r"^\s*([\w.]+(Error|Exception|Exit|Interrupt))\b")
_STOPPING = re.compile(r"\S+ ERROR +shardherd\.[\w.]+: stopping: (?P<why>.*?)(?: \w+=\S+)*$")
"""As the session of a consumer logs that it ends, without the fields of the line."""

_OF_JAVA = re.compile(r": (?P<said>.+)")
_LABEL = re.compile(r"(?P<uid>[0-9a-f-]+)\.(?P<start>[0-9]+)")


def driver(pod: Pod, template_hash: str, log: str = "", operator: str = "") -> ConsumerPod | None:
    """The driver that this pod is, or None. `log` is the end of what its last container wrote, as far as it was read.

    `operator` is our own name; pods that bear another one's call that.
    """
    metadata = pod["metadata"]
    ordinal = metadata["name"].rpartition("-")[2]
    if metadata.get("labels", {}).get(ROLE_LABEL) != names.DRIVER_ROLE or not ordinal.isdigit():
        return None
    ready = is_ready(pod)
    status = consumer_container(pod)
    annotations = metadata.get("annotations", {})
    foreign = bool(operator) and annotations.get(names.SERVED_BY, operator) != operator
    return ConsumerPod(
        name=ConsumerId(metadata["name"]),
        uid=metadata["uid"],
        ordinal=int(ordinal),
        ready=ready,
        deleting="deletionTimestamp" in metadata,
        current=annotations.get(names.TEMPLATE_HASH) == template_hash and not foreign,
        trouble=None if ready else trouble(pod, log),
        cordoned=metadata["labels"].get(names.CORDONED_LABEL) == "true",
        running="running" in status.get("state", {}),
        answers=bool(status.get("ready")),
        foreign=foreign,
    )


def is_ready(pod: Pod) -> bool:
    """Whether Kubernetes calls it ready."""
    return bool(_ready_condition(pod).get("status") == "True")


def _ready_condition(pod: Pod) -> Mapping[str, Any]:
    conditions = pod.get("status", {}).get("conditions", ())
    found: Mapping[str, Any] = next((condition for condition in conditions if condition["type"] == "Ready"), {})
    return found


def executor(pod: Pod) -> ExecutorPod | None:
    """The executor that this pod is, or None."""
    metadata = pod["metadata"]
    incarnation = incarnation_of(pod)
    if incarnation is None:
        return None
    return ExecutorPod(metadata["name"], metadata["uid"], incarnation, "deletionTimestamp" in metadata)


def incarnation_of(pod: Pod) -> Incarnation | None:
    """The incarnation of the driver that an executor's pod works for, from its label."""
    match = _LABEL.fullmatch(pod["metadata"].get("labels", {}).get(names.INCARNATION_LABEL, ""))
    return Incarnation(match["uid"], int(match["start"])) if match else None


def container(pod: Pod, name: str) -> Mapping[str, Any]:
    """The status of one container; empty if there is none yet."""
    statuses = pod["status"].get("containerStatuses", ())
    found: Mapping[str, Any] = next((status for status in statuses if status["name"] == name), {})
    return found


def consumer_container(pod: Pod) -> Mapping[str, Any]:
    """The status of the container that is the consumer; empty if there is none yet."""
    return next((found for name in names.CONSUMER_CONTAINERS if (found := container(pod, name))), {})


def crashed(pod: Pod) -> Mapping[str, Any] | None:
    """How the driver's container ended last, if it ended badly and this is why the pod is not ready; else None."""
    status = consumer_container(pod)
    state, last = status.get("state", {}), status.get("lastState", {}).get("terminated")
    ended = state.get("terminated") or last
    again = state.get("waiting", {}).get("reason") == "CrashLoopBackOff" or "terminated" in state
    # Once is an accident and is mended by the restart that is under way; a waiting container or a second time is news.
    if ended is None or not (again or status.get("restartCount", 0) > 1):
        return None
    return ended if ended.get("exitCode", 0) != 0 or "waiting" in state else None


def trouble(pod: Pod, log: str) -> Trouble | None:
    """Why this driver is not ready, or None while it is simply starting."""
    name = pod["metadata"]["name"]
    status = consumer_container(pod)
    waiting = status.get("state", {}).get("waiting", {})
    if waiting.get("reason") in _IMAGE:
        image = status.get("image") or _image(pod)
        remedy = "Correct spec.application.image, or spec.application.imagePullSecrets."
        # What the kubelet says may be long and comes last: an Event is cut off.
        detail = f" The kubelet says: {waiting['message']}" if waiting.get("message") else ""
        return Trouble(
            reasons.IMAGE_UNAVAILABLE,
            f'Pod {name} cannot get the image "{image}" ({waiting["reason"]}). {remedy}{detail}',
        )
    if waiting.get("reason") in _CONFIG:
        return Trouble(
            reasons.CONTAINER_CONFIG_INVALID,
            f"Pod {name} cannot start its container ({waiting['reason']}): {waiting.get('message', '')}",
        )
    ended = crashed(pod)
    if ended is not None:
        # The kubelet calls the wait for the first restart CrashLoopBackOff too: once is an accident, and is being mended.
        again = status.get("restartCount", 0) > 0
        reason = reasons.CRASH_LOOPING if again else reasons.CONSUMER_ENDED
        return Trouble(reason, _crash(name, status, ended, log))
    if since := _silent_since(pod, status):
        return Trouble(
            reasons.CONSUMER_SILENT,
            f"The process of {name} runs, but it is not ready any more since {since}: it hangs, or was stopped, and reads "
            "nothing.",
        )
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Trouble(reasons.UNSCHEDULABLE, f"Pod {name} has no node: {condition.get('message', '')}")
    return None


def _silent_since(pod: Pod, status: Mapping[str, Any]) -> str:
    """Since when a driver that was ready since its container started is so no more; empty if it never was, or is to go.

    A pod as the controller keeps it of a cluster has no such times: there its condition says so after `sessionTimeout`.
    """
    began = status.get("state", {}).get("running", {}).get("startedAt", "")
    since = _ready_condition(pod).get("lastTransitionTime", "")
    # Of times in RFC 3339 and UTC the later one is the greater text. One that starts turned unready as the one before it ended.
    return since if began and since > began and "deletionTimestamp" not in pod["metadata"] else ""


def _crash(name: str, status: Mapping[str, Any], ended: Mapping[str, Any], log: str) -> str:
    why = f" ({ended['reason']})" if ended.get("reason") not in (None, "Error", "Completed") else ""
    message = f"The application in pod {name} ended with exit code {ended.get('exitCode')}{why}"
    times = status.get("restartCount", 0)
    message += " and is being started again" if times == 0 else f" and was started again {times} time{'s'[: times > 1]}"
    line = ending_line(log)
    return f"{message}; it said: {line}" if line else f"{message}; see what {name} logged before it ended"


def ending_line(log: str) -> str:
    """The line of a log that says best why it ended; empty for an empty log.

    Where the consumer ended itself, what it says of that: exceptions before it were none of the reason, those after it follow
    from it. Else the last exception, or the last line.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if stopping := [found["why"] for line in lines if (found := _STOPPING.match(line))]:
        return stopping[-1][:500]
    exceptions = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
    if not exceptions:
        return (lines or [""])[-1][:500]
    last, *after = lines[exceptions[-1] :]
    # Py4J names the call, which says nothing to a user, and on the next line what failed in Java.
    of_java = _OF_JAVA.match(after[0]) if after and "Py4JJavaError" in last else None
    return (of_java["said"] if of_java else last)[:500]


def _image(pod: Pod) -> str:
    containers = pod.get("spec", {}).get("containers", ())
    return next((str(item.get("image", "")) for item in containers if item["name"] in names.CONSUMER_CONTAINERS), "")
