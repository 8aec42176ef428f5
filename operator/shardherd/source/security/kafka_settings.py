"""Kafka's client settings as the options `kafka.<name>` give them, under Kafka's own names where it has one.

`options` checks the names and turns them into `Security`, which has no secret in it, only the names of files. It opens no
connection and reads no file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.core.model.security import MECHANISMS, PROTOCOLS, OAuth, Security, SecurityError


class KafkaSettingError(ValueError):
    """A Kafka setting that cannot be used. Names the option, its value (unless it may be secret) and the remedy."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name without `kafka.`, what it does here, and which part of `Security` it is."""

    name: str
    meaning: str
    part: str


ISOLATION_LEVELS = {"read_uncommitted": False, "read_committed": True}
"""Whether only committed records are read, by the name of the isolation level."""

SETTINGS = (
    Setting("bootstrap.servers", "Brokers to begin with, `host:port` separated by commas.", ""),
    Setting("security.protocol", f"{', '.join(f'`{each}`' for each in PROTOCOLS)}.", "protocol"),
    Setting("ssl.truststore.location", "A file of PEM certificates that have signed the brokers' own.", "ca_file"),
    Setting("ssl.truststore.type", "Only `PEM`.", ""),
    Setting(
        "ssl.keystore.location",
        "A PEM file with this client's certificate and its key.",
        "certificate_file",
    ),
    Setting("ssl.keystore.type", "Only `PEM`.", ""),
    Setting(
        "ssl.key.location", "A PEM file with the key, where it is not with the certificate; without a passphrase.", "key_file"
    ),
    Setting("ssl.endpoint.identification.algorithm", "`https`, or empty to check no host name.", "verify_hostname"),
    Setting("sasl.mechanism", f"{', '.join(f'`{each}`' for each in MECHANISMS)}.", "mechanism"),
    Setting(
        "sasl.username",
        "The user's name; a client's id, an access key's id or a principal, as the mechanism has it.",
        "username",
    ),
    Setting("sasl.username.file", "A file with the user's name, in its place.", "username_file"),
    Setting(
        "sasl.password.file", "A file with the password, or the secret of the client or of the access key.", "password_file"
    ),
    Setting(
        "sasl.oauthbearer.token.endpoint.url",
        "Where the client gets its tokens, by the grant `client_credentials`; `https:` with `SASL_SSL`.",
        "oauth.token_endpoint",
    ),
    Setting("sasl.oauthbearer.scope", "The scope to ask for.", "oauth.scope"),
    Setting(
        "sasl.oauthbearer.extensions",
        "What the brokers want beside the token, `name=value` separated by commas.",
        "oauth.extensions",
    ),
    Setting("sasl.kerberos.keytab", "For `GSSAPI`: a file with the keytab of the principal.", "keytab_file"),
    Setting(
        "sasl.kerberos.service.name", "For `GSSAPI`: the first part of the brokers' principals; by default `kafka`.", "service"
    ),
    Setting("sasl.aws.region", "For `AWS_MSK_IAM`: the brokers' region, such as `eu-west-1`.", "region"),
    Setting("https.ca.location", "A file of PEM certificates that have signed the token endpoint's own.", "issuer_ca_file"),
)
"""Every setting that has a meaning here. Files are read by whoever connects, on the driver and on every executor."""

_IN_A_FILE = (
    "a password among a query's options is shown in Spark's plans; give kafka.sasl.username, and kafka.sasl.password.file "
    "with the path of a file that has the password"
)
_NO_CLASS = "no Java class is called on this way"
_BY_ITSELF = "connections are kept and tried again by themselves"

MEANINGLESS = {
    "group.id": "the offsets of every micro-batch are in Spark's own checkpoint, and no Kafka group is joined",
    "auto.offset.reset": "use the option startingOffsets",
    "key.deserializer": "keys are binary; cast the column",
    "value.deserializer": "values are binary; cast the column",
    "enable.auto.commit": "offsets are kept in Spark's own checkpoint",
    "interceptor.classes": _NO_CLASS,
    "sasl.jaas.config": _IN_A_FILE,
    "sasl.password": _IN_A_FILE,
    "sasl.login.callback.handler.class": _NO_CLASS,
    "sasl.client.callback.handler.class": _NO_CLASS,
    "sasl.oauthbearer.jwt.retriever.class": _NO_CLASS,
    "sasl.oauthbearer.client.credentials.client.id": "give kafka.sasl.username, or kafka.sasl.username.file",
    "sasl.oauthbearer.client.credentials.client.secret": _IN_A_FILE,
    "ssl.key.password": "give kafka.ssl.key.location a key without a passphrase",
    "ssl.keystore.password": "only PEM files are read: convert the store, for example by keytool and openssl pkcs12",
    "ssl.truststore.password": "only PEM files are read: convert the store, for example by keytool -exportcert -rfc",
    "request.timeout.ms": _BY_ITSELF,
    "session.timeout.ms": "no Kafka group is joined",
    "max.poll.records": "use maxOffsetsPerTrigger to bound a micro-batch",
}
"""Settings of Kafka's consumer that cannot have an effect, and what does instead."""


def check(name: str) -> None:
    """Whether `kafka.<name>` is a setting of ours. Raises KafkaSettingError, with the nearest one."""
    known = [each.name for each in SETTINGS]
    if name in MEANINGLESS:
        raise KafkaSettingError(f"option kafka.{name} has no meaning here: {MEANINGLESS[name]}; remove it")
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean kafka.{near[0]}?" if near else f"; the settings are {', '.join(known)}"
        raise KafkaSettingError(f"option kafka.{name} is none of the Kafka settings that have a meaning here{hint}")


def security_of(settings: Mapping[str, str]) -> Security:
    """How to connect. Raises KafkaSettingError."""
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if settings.get(name, "PEM").upper() != "PEM":
            raise KafkaSettingError(f"option kafka.{name} must be PEM, not {settings[name]!r}: convert the store")
    parts: dict[str, Any] = {each.part: settings[each.name] for each in SETTINGS if each.part and each.name in settings}
    for part in ("protocol", "mechanism"):
        if part in parts:
            parts[part] = parts[part].upper()
    if "certificate_file" in parts:
        parts.setdefault("key_file", parts["certificate_file"])
    if (names := parts.get("verify_hostname")) is not None:
        if names.lower() not in ("", "https"):
            raise KafkaSettingError(
                f"option kafka.ssl.endpoint.identification.algorithm must be https, or empty for any host name, not {names!r}"
            )
        parts["verify_hostname"] = names != ""
    try:
        if oauth := {part.removeprefix("oauth."): parts.pop(part) for part in sorted(parts) if part.startswith("oauth.")}:
            parts["oauth"] = _oauth(oauth)
        return Security(**parts)
    except SecurityError as error:
        options = ", ".join(f"kafka.{each.name}" for each in SETTINGS if each.part and each.name in settings)
        raise KafkaSettingError(f"options {options}: {error}") from error


def _oauth(parts: Mapping[str, str]) -> OAuth:
    extensions = []
    for each in filter(None, (each.strip() for each in parts.get("extensions", "").split(","))):
        name, equals, value = each.partition("=")
        if not equals:
            raise KafkaSettingError(
                f"option kafka.sasl.oauthbearer.extensions must be name=value, separated by commas, not {each!r}"
            )
        extensions.append((name, value))
    return OAuth(parts.get("token_endpoint", ""), parts.get("scope", ""), tuple(sorted(extensions)))
