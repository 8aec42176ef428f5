"""Authenticates a token: a TokenReview for our audience, then the caller's pod, the StatefulSet that controls it, and the
ConsumerGroup that controls that, each by its UID. And what Kubernetes' own rights let a caller do: a SubjectAccessReview in the
group's namespace.

Called by the coordinator's authentication through `TokenReviewer`. Decides nothing about who may do what.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from urllib.parse import quote

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.ports import Caller, ReviewUnavailableError

TIMEOUT = 5.0
"""Seconds for each of the two calls; a consumer waits for the answer."""

POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"

MAX_PROVEN = 10_000
"""Pods whose controllers are remembered."""


class KubernetesTokens:
    """TokenReviewer for tokens of `audience`."""

    def __init__(self, api: KubernetesApi, audience: str) -> None:
        self._api = api
        self._audience = audience
        self._proven: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Of pods by UID: the StatefulSet and the ConsumerGroup that were seen to control them."""

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
            path = f"/apis/authorization.k8s.io/v1/namespaces/{_quoted(namespace)}/localsubjectaccessreviews"
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
        stateful_set, group_uid = await self._controllers(namespace, pod, uid) if pod else ("", "")
        return Caller(namespace, name, pod, uid, stateful_set, username, groups, group_uid)

    async def _controllers(self, namespace: str, pod: str, uid: str) -> tuple[str, str]:
        """The name of the StatefulSet that controls this very pod, and the UID of the ConsumerGroup that controls that very
        StatefulSet; empty where there is none."""
        if uid in self._proven:
            self._proven.move_to_end(uid)
            return self._proven[uid]
        owner = _controller(await self._get(f"/api/v1/namespaces/{_quoted(namespace)}/pods/{_quoted(pod)}"), uid, "StatefulSet")
        if owner is None or not owner["apiVersion"].startswith("apps/"):
            return "", ""
        # Whoever may make a pod may write any owner into it: what counts is the controller of the StatefulSet with that UID.
        name = str(owner["name"])
        path = f"/apis/apps/v1/namespaces/{_quoted(namespace)}/statefulsets/{_quoted(name)}"
        group = _controller(await self._get(path), str(owner["uid"]), "ConsumerGroup")
        if group is None or not group["apiVersion"].startswith("shardherd.dev/"):
            return name, ""
        # A pod that drains is believed although its StatefulSet went before it.
        self._proven[uid] = name, str(group["uid"])
        while len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)
        return self._proven[uid]

    async def _get(self, path: str) -> Any:
        """The object, None if there is none."""
        return await unless_missing(self._api.acall("GET", path, timeout=TIMEOUT))


def _controller(found: Any, uid: str, kind: str) -> Any:
    """The owner that controls this object, if that is of this kind and the object is the one with this UID."""
    if found is None or found["metadata"]["uid"] != uid:
        return None
    owners = found["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller") and owner["kind"] == kind), None)


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _first(extra: Any, key: str) -> str:
    values = extra.get(key) or [""]
    return str(values[0])
