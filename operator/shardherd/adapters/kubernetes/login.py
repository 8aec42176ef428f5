"""Gives Kopf the address and the credentials that the other adapters use. Called by `cli`. Decides nothing."""

from __future__ import annotations

import kopf
from kubernetes.client.configuration import Configuration


def connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """The same API server with the same identity. A token of a service account is read anew at each call."""
    header: str = configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
