"""Whose access key is used at AWS, and what is said where there is none."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shardherd.core.model.security import Security
from shardherd.source.security.aws_msk_iam import AccessKeys, Key, msk_mechanism
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credentials import ClientSettings, Credentials

MSK = Security("SASL_SSL", "AWS_MSK_IAM", username="AKIA1", password_file="/secret", region="eu-west-1")
SECRET = "wJalr/hunter2"


@pytest.fixture(autouse=True)
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that AWS knows nothing of."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def current(keys: AccessKeys) -> Key:
    keys.keeper.step()
    return keys.keeper.current()


def test_a_key_of_a_secret_takes_nothing_of_amazons(aws: pytest.MonkeyPatch) -> None:
    aws.setitem(sys.modules, "botocore.session", None)
    settings = ClientSettings(MSK, lambda: Credentials("AKIA1", SECRET))
    provider = settings()["sasl_oauth_token_provider"]

    assert current(provider) == Key("AKIA1", SECRET)
    sent = json.loads(msk_mechanism(host="b-1.example", **settings()).auth_bytes())
    assert (sent["host"], sent["action"]) == ("b-1.example", "kafka-cluster:Connect")
    assert sent["x-amz-credential"].startswith("AKIA1/")
    assert sent["x-amz-credential"].endswith("/eu-west-1/kafka-cluster/aws4_request")
    assert SECRET not in repr(vars(provider)) + repr(provider.keeper.current()) + json.dumps(sent)


@pytest.mark.parametrize(("answer", "accepted"), [(b'{"version":"2020_10_22"}', True), (b"", False)])
def test_the_brokers_answer_says_whether_the_key_was_accepted(answer: bytes, accepted: bool) -> None:
    provider = ClientSettings(MSK, lambda: Credentials("AKIA1", SECRET))()["sasl_oauth_token_provider"]
    mechanism = msk_mechanism(host="b-1.example", sasl_oauth_token_provider=provider)
    before = mechanism.is_done()

    mechanism.receive(answer)

    assert (before, mechanism.is_done(), mechanism.is_authenticated()) == (False, True, accepted)
    assert mechanism.auth_details().endswith(f"AWS_MSK_IAM {answer.decode()}")


def test_a_key_that_is_empty_is_not_taken_for_the_pods(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ACCESS_KEY_ID", "AKIA2")
    aws.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    assert current(ClientSettings(MSK, Credentials)()["sasl_oauth_token_provider"]) == Key("", "")


def test_without_botocore_it_is_said_how_an_image_gets_it(aws: pytest.MonkeyPatch) -> None:
    aws.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(CredentialsError, match="needs the Python package botocore: build the image with EXTRAS=aws"):
        current(AccessKeys("eu-west-1"))


def test_a_pod_without_an_identity_is_told_and_is_asked_again(aws: pytest.MonkeyPatch) -> None:
    keys = AccessKeys("eu-west-1")
    with pytest.raises(CredentialsError, match="AWS knows no identity of this pod: give its service account a role"):
        current(keys)

    aws.setenv("AWS_ACCESS_KEY_ID", "AKIA2")
    aws.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    keys.keeper._due = float("-inf")

    assert current(keys) == Key("AKIA2", SECRET)


class Agent(BaseHTTPRequestHandler):
    """What gives keys to pods: the agent of EKS Pod Identity (GET), and AWS STS (POST)."""

    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        role = {"AccessKeyId": "ASIA1", "SecretAccessKey": SECRET, "Token": "of-a-role", "Expiration": "2099-01-01T00:00:00Z"}
        self._say("application/json", json.dumps(role))

    def do_POST(self) -> None:
        self.asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
        self._say(
            "text/xml",
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIA2</AccessKeyId>"
            f"<SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>of-web</SessionToken>"
            "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
        )

    def _say(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def agent() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    asked: list[tuple[str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Agent,), {"asked": asked}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


def test_a_pod_with_pod_identity_is_its_role(
    aws: pytest.MonkeyPatch, agent: tuple[str, list[tuple[str, str]]], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("token-of-the-pod")
    aws.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent[0]}/v1/credentials")
    aws.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))

    assert current(AccessKeys("eu-west-1")) == Key("ASIA1", SECRET, "of-a-role")
    assert agent[1] == [("/v1/credentials", "token-of-the-pod")]


def test_a_pod_with_a_web_identity_is_its_role(
    aws: pytest.MonkeyPatch, agent: tuple[str, list[tuple[str, str]]], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("token-of-the-account")
    aws.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/clicks")
    aws.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    aws.setenv("AWS_ENDPOINT_URL_STS", agent[0])

    assert current(AccessKeys("eu-west-1")) == Key("ASIA2", SECRET, "of-web")
    ((_, form),) = agent[1]
    assert "Action=AssumeRoleWithWebIdentity" in form
    assert "WebIdentityToken=token-of-the-account" in form


def test_an_sts_that_is_away_is_named(aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token-of-the-account")
    aws.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/clicks")
    aws.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    aws.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    aws.setenv("AWS_MAX_ATTEMPTS", "1")

    with pytest.raises(
        CredentialsError, match=r"AWS gives no access key .*EndpointConnectionError.*: check the role"
    ) as refused:
        current(AccessKeys("eu-west-1"))
    assert "token-of-the-account" not in str(refused.value)


def test_whoever_uses_the_client_by_itself_finds_its_own_way_unchanged(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ACCESS_KEY_ID", "AKIA3")
    aws.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    aws.setenv("AWS_DEFAULT_REGION", "eu-west-2")

    sent = json.loads(msk_mechanism(host="b-1.example", security_protocol="SASL_SSL").auth_bytes())

    assert sent["x-amz-credential"].startswith("AKIA3/")
