"""The objects of all groups, as an API server would keep them, in SQLite; and the feed of what changes in them.

`Objects` is used by the command line and the adapters of this package, `LocalCluster` by the controller through `Cluster`. It
knows as much of an API server as is needed here: UIDs, versions, generations, one field manager, graceful deletion.
"""

from __future__ import annotations

import copy
import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardherd.adapters.local.database import Database, next_version
from shardherd.adapters.local.pod_specs import wrong
from shardherd.core.model.nouns import GroupIdentity
from shardherd.core.model.times import rfc3339
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError, GroupObjects, Manifest

GROUP_LABEL = "shardherd.dev/consumergroup"

GROUP, STATEFUL_SET, SERVICE, BUDGET, POD = "ConsumerGroup", "StatefulSet", "Service", "PodDisruptionBudget", "Pod"
SECRET, CONFIG_MAP = "Secret", "ConfigMap"

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace and name of an object."""

Edit = Callable[[Json | None], Json | None]
"""Gets an object as it is (None: it is not there), and returns it as it is to be (None: it is to go). May raise."""

_ENTRY = "SELECT body, version FROM objects WHERE kind = ? AND namespace = ? AND name = ?"


class Objects:
    """Every object by kind, namespace and name. Every call raises sqlite3.Error."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, key: Key) -> Json | None:
        """The object, or None."""
        found = self.database.read(lambda sql: sql.execute(_ENTRY, key).fetchone())
        return None if found is None else _body(found[0], found[1])

    def all(self, *kinds: str) -> list[Json]:
        """Every object of these kinds, or of all, by kind, namespace and name."""
        query = "SELECT kind, body, version FROM objects ORDER BY kind, namespace, name"
        rows = self.database.read(lambda sql: sql.execute(query).fetchall())
        return [_body(body, version) for kind, body, version in rows if not kinds or kind in kinds]

    def versions(self) -> dict[Key, int]:
        """The version of every object."""
        query = "SELECT kind, namespace, name, version FROM objects"
        rows = self.database.read(lambda sql: sql.execute(query).fetchall())
        return {(kind, namespace, name): version for kind, namespace, name, version in rows}

    def change(self, key: Key, edit: Edit) -> Json | None:
        """Change one object in one transaction; returns it as it is then, None if it is not there.

        A new one gets a UID and a time; one whose spec, or whose deletion, changed gets another generation.
        """
        return self.database.write(lambda sql: _change(sql, key, edit))


def _change(sql: sqlite3.Connection, key: Key, edit: Edit) -> Json | None:
    found = sql.execute(_ENTRY, key).fetchone()
    before = None if found is None else _body(found[0], found[1])
    after = edit(copy.deepcopy(before))
    if after == before:
        return before
    if after is None:
        sql.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", key)
        return None
    metadata = after["metadata"]
    for name, value in (("uid", str(uuid.uuid4())), ("creationTimestamp", rfc3339(time.time())), ("generation", 0)):
        metadata[name] = (before or {}).get("metadata", {}).get(name, metadata.get(name, value))
    if before is None or before.get("spec") != after.get("spec"):
        metadata["generation"] += 1
    metadata.pop("resourceVersion", None)
    version = next_version(sql)
    sql.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", (*key, version, json.dumps(after)))
    return _body(json.dumps(after), version)


def _body(text: str, version: int) -> Json:
    body: Json = json.loads(text)
    body["metadata"]["resourceVersion"] = str(version)
    return body


class Feed:
    """Tells what changed since the last look, whoever changed it: as the watches of an API server would."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._known: dict[Key, Json] = {}
        self._others = -1

    def changed_by_others(self) -> bool:
        """Whether another process has written since this was asked last."""
        before, self._others = self._others, self._objects.database.data_version()
        return before != self._others

    def look(self) -> Iterator[tuple[str, Json, bool]]:
        """Kind, body and whether it is gone, of each object that differs; of one that is gone, its last known body."""
        versions = self._objects.versions()
        for key in [key for key in self._known if key not in versions]:
            yield key[0], self._known.pop(key), True
        for key, version in versions.items():
            known = self._known.get(key)
            if known is not None and known["metadata"]["resourceVersion"] == str(version):
                continue
            body = self._objects.get(key)
            if body is None:
                continue  # gone since: the next look tells
            if known is not None and known["metadata"]["uid"] != body["metadata"]["uid"]:
                yield key[0], known, True
            self._known[key] = body
            yield key[0], body, False


class LocalCluster:
    """Cluster over these objects. `changed` is called after each write; `logs` gives crashed drivers' last lines by pod UID."""

    def __init__(
        self,
        objects: Objects,
        changed: Callable[[], None] = lambda: None,
        logs: Callable[[list[Json]], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._objects = objects
        self._changed = changed
        self._logs = logs

    async def read(self, namespace: str, name: str) -> GroupObjects | None:
        """See Cluster."""

        def find(sql: sqlite3.Connection) -> GroupObjects | None:
            def one(kind: str) -> Json | None:
                found = sql.execute(_ENTRY, (kind, namespace, name)).fetchone()
                return None if found is None else _body(found[0], found[1])

            group = one(GROUP)
            if group is None:
                return None
            query = "SELECT body, version FROM objects WHERE kind = ? AND namespace = ? ORDER BY name"
            pods = [_body(body, version) for body, version in sql.execute(query, (POD, namespace))]
            ours = [pod for pod in pods if pod["metadata"].get("labels", {}).get(GROUP_LABEL) == name]
            return GroupObjects(group, one(STATEFUL_SET), one(SERVICE), one(BUDGET), tuple(ours), logs=self._logs(ours))

        try:
            return await self._objects.database.aread(find)
        except sqlite3.Error as error:
            raise ClusterUnavailableError(f"the state folder cannot be read: {error}") from error

    async def apply(self, manifest: Manifest) -> None:
        """See Cluster. What the server itself set (UID, time, status) stays."""

        def edit(known: Json | None) -> Json:
            applied = copy.deepcopy(dict(manifest))
            if known is not None:
                server = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
                applied["metadata"] |= {name: known["metadata"][name] for name in server if name in known["metadata"]}
                if "status" in known:
                    applied["status"] = known["status"]
            return applied

        metadata = manifest["metadata"]
        if manifest["kind"] == STATEFUL_SET and (said := wrong(manifest["spec"]["template"]["spec"])):
            raise ClusterRefusedError(f'StatefulSet "{metadata["name"]}" is invalid: {said}')
        await self._change((manifest["kind"], metadata["namespace"], metadata["name"]), edit)

    async def write_status(self, group: GroupIdentity, status: Manifest) -> None:
        """See Cluster."""
        written = copy.deepcopy(dict(status))
        await self._change((GROUP, group.namespace, group.name), only(group.uid, lambda known: known | {"status": written}))

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """See Cluster. One that was never placed goes at once."""
        await self._change((POD, namespace, name), only(uid, lambda known: ended_gracefully(known, time.time())))

    async def _change(self, key: Key, edit: Edit) -> None:
        try:
            await self._objects.database.awrite(lambda sql: _change(sql, key, edit))
        except sqlite3.Error as error:
            raise ClusterUnavailableError(f"the state folder cannot be written: {error}") from error
        self._changed()


def only(uid: str, edit: Callable[[Json], Json | None]) -> Edit:
    """The edit of this very object: another one of its name stays as it is."""
    return lambda known: known if known is None or known["metadata"]["uid"] != uid else edit(known)


def ended_gracefully(pod: Json, now: float) -> Json | None:
    """The pod as it is once its deletion was asked for: on its way out until then, or gone at once if it has no node."""
    if not pod.get("spec", {}).get("nodeName"):
        return None
    if "deletionTimestamp" not in pod["metadata"]:
        grace = int(pod["spec"].get("terminationGracePeriodSeconds", 30))
        pod["metadata"] |= {"deletionTimestamp": rfc3339(now + grace), "deletionGracePeriodSeconds": grace}
    return pod
