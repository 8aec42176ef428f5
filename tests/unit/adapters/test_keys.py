"""Tokens that are checked against published keys. The API server is played; the keys and the tokens are real."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.keys import PublishedKeysTokens
from shardherd.ports import Caller, ReviewUnavailableError
from tests.harness.simulated_clock import SimulatedClock

Json = dict[str, Any]

ISSUER = "https://kubernetes.default.svc"
PODS, ACCOUNTS = "/api/v1/namespaces/shop/pods", "/api/v1/namespaces/shop/serviceaccounts"
SETS = "/apis/apps/v1/namespaces/shop/statefulsets"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated")
OURS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGERS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ELLIPTIC = ec.generate_private_key(ec.SECP256R1())


def published(name: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Json:
    """The public half, as an API server publishes it."""
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm, public = "RS256", RSAAlgorithm.to_jwk(key.public_key())
    else:
        algorithm, public = "ES256", ECAlgorithm.to_jwk(key.public_key())
    return {**json.loads(public), "kid": name, "alg": algorithm, "use": "sig"}


class PlayedApi:
    """An API server with a pod, an account and its keys."""

    def __init__(self) -> None:
        self.keys = [published("one", OURS), published("two", ELLIPTIC)]
        owner = {"controller": True, "kind": "StatefulSet", "apiVersion": "apps/v1", "name": "clicks", "uid": "set-uid"}
        group = {"controller": True, "kind": "ConsumerGroup", "apiVersion": "shardherd.dev/v1alpha1", "name": "clicks"}
        self.objects: dict[str, Json] = {
            f"{PODS}/clicks-0": {"metadata": {"uid": "pod-uid", "ownerReferences": [owner]}},
            f"{SETS}/clicks": {"metadata": {"uid": "set-uid", "ownerReferences": [{**group, "uid": "group-uid"}]}},
            f"{ACCOUNTS}/spark": {"metadata": {"uid": "account-uid"}},
        }
        self.requests: list[str] = []
        self.away = False

    async def acall(self, method: str, path: str, **_: Any) -> Any:
        self.requests.append(path)
        if self.away:
            raise ApiUnavailableError("no answer")
        if path == "/.well-known/openid-configuration":
            return {"issuer": ISSUER}
        if path == "/openid/v1/jwks":
            return {"keys": self.keys}
        if path not in self.objects:
            raise ApiError("not found", 404, "NotFound")
        return self.objects[path]


@pytest.fixture
def api() -> PlayedApi:
    return PlayedApi()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def tokens(api: PlayedApi, clock: SimulatedClock) -> PublishedKeysTokens:
    return PublishedKeysTokens(cast("KubernetesApi", api), "shardherd", clock, ["shop"])


def claims(**changes: Any) -> Json:
    now = int(time.time())
    binding = {
        "namespace": "shop",
        "pod": {"name": "clicks-0", "uid": "pod-uid"},
        "serviceaccount": {"name": "spark", "uid": "account-uid"},
    }
    usual = {
        "aud": ["shardherd"],
        "exp": now + 3600,
        "iat": now,
        "nbf": now,
        "iss": ISSUER,
        "sub": "system:serviceaccount:shop:spark",
        "kubernetes.io": binding,
    }
    return {key: value for key, value in (usual | changes).items() if value is not None}


def bound(**changes: Any) -> Json:
    """Claims whose part of Kubernetes differs."""
    return claims(**{"kubernetes.io": claims()["kubernetes.io"] | changes})


def signed(payload: Json, key: Any = OURS, name: str = "one", algorithm: str = "RS256") -> str:
    return jwt.encode(payload, key, algorithm, {"kid": name})


async def test_a_token_tells_whose_it_is(tokens: PublishedKeysTokens) -> None:
    user = "system:serviceaccount:shop:spark"
    caller = Caller("shop", "spark", "clicks-0", "pod-uid", "clicks", user, GROUPS, "group-uid")
    assert await tokens.review(signed(claims())) == caller
    assert await tokens.review(signed(claims(), ELLIPTIC, "two", "ES256")) == caller


@pytest.mark.parametrize("changed", ["uid", "kind", "apiVersion", "controller"])
async def test_a_controller_that_is_forged_is_no_groups(tokens: PublishedKeysTokens, api: PlayedApi, changed: str) -> None:
    """As to the owner of the pod's StatefulSet, and to the StatefulSet's own UID."""
    found = api.objects[f"{SETS}/clicks"]["metadata"]
    if changed == "uid":
        found["uid"] = "made-again"
    else:
        found["ownerReferences"][0][changed] = False if changed == "controller" else "forged/v1"

    caller = await tokens.review(signed(claims()))

    assert caller is not None
    assert (caller.stateful_set, caller.group_uid) == ("clicks", "")


async def test_what_controls_a_pod_is_asked_once(tokens: PublishedKeysTokens, api: PlayedApi) -> None:
    first = await tokens.review(signed(claims()))
    api.requests.clear()
    del api.objects[f"{SETS}/clicks"]

    assert await tokens.review(signed(claims())) == first
    assert api.requests == [f"{ACCOUNTS}/spark", f"{PODS}/clicks-0"]


async def test_a_token_that_is_not_bound_to_a_pod_has_no_pod(tokens: PublishedKeysTokens) -> None:
    assert await tokens.review(signed(bound(pod={}))) == Caller(
        "shop", "spark", "", "", "", "system:serviceaccount:shop:spark", GROUPS
    )


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def with_header(algorithm: str) -> str:
    """The claims under a header of this algorithm, to be signed."""
    return f"{encoded(json.dumps({'alg': algorithm, 'kid': 'one'}).encode())}.{encoded(json.dumps(claims()).encode())}"


def unsigned() -> str:
    return with_header("none") + "."


def by_the_public_key() -> str:
    """The trick that makes a shared secret of a public key."""
    public = OURS.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    message = with_header("HS256")
    return f"{message}.{encoded(hmac.digest(public, message.encode(), 'sha256'))}"


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(lambda: signed(claims(), STRANGERS), id="signed by somebody else"),
        pytest.param(unsigned, id="not signed"),
        pytest.param(by_the_public_key, id="signed with the public key as a secret"),
        pytest.param(lambda: signed(claims())[:-6] + "AAAAAA", id="tampered with"),
        pytest.param(lambda: "not-a-token", id="garbage"),
        pytest.param(lambda: signed(claims(), name="three"), id="a key that is not published"),
        pytest.param(lambda: signed(claims(aud=["another"])), id="another audience"),
        pytest.param(lambda: signed(claims(aud=None)), id="no audience"),
        pytest.param(lambda: signed(claims(iss="https://elsewhere")), id="another cluster"),
        pytest.param(lambda: signed(claims(exp=int(time.time()) - 60)), id="expired"),
        pytest.param(lambda: signed(claims(exp=None)), id="never expires"),
        pytest.param(lambda: signed(claims(nbf=int(time.time()) + 600)), id="not valid yet"),
        pytest.param(lambda: signed(claims(sub="system:serviceaccount:shop:admin")), id="names disagree"),
        pytest.param(lambda: signed(bound(namespace="elsewhere")), id="namespaces disagree"),
        pytest.param(lambda: signed(bound(pod={"name": "clicks-0", "uid": "earlier"})), id="an earlier pod of that name"),
        pytest.param(lambda: signed(bound(pod={"name": "gone", "uid": "pod-uid"})), id="a pod that is gone"),
        pytest.param(
            lambda: signed(bound(serviceaccount={"name": "spark", "uid": "earlier"})), id="an earlier account of that name"
        ),
        pytest.param(lambda: signed(claims(**{"kubernetes.io": None})), id="no service account's"),
    ],
)
async def test_a_token_that_does_not_hold_is_nobodys(tokens: PublishedKeysTokens, token: Callable[[], str]) -> None:
    assert await tokens.review(token()) is None


async def test_a_token_of_a_namespace_that_is_not_served_is_nobodys_and_nothing_is_asked_there(
    api: PlayedApi, tokens: PublishedKeysTokens
) -> None:
    there = "/api/v1/namespaces/elsewhere"
    api.objects |= {f"{there}/pods/clicks-0": {"metadata": {"uid": "pod-uid"}}}
    api.objects |= {f"{there}/serviceaccounts/spark": {"metadata": {"uid": "account-uid"}}}
    binding = claims()["kubernetes.io"] | {"namespace": "elsewhere"}
    foreign = claims(**{"kubernetes.io": binding, "sub": "system:serviceaccount:elsewhere:spark"})

    assert await tokens.review(signed(foreign)) is None

    assert [path for path in api.requests if path.startswith(there)] == []


async def test_an_account_that_is_being_deleted_has_no_say(api: PlayedApi, tokens: PublishedKeysTokens) -> None:
    api.objects[f"{ACCOUNTS}/spark"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await tokens.review(signed(claims())) is None


async def test_a_new_key_is_found_and_an_unknown_one_is_not_looked_for_at_every_call(
    api: PlayedApi, clock: SimulatedClock, tokens: PublishedKeysTokens
) -> None:
    assert await tokens.review(signed(claims(), STRANGERS, "three")) is None
    api.keys.append(published("three", STRANGERS))
    assert await tokens.review(signed(claims(), STRANGERS, "three")) is None
    assert api.requests.count("/openid/v1/jwks") == 1

    clock.advance(10.0)

    assert await tokens.review(signed(claims(), STRANGERS, "three")) is not None
    assert api.requests.count("/openid/v1/jwks") == 2


async def test_an_api_server_that_is_away_is_no_refusal(api: PlayedApi, tokens: PublishedKeysTokens) -> None:
    api.away = True
    with pytest.raises(ReviewUnavailableError, match="cannot be reviewed now"):
        await tokens.review(signed(claims()))
