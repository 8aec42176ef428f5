"""Reads groups of one machine from the state folder of `shardherd local`, and writes what `changes` made. Decides nothing.

The coordinator on this machine is always asked, where one runs: whoever may read the folder may call it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from shardherd import protocol
from shardherd.adapters.local.database import DatabaseError, unusable
from shardherd.adapters.local.events import events
from shardherd.adapters.local.identity import holder
from shardherd.adapters.local.objects import GROUP, GROUP_LABEL, POD, Json
from shardherd.adapters.local.ownership import SqliteOwnership
from shardherd.core.group import ownership
from shardherd.core.group.records import Ownership, PositionCopies
from shardherd.core.model.errors import InvalidRequestError, ShardherdError
from shardherd.core.model.nouns import GroupIdentity, GroupView
from shardherd.core.model.times import rfc3339
from shardherd.core.planning.listing import identity_of
from shardherd.inspect.observed import ConflictError, Happened, InspectError, Observed
from shardherd.local.report import asked
from shardherd.local.schema import RefusedError, admitted
from shardherd.local.state import State, StateError
from shardherd.ports import OwnershipUnavailableError


class Folder:
    """The groups of a state folder, of one namespace or of all. Every call raises InspectError."""

    def __init__(self, folder: Path, namespace: str | None, now: Callable[[], float] = time.time) -> None:
        self._state = State(folder)
        try:
            self._objects = self._state.there().objects()
        except (StateError, DatabaseError) as error:
            raise InspectError(str(error)) from error
        self._namespace = namespace
        self._now = now

    def groups(self) -> list[Json]:
        """Every group."""
        with self._usable():
            found = self._objects.all(GROUP)
        return [each for each in found if self._namespace in (None, each["metadata"]["namespace"])]

    def group(self, name: str) -> Observed:
        """All that is known of one group."""
        resource = self.resource(name)
        with self._usable():
            return self._observed(resource)

    def _observed(self, resource: Json) -> Observed:
        identity = identity_of(resource)
        unread: list[str] = []
        stored, copies = self._stored(identity, unread)
        happened = [each for each in events(self._objects.database) if each.group == str(identity)]
        view, unseen = self._view(identity)
        return Observed(
            resource=resource,
            wall=self._now(),
            stored=stored,
            copies=copies,
            view=view,
            pods=tuple(
                pod
                for pod in self._objects.all(POD)
                if pod["metadata"]["namespace"] == identity.namespace
                and pod["metadata"].get("labels", {}).get(GROUP_LABEL) == identity.name
            ),
            events=tuple(Happened(rfc3339(each.last), each.reason, each.message, each.count) for each in happened),
            unseen=(*unread, *unseen),
        )

    def _stored(self, identity: GroupIdentity, unread: list[str]) -> tuple[Ownership | None, PositionCopies]:
        """Who holds what and the copies of positions, as they are stored; why they cannot be read is put into `unread`."""
        store = SqliteOwnership(self._objects.database)
        stored, copies = None, PositionCopies()
        try:
            found = asyncio.run(store.load(identity))
            stored = None if found is None else ownership.loads(found.data)
            copies = asyncio.run(store.load_copies(identity)).copies
        except (OwnershipUnavailableError, ShardherdError) as error:
            unread.append(f"who holds which shard: {error}")
        return stored, copies

    def resource(self, name: str) -> Json:
        """The group's resource."""
        found = [each for each in self.groups() if each["metadata"]["name"] == name]
        if len(found) > 1:
            where = ", ".join(each["metadata"]["namespace"] for each in found)
            raise InspectError(f"{name!r} is a group of the namespaces {where}: name one by -n", 2)
        if not found:
            there = ", ".join(str(identity_of(each)) for each in self.groups()) or "none"
            raise InspectError(f"there is no ConsumerGroup {name!r} in {self._state.folder}, where there are: {there}", 4)
        return found[0]

    def change(self, name: str, patch: Mapping[str, Any]) -> Json:
        """Patch the group's resource; returns it."""
        identity = identity_of(self.resource(name))

        def edit(known: Json | None) -> Json:
            assert known is not None
            seen = patch.get("metadata", {}).get("resourceVersion")
            if seen is not None and seen != known["metadata"]["resourceVersion"]:
                raise ConflictError("somebody else changed it at the same time: look again, and repeat it if it is still right")
            return admitted(patched(known, patch), known)

        try:
            with self._usable():
                changed = self._objects.change((GROUP, identity.namespace, identity.name), edit)
        except RefusedError as error:
            raise InspectError(str(error)) from error
        assert changed is not None
        return changed

    def change_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Patch a pod of a group."""
        with self._usable():
            self._objects.change((POD, namespace, name), lambda known: None if known is None else patched(known, patch))

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """What the file does not take is told as such."""
        try:
            yield
        except sqlite3.Error as error:
            raise InspectError(unusable(self._state.database, error)) from error

    def _view(self, identity: GroupIdentity) -> tuple[GroupView | None, tuple[str, ...]]:
        """The coordinator's view, and why there is none."""
        if holder(self._state.lock) is None:
            return None, ("the coordinator: no operator runs, start it by `shardherd local up`",)
        try:
            path = f"/v1/namespaces/{identity.namespace}/consumergroups/{identity.name}"
            answer = asked(self._state, self._objects, path)
        except HTTPError as error:
            return None, (f"the coordinator: it refuses ({error})",)
        if answer is None:
            return None, ("the coordinator: it has not loaded the group yet",)
        try:
            return protocol.loads(GroupView, answer), ()
        except InvalidRequestError as error:
            return None, (f"the coordinator: its answer is of another version ({error.message})",)


def patched(target: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """A JSON merge patch (RFC 7386), as an API server applies it."""
    result: Json = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            below = result.get(name)
            result[name] = patched(below if isinstance(below, Mapping) else {}, value)
        else:
            result[name] = value
    return result
