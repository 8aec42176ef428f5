"""Groups as custom resources, against an API server that a test plays."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from shardherd.client.groups import AsyncConsumerGroups, ConsumerGroup, ConsumerGroups
from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    ForbiddenError,
    InvalidRequestError,
    ShardherdError,
    UnauthenticatedError,
    UnknownGroupError,
)

BASE = "/apis/shardherd.dev/v1alpha1/namespaces/demo/consumergroups"
SPEC = {"source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}}, "ordered": True, "sessionTimeout": "20s"}
GROUP = ConsumerGroup("demo", "one", "uid-1", True, "20s", ("clicks",), SPEC)


class ApiServer(ThreadingHTTPServer):
    """Answers every request with `status` (a creation with 201 for 200) and `answer`, and notes them."""

    status = 200
    answer: Any = None
    requests: list[tuple[str, str, Any]]


class Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path, json.loads(body) if body else None))
        text = json.dumps(self.server.answer).encode()
        created = self.command == "POST" and self.server.status == 200
        self.send_response(201 if created else self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names are the library's

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the requests are noted."""


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer(("127.0.0.1", 0), Handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def groups(server: ApiServer) -> ConsumerGroups:
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    configuration.retries = False
    return ConsumerGroups(ApiClient(configuration))


def resource(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "demo", "name": name, "uid": "uid-1"}, "spec": SPEC | spec}


def test_a_group_is_created_as_its_resource(server: ApiServer, groups: ConsumerGroups) -> None:
    server.answer = resource()

    assert groups.create("demo", "one", SPEC) == GROUP
    assert server.requests == [
        (
            "POST",
            BASE,
            {
                "apiVersion": "shardherd.dev/v1alpha1",
                "kind": "ConsumerGroup",
                "metadata": {"name": "one", "namespace": "demo"},
                "spec": SPEC,
            },
        )
    ]


def test_groups_are_listed_by_name_with_order_and_timeout(server: ApiServer, groups: ConsumerGroups) -> None:
    other = {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["views"]}}
    server.answer = {"items": [resource("two", source=other), resource("one")]}

    assert [(group.name, group.ordered, group.session_timeout) for group in groups.list("demo")] == [
        ("one", True, "20s"),
        ("two", True, "20s"),
    ]
    assert [group.name for group in groups.list("demo", topic="clicks")] == ["one"]


def test_only_what_is_named_is_changed(server: ApiServer, groups: ConsumerGroups) -> None:
    server.answer = resource(ordered=False)

    assert not groups.update("demo", "one", ordered=False, spec={"paused": True}).ordered
    groups.update("demo", "one", session_timeout="30s")

    assert server.requests == [
        ("PATCH", f"{BASE}/one", {"spec": {"paused": True, "ordered": False}}),
        ("PATCH", f"{BASE}/one", {"spec": {"sessionTimeout": "30s"}}),
    ]


def test_a_group_is_deleted(server: ApiServer, groups: ConsumerGroups) -> None:
    groups.delete("demo", "one")

    assert server.requests == [("DELETE", f"{BASE}/one", None)]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthenticatedError),
        (403, ForbiddenError),
        (404, UnknownGroupError),
        (409, InvalidRequestError),
        (422, InvalidRequestError),
        (429, CoordinatorUnavailableError),
        (503, CoordinatorUnavailableError),
    ],
)
def test_a_refusal_has_a_stable_code_and_the_servers_words(
    server: ApiServer, groups: ConsumerGroups, status: int, kind: type[ShardherdError]
) -> None:
    server.status, server.answer = status, {"kind": "Status", "message": "spec.ordered: it must be a boolean"}

    with pytest.raises(kind) as refusal:
        groups.get("demo", "one")

    assert type(refusal.value) is kind
    assert refusal.value.message == (
        "the API server refuses this for ConsumerGroup demo/one: spec.ordered: it must be a boolean"
    )
    assert refusal.value.group == "demo/one"


def test_a_server_that_is_away_is_worth_another_try(groups: ConsumerGroups, server: ApiServer) -> None:
    server.shutdown()
    server.server_close()

    with pytest.raises(CoordinatorUnavailableError, match="the API server cannot be reached"):
        groups.get("demo", "one")


async def test_the_same_as_coroutines(server: ApiServer, groups: ConsumerGroups) -> None:
    server.answer = resource()
    later = AsyncConsumerGroups(groups._objects.api_client)

    assert await later.create("demo", "one", SPEC) == GROUP
    assert await later.update("demo", "one", ordered=True) == GROUP
    assert await later.get("demo", "one") == GROUP
    await later.delete("demo", "one")
    server.answer = {"items": [resource()]}
    assert await later.list("demo") == (GROUP,)
    assert [method for method, _, _ in server.requests] == ["POST", "PATCH", "GET", "DELETE", "GET"]
