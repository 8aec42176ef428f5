"""Authorizes scrapes: by the one token that the operator is configured with, if it is.

Asked by what serves `/metrics`, in the operator and in drivers, at every scrape, so that the token may be changed. Drivers are
given its digest only: a group's pods know who scrapes by right, and cannot scrape others. Decides nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

HEAD_WITHIN = 75.0
"""Seconds within which the head of the next request has to arrive whole, or the connection is closed; longer than between two
scrapes, mostly."""

REFUSAL = "metrics are shown to who sends the bearer token of metrics.tokenSecret of the chart\n"


class Scrapers:
    """`wanted` gives the digest of the token that is asked for; empty while there is none, and then every scrape is refused."""

    def __init__(self, wanted: Callable[[], str]) -> None:
        self._wanted = wanted

    def admits(self, authorization: str | None) -> bool:
        """Whether this header of a request carries the token."""
        scheme, _, token = (authorization or "").partition(" ")
        wanted = self._wanted()
        return bool(wanted) and scheme.lower() == "bearer" and hmac.compare_digest(digest(token.strip()), wanted)


def digest(token: str) -> str:
    """By what a token is known to who need not have it; empty for an empty one."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest() if token else ""


def token_in(path: Path) -> Callable[[], str]:
    """The digest of the token that a file has now."""
    return lambda: digest(_read(path))


def digest_in(path: Path) -> Callable[[], str]:
    """The digest that a file has now."""
    return lambda: _read(path)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        log.warning("nobody may scrape: the token, or its digest, cannot be read: %s", error)
        return ""
