"""Whose token it is: a TokenReview for our audience, then the caller's pod and the StatefulSet that controls it. And what
Kubernetes' own rights let a caller do: a SubjectAccessReview in the group's namespace.

Called by the coordinator's authentication through `TokenReviewer`. Decides nothing about who may do what.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.ports import Caller, ReviewUnavailableError

TIMEOUT = 5.0
"""Seconds for each of the two calls; a consumer waits for the answer."""

POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"


class KubernetesTokens:
    """TokenReviewer for tokens of `audience`."""

    def __init__(self, api: KubernetesApi, audience: str) -> None:
        self._api = api
        self._audience = audience

    async def review(self, token: str) -> Caller | None:
        """See TokenReviewer. A token that is not bound to a pod has an empty `pod`; one of no service account, no namespace."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            review = await self._api.acall("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body, timeout=TIMEOUT)
            status = review["status"]
            if not status.get("authenticated") or self._audience not in status.get("audiences", ()):
                return None
            return await self._caller(status["user"])
        except (ApiError, ApiUnavailableError) as error:
            raise ReviewUnavailableError(f"the caller's token cannot be reviewed now: {error}") from error

    async def may(self, caller: Caller, verb: str, namespace: str, name: str) -> bool:
        """See TokenReviewer."""
        attributes = {
            "group": "shardherd.dev",
            "resource": "consumergroups",
            "subresource": "checkpoints",
            "verb": verb,
            "namespace": namespace,
            "name": name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": namespace},
            "spec": {"user": caller.user, "groups": list(caller.groups), "resourceAttributes": attributes},
        }
        try:
            path = f"/apis/authorization.k8s.io/v1/namespaces/{quote(namespace, safe='')}/localsubjectaccessreviews"
            review = await self._api.acall("POST", path, body, timeout=TIMEOUT)
        except (ApiError, ApiUnavailableError) as error:
            raise ReviewUnavailableError(f"the caller's rights cannot be looked up now: {error}") from error
        return bool(review["status"].get("allowed"))

    async def _caller(self, user: Any) -> Caller:
        username = str(user["username"])
        groups = tuple(str(group) for group in user.get("groups") or ())
        extra = user.get("extra") or {}
        pod, uid = _first(extra, POD_NAME), _first(extra, POD_UID)
        prefix, _, account = username.partition("system:serviceaccount:")
        if prefix or ":" not in account:
            return Caller("", username, pod, uid, "", username, groups)
        namespace, _, name = account.partition(":")
        stateful_set = await self._stateful_set(namespace, pod, uid) if pod else ""
        return Caller(namespace, name, pod, uid, stateful_set, username, groups)

    async def _stateful_set(self, namespace: str, pod: str, uid: str) -> str:
        """The name of the StatefulSet that controls this very pod, or an empty string."""
        try:
            path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}"
            found = await self._api.acall("GET", path, timeout=TIMEOUT)
        except ApiError as error:
            if error.status == 404:
                return ""
            raise
        if found["metadata"]["uid"] != uid:
            return ""
        for owner in found["metadata"].get("ownerReferences", ()):
            if owner.get("controller") and owner["kind"] == "StatefulSet" and owner["apiVersion"].startswith("apps/"):
                return str(owner["name"])
        return ""


def _first(extra: Any, key: str) -> str:
    values = extra.get(key) or [""]
    return str(values[0])
