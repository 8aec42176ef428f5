"""Credentials in files: read anew for every connection, and in nothing that may be shown."""

from __future__ import annotations

import contextlib
import logging
import ssl
import subprocess
from pathlib import Path

import pytest
from kafka.errors import KafkaTimeoutError, NodeNotReadyError
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.sasl import SaslAuthenticateRequest

from shardherd.core.model.security import Security
from shardherd.source.kafka.connection_manager import ClientManager
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credentials import ClientSettings, Credentials, of_files, read_files


def sasl(folder: Path) -> Security:
    (folder / "username").write_text("app")
    (folder / "password").write_text("hunter2\n")
    return Security("SASL_PLAINTEXT", "PLAIN", username_file=str(folder / "username"), password_file=str(folder / "password"))


def certificate(folder: Path, name: str, *options: str) -> tuple[str, str]:
    """A self-signed certificate; the files of it and of its key."""
    crt, key = folder / f"{name}.crt", folder / f"{name}.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = ["openssl", "req", "-x509", *curve, *(options or ("-nodes",)), "-keyout", str(key), "-out", str(crt)]
    subprocess.run([*command, "-days", "1", "-subj", f"/CN={name}"], check=True, capture_output=True)
    return str(crt), str(key)


def test_every_connection_gets_what_the_files_hold_then(tmp_path: Path) -> None:
    settings = of_files(sasl(tmp_path))

    assert settings() == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "app",
        "sasl_plain_password": "hunter2",
    }
    (tmp_path / "password").write_text("hunter3")
    assert settings()["sasl_plain_password"] == "hunter3"


def test_a_context_is_made_anew_only_when_the_certificates_changed(tmp_path: Path) -> None:
    ca, _ = certificate(tmp_path, "ca")
    crt, key = certificate(tmp_path, "app")
    settings = of_files(Security("SSL", ca_file=ca, certificate_file=crt, key_file=key))

    first = settings()["ssl_context"]
    assert [dict(each["subject"][0]) for each in first.get_ca_certs()] == [{"commonName": "ca"}]
    assert first.check_hostname
    assert first.verify_mode is ssl.CERT_REQUIRED
    assert settings()["ssl_context"] is first
    certificate(tmp_path, "app")
    assert settings()["ssl_context"] is not first


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-2"])
def test_authorities_may_be_named_between_their_certificates_in_any_script(encoding: str, tmp_path: Path) -> None:
    pems = [Path(certificate(tmp_path, name)[0]).read_text() for name in ("one", "two")]
    bundle = tmp_path / "ca.crt"
    bundle.write_text("".join(f"F\u0151tan\xfas\xedtv\xe1ny\n====\n{pem}\n" for pem in pems), encoding=encoding)

    context = of_files(Security("SSL", ca_file=str(bundle)))()["ssl_context"]

    assert [dict(each["subject"][0])["commonName"] for each in context.get_ca_certs()] == ["one", "two"]


def test_what_cannot_be_used_is_named_by_its_file(tmp_path: Path) -> None:
    security = sasl(tmp_path)
    (tmp_path / "password").unlink()
    with pytest.raises(CredentialsError, match=rf"file {tmp_path}/password cannot be read \(No such file or directory\)"):
        read_files(security)

    for content in (b"no certificate", b"\xff\xfe", b"\x30\x82\x01\xff"):
        (tmp_path / "ca.crt").write_bytes(content)
        with pytest.raises(CredentialsError, match=r"\(ca\.crt\) are not PEM"):
            of_files(Security("SSL", ca_file=str(tmp_path / "ca.crt")))()

    crt, _ = certificate(tmp_path, "one")
    _, key = certificate(tmp_path, "other")
    with pytest.raises(CredentialsError, match=r"\(tls\.crt\) and key \(tls\.key\) cannot be used together"):
        of_files(Security("SSL", certificate_file=crt, key_file=key))()

    crt, key = certificate(tmp_path, "locked", "-passout", "pass:hunter2")
    with pytest.raises(CredentialsError, match=r"tls\.key\) is encrypted"):
        of_files(Security("SSL", certificate_file=crt, key_file=key))()


def test_no_secret_is_in_what_python_shows_of_credentials() -> None:
    credentials = Credentials("app", "hunter2", b"authority", b"certificate", b"key", b"issuer")

    assert repr(credentials) == "Credentials(username='app')"
    assert "hunter2" not in repr(vars(ClientSettings(Security(), lambda: credentials)))


def test_the_client_logs_no_request_even_at_level_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="kafka"):
        for name in ("kafka.net.connection", "kafka.protocol.parser"):
            logging.getLogger(name).debug("Request: %s", SaslAuthenticateRequest(b"app\0app\0hunter2"))
            logging.getLogger(name).info("%s: connected", name)

    assert "hunter2" not in caplog.text
    assert caplog.messages == ["kafka.net.connection: connected", "kafka.protocol.parser: connected"]


def test_a_missing_file_is_the_reason_that_no_broker_is_reached(tmp_path: Path) -> None:
    security = sasl(tmp_path)
    (tmp_path / "password").unlink()
    manager = ClientManager(NetworkSelector(), of_files(security), bootstrap_servers=["127.0.0.1:9"])

    manager.send(SaslAuthenticateRequest(b""), "bootstrap-0")

    (failure,) = manager.failures()
    assert str(failure).startswith(f"127.0.0.1:9: CredentialsError: the credentials' file {tmp_path}/password cannot be read")


def test_a_broker_that_left_the_cluster_is_one_that_is_not_ready() -> None:
    manager = ClientManager(NetworkSelector(), bootstrap_servers=["127.0.0.1:9"])

    failure = manager.send(SaslAuthenticateRequest(b""), 99).exception

    assert isinstance(failure, NodeNotReadyError)
    assert "broker 99 is not part of the cluster now" in str(failure)


def test_while_the_cluster_is_looked_up_again_the_last_cause_is_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's time may be over before the first address was tried once more."""
    manager = ClientManager(NetworkSelector(), bootstrap_servers=["127.0.0.1:9"])
    said: list[tuple[str, ...]] = []
    causes = ["refused", "", "reset", None]

    async def look_up(_manager: ClientManager, _deadline: float | None) -> bool:
        said.append(tuple(str(each.error) for each in manager.failures()))
        cause = causes[len(said) - 1]
        if cause is None:
            return True
        if cause:
            manager._note("bootstrap-0", OSError(cause))
        raise KafkaTimeoutError

    monkeypatch.setattr(KafkaConnectionManager, "_do_bootstrap", look_up)
    for _ in causes:
        with contextlib.suppress(KafkaTimeoutError):
            manager.run(manager.bootstrap_async)

    assert said == [(), ("refused",), ("refused",), ("reset",)]
    assert manager.failures() == (), "it was found"
