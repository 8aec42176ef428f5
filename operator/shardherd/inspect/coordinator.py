"""Asks the coordinator for its view of a group, for whoever has a token that it believes. Reads only, and decides nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3

from shardherd import protocol
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.nouns import GroupIdentity, GroupView
from shardherd.inspect.observed import InspectError

TIMEOUT = 10.0
"""Seconds for an answer."""

_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The API at `url`, called with the token in `token_file`, and believed by the authorities in `ca_file` under `name`."""

    url: str
    token_file: Path
    ca_file: Path | None = None
    name: str = ""

    def view(self, group: GroupIdentity) -> GroupView:
        """Its view of this group. Raises InspectError."""
        path = f"/v1/namespaces/{group.namespace}/consumergroups/{group.name}"
        try:
            token = self.token_file.read_text().strip()
        except OSError as error:
            raise InspectError(f"--token-file {self.token_file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            token = ""
        if not _TOKEN.fullmatch(token):
            # Nothing of what stands there is shown: it may be a secret all the same.
            raise InspectError(f"--token-file {self.token_file} has no token: one line without spaces is expected")
        if not self.private:
            raise InspectError(f"--api is {self.url}: a token is sent over https only, or to this machine (localhost)", 2)
        headers = {"Authorization": f"Bearer {token}", protocol.PROTOCOL_HEADER: str(protocol.PROTOCOL_VERSION)}
        status, body = self._get(path, headers)
        if status != 200:
            refusal = protocol.load_error(status, body)
            raise InspectError(f"the coordinator at {self.url} refuses ({status} {refusal.code}): {refusal.message}")
        try:
            return protocol.loads(GroupView, body)
        except InvalidRequestError as error:
            raise InspectError(f"the coordinator at {self.url} gave an answer that is none: {error.message}") from error

    @property
    def private(self) -> bool:
        """Whether nobody on the way reads what is sent: it is encrypted, or does not leave this machine."""
        parts = urlsplit(self.url)
        return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")

    def health(self) -> str:
        """What it says of itself: `ok` if it leads and has loaded its groups. Raises InspectError."""
        return self._get("/readyz", {})[1].decode(errors="replace").strip()

    def _get(self, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        options: dict[str, Any] = {}
        if urlsplit(self.url).scheme == "https":
            # What a tunnel ends at has another name than what is at its other end.
            options |= {"server_hostname": self.name, "assert_hostname": self.name} if self.name else {}
            options |= {"ca_certs": str(self.ca_file)} if self.ca_file is not None else {}
        pool = urllib3.PoolManager(retries=False, timeout=TIMEOUT, **options)
        try:
            with pool:
                answer = pool.request("GET", f"{self.url.rstrip('/')}{path}", headers=headers, redirect=False)
                return answer.status, answer.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise InspectError(
                f"the coordinator does not answer at {self.url}: {error}; check --api, --ca-file and --api-name, and whether"
                " the tunnel is open"
            ) from error
