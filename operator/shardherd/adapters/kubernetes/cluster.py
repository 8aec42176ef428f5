"""What the controller reads and writes of a group's objects. Called by the controller through `Cluster`.

Writes are server-side applies under one field manager, so that what others set on our objects stays. A read is
answered from the `ObjectCache`; without one, or where it is not complete, it costs a handful of requests, sent at once. Decides
nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from shardherd.adapters.kubernetes.api import APPLY, ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.object_cache import (
    BUDGET,
    GROUP,
    GROUP_LABEL,
    POD,
    SERVICE,
    STATEFUL_SET,
    Key,
    ObjectCache,
    group_of,
    slim,
)
from shardherd.clock import boot_time
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import ClusterChangedError, ClusterRefusedError, ClusterUnavailableError, GroupObjects, Manifest

FIELD_MANAGER = "shardherd"
JSON_PATCH = "application/json-patch+json"
CONSUMERS = ("driver", "worker")
"""What the container is called that is the consumer, of Spark or of Python."""

LOG_LINES = 40
"""Lines of a crashed driver's log that are read: a Python traceback and what Spark says after it."""

WARNINGS_AGE, WARNINGS_SHARE = 4.0, 50.0
"""Seconds for which the warnings of a namespace serve all groups in it that wait for pods, at least; and for how many times as
long as it took to ask for them: the API server looks through all Events of a namespace to find these."""

LISTING_AGE, LISTING_EACH = 300.0, 3.0
"""Seconds after which everything is listed once more, at least, and for each group that is known: a watch that was cut off long
enough tells nothing of what was deleted meanwhile, and nothing at all if nothing is left."""

LISTING_PAUSE = 5.0
"""Seconds between two listings because watches began anew: those of all kinds do so at about the same time."""

NEVER = "1"
"""A version that no object has. Applied with it an object is made, and one that is there already is refused as another version:
so nobody need look whether there is one, of somebody else's, which no watch shows."""

CONFLICT = 409
PASSING = frozenset({CONFLICT, 410, 429})
"""What the API server answers because of somebody else's write, of what it has forgotten, or of its load: not of our object."""

UNTYPED = ("failed to create typed patch object", "failed to convert new object")
"""How the API server says, with status 500, that what is applied is no object of its kind: that it has a field which there is
none of, or one of another type. So it is with a pod template in which something is misspelled."""

PAGE = 50
"""Objects asked for at once: an answer is of some ten kilobytes an object, and takes five times as much once it is parsed."""

GROUPS = "/apis/shardherd.dev/v1alpha1"
_COLLECTIONS = {
    SERVICE: ("/api/v1", "services"),
    STATEFUL_SET: ("/apis/apps/v1", "statefulsets"),
    BUDGET: ("/apis/policy/v1", "poddisruptionbudgets"),
}
_LISTED = {GROUP: (GROUPS, "consumergroups"), POD: ("/api/v1", "pods"), **_COLLECTIONS}
_PARTS = {"stateful_set": STATEFUL_SET, "service": SERVICE, "budget": BUDGET}
"""The kinds of the parts of GroupObjects that bear the group's name."""

_WRITTEN = {**_COLLECTIONS, "ConfigMap": ("/api/v1", "configmaps")}


class KubernetesCluster:
    """Cluster, over the API server. The log of a driver that crashed is read once for each crash.

    With `cache`, which is fed from watches in `namespaces` (none named: in all), it reads from that where it is complete.
    Of what it lists, only objects of namespaces that it `serves` are kept.
    """

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache | None = None,
        namespaces: Sequence[str] = (),
        serves: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._api = api
        self._cache = cache
        self._namespaces = tuple(namespaces)
        self._serves = serves
        self._logs: dict[str, tuple[int, str]] = {}
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()
        self._unwatched: set[tuple[str, str, str]] = set()
        self._warned: dict[str, tuple[float, list[Any]]] = {}
        self._warning = asyncio.Lock()

    async def knows_groups(self, namespaces: Sequence[str] = ()) -> bool:
        """Whether ConsumerGroups can be listed: their definition may be installed after the operator, and takes a moment."""
        for namespace in namespaces or ("",):
            path = f"{GROUPS}/namespaces/{namespace}/consumergroups" if namespace else f"{GROUPS}/consumergroups"
            if await self._unless_gone(self._call("GET", path, query={"limit": "1"}), {404}) is None:
                return False
        return True

    async def read(self, namespace: str, name: str) -> GroupObjects | None:
        found = await self._known(namespace, name)
        if found is None:
            return None
        return dataclasses.replace(
            found,
            warnings=await self._warnings(namespace, found.stateful_set, found.pods),
            logs=await self._crash_logs(namespace, found.pods),
        )

    async def _known(self, namespace: str, name: str) -> GroupObjects | None:
        cache, key = self._cache, (namespace, name)
        if cache is None:
            return await self._read(namespace, name)
        await self._relist_if_due(cache)
        found = cache.complete(key)
        if found is not None:
            return await self._with_unwatched(found, namespace, name)
        touched = cache.touched(key)
        found = await self._read(namespace, name)
        cache.fill(key, found, touched)
        if found is not None:
            for part, kind in _PARTS.items():
                body = getattr(found, part)
                if body is not None and group_of(kind, body) != key:
                    self._unwatched.add((kind, namespace, name))
        return found

    async def _relist_if_due(self, cache: ObjectCache) -> None:
        """List everything, if that is due. Who comes meanwhile goes on with what is known, if anything is."""
        if not self._listing_due(cache) or (self._listing.locked() and self._listed_at > float("-inf")):
            return
        async with self._listing:
            if not self._listing_due(cache):
                return
            listed, begun = cache.listing(), boot_time()
            cache.relisted = False
            found: list[tuple[str, Manifest]] = []
            try:
                # One after the other: their answers together would be the most that this process ever holds.
                for kind in _LISTED:
                    for where in self._namespaces or ("",):
                        found += await self._everything(kind, where)
                listed(found)
            except BaseException:
                cache.relisted = True
                raise
            self._listed_at = begun

    def _listing_due(self, cache: ObjectCache) -> bool:
        age = boot_time() - self._listed_at
        return age >= max(LISTING_AGE, LISTING_EACH * len(cache)) or (cache.relisted and age >= LISTING_PAUSE)

    async def _everything(self, kind: str, namespace: str) -> list[tuple[str, Manifest]]:
        """Every object of this kind that may be ours, slimmed page by page."""
        base, plural = _LISTED[kind]
        path = f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"
        query = {"limit": str(PAGE), **({} if kind == GROUP else {"labelSelector": GROUP_LABEL})}
        found: list[tuple[str, Manifest]] = []
        while True:
            answer = await self._call("GET", path, query=query)
            ours = (item for item in answer["items"] if self._serves(item["metadata"]["namespace"]))
            found += [(kind, slim(kind, item)) for item in ours]
            more = answer["metadata"].get("continue")
            if not more:
                return found
            query["continue"] = more

    async def _with_unwatched(self, found: GroupObjects, namespace: str, name: str) -> GroupObjects:
        """Add objects under the group's name without our label: no watch shows them, an earlier read or write met them."""
        bodies = {}
        for part, kind in _PARTS.items():
            if (kind, namespace, name) not in self._unwatched:
                continue
            shown = getattr(found, part)
            body = bodies[part] = shown or await self._get(kind, namespace, name)
            if shown is not None or body is None:
                self._unwatched.discard((kind, namespace, name))
        return dataclasses.replace(found, **bodies) if bodies else found

    async def _read(self, namespace: str, name: str) -> GroupObjects | None:
        """The group and its objects, slimmed, as the API server has them now."""
        group, stateful_set, service, budget, pods = await asyncio.gather(
            self._get(GROUP, namespace, name),
            self._get(STATEFUL_SET, namespace, name),
            self._get(SERVICE, namespace, name),
            self._get(BUDGET, namespace, name),
            self._list(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{GROUP_LABEL}={name}"}),
        )
        if group is None:
            return None
        return GroupObjects(group, stateful_set, service, budget, tuple(slim(POD, pod) for pod in pods))

    async def apply(self, manifest: Manifest) -> None:
        kind, metadata = manifest["kind"], manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        # What the watches do not show but a reading did, the plan has judged.
        known = self._cache is None or kind not in _COLLECTIONS or self._cache.has(key, kind) or (kind, *key) in self._unwatched
        if known:
            await self._apply(kind, key, manifest)
            return
        try:
            await self._apply(kind, key, {**manifest, "metadata": {**metadata, "resourceVersion": NEVER}})
        except ClusterUnavailableError as error:
            if not isinstance(error.__cause__, ApiError) or error.__cause__.status != CONFLICT:
                raise
            await self._must_not_be_there(kind, *key)
            await self._apply(kind, key, manifest)

    async def _apply(self, kind: str, key: Key, manifest: Manifest) -> None:
        base, plural = _WRITTEN[kind]
        path, query = f"{base}/namespaces/{key[0]}/{plural}/{key[1]}", {"fieldManager": FIELD_MANAGER, "force": "true"}
        await self._write(key, kind, "PATCH", path, dict(manifest), query=query, content_type=APPLY)

    async def _must_not_be_there(self, kind: str, namespace: str, name: str) -> None:
        """Raise ClusterChangedError if an object that no watch shows stands where ours would be: the plan must judge it."""
        if await self._get(kind, namespace, name) is None:
            return
        self._unwatched.add((kind, namespace, name))
        raise ClusterChangedError(f"there is a {kind} {namespace}/{name} that the watches do not show")

    async def write_status(self, group: GroupIdentity, status: Manifest) -> None:
        # The group may have been deleted and made again since it was read: the server compares the UID itself.
        body = [
            {"op": "test", "path": "/metadata/uid", "value": group.uid},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        path = f"{GROUPS}/namespaces/{group.namespace}/consumergroups/{group.name}/status"
        query = {"fieldManager": f"{FIELD_MANAGER}-status"}
        key = (group.namespace, group.name)
        try:
            await self._write(key, GROUP, "PATCH", path, body, query=query, content_type=JSON_PATCH)
        except ClusterRefusedError:
            found = await self._get(GROUP, group.namespace, group.name)
            if found is not None and found["metadata"]["uid"] == group.uid:
                raise

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._unless_gone(self._call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body), {404, CONFLICT})
        finally:
            if self._cache is not None:
                # Whether it is there still, or on its way out, is read anew.
                self._cache.invalidate_pod(namespace, name)

    async def _write(self, key: Key, kind: str, *arguments: Any, **options: Any) -> None:
        """A write, whose answer is how the object is now; after any other outcome the group is read anew."""
        try:
            answer = await self._call(*arguments, **options)
        except BaseException:
            if self._cache is not None:
                self._cache.invalidate(key)
            raise
        if self._cache is not None and kind in _LISTED:
            self._cache.update(kind, answer)

    async def _warnings(self, namespace: str, stateful_set: Any, pods: Iterable[Any]) -> tuple[tuple[str, str], ...]:
        """Why the StatefulSet cannot make its pods, if any are missing."""
        if stateful_set is None:
            return ()
        made = sum(1 for pod in pods if _controlled_by(pod, stateful_set["metadata"]["uid"]))
        if made >= stateful_set["spec"].get("replicas", 1):
            return ()
        uid = stateful_set["metadata"]["uid"]
        events = [event for event in await self._warnings_in(namespace) if event["involvedObject"].get("uid") == uid]
        events.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return tuple((str(event.get("reason", "")), str(event.get("message", ""))) for event in events)

    async def _warnings_in(self, namespace: str) -> list[Any]:
        """The warnings about StatefulSets in this namespace, asked for once for all groups that wait in it."""
        async with self._warning:
            until, events = self._warned.get(namespace, (float("-inf"), []))
            begun = boot_time()
            if begun >= until:
                selector = "involvedObject.kind=StatefulSet,type=Warning"
                events = await self._list(f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": selector})
                now = boot_time()
                self._warned[namespace] = (now + max(WARNINGS_AGE, WARNINGS_SHARE * (now - begun)), events)
            return events

    async def _crash_logs(self, namespace: str, pods: Iterable[Any]) -> dict[str, str]:
        """The ends of the logs of drivers that are down after a crash, by pod UID."""
        logs = {}
        for pod in pods:
            status = next((item for item in pod["status"].get("containerStatuses", ()) if item["name"] in CONSUMERS), None)
            if status is None or "running" in status.get("state", {}) or not _failed(status):
                continue
            uid, restarts = pod["metadata"]["uid"], int(status.get("restartCount", 0))
            if self._logs.get(uid, (-1, ""))[0] != restarts:
                self._logs[uid] = (restarts, await self._log(namespace, pod["metadata"]["name"], status["name"]))
            logs[uid] = self._logs[uid][1]
        # Those of pods that went long ago are of no use to anybody.
        for uid in list(self._logs)[:-1000]:
            del self._logs[uid]
        return logs

    async def _log(self, namespace: str, pod: str, container: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        query = {"container": container, "tailLines": str(LOG_LINES), "limitBytes": "16384"}
        try:
            text = await self._api.acall("GET", path, query=query, decode=False)
        except (ApiError, ApiUnavailableError) as error:
            # A log that cannot be had (its node is away, the container was removed) must not hide the crash.
            return f"(its log cannot be read: {error})"
        return bytes(text).decode(errors="replace")

    async def _get(self, kind: str, namespace: str, name: str) -> Any:
        """One object, slimmed; None if there is none."""
        base, plural = _LISTED[kind]
        found = await self._unless_gone(self._call("GET", f"{base}/namespaces/{namespace}/{plural}/{name}"), {404})
        return None if found is None else slim(kind, found)

    async def _list(self, path: str, query: dict[str, str]) -> list[Any]:
        answer = await self._call("GET", path, query=query)
        return list(answer["items"])

    async def _unless_gone(self, call: Coroutine[Any, Any, Any], statuses: set[int]) -> Any:
        try:
            return await call
        except (ClusterRefusedError, ClusterUnavailableError) as error:
            cause = error.__cause__
            if isinstance(cause, ApiError) and cause.status in statuses:
                return None
            raise

    async def _call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        return await ask(self._api, method, path, body, **options)


async def ask(api: KubernetesApi, method: str, path: str, body: object = None, **options: Any) -> Any:
    """What the API server answers. Raises ClusterUnavailableError, ClusterRefusedError."""
    try:
        return await api.acall(method, path, body, **options)
    except ApiUnavailableError as error:
        raise ClusterUnavailableError(str(error)) from error
    except ApiError as error:
        if error.status in PASSING or (error.status >= 500 and not any(said in str(error) for said in UNTYPED)):
            raise ClusterUnavailableError(str(error)) from error
        raise ClusterRefusedError(str(error)) from error


def _controlled_by(pod: Any, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))


def _failed(status: Any) -> bool:
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
    return bool(ended) and ended.get("exitCode", 0) != 0
