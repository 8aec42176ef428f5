"""How clients of a Kafka cluster prove who they are and know whom they talk to, without any secret in it.

`KafkaSecurity` is what a ConsumerGroup says: keys of Secrets. `Security` is what a process on the data path gets: names of
files. Both may be logged, pickled and shown. Who reads the values is `source.security.credentials`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER = "OAUTHBEARER"
AWS_MSK_IAM = "AWS_MSK_IAM"
GSSAPI = "GSSAPI"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER, AWS_MSK_IAM, GSSAPI)

_ENDPOINT = re.compile(r"https?://[^\s/?#@\\]+(/[^\s#\\]*)?")
_REGION = re.compile(r"[a-z0-9-]+")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[ -~]*")


class SecurityError(ValueError):
    """A combination of settings that cannot work. Names the setting, its value and what to set instead."""


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One key of a Secret in the group's namespace."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class OAuth:
    """Where a client gets its tokens for OAUTHBEARER: its id and secret are exchanged for one at `token_endpoint`.

    `extensions` are what the brokers want to be told beside the token, name and value. Raises SecurityError.
    """

    token_endpoint: str
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not _ENDPOINT.fullmatch(self.token_endpoint):
            raise SecurityError(
                f"the token endpoint {self.token_endpoint!r} must be an address such as https://issuer.example/token,"
                " without a user, a password and a fragment"
            )
        for name, value in self.extensions:
            if not _EXTENSION_NAME.fullmatch(name) or name == "auth":
                raise SecurityError(f"the name {name!r} of an OAUTHBEARER extension must be letters, and not auth")
            if not _EXTENSION_VALUE.fullmatch(value):
                raise SecurityError(f"the value of the OAUTHBEARER extension {name!r} must be printable ASCII")


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """What `spec.source.kafka.security` says. A key that is None is not used; `username` stands in for `username_key`.

    With `oauth`, user and password are the client's id and secret, and `issuer_ca_key` is who signed the token endpoint.
    With `region`, of AWS, they are an access key; without them a process is who AWS says that its pod is.
    With `keytab_key`, of Kerberos, the user is a principal, and `service` the first part of the brokers' principals.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    username_key: SecretKey | None = None
    password_key: SecretKey | None = None
    ca_key: SecretKey | None = None
    certificate_key: SecretKey | None = None
    private_key: SecretKey | None = None
    verify_hostname: bool = True
    oauth: OAuth | None = None
    issuer_ca_key: SecretKey | None = None
    region: str = ""
    keytab_key: SecretKey | None = None
    service: str = ""

    @property
    def has_password(self) -> bool:
        """Whether a password is named. What it is does not matter: an empty one is one, too."""
        return self.password_key is not None


NO_SECURITY = KafkaSecurity()


@dataclass(frozen=True, slots=True)
class Security:
    """The same with files in place of Secrets. They are read at every new connection, so that what is in them can be rotated.

    `ca_file` (empty: the machine's authorities), `certificate_file` with `key_file` (empty: no mutual TLS) are PEM. A user
    name is no secret and may be given itself; a password may not. With `oauth` they are a client's id and secret, and
    `issuer_ca_file` (empty: the machine's authorities) is who signed the token endpoint. With `region` they are an access key
    of AWS, or not there: the process is who AWS says that its pod is. With `keytab_file`, of Kerberos, the user is a
    principal, and `service` the first part of the brokers' principals. Raises SecurityError.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    username_file: str = ""
    password_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify_hostname: bool = True
    oauth: OAuth | None = None
    issuer_ca_file: str = ""
    region: str = ""
    keytab_file: str = ""
    service: str = ""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SecurityError(f"the security protocol {self.protocol!r} is none of {', '.join(PROTOCOLS)}")
        if self.sasl:
            if self.mechanism not in MECHANISMS:
                raise SecurityError(
                    f"the SASL mechanism {self.mechanism!r} is none of {', '.join(MECHANISMS)}; {self.protocol} needs one"
                )
            if self.mechanism == AWS_MSK_IAM and not (self.password_file or self.username or self.username_file):
                pass  # The pod's own identity.
            elif self.mechanism == GSSAPI:
                if not self.keytab_file or not (self.username or self.username_file) or self.password_file:
                    raise SecurityError("GSSAPI needs a principal as user name and the file of its keytab, and no password")
            elif not self.password_file or not (self.username or self.username_file):
                raise SecurityError(f"{self.protocol} needs a user name and the file that has its password")
        elif self.mechanism:
            raise SecurityError(f"a SASL mechanism ({self.mechanism}) needs SASL_PLAINTEXT or SASL_SSL, not {self.protocol}")
        self._check_oauth()
        self._check_aws()
        if self.mechanism != GSSAPI and (self.keytab_file or self.service):
            raise SecurityError(f"a keytab and a service's name need the SASL mechanism GSSAPI, not {self.mechanism or 'none'}")
        if bool(self.certificate_file) != bool(self.key_file):
            raise SecurityError("mutual TLS needs both a certificate's file and its key's file")
        if not self.tls and (self.ca_file or self.certificate_file):
            raise SecurityError(f"files for TLS need SSL or SASL_SSL, not {self.protocol}")

    def _check_oauth(self) -> None:
        if self.oauth is None:
            if self.mechanism == OAUTHBEARER:
                raise SecurityError("OAUTHBEARER needs the token endpoint, where the client gets its tokens")
            if self.issuer_ca_file:
                raise SecurityError(f"authorities of a token endpoint need OAUTHBEARER, not {self.mechanism or self.protocol}")
        elif self.mechanism != OAUTHBEARER:
            raise SecurityError(f"a token endpoint needs the SASL mechanism OAUTHBEARER, not {self.mechanism or 'none'}")
        elif self.tls and not self.oauth.token_endpoint.startswith("https:"):
            raise SecurityError(
                f"the token endpoint {self.oauth.token_endpoint!r} must begin with https: with {self.protocol}, or the client's"
                " secret goes over the network as plain text"
            )

    def _check_aws(self) -> None:
        if self.mechanism != AWS_MSK_IAM:
            if self.region:
                raise SecurityError(f"a region of AWS needs the SASL mechanism AWS_MSK_IAM, not {self.mechanism or 'none'}")
        elif self.protocol != "SASL_SSL":
            raise SecurityError(f"AWS_MSK_IAM needs SASL_SSL, not {self.protocol}")
        elif not _REGION.fullmatch(self.region):
            raise SecurityError(f"AWS_MSK_IAM needs the region of the brokers, such as eu-west-1, not {self.region!r}")

    @property
    def has_password(self) -> bool:
        """As that of `KafkaSecurity`."""
        return bool(self.password_file)

    @property
    def tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON has it; empty for a cluster without security."""
        default = Security()
        found = {name: value for name, value in asdict(self).items() if value != getattr(default, name)}
        if self.oauth is not None:
            found["oauth"] = {**found["oauth"], "extensions": dict(self.oauth.extensions)}
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Security:
        """What `as_dict` gave. Raises SecurityError, also for a name that it does not know."""
        if unknown := sorted(values.keys() - {field.name for field in fields(cls)}):
            raise SecurityError(f"unknown setting {unknown[0]!r} of Kafka's security")
        given = dict(values)
        if (oauth := given.get("oauth")) is not None:
            if unknown := sorted(oauth.keys() - {field.name for field in fields(OAuth)}):
                raise SecurityError(f"unknown setting {unknown[0]!r} of OAUTHBEARER")
            given["oauth"] = OAuth(**{**oauth, "extensions": tuple(sorted(oauth.get("extensions", {}).items()))})
        return cls(**given)
