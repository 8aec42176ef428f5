"""Which call a request is: by its method, and by a path of which some parts are names."""

from __future__ import annotations

import pytest
from aiohttp import web

from shardherd.coordinator.routes import Handler, Routes


def handler(name: str) -> Handler:
    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError(f"{name} is found, not called")

    return answer


GROUP, SHARDS, SHARD, BEAT, HEALTH = (handler(name) for name in ("group", "shards", "shard", "beat", "health"))
ROUTES = Routes(
    [
        ("GET", "/v1/groups/{name}", GROUP),
        ("GET", "/v1/groups/{name}/shards", SHARDS),
        ("GET", "/v1/groups/{name}/shards/{topic}/{partition}", SHARD),
        ("POST", "/v1/groups/{name}/heartbeat", BEAT),
        ("GET", "/healthz", HEALTH),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "/healthz", (HEALTH, {})),
        ("GET", "/v1/groups/clicks", (GROUP, {"name": "clicks"})),
        ("GET", "/v1/groups/shards", (GROUP, {"name": "shards"})),
        ("GET", "/v1/groups/clicks/shards", (SHARDS, {"name": "clicks"})),
        ("POST", "/v1/groups/clicks/heartbeat", (BEAT, {"name": "clicks"})),
        ("GET", "/v1/groups/a/shards/t/9", (SHARD, {"name": "a", "topic": "t", "partition": "9"})),
        ("GET", "/v1/groups/a%2Fb/shards/ü/%252F", (SHARD, {"name": "a/b", "topic": "ü", "partition": "%2F"})),
    ],
)
def test_a_call_is_found_by_its_path_with_what_the_path_names(
    method: str, path: str, found: tuple[Handler, dict[str, str]]
) -> None:
    assert ROUTES.find(method, path) == found


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "healthz",
        "/healthz/",
        "//healthz",
        "/health%7A",
        "/v1/groups",
        "/v1/groups/",
        "/v1/groups//shards",
        "/v2/groups/clicks",
        "/v1/groups/clicks/",
        "/v1/groups/clicks/shards/t",
        "/v1/groups/clicks/shards/t/9/x",
        "/v1/groups/clicks/{name}",
    ],
)
def test_a_path_of_no_call_is_not_found(path: str) -> None:
    with pytest.raises(web.HTTPNotFound):
        ROUTES.find("GET", path)


def test_a_call_by_another_method_is_told_which_there_are() -> None:
    with pytest.raises(web.HTTPMethodNotAllowed) as refused:
        ROUTES.find("GET", "/v1/groups/clicks/heartbeat")
    assert refused.value.allowed_methods == {"POST"}


def test_paths_of_one_length_that_are_named_in_different_places_are_refused() -> None:
    with pytest.raises(ValueError, match=r"/v1/\{kind\}/clicks has its names elsewhere"):
        Routes([("GET", "/v1/groups/{name}", GROUP), ("GET", "/v1/{kind}/clicks", GROUP)])
