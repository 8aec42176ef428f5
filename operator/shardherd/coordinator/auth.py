"""Who may do what, proven by a token. Called by the API for every request.

A consumer acts for itself only: a token with our audience, bound to a pod of the group's namespace whose name is the consumer
and whose UID is that of the incarnation, controlled by the very StatefulSet that was made for the group, under the group's
service account. Any pod of the group may look at it. Everybody else needs a right that Kubernetes' own roles give: to `get` the
group's subresource `checkpoints` for looking, to `update` it for forcing one; no consumer has that by being one. Each refusal
says what does not hold. A review that fails is "ask again", never a refusal. Tokens are remembered as hashes only, rights not
at all.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from shardherd.core.model.errors import CoordinatorUnavailableError, ForbiddenError, UnauthenticatedError
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Incarnation
from shardherd.ports import Caller, Clock, CoordinatorMetrics, ReviewUnavailableError, TokenReviewer

REMEMBER = 60.0
"""Seconds for which a review holds: the API server may be away for as long, and a deleted pod is refused after as much."""

MAX_REMEMBERED = 10_000

_SELF = "only a pod of group {group} may call for itself"
_RIGHT = "a Role must allow that for group {group}"


class Bearer(NamedTuple):
    """The token of a request, hashed once: reviews are remembered by its hash."""

    token: str
    digest: bytes

    @classmethod
    def of(cls, authorization: str | None) -> Bearer | None:
        """What this Authorization header carries; None if that is no bearer token, all of which are ASCII."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or not token.isascii():
            return None
        return cls(token, hashlib.sha256(token.encode()).digest())


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
        self._known: OrderedDict[bytes, _Reviewed] = OrderedDict()
        # Apart, so that forged tokens, of which there is no end, push nobody out who is known.
        self._nobodys: OrderedDict[bytes, _Reviewed] = OrderedDict()

    def needs_review(self, bearer: Bearer | None) -> bool:
        """Whether `caller` would have to ask the API server whose token this is."""
        return bearer is not None and self._remembered(bearer.digest) is None

    async def caller(self, bearer: Bearer | None) -> Caller:
        """Whose token this is. Raises UnauthenticatedError, CoordinatorUnavailableError."""
        if bearer is None:
            self._metrics.refused("NoToken")
            raise UnauthenticatedError("the request carries no bearer token; send the pod's projected service account token")
        known = self._remembered(bearer.digest)
        if known is None:
            try:
                known = _Reviewed(await self._tokens.review(bearer.token), self._clock.now() + REMEMBER)
            except ReviewUnavailableError as error:
                raise CoordinatorUnavailableError(f"{error}; ask again") from error
            self._remember(bearer.digest, known)
        if known.caller is None:
            self._metrics.refused("InvalidToken")
            raise UnauthenticatedError(
                "the token is not valid for this coordinator: it is forged, expired, of a deleted pod, or made for another"
                " audience; use a projected service account token with audience 'shardherd'"
            )
        return known.caller

    def _remembered(self, key: bytes) -> _Reviewed | None:
        """The review of this token, if it still holds."""
        known = self._known.get(key) or self._nobodys.get(key)
        return known if known is not None and self._clock.now() < known.until else None

    def _remember(self, key: bytes, reviewed: _Reviewed) -> None:
        here, elsewhere = self._known, self._nobodys
        if reviewed.caller is None:
            here, elsewhere = elsewhere, here
        elsewhere.pop(key, None)
        here[key] = reviewed
        here.move_to_end(key)
        while len(here) > MAX_REMEMBERED:
            here.popitem(last=False)

    def check_private(self, *, secure: bool) -> None:
        """Raises ForbiddenError for a call that was not made over TLS."""
        if not secure:
            self._metrics.refused("PlainHttp")
            raise ForbiddenError(
                "this coordinator answers over HTTPS only (tls.acceptPlain of the chart is false); delete this pod, and the one"
                " that is made in its place knows the address"
            )

    async def check_looks(self, caller: Caller, namespace: str, name: str, spec: Callable[[], Awaitable[GroupSpec]]) -> None:
        """Raises ForbiddenError unless the caller is a pod of this group or may `get` its checkpoints.

        `spec` looks the group up; it is asked only once the caller may know whether there is such a group.
        """
        foreign = _foreign_namespace(caller, namespace) or _foreign(caller, await spec())
        if foreign is not None and not await self._may(caller, "get", namespace, name):
            reason, detail = foreign
            self._refuse(reason, f"{detail}, and {_no_right(caller, 'get')}", f"{namespace}/{name}")

    async def check_forces(self, caller: Caller, namespace: str, name: str) -> None:
        """Raises ForbiddenError unless the caller may `update` the group's checkpoints."""
        if not await self._may(caller, "update", namespace, name):
            self._refuse("NoRight", _no_right(caller, "update"), f"{namespace}/{name}", rule=_RIGHT)

    def check_namespace(self, caller: Caller, namespace: str, name: str) -> None:
        """Raises ForbiddenError unless the caller is of the group's namespace."""
        foreign = _foreign_namespace(caller, namespace)
        if foreign is not None:
            self._refuse(*foreign, f"{namespace}/{name}")

    def check_consumer(
        self, caller: Caller, spec: GroupSpec, consumer: ConsumerId, incarnation: Incarnation, group_uid: str = ""
    ) -> None:
        """Raises ForbiddenError unless the caller is the very pod that it speaks for.

        `group_uid` is the group that it was started for. If that was replaced, it is to hear so: it gets nothing else.
        """
        foreign = _foreign(caller, spec) if group_uid in ("", spec.identity.uid) else _foreign_by_name(caller, spec)
        if foreign is None and caller.pod != consumer:
            foreign = "OtherConsumer", f"pod {caller.pod!r} speaks for consumer {consumer!r}"
        if foreign is None and caller.pod_uid != incarnation.pod_uid:
            detail = f"the token is of pod UID {caller.pod_uid!r}, the request names incarnation {incarnation.pod_uid!r}"
            foreign = "OtherPodUid", detail
        if foreign is not None:
            self._refuse(*foreign, str(spec.identity), consumer)

    async def _may(self, caller: Caller, verb: str, namespace: str, name: str) -> bool:
        try:
            return await self._tokens.may(caller, verb, namespace, name)
        except ReviewUnavailableError as error:
            raise CoordinatorUnavailableError(f"{error}; ask again") from error

    def _refuse(self, reason: str, detail: str, group: str, consumer: ConsumerId | None = None, rule: str = _SELF) -> NoReturn:
        self._metrics.refused(reason)
        raise ForbiddenError(f"{detail}; {rule.format(group=group)}", group=group, consumer=consumer)


def _no_right(caller: Caller, verb: str) -> str:
    return f"{caller.user or caller.service_account!r} may not {verb} consumergroups/checkpoints of it"


def _foreign_namespace(caller: Caller, namespace: str) -> tuple[str, str] | None:
    if caller.namespace == namespace:
        return None
    return "ForeignNamespace", f"the caller is in namespace {caller.namespace!r}"


def _foreign(caller: Caller, spec: GroupSpec) -> tuple[str, str] | None:
    """Why the caller is no pod of this group, as a reason and a sentence; None if it is one."""
    foreign = _foreign_by_name(caller, spec)
    if foreign is not None or caller.group_uid == spec.identity.uid:
        return foreign
    detail = (
        f"pod {caller.pod!r} names StatefulSet {caller.stateful_set!r} as its controller, but not by the UID of the one that"
        f" was made for this group (UID {spec.identity.uid!r})"
    )
    return "ForeignPod", detail


def _foreign_by_name(caller: Caller, spec: GroupSpec) -> tuple[str, str] | None:
    """The same, of a pod of any group that has had this name."""
    if caller.service_account != spec.service_account:
        detail = f"the caller's service account is {caller.service_account!r}, the group's is {spec.service_account!r}"
        return "WrongServiceAccount", detail
    if not caller.pod:
        return "NoPod", "the token is not bound to a pod"
    if caller.stateful_set != spec.identity.name:
        controller = f"StatefulSet {caller.stateful_set!r}" if caller.stateful_set else "no StatefulSet"
        detail = f"pod {caller.pod!r} is controlled by {controller}, not by the group's StatefulSet {spec.identity.name!r}"
        return "ForeignPod", detail
    return None
