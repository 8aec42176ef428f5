"""Plays what stands before the brokers of AWS MSK: TLS, and the mechanism AWS_MSK_IAM; a real broker answers everything else.

What a client has signed is judged by botocore's own signer, from nothing but the secret keys of accounts that are known here.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

HANDSHAKE, AUTHENTICATE = 17, 36
SASL_AUTHENTICATION_FAILED = 58


class Gateway:
    """Listens at `127.0.0.1:<port>` for the broker at `behind`. `accounts`: access key -> secret key and session token."""

    def __init__(
        self, keys: Path, port: int, behind: str, accounts: dict[str, tuple[str, str]], *, region: str, session_ms: int = 0
    ) -> None:
        self.accounts = accounts
        self.region = region
        self.session_ms = session_ms
        """For how long a client is believed; 0 is for ever."""
        self.messages: list[dict[str, str]] = []
        """What clients have sent to authenticate, in order."""
        self.accepted = 0
        host, _, number = behind.rpartition(":")
        self._behind = (host, int(number))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(keys / "broker.crt", keys / "broker.key")
        self._listener = socket.create_server(("127.0.0.1", port))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):  # Nobody may be at the other end any more.
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _listen(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            with self._context.wrap_socket(plain, server_side=True) as client, socket.create_connection(self._behind) as broker:
                self._sockets += [client, broker]
                self._talk(client, broker)
        except (OSError, EOFError):
            return

    def _talk(self, client: socket.socket, broker: socket.socket) -> None:
        """One request after the other; kafka-python may send several at once, which then wait here."""
        believed = False
        while True:
            request = _frame(client)
            key, version = int.from_bytes(request[:2]), int.from_bytes(request[2:4])
            correlation = int.from_bytes(request[4:8])
            if key == HANDSHAKE:
                answer: Any = SaslHandshakeResponse(error_code=0, mechanisms=["AWS_MSK_IAM"])
                SaslHandshakeRequest.decode(request, version=version, header=True)
            elif key == AUTHENTICATE:
                asked = SaslAuthenticateRequest.decode(request, version=version, header=True)
                message = json.loads(bytes(asked.auth_bytes))
                self.messages.append(message)
                why = self.judged(message)
                believed = why is None
                said = json.dumps({"version": message["version"], "request-id": "1"}).encode() if believed else b""
                answer = SaslAuthenticateResponse(
                    error_code=0 if believed else SASL_AUTHENTICATION_FAILED,
                    error_message=why,
                    auth_bytes=said,
                    session_lifetime_ms=self.session_ms,
                )
            else:
                if key != 18 and not believed:
                    return
                broker.sendall(len(request).to_bytes(4) + request)
                response = _frame(broker)
                client.sendall(len(response).to_bytes(4) + response)
                continue
            answer.API_VERSION = version
            answer.with_header(correlation_id=correlation)
            client.sendall(answer.encode(header=True, framed=True))

    def judged(self, message: dict[str, str]) -> str | None:
        """Why a client is not believed; None if it is."""
        account, _, scope = message["x-amz-credential"].partition("/")
        if account not in self.accounts:
            return "Access denied"
        secret, token = self.accounts[account]
        sent_at = datetime.strptime(message["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs(datetime.now(UTC) - sent_at) > timedelta(seconds=int(message["x-amz-expires"])):
            return "The request has expired"
        if (message["action"], message["host"], message.get("x-amz-security-token", "")) != (
            "kafka-cluster:Connect",
            "127.0.0.1",
            token,
        ):
            return "Access denied"
        query = {
            "Action": message["action"],
            "X-Amz-Algorithm": message["x-amz-algorithm"],
            "X-Amz-Credential": message["x-amz-credential"],
            "X-Amz-Date": message["x-amz-date"],
            "X-Amz-Expires": message["x-amz-expires"],
            **({"X-Amz-Security-Token": token} if token else {}),
            "X-Amz-SignedHeaders": message["x-amz-signedheaders"],
        }
        text = "&".join(f"{name}={quote(value, safe='-._~')}" for name, value in query.items())
        request = AWSRequest("GET", f"https://{message['host']}/?{text}", headers={"host": message["host"]})
        request.context["timestamp"] = message["x-amz-date"]
        signer = SigV4QueryAuth(Credentials(account, secret, token or None), "kafka-cluster", self.region, expires=900)
        if scope != "/".join(signer.scope(request).split("/")[1:]):
            return "Credential should be scoped to a valid region"
        wanted = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return None if hmac.compare_digest(wanted, message["x-amz-signature"]) else "Invalid signature"


def _frame(source: socket.socket) -> bytes:
    return _exactly(source, int.from_bytes(_exactly(source, 4)))


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if not (part := source.recv(count - len(found))):
            raise EOFError
        found += part
    return found
