"""Which answers of the API server mean that a call may succeed later, and how often it is asked. It is played."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.cluster import KubernetesCluster
from shardherd.adapters.kubernetes.seen import Seen
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError

SERVICE = {"kind": "Service", "metadata": {"namespace": "shop", "name": "clicks"}}


class RefusingApi:
    """Answers every call with this error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def acall(self, *_: Any, **__: Any) -> Any:
        raise self._error


def refusing(error: Exception) -> KubernetesCluster:
    return KubernetesCluster(cast(KubernetesApi, RefusingApi(error)))


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
async def test_what_may_succeed_later_is_no_refusal(status: int) -> None:
    with pytest.raises(ClusterUnavailableError, match="ask again"):
        await refusing(ApiError("ask again", status, "Whatever")).apply(SERVICE)


async def test_no_answer_is_no_refusal() -> None:
    with pytest.raises(ClusterUnavailableError, match="no answer"):
        await refusing(ApiUnavailableError("no answer")).apply(SERVICE)


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_what_will_not_succeed_by_waiting_is_a_refusal(status: int) -> None:
    with pytest.raises(ClusterRefusedError, match="never"):
        await refusing(ApiError("never", status, "Whatever")).apply(SERVICE)


@pytest.mark.parametrize("status", [404, 409])
async def test_a_pod_that_is_gone_or_another_one_need_not_be_deleted(status: int) -> None:
    await refusing(ApiError("not this one", status, "Whatever")).delete_pod("shop", "clicks-0", "uid-1")


class Events:
    """An API server whose answers take so many seconds, and the time."""

    def __init__(self, takes: float) -> None:
        self.now, self.asked, self._takes = 100.0, 0, takes

    def monotonic(self) -> float:
        return self.now

    async def acall(self, _method: str, _path: str, *_: Any, **__: Any) -> Any:
        self.asked += 1
        self.now += self._takes
        event = {"involvedObject": {"uid": "set"}, "reason": "FailedCreate", "message": "exceeded quota"}
        return {"items": [event]}


@pytest.mark.parametrize(("takes", "serve"), [(0.01, 4.0), (0.2, 10.0)], ids=["few Events", "very many"])
async def test_the_warnings_of_a_namespace_serve_for_longer_the_longer_it_takes_to_find_them(
    takes: float, serve: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events(takes)
    monkeypatch.setattr("shardherd.adapters.kubernetes.cluster.time", events)
    cluster = KubernetesCluster(cast(KubernetesApi, events))
    waiting = {"metadata": {"uid": "set"}, "spec": {"replicas": 2}}
    told = (("FailedCreate", "exceeded quota"),)
    assert await cluster._warnings("shop", waiting, ()) == told

    events.now += serve - 0.001
    assert (await cluster._warnings("shop", waiting, ()), events.asked) == (told, 1)
    events.now += 0.002
    assert (await cluster._warnings("shop", waiting, ()), events.asked) == (told, 2)


class Nothing:
    """An API server that has nothing, and the time. `listed` counts the listings of all groups."""

    def __init__(self) -> None:
        self.now, self.listed = 1000.0, 0

    def monotonic(self) -> float:
        return self.now

    async def acall(self, method: str, path: str, *_: Any, query: dict[str, str] | None = None, **__: Any) -> Any:
        self.listed += path.endswith("/v1alpha1/consumergroups")
        if query is None:
            raise ApiError(f"there is no {method} {path}", 404, "NotFound")
        return {"items": [], "metadata": {}}


@pytest.mark.parametrize(("groups", "age"), [(1, 300.0), (1000, 3000.0)], ids=["few groups", "very many"])
async def test_everything_is_listed_once_more_the_later_the_more_there_is(
    groups: int, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing, seen = Nothing(), Seen()
    monkeypatch.setattr("shardherd.adapters.kubernetes.cluster.time", nothing)
    cluster = KubernetesCluster(cast(KubernetesApi, nothing), seen)
    assert await cluster.read("shop", "clicks") is None
    for number in range(groups):
        seen.touched(("shop", f"group-{number}"))

    nothing.now += age - 1
    assert (await cluster.read("shop", "clicks"), nothing.listed) == (None, 1)
    nothing.now += 2
    assert (await cluster.read("shop", "clicks"), nothing.listed) == (None, 2)
