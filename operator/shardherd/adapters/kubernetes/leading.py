"""The API server for who leads: nothing is written once leadership is not certain any more.

Called by the controller's adapter. A leader that was paused and wakes up beside its successor reads on, but changes nothing.
Kubernetes itself cannot tell a late write from a new one, so what was sent before the pause may still arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubernetes.client.configuration import Configuration

from shardherd.adapters.kubernetes.api import ApiUnavailableError, KubernetesApi


class LeadersApi(KubernetesApi):
    """KubernetesApi that asks `certain` right before each write."""

    def __init__(
        self, configuration: Configuration, certain: Callable[[], bool], count: Callable[[str, str], None] | None = None
    ) -> None:
        super().__init__(configuration, count=count)
        self._certain = certain

    def call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        """See KubernetesApi. Raises ApiUnavailableError without asking the API server if we may not lead any more."""
        if method != "GET" and not self._certain():
            raise ApiUnavailableError(f"{method} {path} was not sent: this operator may not lead any more")
        return super().call(method, path, body, **options)
