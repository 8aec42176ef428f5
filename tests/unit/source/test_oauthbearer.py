"""What is asked of a token endpoint, what of its answers is used, and what is said when there is no token in them."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import certificates, tokens
from dev.cluster.certificates import Identity
from shardherd.core.model.security import OAuth, Security
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credentials import ClientSettings, Credentials
from shardherd.source.security.oauthbearer import ASSUMED_LIFE, client_credentials
from tests.harness.issuer import Answer, Issuer

SECRET = "hunter2 & more: %"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("issuer") / "keys"
    certificates.write_authority(folder)
    certificates.sign(folder, Identity("broker", "broker", serves=("IP:127.0.0.1",)))
    tokens.write_key(folder)
    return folder


@pytest.fixture
def issuer(keys: Path) -> Iterator[Issuer]:
    made = Issuer(keys, {"app/1": SECRET})
    yield made
    made.close()


@pytest.fixture
def context(keys: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(keys / "ca.crt"))


def test_id_and_secret_are_exchanged_for_a_token(issuer: Issuer, context: ssl.SSLContext) -> None:
    fresh = client_credentials(OAuth(issuer.url, "kafka.read kafka.write"), "app/1", SECRET, context)

    (asked,) = issuer.asked
    assert (fresh.value, fresh.seconds) == (issuer.given[0], 3600)
    assert (asked.client, asked.secret) == ("app/1", SECRET)
    assert asked.form == {"grant_type": "client_credentials", "scope": "kafka.read kafka.write"}
    assert fresh.value not in repr(fresh)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            (401, {"error": "invalid_client", "error_description": f"the secret {SECRET}\nis wrong"}, {}),
            r"HTTP 401 \(invalid_client the secret \*\*\* is wrong\): check the client's id and secret, and the scope",
        ),
        ((503, {}, {}), r"HTTP 503: it may be better soon"),
        ((302, {}, {"Location": "https://127.0.0.1:1/elsewhere"}), "HTTP 302: it may be better soon"),
        ((200, {"token": "x"}, {}), "its answer has no access_token: check that it is the token endpoint"),
        ((200, {"access_token": "a\x01b"}, {}), "its answer has no access_token"),
        ((200, {"access_token": "a", "token_type": "mac"}, {}), "its token is of another type than Bearer"),
    ],
)
def test_what_is_no_token_is_said_with_the_endpoint_and_without_the_secret(
    issuer: Issuer, context: ssl.SSLContext, answer: Answer, reason: str
) -> None:
    issuer.instead = lambda: answer

    with pytest.raises(CredentialsError, match=f"no token from {issuer.url}: {reason}") as refused:
        client_credentials(OAuth(f"{issuer.url}?key=of-somebody"), "app/1", SECRET, context)

    assert "hunter2" not in str(refused.value)
    assert "of-somebody" not in str(refused.value)
    assert len(issuer.asked) == 1, "the secret goes nowhere else"


def test_an_endpoint_that_is_away_and_one_that_nobody_signed_are_named(issuer: Issuer) -> None:
    with pytest.raises(CredentialsError, match=f"no token from {issuer.url}: .*certificate verify failed"):
        client_credentials(OAuth(issuer.url), "app/1", SECRET, ssl.create_default_context())
    issuer.stop()
    with pytest.raises(CredentialsError, match=f"no token from {issuer.url}: .*refused: check that it can be reached"):
        client_credentials(OAuth(issuer.url), "app/1", SECRET, None)


def claims(**said: object) -> str:
    parts = (json.dumps(each).encode() for each in ({}, said))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "x"])


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"access_token": "opaque", "expires_in": 60}, 60),
        ({"access_token": "opaque", "expires_in": "60"}, 60),
        ({"access_token": "opaque"}, ASSUMED_LIFE),
        ({"access_token": "a.b.c", "expires_in": True}, ASSUMED_LIFE),
        ({"access_token": claims(sub="app")}, ASSUMED_LIFE),
    ],
)
def test_a_token_lives_as_long_as_is_said(
    issuer: Issuer, context: ssl.SSLContext, said: dict[str, object], seconds: float
) -> None:
    issuer.instead = lambda: (200, said, {})

    assert client_credentials(OAuth(issuer.url), "app/1", SECRET, context).seconds == seconds


def test_a_token_that_says_when_it_expires_lives_until_then(issuer: Issuer, context: ssl.SSLContext) -> None:
    before = time.time()
    expires_at = int(before) + 5000
    issuer.instead = lambda: (200, {"access_token": claims(exp=expires_at)}, {})

    found = client_credentials(OAuth(issuer.url), "app/1", SECRET, context).seconds

    assert expires_at - time.time() <= found <= expires_at - before


def test_kafka_gets_tokens_by_what_the_files_say_when_each_is_fetched(issuer: Issuer, keys: Path) -> None:
    now = [Credentials("app/1", "wrong", issuer_ca=(keys / "ca.crt").read_bytes())]
    oauth = OAuth(issuer.url, extensions=(("logicalCluster", "lkc-1"),))
    security = Security("SASL_PLAINTEXT", "OAUTHBEARER", username="app/1", password_file="/p", oauth=oauth)
    settings = ClientSettings(security, lambda: now[0])
    keeper = settings.keeper
    assert keeper is not None
    keeper.step()
    provider = settings()["sasl_oauth_token_provider"]
    with pytest.raises(CredentialsError, match="invalid_client"):
        provider.token()

    now[0] = Credentials("app/1", SECRET, issuer_ca=now[0].issuer_ca)
    keeper._due = float("-inf")
    keeper.step()

    assert settings() == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }
    assert (provider.token(), provider.extensions()) == (issuer.given[0], {"logicalCluster": "lkc-1"})
    assert SECRET not in repr(vars(settings))


def test_authorities_of_the_endpoint_that_are_no_certificates_are_named() -> None:
    security = Security(
        "SASL_PLAINTEXT", "OAUTHBEARER", username="app", password_file="/p", oauth=OAuth("https://issuer.example/token")
    )
    settings = ClientSettings(security, lambda: Credentials("app", "x", issuer_ca=b"no certificate"))
    assert settings.keeper is not None
    settings.keeper.step()

    with pytest.raises(CredentialsError, match="certificates of the token endpoint are not PEM"):
        settings.keeper.current()
