"""One call to the Kubernetes API server, as plain JSON, with a deadline. Thread-safe; blocks its caller.

Used by the other adapters of this package. The official client does the TLS and the credentials; its generated models are not
imported, because they alone would take half of the operator's memory. Decides nothing and retries nothing.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject

from shardherd.ports import PortError

TIMEOUT = 10.0
"""Seconds for one call, connecting included."""

CALLERS = 4
"""Connections kept for those who block in threads of their own, beside those of `acall`."""

MANAGER = "shardherd"
"""Who we are to the API server: by it, it notes which fields of an object we wrote last."""

APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"


class ApiError(PortError):
    """The API server refused: `status` is the HTTP status, `reason` Kubernetes' own reason constant (or empty)."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ApiUnavailableError(PortError):
    """No answer from the API server. A write may or may not have happened."""


class KubernetesApi:
    """The API server that `configuration` names. `count` is called with the method and the resource of every request."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        connections: int = 16,
        count: Callable[[str, str], None] | None = None,
    ) -> None:
        configuration.connection_pool_maxsize = connections + CALLERS
        configuration.retries = urllib3.Retry(0)
        self._configuration = configuration
        self._count = count
        self._rest = RESTClientObject(configuration)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="kubernetes")

    @classmethod
    def from_kubeconfig(cls, path: Path) -> KubernetesApi:
        """The API server and the user of a kubeconfig's current context."""
        configuration = Configuration()
        loader: Any = config
        loader.load_kube_config(config_file=str(path), client_configuration=configuration)
        return cls(configuration)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float = TIMEOUT,
        decode: bool = True,
        accept: str = "application/json",
    ) -> Any:
        """The answer of `method` on `path` (for example /api/v1/namespaces/x/pods/y), from JSON, or as bytes without `decode`.

        Raises ApiError for a status of 300 and above, ApiUnavailableError when there was no answer in time, or none of an API
        server, or when our token cannot be read now.
        """
        if self._count is not None:
            self._count(method, resource_of(path))
        address = f"{self._configuration.host}{path}"
        if query:
            address += f"?{urlencode(query)}"
        headers = {"Accept": accept, "User-Agent": MANAGER}
        try:
            token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except (OSError, ValueError, config.ConfigException) as error:
            # It is read anew every minute, and replaced now and then.
            raise ApiUnavailableError(f"cannot read the token for {method} {path} at the API server: {error}") from error
        if token:
            headers["authorization"] = token
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body, separators=(",", ":")).encode()
        try:
            response = self._rest.pool_manager.request(
                method, address, body=data, headers=headers, timeout=urllib3.Timeout(total=timeout), redirect=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnavailableError(
                f"no answer from the API server to {method} {path} within {timeout:g} s: {error}"
            ) from error
        if response.status >= 300:
            raise _refused(method, path, response.status, response.data)
        if not decode:
            return response.data
        try:
            return json.loads(response.data) if response.data else None
        except ValueError as error:
            raise ApiUnavailableError(
                f"what answers {method} {path} at {self._configuration.host} is no API server, it sends no JSON: {error}"
            ) from error

    async def acall(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        """`call` for coroutines: it runs in a thread of ours. Cancelling does not take a write back."""
        work = functools.partial(self.call, method, path, body, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Close idle connections; calls under way end at their own deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._rest.close()


async def unless_missing(call: Awaitable[Any], *statuses: int) -> Any:
    """What a call answers; None if it is refused with 404, as there is no such object, or with one of these statuses."""
    try:
        return await call
    except ApiError as error:
        if error.status not in (404, *statuses):
            raise
        return None


def resource_of(path: str) -> str:
    """The resource in a path of the API, for example `pods` in /api/v1/namespaces/x/pods/y/log; `other` if there is none."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    # A label has few values, whatever somebody gets into a path.
    return rest[0] if rest and rest[0].isascii() and rest[0].isalpha() and rest[0].islower() else "other"


def _refused(method: str, path: str, status: int, data: bytes) -> ApiError:
    try:
        answer = json.loads(data)
        message, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = data[:200].decode(errors="replace"), ""
    return ApiError(f"the API server refused {method} {path} with {status} {reason}: {message}", status, reason)
