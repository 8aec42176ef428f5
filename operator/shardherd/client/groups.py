"""Groups as a program creates, lists, changes and deletes them: a thin cover of the custom resource ConsumerGroup.

The four calls of the specification that are about whole groups. Who may make them is a matter of Kubernetes' roles; consumers
have none of these rights. Needs the package `kubernetes`. Decides nothing: the API server validates, the controller acts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kubernetes import client as kubernetes
from urllib3.exceptions import HTTPError

from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    ForbiddenError,
    InvalidRequestError,
    ShardherdError,
    UnauthenticatedError,
    UnknownGroupError,
)

T = TypeVar("T")

API_GROUP, API_VERSION, PLURAL, KIND = "shardherd.dev", "v1alpha1", "consumergroups", "ConsumerGroup"

_REFUSALS: Mapping[int, type[ShardherdError]] = {401: UnauthenticatedError, 403: ForbiddenError, 404: UnknownGroupError}


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A group as its resource declares it. `session_timeout` as written there, for example `45s`; `spec` is all of it."""

    namespace: str
    name: str
    uid: str
    ordered: bool
    session_timeout: str
    topics: tuple[str, ...]
    spec: Mapping[str, Any]


class ConsumerGroups:
    """The groups of a cluster. `api` says where it is and who we are; by default as `kubernetes.config` was loaded.

    Every call raises UnauthenticatedError, ForbiddenError, UnknownGroupError, InvalidRequestError with the API server's words,
    or CoordinatorUnavailableError where asking again may help.
    """

    def __init__(self, api: Any = None) -> None:
        self._objects = kubernetes.CustomObjectsApi(api)

    def create(self, namespace: str, name: str, spec: Mapping[str, Any]) -> ConsumerGroup:
        """Create a group; `spec` is that of the resource. One of that name already is an InvalidRequestError."""
        body = {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": dict(spec),
        }
        return self._one(namespace, name, lambda: self._objects.create_namespaced_custom_object(*_at(namespace), body))

    def get(self, namespace: str, name: str) -> ConsumerGroup:
        """One group."""
        return self._one(namespace, name, lambda: self._objects.get_namespaced_custom_object(*_at(namespace), name))

    def list(self, namespace: str, topic: str | None = None) -> tuple[ConsumerGroup, ...]:
        """The groups of a namespace, with their order and timeout, by name; with `topic` only those that name it."""
        answer: Any = _asked(f"{namespace}/*", lambda: self._objects.list_namespaced_custom_object(*_at(namespace)))
        groups = sorted((_group(item) for item in answer["items"]), key=lambda group: group.name)
        return tuple(group for group in groups if topic is None or topic in group.topics)

    def update(
        self,
        namespace: str,
        name: str,
        *,
        ordered: bool | None = None,
        session_timeout: str | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> ConsumerGroup:
        """Change these fields and no others; `spec` is merged into the resource's. A name cannot be changed."""
        change = dict(spec or {})
        if ordered is not None:
            change["ordered"] = ordered
        if session_timeout is not None:
            change["sessionTimeout"] = session_timeout
        body = {"spec": change}
        return self._one(namespace, name, lambda: self._objects.patch_namespaced_custom_object(*_at(namespace), name, body))

    def delete(self, namespace: str, name: str) -> None:
        """Delete a group and all that belongs to it. Its positions in Kafka stay, those of Kinesis go with it."""
        _asked(f"{namespace}/{name}", lambda: self._objects.delete_namespaced_custom_object(*_at(namespace), name))

    def _one(self, namespace: str, name: str, call: Callable[[], Any]) -> ConsumerGroup:
        return _group(_asked(f"{namespace}/{name}", call))


class AsyncConsumerGroups:
    """ConsumerGroups as coroutines; the same arguments and errors."""

    def __init__(self, api: Any = None) -> None:
        self._groups = ConsumerGroups(api)

    async def create(self, namespace: str, name: str, spec: Mapping[str, Any]) -> ConsumerGroup:
        return await asyncio.to_thread(self._groups.create, namespace, name, spec)

    async def get(self, namespace: str, name: str) -> ConsumerGroup:
        return await asyncio.to_thread(self._groups.get, namespace, name)

    async def list(self, namespace: str, topic: str | None = None) -> tuple[ConsumerGroup, ...]:
        return await asyncio.to_thread(self._groups.list, namespace, topic)

    async def update(self, namespace: str, name: str, **changes: Any) -> ConsumerGroup:
        return await asyncio.to_thread(lambda: self._groups.update(namespace, name, **changes))

    async def delete(self, namespace: str, name: str) -> None:
        await asyncio.to_thread(self._groups.delete, namespace, name)


def _at(namespace: str) -> tuple[str, str, str, str]:
    return API_GROUP, API_VERSION, namespace, PLURAL


def _asked(group: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except kubernetes.ApiException as error:
        again = error.status is None or error.status == 0 or error.status >= 500 or error.status == 429
        kind = _REFUSALS.get(error.status, CoordinatorUnavailableError if again else InvalidRequestError)
        raise kind(f"the API server refuses this for ConsumerGroup {group}: {_message(error)}", group=group) from error
    except (HTTPError, OSError) as error:
        raise CoordinatorUnavailableError(f"the API server cannot be reached: {error}", group=group) from error


def _message(error: Any) -> str:
    """What the API server said: the message of its Status, which names the field and the remedy."""
    body = str(error.body or error.reason or error.status)
    try:
        found = json.loads(body)
    except ValueError:
        return body
    return str(found.get("message", body)) if isinstance(found, dict) else body


def _group(item: Mapping[str, Any]) -> ConsumerGroup:
    metadata, spec = item["metadata"], item["spec"]
    return ConsumerGroup(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        ordered=bool(spec.get("ordered", False)),
        session_timeout=str(spec.get("sessionTimeout", "")),
        topics=tuple(spec.get("source", {}).get("kafka", {}).get("topics", ())),
        spec=spec,
    )
