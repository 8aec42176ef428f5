"""Who may call: a consumer's own pod, proven by its token. Called by the API for every request.

The rules: a token with our audience, bound to a pod of the group's namespace whose name is the consumer and whose UID is that
of the incarnation, controlled by the group's StatefulSet, under the group's service account. Each refusal says which of them
does not hold. A review that fails is "ask again", never a refusal. Tokens are remembered as hashes only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from shardherd.core.errors import CoordinatorUnavailableError, ForbiddenError, UnauthenticatedError
from shardherd.core.model import ConsumerId, GroupSpec, Incarnation
from shardherd.ports import Caller, Clock, CoordinatorMetrics, ReviewUnavailableError, TokenReviewer

REMEMBER = 60.0
"""Seconds for which a review holds: the API server may be away for as long, and a deleted pod is refused after as much."""

MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Reviewed:
    caller: Caller | None
    until: float


class Authenticator:
    """Reviews bearer tokens, with a memory."""

    def __init__(self, tokens: TokenReviewer, clock: Clock, metrics: CoordinatorMetrics) -> None:
        self._tokens = tokens
        self._clock = clock
        self._metrics = metrics
        self._reviewed: OrderedDict[bytes, _Reviewed] = OrderedDict()

    async def caller(self, authorization: str | None) -> Caller:
        """Whose token the Authorization header carries. Raises UnauthenticatedError, CoordinatorUnavailableError."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            self._metrics.refused("NoToken")
            raise UnauthenticatedError("the request carries no bearer token; send the pod's projected service account token")
        key = hashlib.sha256(token.encode(errors="replace")).digest()
        known = self._reviewed.get(key)
        if known is None or known.until <= self._clock.now():
            try:
                known = _Reviewed(await self._tokens.review(token), self._clock.now() + REMEMBER)
            except ReviewUnavailableError as error:
                raise CoordinatorUnavailableError(f"{error}; ask again") from error
            self._reviewed[key] = known
            self._reviewed.move_to_end(key)
            while len(self._reviewed) > MAX_REMEMBERED:
                self._reviewed.popitem(last=False)
        if known.caller is None:
            self._metrics.refused("InvalidToken")
            raise UnauthenticatedError(
                "the token is not valid for this coordinator: it is forged, expired, of a deleted pod, or made for another"
                " audience; use a projected service account token with audience 'shardherd'"
            )
        return known.caller

    def check_namespace(self, caller: Caller, namespace: str, name: str) -> None:
        """Raises ForbiddenError unless the caller is of the group's namespace."""
        if caller.namespace != namespace:
            self._refuse("ForeignNamespace", f"the caller is in namespace {caller.namespace!r}", f"{namespace}/{name}")

    def check_member(self, caller: Caller, spec: GroupSpec) -> None:
        """Raises ForbiddenError unless the caller is a pod of this group."""
        group = str(spec.identity)
        if caller.service_account != spec.service_account:
            self._refuse(
                "WrongServiceAccount",
                f"the caller's service account is {caller.service_account!r}, the group's is {spec.service_account!r}",
                group,
            )
        if not caller.pod:
            self._refuse("NoPod", "the token is not bound to a pod", group)
        if caller.stateful_set != spec.identity.name:
            controller = f"StatefulSet {caller.stateful_set!r}" if caller.stateful_set else "no StatefulSet"
            self._refuse(
                "ForeignPod",
                f"pod {caller.pod!r} is controlled by {controller}, not by the group's StatefulSet {spec.identity.name!r}",
                group,
            )

    def check_consumer(self, caller: Caller, spec: GroupSpec, consumer: ConsumerId, incarnation: Incarnation) -> None:
        """Raises ForbiddenError unless the caller is the very pod that it speaks for."""
        self.check_member(caller, spec)
        group = str(spec.identity)
        if caller.pod != consumer:
            self._refuse("OtherConsumer", f"pod {caller.pod!r} speaks for consumer {consumer!r}", group)
        if caller.pod_uid != incarnation.pod_uid:
            self._refuse(
                "OtherPodUid",
                f"the token is of pod UID {caller.pod_uid!r}, the request names incarnation {incarnation.pod_uid!r}",
                group,
            )

    def _refuse(self, reason: str, told: str, group: str) -> None:
        self._metrics.refused(reason)
        raise ForbiddenError(f"{told}; only a pod of group {group} may call for itself", group=group)
