"""Which namespaces match, and which groups are in one: page by page, as the API server says it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.namespaces import LabelledNamespaces
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError


class Pages:
    """An API server that answers these pages, each a list of names, and notes what it was asked."""

    def __init__(self, *pages: list[str]) -> None:
        self._pages = pages
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def acall(self, _method: str, path: str, *_: Any, query: dict[str, str], **__: Any) -> Any:
        self.asked.append((path, dict(query)))
        page = int(query.get("continue", "0"))
        metadata = {"resourceVersion": "7"} | ({"continue": str(page + 1)} if page + 1 < len(self._pages) else {})
        return {"metadata": metadata, "items": [{"metadata": {"name": name}} for name in self._pages[page]]}


class Refusing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def acall(self, *_: Any, **__: Any) -> Any:
        raise self._error


def namespaces(api: object) -> LabelledNamespaces:
    return LabelledNamespaces(cast(KubernetesApi, api), "team=red")


async def test_all_pages_of_those_that_match_are_read_with_the_version_at_which_they_did() -> None:
    pages = Pages(["shop", "web"], [], ["views"])
    assert await namespaces(pages).chosen() == (frozenset({"shop", "web", "views"}), 7)
    asked = {"limit": "50", "labelSelector": "team=red"}
    assert pages.asked == [("/api/v1/namespaces", asked | more) for more in ({}, {"continue": "1"}, {"continue": "2"})]


async def test_the_groups_of_a_namespace_are_read_by_name() -> None:
    pages = Pages(["clicks"], ["views"])
    assert await namespaces(pages).groups("shop") == ("clicks", "views")
    path = "/apis/shardherd.dev/v1alpha1/namespaces/shop/consumergroups"
    assert pages.asked == [(path, {"limit": "50"}), (path, {"limit": "50", "continue": "1"})]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (ApiError("no right", 403, "Forbidden"), ClusterRefusedError),
        (ApiError("the listing is too old", 410, "Expired"), ClusterUnavailableError),
        (ApiUnavailableError("no answer"), ClusterUnavailableError),
    ],
)
async def test_what_is_not_answered_is_told_apart_from_what_is_refused(error: Exception, meaning: type[Exception]) -> None:
    for call in (namespaces(Refusing(error)).chosen(), namespaces(Refusing(error)).groups("shop")):
        with pytest.raises(meaning, match=str(error)):
            await call
