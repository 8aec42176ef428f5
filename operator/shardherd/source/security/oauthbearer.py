"""Tokens for SASL OAUTHBEARER: a client's id and secret are exchanged for one at a token endpoint (RFC 6749, section 4.4).

Made by `credentials` for the connections of one cluster, and handed to kafka-python, which asks it at every authentication.
Tokens and secrets live in memory only; an error says what the endpoint said, never what was sent.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from shardherd.core.model.security import OAuth
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credential_keeper import Fresh, Keeper

TIMEOUT = 4.0
"""Seconds that the endpoint may be silent."""

MOST_BYTES = 256 * 1024

ASSUMED_LIFE = 300.0
"""Seconds that a token is taken to be good for if neither the endpoint nor the token itself says it."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The client's secret is for the endpoint that was named."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def client_credentials(oauth: OAuth, client: str, secret: str, context: ssl.SSLContext | None) -> Fresh[str]:
    """A new token. Raises CredentialsError, which names the endpoint and what it said."""
    form = {"grant_type": "client_credentials"} | ({"scope": oauth.scope} if oauth.scope else {})
    user = ":".join(urllib.parse.quote_plus(each) for each in (client, secret))
    request = urllib.request.Request(
        oauth.token_endpoint,
        urllib.parse.urlencode(form).encode(),
        {
            "Authorization": "Basic " + base64.b64encode(user.encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        },
    )
    handlers = [_NoRedirects()] if context is None else [_NoRedirects(), urllib.request.HTTPSHandler(context=context)]
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT) as reply:
            answer = _object(reply.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise _failed(oauth, _refusal(error, secret)) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _failed(oauth, f"{reason}: check that it can be reached from this pod") from error
    token = answer.get("access_token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise _failed(oauth, "its answer has no access_token: check that it is the token endpoint of the issuer")
    if str(answer.get("token_type", "Bearer")).lower() != "bearer":
        raise _failed(oauth, "its token is of another type than Bearer")
    return Fresh(token, _life(answer.get("expires_in"), token))


def _failed(oauth: OAuth, why: str) -> CredentialsError:
    return CredentialsError(f"no token from {oauth.token_endpoint.partition('?')[0]}: {why}")


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(error: urllib.error.HTTPError, secret: str) -> str:
    """What the endpoint said of itself, as far as it is fit for a message."""
    try:
        answer = _object(error.read(MOST_BYTES))
    except (OSError, http.client.HTTPException):
        answer = {}
    words = [str(answer[name]) for name in ("error", "error_description") if isinstance(answer.get(name), str)]
    text = " ".join("".join(each if each.isprintable() else " " for each in word) for word in words)[:300]
    if secret:
        text = text.replace(secret, "***")
    remedy = "check the client's id and secret, and the scope" if error.code in (400, 401, 403) else "it may be better soon"
    return f"HTTP {error.code}{f' ({text})' if text else ''}: {remedy}"


def _life(said: object, token: str) -> float:
    """For how many seconds a token is good: as the endpoint says, or else the token itself."""
    if isinstance(said, str) and said.isascii() and said.isdigit():
        said = int(said)
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said)
    parts = token.split(".")
    if len(parts) == 3:
        try:
            claims = _object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (binascii.Error, ValueError):
            claims = {}
        if isinstance(expires := claims.get("exp"), int | float):
            return expires - time.time()
    return ASSUMED_LIFE


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's provider of tokens; `fetch` gets a new one."""

    def __init__(self, oauth: OAuth, fetch: Callable[[], Fresh[str]]) -> None:
        self.keeper = Keeper(fetch)
        self._extensions = dict(oauth.extensions)

    def token(self) -> str:
        """The token of now, at once. Raises CredentialsError."""
        return self.keeper.current()

    def extensions(self) -> dict[str, str]:
        return self._extensions
