"""Secrets with Kafka credentials, one GET each. Called by Kafka's connections through `SecretReader`.

Only a Secret that carries our label is used: whoever may create groups cannot make the operator read any other. There is no
list and no watch, so the operator needs no right to either.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.ports import CREDENTIALS_LABEL, SecretRefusedError, SecretUnavailableError

TIMEOUT = 5.0
"""Seconds for the call."""


class KubernetesSecrets:
    """SecretReader over the API server."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def read(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """See SecretReader."""
        try:
            found = await self._api.acall("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}", timeout=TIMEOUT)
        except ApiError as error:
            if error.status == 404:
                raise SecretRefusedError(
                    f"there is no Secret {name!r} in namespace {namespace!r}: create it with the label {CREDENTIALS_LABEL}=true"
                ) from error
            if error.status == 403:
                raise SecretRefusedError(
                    f"the operator may not get the Secret {name!r} in namespace {namespace!r}: set kafkaCredentials.enabled of"
                    f" the chart, or give it that right ({error})"
                ) from error
            raise SecretUnavailableError(f"Secret {name!r} in namespace {namespace!r} cannot be read now: {error}") from error
        except ApiUnavailableError as error:
            raise SecretUnavailableError(f"Secret {name!r} in namespace {namespace!r} cannot be read now: {error}") from error
        if (found["metadata"].get("labels") or {}).get(CREDENTIALS_LABEL) != "true":
            raise SecretRefusedError(unlabelled(namespace, name))
        return contents(found)


def contents(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """What a Secret holds, as the API server shows it."""
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def unlabelled(namespace: str, name: str) -> str:
    """What to say of a Secret without our label."""
    return (
        f"Secret {name!r} in namespace {namespace!r} has no label {CREDENTIALS_LABEL}=true, without which the operator does not"
        f" use it: kubectl label secret -n {namespace} {name} {CREDENTIALS_LABEL}=true"
    )
