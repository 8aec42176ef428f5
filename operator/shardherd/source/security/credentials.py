"""The credentials themselves, and the settings that kafka-python needs for one new connection with them.

Used by `connection_manager` at every new connection. Values live in memory only: they are in no repr, no message and no file of
ours.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardherd.core.model.security import AWS_MSK_IAM, GSSAPI, KafkaSecurity, Security
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credential_keeper import Fresh, Keeper
from shardherd.source.security.secret_file import in_memory


@dataclass(frozen=True, slots=True)
class Credentials:
    """What proves who we are (`username`, `password`, `certificate`, `key`) and whom we trust (`ca`, and `issuer_ca` for where
    tokens come from); PEM where it is bytes. `keytab` has the keys of a principal of Kerberos, in its own format."""

    username: str = ""
    password: str = field(default="", repr=False)
    ca: bytes = field(default=b"", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    issuer_ca: bytes = field(default=b"", repr=False)
    keytab: bytes = field(default=b"", repr=False)


def read_files(security: Security) -> Credentials:
    """What the files hold now. Raises CredentialsError, which names the file."""
    return Credentials(
        username=security.username or _text(security.username_file),
        password=_text(security.password_file),
        ca=_bytes(security.ca_file),
        certificate=_bytes(security.certificate_file),
        key=_bytes(security.key_file),
        issuer_ca=_bytes(security.issuer_ca_file),
        keytab=_bytes(security.keytab_file),
    )


def _bytes(path: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CredentialsError(
            f"the credentials' file {path} cannot be read ({error.strerror}): check the Secret's volume"
        ) from error


def _text(path: str) -> str:
    return as_text(_bytes(path), f"the credentials' file {path}")


def as_text(value: bytes, what: str) -> str:
    """A user name or a password; a line end that an editor left behind is not part of it. Raises CredentialsError."""
    try:
        return value.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CredentialsError(f"{what} is not UTF-8 text") from error


class ClientSettings:
    """kafka-python's security settings; `load` gives the credentials of now, and is called for every new connection."""

    def __init__(self, security: Security | KafkaSecurity, load: Callable[[], Credentials]) -> None:
        self._security = security
        self._load = load
        self._made_of: Credentials | None = None
        self._settings: dict[str, Any] = {}
        self._provider = _provider(security, load)

    @property
    def keeper(self) -> Keeper[Any] | None:
        """What keeps a credential that expires, for mechanisms that have one."""
        return None if self._provider is None else self._provider.keeper

    def enough_for(self, host: str) -> Callable[[Any], bool]:
        """Whether what the keeper keeps will do to connect to that host."""
        return getattr(self._provider, "enough_for", lambda _: lambda _: True)(host)

    def __call__(self) -> Mapping[str, Any]:
        """The settings. Raises CredentialsError."""
        credentials = self._load()
        if credentials != self._made_of:
            self._settings = self._make(credentials)
            self._made_of = credentials
        return self._settings

    def _make(self, credentials: Credentials) -> dict[str, Any]:
        security = self._security
        settings: dict[str, Any] = {"security_protocol": security.protocol}
        if self._provider is not None:
            settings |= {"sasl_mechanism": security.mechanism, "sasl_oauth_token_provider": self._provider}
        elif security.protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
            settings |= {
                "sasl_mechanism": security.mechanism,
                "sasl_plain_username": credentials.username,
                "sasl_plain_password": credentials.password,
            }
        if security.protocol in ("SSL", "SASL_SSL"):
            settings["ssl_context"] = _context(credentials, verify_hostname=security.verify_hostname)
        return settings


def of_files(security: Security) -> ClientSettings:
    """Settings from files that are read again for every new connection."""
    return ClientSettings(security, lambda: read_files(security))


def _provider(security: Security | KafkaSecurity, load: Callable[[], Credentials]) -> Any:
    """What gives kafka-python credentials that expire; None for a mechanism that has none.

    Only who uses them pays for what fetches them.
    """
    if (oauth := security.oauth) is not None:
        from shardherd.source.security.oauthbearer import Tokens, client_credentials

        def token() -> Fresh[str]:
            now = load()
            context = _trusting(now.issuer_ca, "of the token endpoint") if oauth.token_endpoint.startswith("https:") else None
            return client_credentials(oauth, now.username, now.password, context)

        return Tokens(oauth, token)
    if security.mechanism == AWS_MSK_IAM:
        from shardherd.source.security.aws_msk_iam import AccessKeys, Key

        def key() -> Key:
            now = load()
            return Key(now.username, now.password)

        return AccessKeys(security.region, key if security.has_password else None)
    if security.mechanism == GSSAPI:
        from shardherd.source.security.kerberos import Tickets

        def principal() -> tuple[str, bytes]:
            now = load()
            return now.username, now.keytab

        return Tickets(security.service or "kafka", principal)
    return None


def _trusting(ca: bytes, whose: str) -> ssl.SSLContext:
    """A client's context that trusts these authorities, or the machine's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca:
            # Certificates are ASCII; what is between them may be names in any script, as in the bundles of browsers.
            context.load_verify_locations(cadata=ca.decode("ascii", errors="ignore"))
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsError(f"the authorities' certificates {whose} are not PEM: {error}") from error
    return context


def _context(credentials: Credentials, *, verify_hostname: bool) -> ssl.SSLContext:
    context = _trusting(credentials.ca, "(ca.crt)")
    context.check_hostname = verify_hostname
    if credentials.certificate:
        _load_chain(context, credentials.certificate + b"\n" + credentials.key)
    return context


def _load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """The client's certificate. OpenSSL reads it from a file only: this one is in memory and has no name."""
    with in_memory(pem) as path:
        try:
            # An encrypted key would make OpenSSL ask on the terminal.
            context.load_cert_chain(path, password=_no_password)
        except ssl.SSLError as error:
            raise CredentialsError(
                f"the client's certificate (tls.crt) and key (tls.key) cannot be used together: {error}"
            ) from error


def _no_password() -> str:
    raise CredentialsError("the client's key (tls.key) is encrypted: store it without a passphrase")
