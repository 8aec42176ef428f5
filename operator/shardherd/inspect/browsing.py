"""Serves the operator's page to this machine: its document comes through the API server, with the rights of the user.

Called by `commands`. Only this one document is asked for, with GET, and only on the loopback address is anything served; the
page's files are those of this program. So nobody is let further than the user may go, and not there but to look. Decides
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError
from shardherd.inspect.observed import InspectError
from shardherd.page.serving import DOCUMENT, LOOPBACK, PageServer, PageUnavailableError, Wanted


class Api(Protocol):
    """As much of an API server as is called."""

    def call(self, method: str, path: str, *, decode: bool) -> Any: ...


@dataclass(frozen=True, slots=True)
class Through:
    """Asks for documents by the API server's proxy to the page's Service."""

    api: Api
    namespace: str
    release: str
    port: int

    def __call__(self, wanted: Wanted) -> bytes:
        """The document. Raises PageUnavailableError."""
        service = f"http:{self.release}-page:{self.port}"
        query = "" if wanted is None else f"?group={quote('/'.join(wanted))}"
        path = f"/api/v1/namespaces/{self.namespace}/services/{service}/proxy/{DOCUMENT}{query}"
        try:
            found: bytes = self.api.call("GET", path, decode=False)
        except ApiUnavailableError as error:
            raise PageUnavailableError(f"The API server does not answer: {error}.") from error
        except ApiError as error:
            raise PageUnavailableError(self._refusal(error, service)) from error
        return found

    def _refusal(self, error: ApiError, service: str) -> str:
        if error.status == 404:
            where = f"no Service {self.release}-page in {self.namespace}"
            return f"There is {where}: set page.enabled of the chart, or say by --operator-namespace and --release where it is."
        if error.status in (401, 403):
            return (
                f"You may not look at the page ({error}): ask for the role `{self.release}-page` in {self.namespace}, which may"
                f" get services/proxy of {service}; page.enabled of the chart makes it."
            )
        if error.status == 503:
            return (
                f"The API server does not reach the page ({error}): no operator leads now, or networkPolicy.pageFrom of the"
                " chart does not let it in."
            )
        return f"The API server refuses: {error}."


@contextmanager
def served(through: Through, port: int) -> Iterator[str]:
    """Serve until the block ends; gives the address. Raises InspectError, also if the page cannot be had at the beginning."""
    try:
        through(None)
        server = PageServer(port, through, "127.0.0.1", LOOPBACK)
    except PageUnavailableError as error:
        raise InspectError(str(error)) from error
    except OSError as error:
        raise InspectError(f"--port {port} cannot be served: {error.strerror}; name another") from error
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.close()


def until_interrupted() -> None:
    """Wait for Ctrl-C."""
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def local_address(state: Path) -> str:
    """Where the operator of this state folder serves its page. Raises InspectError."""
    from shardherd.adapters.local.database import DatabaseError
    from shardherd.adapters.local.identity import holder
    from shardherd.local.operator import HOST, PAGE
    from shardherd.local.state import State, StateError

    try:
        there = State(state).there()
        port = there.objects().database.fact(PAGE)
    except (StateError, DatabaseError) as error:
        raise InspectError(str(error)) from error
    if port is None or holder(there.lock) is None:
        raise InspectError(f"no operator runs on {there.folder}: start it by `shardherd local up`")
    return f"http://{HOST}:{port}/"
