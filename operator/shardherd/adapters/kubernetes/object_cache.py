"""A cache of every group's objects, fed by watches, so that a reconcile sends no request while nothing changes.

Fed by the controller's handlers and by the answers to our own writes; read by `cluster`. Of each object only what the
controller looks at is kept: a thousand groups of three consumers fit into some twenty megabytes. A group whose entry may be
incomplete is not answered from it. No I/O.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardherd.ports import GroupObjects, Manifest

GROUP_LABEL = "shardherd.dev/consumergroup"

GROUP, STATEFUL_SET, SERVICE, BUDGET, POD = "ConsumerGroup", "StatefulSet", "Service", "PodDisruptionBudget", "Pod"

Key = tuple[str, str]
"""Namespace and name of a group."""


def group_of(kind: str, body: Manifest) -> Key | None:
    """The group that an object belongs to; None if it is none of ours."""
    metadata = body["metadata"]
    name = metadata["name"] if kind == GROUP else (metadata.get("labels") or {}).get(GROUP_LABEL)
    return None if name is None else (metadata["namespace"], name)


@dataclass
class _Entry:
    """One group's objects by kind and name. `complete`: no object of the group is missing. `touched` began at `untouched`."""

    untouched: int
    touched: int
    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    complete: bool = False


class ObjectCache:
    """The newest version that is known of each object. All calls but `groups` come from one thread."""

    def __init__(self) -> None:
        self.relisted = False
        """Whether a watch began again: deletions in between were missed."""
        self._entries: dict[Key, _Entry] = {}
        self._listed = False
        self._left: set[Key] = set()
        """Groups that went since everything was listed: what is left of them may be there still."""
        self._joined: set[str] = set()
        """Namespaces whose objects are shown since everything was listed: what they had before, nobody has shown."""
        self._moved: set[str] = set()
        """Namespaces whose objects began or ceased to be shown since a listing began."""
        self._untouched = 0
        """Above the numbers of all entries that are no more: no reading that began before fits to one that is made anew."""

    def __len__(self) -> int:
        """How many groups are known."""
        return len(self._entries)

    def update(self, kind: str, body: Manifest, *, gone: bool = False, listed: bool = False) -> bool:
        """An object was added, changed or deleted. Returns whether anything that the controller looks at differs.

        `listed`: it was there when a watch of its kind began.
        """
        self.relisted |= listed
        key = group_of(kind, body)
        if key is None:
            return False
        entry = self._entry(key)
        entry.touched += 1
        name = body["metadata"]["name"]
        known = entry.objects.get((kind, name))
        if gone:
            # Another one may stand under the name already.
            if known is not None and _uid(known) == _uid(body):
                del entry.objects[kind, name]
            if kind != POD:
                # It may be there still, without its label.
                self.invalidate(key)
            return True
        if known is not None and not _later(body, known):
            return False
        made = slim(kind, body)
        entry.objects[kind, name] = made
        seen_first = entry.touched == entry.untouched + 1 and self._listed and not (listed or self.relisted)
        if kind == GROUP and seen_first and key not in self._left and key[0] not in self._joined:
            # The watches have shown, or will show, every object of a new group.
            entry.complete = True
        return known is None or not _alike(known, made)

    def touched(self, key: Key) -> int:
        """A number that grows with every event of a group; to be asked before it is read from the API server."""
        return self._entry(key).touched

    def fill(self, key: Key, found: GroupObjects | None, touched: int) -> None:
        """What the API server answered, slimmed, to a read begun when `touched` was the group's number. None: no such group."""
        entry = self._entries.get(key)
        if entry is None or entry.touched != touched:
            return  # something changed meanwhile, and which is newer is not known: it is read once more
        if found is None:
            self._entries.pop(key, None)
            self._left.add(key)
            return
        single = ((GROUP, found.group), (STATEFUL_SET, found.stateful_set), (SERVICE, found.service), (BUDGET, found.budget))
        bodies = [*((kind, body) for kind, body in single if body is not None), *((POD, pod) for pod in found.pods)]
        # Somebody else's object under the group's name has no label of ours: no watch would show its deletion.
        ours = [(kind, body) for kind, body in bodies if group_of(kind, body) == key]
        entry.objects = {(kind, body["metadata"]["name"]): body for kind, body in ours}
        entry.complete = True

    def listing(self) -> Callable[[Iterable[tuple[str, Manifest]]], None]:
        """To be called before everything is listed; what it returns takes all that the lists had, as (kind, slimmed body).

        A group with an event meanwhile is left out, and read by itself.
        """
        before = {key: entry.touched for key, entry in self._entries.items()}
        self._moved.clear()

        def listed(bodies: Iterable[tuple[str, Manifest]]) -> None:
            found: dict[Key, dict[tuple[str, str], Manifest]] = {}
            for kind, body in bodies:
                key = group_of(kind, body)
                if key is not None:
                    found.setdefault(key, {})[kind, body["metadata"]["name"]] = body
            for key in [*found, *(key for key in self._entries if key not in found)]:
                if key[0] in self._moved:
                    continue
                entry = self._entry(key)
                if entry.touched == before.get(key, entry.untouched):
                    entry.objects = found.get(key, {})
                    entry.complete = True
            self._listed = True
            self._left.clear()
            self._joined &= self._moved

        return listed

    def joined(self, namespace: str) -> None:
        """From now on the objects of this namespace are shown to us."""
        self._joined.add(namespace)
        self._moved.add(namespace)

    def left(self, namespace: str) -> None:
        """The objects of this namespace are not shown to us any more: nothing of them is kept."""
        self._joined.discard(namespace)
        self._moved.add(namespace)
        for key in [key for key in self._entries if key[0] == namespace]:
            self._untouched = max(self._untouched, self._entries.pop(key).touched + 1)
        self._left = {key for key in self._left if key[0] != namespace}

    def invalidate(self, key: Key) -> None:
        """The group's entry may be wrong now, for example after a write of unknown outcome."""
        if (entry := self._entries.get(key)) is not None:
            entry.complete = False

    def _entry(self, key: Key) -> _Entry:
        return self._entries.setdefault(key, _Entry(self._untouched, self._untouched))

    def invalidate_pod(self, namespace: str, name: str) -> None:
        """The same for the group of this pod."""
        for key, entry in self._entries.items():
            if key[0] == namespace and (POD, name) in entry.objects:
                entry.complete = False

    def has(self, key: Key, kind: str) -> bool:
        """Whether the group's object of this kind, which bears its name, is known."""
        entry = self._entries.get(key)
        return entry is not None and (kind, key[1]) in entry.objects

    def groups(self) -> list[Manifest]:
        """The custom resource of every group that is known. May be called from any thread."""
        found = [entry.objects.get((GROUP, name)) for (_, name), entry in list(self._entries.items())]
        return [each for each in found if each is not None]

    def complete(self, key: Key) -> GroupObjects | None:
        """All objects of a group; None if the entry is not complete, or if there is no such group."""
        entry = self._entries.get(key)
        if entry is None or not entry.complete:
            return None
        _, name = key
        objects = entry.objects
        group = objects.get((GROUP, name))
        if group is None:
            return None
        return GroupObjects(
            group=group,
            stateful_set=objects.get((STATEFUL_SET, name)),
            service=objects.get((SERVICE, name)),
            budget=objects.get((BUDGET, name)),
            pods=tuple(body for (kind, _), body in sorted(objects.items(), key=lambda item: item[0]) if kind == POD),
        )


_METADATA = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
_OURS = "shardherd.dev/"
"""How the labels and annotations begin that the controller reads."""

_CONDITIONS = ("Ready", "PodScheduled")
"""The conditions of a pod that the controller reads."""

_ENDED = ("reason", "exitCode", "message")
_SHARED = 64
"""Characters up to which a text is kept once for all objects: names, UIDs, reasons and the like come again and again."""


def slim(kind: str, body: Manifest) -> Manifest:
    """What the controller looks at of an object. Of a slimmed one it is the same."""
    spec, status = body.get("spec", {}), body.get("status", {})
    made: dict[str, Any] = {"metadata": _metadata(kind, body["metadata"])}
    if kind == GROUP:
        made |= {name: body[name] for name in ("spec", "status") if name in body}
    elif kind == STATEFUL_SET:
        made["spec"] = {"replicas": spec.get("replicas", 1)}
    elif kind == POD:
        containers = [_picked(item, ("name", "image")) for item in spec.get("containers", ())]
        made["spec"] = {**_picked(spec, ("nodeName",)), "containers": containers}
        made["status"] = _pod_status(status)
    interned: Manifest = _interned(made)
    return interned


def _metadata(kind: str, metadata: Manifest) -> dict[str, Any]:
    kept = _picked(metadata, _METADATA)
    for name in ("labels", "annotations"):
        ours = {key: value for key, value in (metadata.get(name) or {}).items() if key.startswith(_OURS)}
        if ours:
            kept[name] = ours
    if "ownerReferences" in metadata:
        kept["ownerReferences"] = [_picked(owner, ("uid", "controller")) for owner in metadata["ownerReferences"]]
    if kind == GROUP:
        # Which tool declared a reset is shown in its report. The manager of the status changes with every status.
        declared = ((entry, entry.get("fieldsV1", {}).get("f:spec", {}).get("f:reset")) for entry in _managers(metadata))
        managers = [
            {"manager": entry["manager"], "fieldsV1": {"f:spec": {"f:reset": reset}}} for entry, reset in declared if reset
        ]
        if managers:
            kept["managedFields"] = managers
    return kept


def _managers(metadata: Manifest) -> Iterable[Manifest]:
    return (entry for entry in metadata.get("managedFields", ()) if not entry.get("subresource"))


def _pod_status(status: Manifest) -> dict[str, Any]:
    kept = _picked(status, ("phase",))
    conditions = [
        _picked(condition, ("type", "status", "message"))
        for condition in status.get("conditions", ())
        if condition["type"] in _CONDITIONS
    ]
    containers = [
        {
            **_picked(container, ("name", "image", "ready", "restartCount")),
            "state": _state(container.get("state", {})),
            "lastState": _state(container.get("lastState", {})),
        }
        for container in status.get("containerStatuses", ())
    ]
    return kept | ({"conditions": conditions} if conditions else {}) | ({"containerStatuses": containers} if containers else {})


def _state(state: Manifest) -> dict[str, Any]:
    return {name: _picked(value, _ENDED) for name, value in state.items()}


def _picked(value: Manifest, names: Iterable[str]) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}


def _interned(value: Any) -> Any:
    """The same with every name, and every short text, kept once for all objects."""
    if isinstance(value, Mapping):
        return {sys.intern(str(name)): _interned(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_interned(item) for item in value]
    return sys.intern(value) if type(value) is str and len(value) <= _SHARED else value


def _uid(body: Manifest) -> str:
    return str(body["metadata"].get("uid", ""))


def _later(body: Manifest, known: Manifest) -> bool:
    """Whether `body` is a later version. The API server counts versions up; one that does not look so is taken as later."""
    new, old = (str(each["metadata"].get("resourceVersion", "")) for each in (body, known))
    return not (new.isdigit() and old.isdigit()) or int(new) > int(old)


def _alike(one: Manifest, other: Manifest) -> bool:
    def content(body: Manifest) -> dict[str, Any]:
        return {**body, "metadata": {name: item for name, item in body["metadata"].items() if name != "resourceVersion"}}

    return content(one) == content(other)
