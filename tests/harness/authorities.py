"""Authorities and serving certificates for tests, on this machine's address, and a server of TLS whose certificate changes."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from shardherd.adapters import certificates
from shardherd.adapters.certificates import AUTHORITY_KEYS, BUNDLE, Data
from shardherd.core.planning.certificates import Lifetimes

HOST = "127.0.0.1"


def secret(now: float | None = None, *, hosts: frozenset[str] = frozenset({HOST})) -> Data:
    """What the operator's Secret holds: a new authority, and a certificate for these hosts."""
    made = certificates.rotated({}, time.time() if now is None else now, hosts, Lifetimes())
    assert made is not None
    return made


def foreign(now: float | None = None) -> Data:
    """What somebody else's Secret holds: an authority without its key, and a certificate."""
    return {key: value for key, value in secret(now).items() if key != AUTHORITY_KEYS}


def write_bundle(file: Path, *secrets: Data) -> Path:
    """A file of these Secrets' authorities, put in place at once as the kubelet does."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(b"".join(data[BUNDLE] for data in secrets))
    fresh.replace(file)
    return file


class Switched:
    """A context to serve with, whose certificate is that of `data`."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = certificates.context(self.data)
