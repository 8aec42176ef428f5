"""ConfigMaps of an API server that is played: versions, preconditions, immutability and the limit of an object's size."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any, cast

from shardherd.adapters.kubernetes.api import ApiError
from shardherd.adapters.kubernetes.ownership import INDEX

Json = dict[str, Any]

MOST_DATA = 1024 * 1024
"""Bytes in one ConfigMap that an API server takes."""


class PlayedConfigMaps:
    """ConfigMaps of one API server. `before` and `after` are told of every request, and may raise."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.requests: list[str] = []
        self.before: Callable[[str, str], None] = nothing
        self.after: Callable[[str, str], None] = nothing
        self._version = 0

    async def acall(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        where = f"{path}/{body['metadata']['name']}" if method == "POST" else path
        self.requests.append(f"{method} {where.rpartition('/')[2].partition('-')[2]}")
        self.before(method, where)
        answer = self._carry_out(method, where, copy.deepcopy(body))
        self.after(method, where)
        return copy.deepcopy(answer)

    def _carry_out(self, method: str, path: str, body: Any) -> Any:
        found = self.objects.get(path)
        if method == "POST" and found is not None:
            raise ApiError(f"{path} exists", 409, "AlreadyExists")
        if method != "POST" and found is None:
            raise ApiError(f"{path} does not exist", 404, "NotFound")
        if method == "DELETE":
            return self.objects.pop(path)
        if method == "GET":
            return found
        if method == "PUT":
            assert found is not None
            version = body["metadata"].get("resourceVersion")
            if version not in (None, found["metadata"]["resourceVersion"]):
                raise ApiError(f"{path} is at another version", 409, "Conflict")
            if found.get("immutable"):
                raise ApiError(f"{path} is immutable", 422, "Invalid")
        if _size(body) > MOST_DATA:
            raise ApiError(f"{path} is too long", 422, "Invalid")
        return self.change(path, body)

    def change(self, path: str, item: Json) -> Json:
        """Put it there, as another version."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        item["metadata"].setdefault("uid", f"object-{self._version}")
        self.objects[path] = item
        return item

    @property
    def bytes(self) -> int:
        """What all of them hold."""
        return sum(_size(item) for item in self.objects.values())

    def parts(self) -> list[str]:
        """The paths of all parts of ownerships."""
        return sorted(path for path in self.objects if not path.endswith("-state"))

    def index(self, head: str) -> Json | None:
        """What this head says of its parts."""
        text = self.objects[head].get("data", {}).get(INDEX)
        return None if text is None else cast(Json, json.loads(text))


def nothing(_method: str, _path: str) -> None:
    """Lets a request pass."""


def _size(item: Json) -> int:
    return sum(len(base64.b64decode(data)) for data in item.get("binaryData", {}).values())
