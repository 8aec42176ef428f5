"""Clients of Kinesis: botocore's own, for one stream, with the access keys of a mounted Secret or the identity of the pod.

Whoever reads Kinesis or asks it about shards gets its client here. It tries nothing again: who calls knows what may be.
botocore is imported when the first client is made, so that images that read no Kinesis need not have it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

CONNECTIONS = 16
"""Connections that one client keeps open: as many as it is asked by at once."""

GONE = frozenset({"ResourceNotFoundException"})
EXPIRED = frozenset({"ExpiredIteratorException"})
INVALID_NUMBER = frozenset({"InvalidArgumentException"})
THROTTLED = frozenset({
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "KMSThrottlingException",
    "ThrottlingException",
    "Throttling",
    "RequestLimitExceeded",
})  # fmt: skip
"""The stream, or our account, is asked too often: the same question is answered later."""

TRANSIENT = THROTTLED | {
    "InternalFailure",
    "InternalFailureException",
    "RequestTimeout",
    "ResourceInUseException",  # The stream is being made, or its shards are being split or merged.
    "ServiceUnavailable",
}
STALE_CREDENTIALS = frozenset({"ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException", "InvalidClientTokenId"})
"""Refusals that new access keys may end."""


class KinesisUnavailableError(Exception):
    """Kinesis does not answer, or is asked too often: the same question may be answered later. Says what it said."""


class KinesisRefusedError(Exception):
    """Kinesis refuses: no such stream, no right, a wrong setting. Names the operation and the remedy."""


class _StaleCredentialsError(Exception):
    """Access keys were refused; they may have been replaced."""


class AccessKeys(NamedTuple):
    """An access key of AWS. `session_token` belongs to those of a role."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""


@dataclass(frozen=True, slots=True)
class StreamAccess:
    """Which stream, and how it is reached. `stream` is a name, or an ARN; `endpoint` a URL in place of AWS's own.

    `keys` gives the access key of now; without it AWS finds who this pod is.
    """

    stream: str
    region: str
    endpoint: str = ""
    keys: Callable[[], AccessKeys | None] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.rpartition("/")[2]


def keys_in(folder: str) -> Callable[[], AccessKeys]:
    """Reads the access key that a Secret has in this folder, anew each time. It raises KinesisRefusedError."""

    def read() -> AccessKeys:
        try:
            token = Path(folder, "sessionToken")
            return AccessKeys(
                Path(folder, "accessKeyId").read_text().strip(),
                Path(folder, "secretAccessKey").read_text().strip(),
                token.read_text().strip() if token.exists() else "",
            )
        except (OSError, UnicodeDecodeError) as error:
            raise KinesisRefusedError(
                f"no access key in {folder}: {error}; its files are accessKeyId, secretAccessKey and, for a role, sessionToken"
            ) from error

    return read


def stream_argument(stream: str) -> dict[str, str]:
    """How a call names the stream."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def open_client(access: StreamAccess, *, timeout: float = 5.0) -> Any:
    """botocore's client. Threads may share it. Raises KinesisRefusedError."""
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise KinesisRefusedError("Kinesis needs the Python package botocore: build the image with EXTRAS=aws") from error
    keys = None if access.keys is None else access.keys()
    if keys is None and access.keys is not None:
        # Without keys botocore would go on as whoever this process is at AWS: that is not what was declared.
        raise KinesisRefusedError(f"the access key for {access.stream} may not be used any more: see the Secret that has it")
    try:
        session = Session()
        session.register_component("data_loader", _loader())
        if keys is not None:
            session.set_credentials(keys.access_key_id, keys.secret_access_key, keys.session_token or None)
        config = Config(
            connect_timeout=timeout,
            read_timeout=timeout,
            max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        return session.create_client("kinesis", access.region, endpoint_url=access.endpoint or None, config=config)
    except (BotoCoreError, ValueError) as error:
        raise KinesisRefusedError(f"cannot make a client of Kinesis in region {access.region!r}: {error}") from error


@functools.cache
def _loader() -> Any:
    """What botocore reads its description of Kinesis with: once a process, it takes longer than all the rest."""
    from botocore.loaders import create_loader

    return create_loader()


def code_of(error: BaseException) -> str:
    """The code of an error that Kinesis answered, empty if it did not answer."""
    response = getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(response, dict) and "Error" in response else ""


class Kinesis:
    """Calls one stream, with a new client once access keys are refused that are stale, or other ones by now. Threads may share
    it."""

    def __init__(self, access: StreamAccess, *, timeout: float = 20.0, client: Any = None) -> None:
        self.access = access
        self._timeout = timeout
        self._client = client
        self._keys: AccessKeys | None = None
        """Those that the client has."""

    @property
    def client(self) -> Any:
        if self._client is None:
            keys = self._keys = None if self.access.keys is None else self.access.keys()
            given = None if self.access.keys is None else lambda: keys
            self._client = open_client(replace(self.access, keys=given), timeout=self._timeout)
        return self._client

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one call (`get_records`). Raises KinesisUnavailableError, KinesisRefusedError.

        botocore's ClientError comes as it is where its code is one of EXPIRED, GONE, INVALID_NUMBER or THROTTLED.
        """
        try:
            return self._asked(operation, arguments)
        except Exception as error:
            refused = isinstance(error, KinesisRefusedError) or code_of(error) in GONE
            if not isinstance(error, _StaleCredentialsError) and not (refused and self._were_replaced()):
                raise
            self._client = None  # made anew, it reads the access keys again
        try:
            return self._asked(operation, arguments)
        except _StaleCredentialsError as error:
            raise self._refused(operation, error) from error.__cause__

    def _were_replaced(self) -> bool:
        """Whether the access keys are others by now: what these were refused, the new ones may be allowed."""
        try:
            return self.access.keys is not None and self.access.keys() != self._keys
        except KinesisRefusedError:
            return False

    def _asked(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )
        from botocore.parsers import ResponseParserError

        try:
            answer: dict[str, Any] = getattr(self.client, operation)(**arguments)
            return answer
        except ClientError as error:
            code = code_of(error)
            if code in EXPIRED | GONE | INVALID_NUMBER | THROTTLED:
                raise
            if code in STALE_CREDENTIALS:
                raise _StaleCredentialsError(str(error)) from error
            if code in TRANSIENT or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                raise KinesisUnavailableError(f"Kinesis cannot answer {operation} of {self.access.stream}: {error}") from error
            raise self._refused(operation, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            self._client = None
            raise KinesisRefusedError(
                f"AWS knows no identity of this process ({error}): give the pod's service account a role, or give access keys"
            ) from error
        except (HTTPClientError, ConnectionError, ResponseParserError, OSError) as error:
            raise KinesisUnavailableError(f"Kinesis does not answer {operation} of {self.access.stream}: {error}") from error
        except BotoCoreError as error:
            raise KinesisRefusedError(f"{operation} of {self.access.stream} cannot be asked: {error}") from error

    def _refused(self, operation: str, error: Exception) -> KinesisRefusedError:
        return KinesisRefusedError(
            f"Kinesis refuses {operation} of {self.access.stream} in {self.access.region}: {error}; check the stream's name, "
            "the region, and what the policy of this identity allows"
        )
