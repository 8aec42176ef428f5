"""Verifies tokens with the keys that the cluster publishes: for an operator without any cluster-wide right.

A TokenReview needs such a right. Here a token's signature, audience, issuer and time are checked by ourselves, and that its pod
and its service account are still there by reading them, for which Roles in the namespaces that are served are enough. Every
service account may read the keys. Called by the coordinator's authentication through `TokenReviewer`. Decides nothing about who
may do what.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

import jwt

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi, unless_missing
from shardherd.adapters.kubernetes.tokens import POD_NAME, POD_UID, TIMEOUT, KubernetesTokens
from shardherd.ports import Caller, Clock, ReviewUnavailableError

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
"""What API servers sign with. None of them is symmetric: a public key can never pass for a secret."""

REFRESH = 10.0
"""Seconds between looks at the keys because of a token that none of them has signed: callers cannot make us ask for ever."""


class PublishedKeysTokens(KubernetesTokens):
    """TokenReviewer for tokens of `audience` of the service accounts of `namespaces`; those of others are nobody's."""

    def __init__(self, api: KubernetesApi, audience: str, clock: Clock, namespaces: Collection[str]) -> None:
        super().__init__(api, audience)
        self._clock = clock
        self._namespaces = frozenset(namespaces)
        self._issuer = ""
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    async def review(self, token: str) -> Caller | None:
        """See TokenReviewer. A token that is not bound to a pod has an empty `pod`."""
        try:
            name = str(jwt.get_unverified_header(token).get("kid", ""))
        except jwt.InvalidTokenError:
            return None
        try:
            key = await self._key(name)
            claims = self._verified(token, key) if key is not None else None
            return await self._bound(claims) if claims is not None else None
        except (ApiError, ApiUnavailableError) as error:
            raise ReviewUnavailableError(f"the caller's token cannot be reviewed now: {error}") from error

    def _verified(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any] | None:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                options={"require": ["aud", "exp", "iat", "iss", "sub"]},
            )
        except jwt.InvalidTokenError as error:
            log.debug("a token was refused: %s", error)
            return None
        return claims

    async def _bound(self, claims: Mapping[str, Any]) -> Caller | None:
        """Who the claims say it is, if what the token is bound to is still there."""
        binding = claims.get("kubernetes.io", {})
        namespace, account, pod = binding.get("namespace", ""), binding.get("serviceaccount", {}), binding.get("pod", {})
        name, user = account.get("name", ""), f"system:serviceaccount:{namespace}:{account.get('name', '')}"
        if namespace not in self._namespaces or not name or claims["sub"] != user:
            return None
        if await self._uid(namespace, "serviceaccounts", name) != account.get("uid"):
            return None
        if pod and await self._uid(namespace, "pods", pod.get("name", "")) != pod.get("uid"):
            return None
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        extra = {POD_NAME: [pod["name"]], POD_UID: [pod["uid"]]} if pod else {}
        return await self._caller({"username": user, "groups": groups, "extra": extra})

    async def _uid(self, namespace: str, kind: str, name: str) -> str | None:
        path = f"/api/v1/namespaces/{namespace}/{kind}/{name}"
        found = await unless_missing(self._api.acall("GET", path, timeout=TIMEOUT))
        if found is None or (kind != "pods" and "deletionTimestamp" in found["metadata"]):
            return None  # a pod on its way out still drains
        return str(found["metadata"]["uid"])

    async def _key(self, name: str) -> jwt.PyJWK | None:
        """The published key of this name; the keys are looked at again if there is none, for they are replaced now and then."""
        async with self._looking:
            if name not in self._keys and self._clock.now() - self._looked_at >= REFRESH:
                # What is asked here of the API server needs no right but to be a service account.
                about = await self._api.acall("GET", "/.well-known/openid-configuration", timeout=TIMEOUT)
                found = await self._api.acall("GET", "/openid/v1/jwks", timeout=TIMEOUT, accept="application/jwk-set+json")
                self._issuer = str(about["issuer"])
                self._keys = {str(key["kid"]): jwt.PyJWK(key) for key in found["keys"] if key.get("alg") in ALGORITHMS}
                self._looked_at = self._clock.now()
        return self._keys.get(name)
