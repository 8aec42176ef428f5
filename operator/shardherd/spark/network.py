"""Authentication and encryption of Spark's own connections between a driver and its executors: a secret for each run.

Decides the settings of authentication and encryption; `application` and `alone` add them to a session's. Spark itself draws the
secret, for every start of a driver anew, and hands it to the executors that it makes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

AUTHENTICATE = "spark.authenticate"
ENCRYPT = "spark.network.crypto.enabled"
TLS = "spark.ssl.rpc.enabled"

ENCRYPTION = {
    ENCRYPT: "true",
    # Its default, CTR, would not notice what was changed on the way.
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    # Version 1 takes the keys from the exchange of keys as they are.
    "spark.network.crypto.authEngineVersion": "2",
    # Who has the secret could otherwise ask for a connection in plain text.
    "spark.network.crypto.saslFallback": "false",
}

_DRAWN_BY_SPARK = re.compile(r"local|local\[.*\]|k8s://.*|yarn")


def guarded(settings: Mapping[str, str]) -> dict[str, str]:
    """A session's settings with those that close Spark's own connections to strangers; what `settings` say of it wins.

    Under other masters (`spark://`, `local-cluster`) Spark draws no secret and does not start without one: they get nothing
    that the user did not ask for.
    """
    if not _is_on(settings, AUTHENTICATE, default=_DRAWN_BY_SPARK.fullmatch(settings["spark.master"]) is not None):
        return dict(settings)
    found = {AUTHENTICATE: "true"}
    # TLS of the user's takes its place; without either, Spark needs the fallback that encryption closes.
    if _is_on(settings, ENCRYPT, default=not _is_on(settings, TLS, default=False)):
        found |= ENCRYPTION
    return {**found, **settings}


def _is_on(settings: Mapping[str, str], name: str, *, default: bool) -> bool:
    return settings[name].strip().lower() == "true" if name in settings else default
