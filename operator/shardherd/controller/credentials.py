"""How a pod gets a group's credentials for Kafka or Kinesis: one volume of the Secrets' keys, and where to find them.

Called by `manifests`, for drivers and executors alike. The kubelet renews the files when a Secret changes, so nothing restarts.
Pure; no value of a Secret is seen here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardherd.controller.declared import kinesis_secret
from shardherd.core.model.security import NO_SECURITY, KafkaSecurity, SecretKey, Security

VOLUME = "kafka-credentials"
FOLDER = "/var/run/secrets/shardherd-kafka"
MODE = 0o440

ENVIRONMENT = "SHARDHERD_KAFKA_SECURITY"


def _files(security: KafkaSecurity) -> dict[str, SecretKey]:
    """File name -> which key of which Secret it holds."""
    files = {
        "username": security.username_key,
        "password": security.password_key,
        "ca.crt": security.ca_key,
        "tls.crt": security.certificate_key,
        "tls.key": security.private_key,
        "issuer-ca.crt": security.issuer_ca_key,
        "keytab": security.keytab_key,
    }
    return {name: key for name, key in files.items() if key is not None}


KINESIS_FOLDER = "/var/run/secrets/shardherd-kinesis"
KINESIS_VOLUME = "kinesis-credentials"


def volumes_of(source: Mapping[str, Any], security: KafkaSecurity) -> list[dict[str, Any]]:
    """The volumes of a source's Secrets, if any is used."""
    secret = kinesis_secret(source.get("kinesis", {}))
    if not secret:
        files = [
            {"secret": {"name": key.name, "items": [{"key": key.key, "path": file}]}} for file, key in _files(security).items()
        ]
        return [{"name": VOLUME, "projected": {"defaultMode": MODE, "sources": files}}] if files else []
    # Only the key of a role has a token.
    sources = [
        {"secret": {"name": secret, "items": [{"key": key, "path": key} for key in ("accessKeyId", "secretAccessKey")]}},
        {"secret": {"name": secret, "items": [{"key": "sessionToken", "path": "sessionToken"}], "optional": True}},
    ]
    return [{"name": KINESIS_VOLUME, "projected": {"defaultMode": MODE, "sources": sources}}]


def mounts_of(source: Mapping[str, Any], security: KafkaSecurity) -> list[dict[str, Any]]:
    """Where a container has them."""
    if not kinesis_secret(source.get("kinesis", {})):
        return [{"name": VOLUME, "mountPath": FOLDER, "readOnly": True}] if _files(security) else []
    return [{"name": KINESIS_VOLUME, "mountPath": KINESIS_FOLDER, "readOnly": True}]


def kinesis_environment(source: Mapping[str, Any]) -> dict[str, str]:
    """Where an access key of AWS is, if one is declared."""
    return {"SHARDHERD_KINESIS_CREDENTIALS": KINESIS_FOLDER} if kinesis_secret(source.get("kinesis", {})) else {}


def environment(security: KafkaSecurity) -> dict[str, str]:
    """The application's environment: how to authenticate, and with which files. Nothing for a cluster without security."""
    if security == NO_SECURITY:
        return {}
    files = _files(security)

    def path(name: str) -> str:
        return f"{FOLDER}/{name}" if name in files else ""

    security_files = Security(
        protocol=security.protocol,
        mechanism=security.mechanism,
        username=security.username,
        username_file=path("username"),
        password_file=path("password"),
        ca_file=path("ca.crt"),
        certificate_file=path("tls.crt"),
        key_file=path("tls.key"),
        verify_hostname=security.verify_hostname,
        oauth=security.oauth,
        issuer_ca_file=path("issuer-ca.crt"),
        region=security.region,
        keytab_file=path("keytab"),
        service=security.service,
    )
    return {ENVIRONMENT: json.dumps(security_files.as_dict(), sort_keys=True, separators=(",", ":"))}
