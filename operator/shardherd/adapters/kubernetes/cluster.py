"""What the controller reads and writes of a group's objects. Called by the controller through `Cluster`.

Writes are server-side applies under one field manager, so that what others set on our objects stays. Reads cost a handful of
requests, sent at the same time. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from shardherd.adapters.kubernetes.api import APPLY, ApiError, ApiUnavailableError, KubernetesApi
from shardherd.core.model import GroupIdentity
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError, GroupObjects, Manifest

FIELD_MANAGER = "shardherd"
JSON_PATCH = "application/json-patch+json"
GROUP_LABEL = "shardherd.dev/consumergroup"
LOG_LINES = 40
"""Lines of a crashed driver's log that are read: a Python traceback and what Spark says after it."""

_COLLECTIONS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Service": ("/api/v1", "services"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
}
_GROUPS = "/apis/shardherd.dev/v1alpha1"


class KubernetesCluster:
    """Cluster, over the API server. A driver's last words are read once for each of its ends."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._logs: dict[str, tuple[int, str]] = {}

    async def knows_groups(self, namespaces: Sequence[str] = ()) -> bool:
        """Whether ConsumerGroups can be listed: their definition may be installed after the operator, and takes a moment."""
        for namespace in namespaces or ("",):
            path = f"{_GROUPS}/namespaces/{namespace}/consumergroups" if namespace else f"{_GROUPS}/consumergroups"
            if await self._unless_gone(self._call("GET", path, query={"limit": "1"}), {404}) is None:
                return False
        return True

    async def read(self, namespace: str, name: str) -> GroupObjects | None:
        group, stateful_set, service, budget, pods = await asyncio.gather(
            self._get(_GROUPS, namespace, "consumergroups", name),
            self._get("/apis/apps/v1", namespace, "statefulsets", name),
            self._get("/api/v1", namespace, "services", name),
            self._get("/apis/policy/v1", namespace, "poddisruptionbudgets", name),
            self._list(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{GROUP_LABEL}={name}"}),
        )
        if group is None:
            return None
        return GroupObjects(
            group=group,
            stateful_set=stateful_set,
            service=service,
            budget=budget,
            pods=tuple(pods),
            warnings=await self._warnings(namespace, stateful_set, pods),
            logs=await self._last_words(namespace, pods),
        )

    async def apply(self, manifest: Manifest) -> None:
        base, plural = _COLLECTIONS[manifest["kind"]]
        metadata = manifest["metadata"]
        await self._call(
            "PATCH",
            f"{base}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}",
            dict(manifest),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            content_type=APPLY,
        )

    async def write_status(self, group: GroupIdentity, status: Manifest) -> None:
        # The group may have been deleted and made again since it was read: the server compares the UID itself.
        body = [
            {"op": "test", "path": "/metadata/uid", "value": group.uid},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        path = f"{_GROUPS}/namespaces/{group.namespace}/consumergroups/{group.name}/status"
        query = {"fieldManager": f"{FIELD_MANAGER}-status"}
        try:
            await self._call("PATCH", path, body, query=query, content_type=JSON_PATCH)
        except ClusterRefusedError:
            found = await self._get(_GROUPS, group.namespace, "consumergroups", group.name)
            if found is not None and found["metadata"]["uid"] == group.uid:
                raise

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self._unless_gone(self._call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body), {404, 409})

    async def _warnings(self, namespace: str, stateful_set: Any, pods: Iterable[Any]) -> tuple[tuple[str, str], ...]:
        """Why the StatefulSet cannot make its pods, if any are missing."""
        if stateful_set is None:
            return ()
        made = sum(1 for pod in pods if _controlled_by(pod, stateful_set["metadata"]["uid"]))
        if made >= stateful_set["spec"].get("replicas", 1):
            return ()
        selector = f"involvedObject.uid={stateful_set['metadata']['uid']},type=Warning"
        events = await self._list(f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": selector})
        events.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return tuple((str(event.get("reason", "")), str(event.get("message", ""))) for event in events)

    async def _last_words(self, namespace: str, pods: Iterable[Any]) -> dict[str, str]:
        """The ends of the logs of drivers that are down after a crash, by pod UID."""
        words = {}
        for pod in pods:
            status = next((item for item in pod["status"].get("containerStatuses", ()) if item["name"] == "driver"), None)
            if status is None or "running" in status.get("state", {}) or not _failed(status):
                continue
            uid, restarts = pod["metadata"]["uid"], int(status.get("restartCount", 0))
            if self._logs.get(uid, (-1, ""))[0] != restarts:
                self._logs[uid] = (restarts, await self._log(namespace, pod["metadata"]["name"]))
            words[uid] = self._logs[uid][1]
        # Those of pods that went long ago are of no use to anybody.
        for uid in list(self._logs)[:-1000]:
            del self._logs[uid]
        return words

    async def _log(self, namespace: str, pod: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        query = {"container": "driver", "tailLines": str(LOG_LINES), "limitBytes": "16384"}
        try:
            text = await self._api.acall("GET", path, query=query, decode=False)
        except (ApiError, ApiUnavailableError) as error:
            # A log that cannot be had (its node is away, the container was removed) must not hide the crash.
            return f"(its log cannot be read: {error})"
        return bytes(text).decode(errors="replace")

    async def _get(self, base: str, namespace: str, plural: str, name: str) -> Any:
        return await self._unless_gone(self._call("GET", f"{base}/namespaces/{namespace}/{plural}/{name}"), {404})

    async def _list(self, path: str, query: dict[str, str]) -> list[Any]:
        answer = await self._call("GET", path, query=query)
        return list(answer["items"])

    async def _unless_gone(self, call: Coroutine[Any, Any, Any], statuses: set[int]) -> Any:
        try:
            return await call
        except ClusterRefusedError as error:
            cause = error.__cause__
            if isinstance(cause, ApiError) and cause.status in statuses:
                return None
            raise

    async def _call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        try:
            return await self._api.acall(method, path, body, **options)
        except ApiUnavailableError as error:
            raise ClusterUnavailableError(str(error)) from error
        except ApiError as error:
            if error.status == 429 or error.status >= 500:
                raise ClusterUnavailableError(str(error)) from error
            raise ClusterRefusedError(str(error)) from error


def _controlled_by(pod: Any, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))


def _failed(status: Any) -> bool:
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
    return bool(ended) and ended.get("exitCode", 0) != 0
