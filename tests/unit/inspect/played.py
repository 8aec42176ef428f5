"""An API server that a test plays: objects by their paths, refusals, and every request that was made."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError
from shardherd.core.group import ownership
from shardherd.core.group.records import Ownership
from shardherd.inspect.folder import patched
from shardherd.inspect.observed import Observed
from tests.unit.inspect.observations import UID
from tests.unit.local.manifests import Json

GROUPS = "/apis/shardherd.dev/v1alpha1/namespaces/shop/consumergroups"


class PlayedApi:
    """As much of `KubernetesApi` as the command line uses. `refused` has a status for the beginning of a path."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.refused: dict[str, int] = {}
        self.allowed = True
        self.away = False
        self.requests: list[tuple[str, str]] = []

    def put(self, observed: Observed) -> None:
        """Have the server keep what was observed."""
        metadata = observed.resource["metadata"]
        self.objects[f"{GROUPS}/{metadata['name']}"] = {**observed.resource, "metadata": {**metadata, "resourceVersion": "1"}}
        for pod in observed.pods:
            self.objects[f"/api/v1/namespaces/shop/pods/{pod['metadata']['name']}"] = pod
        base = f"/api/v1/namespaces/shop/configmaps/{metadata['name']}"
        if observed.stored is not None:
            self.objects[f"{base}-state"] = _config_map("ownership.json.gz", _data(observed.stored))
        copies = {"format": 1, "shards": list(observed.copies.offsets), "offsets": list(observed.copies.offsets.values())}
        self.objects[f"{base}-offsets-0"] = _config_map("offsets.json.gz", json.dumps(copies).encode())

    def call(self, method: str, path: str, body: Any = None, *, decode: bool = True, **_: Any) -> Any:
        self.requests.append((method, path))
        if self.away:
            raise ApiUnavailableError("no answer from the API server")
        for begin, status in self.refused.items():
            if path.startswith(begin):
                raise ApiError(f"the API server refused {method} {path} with {status}", status, "Forbidden")
        if method == "POST":
            return self._review(path)
        if method == "PATCH":
            known = self._get(path)
            version = known["metadata"].get("resourceVersion", "1")
            if body.get("metadata", {}).get("resourceVersion", version) != version:
                raise ApiError(f"the API server refused PATCH {path} with 409", 409, "Conflict")
            self.objects[path] = patched(known, body)
            self.objects[path]["metadata"] = {**self.objects[path]["metadata"], "resourceVersion": f"{int(version) + 1}"}
        return self._get(path) if decode else json.dumps(self._get(path)).encode()

    async def acall(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return self.call(method, path, body, **options)

    def _review(self, path: str) -> Json:
        if path.endswith("selfsubjectreviews"):
            return {"metadata": {"creationTimestamp": "2023-11-14T22:13:20Z"}}
        return {"status": {"allowed": self.allowed}}

    def _get(self, path: str) -> Any:
        if path in self.objects:
            return self.objects[path]
        if path == "/version":
            return {"gitVersion": "v1.36.1"}
        if path.endswith(("/consumergroups", "/pods", "/events")):
            below = path.replace(
                "/shardherd.dev/v1alpha1/consumergroups", "/shardherd.dev/v1alpha1/namespaces/shop/consumergroups"
            )
            return {"items": [each for name, each in self.objects.items() if name.startswith(f"{below}/")]}
        raise ApiError(f"the API server refused GET {path} with 404", 404, "NotFound")


def _data(stored: Ownership) -> bytes:
    return ownership.dumps(stored)


def _config_map(key: str, data: bytes) -> Json:
    metadata: Mapping[str, Any] = {"name": key, "resourceVersion": "7", "ownerReferences": [{"uid": UID}]}
    return {"metadata": dict(metadata), "binaryData": {key: base64.b64encode(gzip.compress(data)).decode()}}
