"""Keeps the operator's own rights out of the pods that it has made for others.

Called by `manifests` for every group. Whoever may make a ConsumerGroup may have pods made in its namespace, with what pods
there may use: Kubernetes' admission judges them as any others. In the namespace of the operator that would be the operator
itself: its service account, and the Secret with the keys of TLS. A group that names one of these is refused. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.controller.declared import InvalidGroupError

_ACCOUNTS = frozenset({"serviceAccountName", "serviceAccount"})
_SECRETS = frozenset({"secret", "secretName", "secretRef", "secretKeyRef", "nodePublishSecretRef", "imagePullSecrets"})


@dataclass(frozen=True, slots=True)
class Guard:
    """What is the operator's own: where it is, its service account, its Secret. An empty name is none."""

    namespace: str = ""
    service_account: str = ""
    secret: str = ""

    def check(self, resource: Mapping[str, Any], *pods: Mapping[str, Any]) -> None:
        """Raises InvalidGroupError if one of the pods of this resource would have what is the operator's own."""
        metadata = resource["metadata"]
        if metadata["namespace"] != self.namespace:
            return
        group = f"ConsumerGroup {self.namespace}/{metadata['name']}"
        for pod in (resource["spec"]["application"], *pods):
            if self.service_account and self.service_account in _named(pod, _ACCOUNTS):
                raise InvalidGroupError(
                    f"{group} names the service account {self.service_account!r}, which is the operator's own: use another"
                    " one, for example shardherd-spark"
                )
            if self.secret and self.secret in _named(pod, _SECRETS):
                raise InvalidGroupError(
                    f"{group} uses the Secret {self.secret!r}, which has the operator's own keys: use another one"
                )


NO_GUARD = Guard()
"""Outside of a cluster nothing is the operator's own."""


def _named(value: object, keys: frozenset[str]) -> Iterator[str]:
    """The names that stand below one of these keys, directly or as `name` of an object or of objects in a list."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in keys:
                yield from _names(item)
            yield from _named(item, keys)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named(item, keys)


def _names(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list | tuple) else (value,):
        name = item.get("name") if isinstance(item, Mapping) else item
        if isinstance(name, str):
            yield name
