"""Which answers of the API server mean that a call may succeed later, and how often it is asked. It is played."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.cluster import KubernetesCluster
from shardherd.adapters.kubernetes.object_cache import ObjectCache
from shardherd.ports import ClusterChangedError, ClusterRefusedError, ClusterUnavailableError

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


@pytest.mark.parametrize(
    "said",
    [
        "failed to create typed patch object (shop/clicks; apps/v1, Kind=StatefulSet): .spec.template.spec.hostnetwork: field"
        " not declared in schema",
        "failed to convert new object (shop/clicks; apps/v1, Kind=StatefulSet) to proper version: quantities must match",
    ],
)
async def test_what_is_no_object_of_its_kind_is_a_refusal_although_the_api_server_calls_it_its_own_error(said: str) -> None:
    error = ApiError(f"the API server refused PATCH /apis/apps with 500 : {said}", 500, "")

    with pytest.raises(ClusterRefusedError, match=re.escape(said)):
        await refusing(error).apply(SERVICE)


@pytest.mark.parametrize("status", [404, 409])
async def test_a_pod_that_is_gone_or_another_one_need_not_be_deleted(status: int) -> None:
    await refusing(ApiError("not this one", status, "Whatever")).delete_pod("shop", "clicks-0", "uid-1")


class Events:
    """An API server whose answers take so many seconds, and the time."""

    def __init__(self, takes: float) -> None:
        self.now, self.asked, self._takes = 100.0, 0, takes

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
    monkeypatch.setattr("shardherd.adapters.kubernetes.cluster.boot_time", lambda: events.now)
    cluster = KubernetesCluster(cast(KubernetesApi, events))
    waiting = {"metadata": {"uid": "set"}, "spec": {"replicas": 2}}
    warnings = (("FailedCreate", "exceeded quota"),)
    assert await cluster._warnings("shop", waiting, ()) == warnings

    events.now += serve - 0.001
    assert (await cluster._warnings("shop", waiting, ()), events.asked) == (warnings, 1)
    events.now += 0.002
    assert (await cluster._warnings("shop", waiting, ()), events.asked) == (warnings, 2)


class Nothing:
    """An API server that has nothing, and the time. `listed` counts the listings of all groups."""

    def __init__(self) -> None:
        self.now, self.listed = 1000.0, 0

    async def acall(self, method: str, path: str, *_: Any, query: dict[str, str] | None = None, **__: Any) -> Any:
        self.listed += path.endswith("/v1alpha1/consumergroups")
        if query is None:
            raise ApiError(f"there is no {method} {path}", 404, "NotFound")
        return {"items": [], "metadata": {}}


@pytest.mark.parametrize(("groups", "age"), [(1, 300.0), (1000, 3000.0)], ids=["few groups", "very many"])
async def test_everything_is_listed_once_more_the_later_the_more_there_is(
    groups: int, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing, cache = Nothing(), ObjectCache()
    monkeypatch.setattr("shardherd.adapters.kubernetes.cluster.boot_time", lambda: nothing.now)
    cluster = KubernetesCluster(cast(KubernetesApi, nothing), cache)
    assert await cluster.read("shop", "clicks") is None
    for number in range(groups):
        cache.touched(("shop", f"group-{number}"))

    nothing.now += age - 1
    assert (await cluster.read("shop", "clicks"), nothing.listed) == (None, 1)
    nothing.now += 2
    assert (await cluster.read("shop", "clicks"), nothing.listed) == (None, 2)


class Objects:
    """An API server that has these objects of the group, by their plurals, and notes what it is asked.

    With `only_there` it refuses every version of an object that it does not have.
    """

    def __init__(self, *there: str, only_there: bool = False) -> None:
        self.there = set(there)
        self.asked: list[str] = []
        self._only_there = only_there

    async def acall(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        plural = path.split("/")[-2] if path.endswith("/clicks") else path.split("/")[-1]
        if method == "PATCH":
            new = "resourceVersion" in body["metadata"]
            self.asked.append(f"make {plural}" if new else f"write {plural}")
            if new and (self._only_there or plural in self.there):
                raise ApiError("it is of another version", 409, "Conflict")
            return labelled(plural)
        if not path.endswith("/clicks"):
            return {"items": [labelled("consumergroups")] if plural == "consumergroups" else [], "metadata": {}}
        if plural == "consumergroups":
            return labelled(plural)
        self.asked.append(f"read {plural}")
        if plural not in self.there:
            raise ApiError("there is none", 404, "NotFound")
        return {"metadata": {"namespace": "shop", "name": "clicks", "uid": "without our label"}, "spec": {"replicas": 1}}


def labelled(plural: str) -> dict[str, Any]:
    labels = {"shardherd.dev/consumergroup": "clicks"}
    about = {"namespace": "shop", "name": "clicks", "uid": f"uid of {plural}", "resourceVersion": "7", "labels": labels}
    return {"metadata": about, "spec": {"replicas": 1}}


def manifest(kind: str) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"namespace": "shop", "name": "clicks"}}


async def test_what_the_watches_do_not_show_is_made_by_the_first_write_only() -> None:
    objects = Objects()
    cluster = KubernetesCluster(cast(KubernetesApi, objects), ObjectCache())
    found = await cluster.read("shop", "clicks")
    assert found is not None
    assert objects.asked == [], "the listing has told all"

    for kind in ("Service", "StatefulSet", "Service", "StatefulSet"):
        await cluster.apply(manifest(kind))

    assert objects.asked == ["make services", "make statefulsets", "write services", "write statefulsets"]


async def test_an_api_server_that_makes_nothing_of_a_version_is_asked_and_written_to() -> None:
    objects = Objects(only_there=True)
    cluster = KubernetesCluster(cast(KubernetesApi, objects), ObjectCache())
    await cluster.read("shop", "clicks")
    await cluster.apply(manifest("Service"))
    assert objects.asked == ["make services", "read services", "write services"]


@pytest.mark.parametrize(
    ("kind", "plural", "part"),
    [
        ("Service", "services", "service"),
        ("StatefulSet", "statefulsets", "stateful_set"),
        ("PodDisruptionBudget", "poddisruptionbudgets", "budget"),
    ],
    ids=["Service", "StatefulSet", "PodDisruptionBudget"],
)
async def test_what_no_watch_shows_is_not_written_over_and_is_shown_until_it_goes(kind: str, plural: str, part: str) -> None:
    objects = Objects(plural)
    cluster = KubernetesCluster(cast(KubernetesApi, objects), ObjectCache())
    await cluster.read("shop", "clicks")

    with pytest.raises(ClusterChangedError, match=f"there is a {kind} shop/clicks that the watches do not show"):
        await cluster.apply(manifest(kind))
    assert objects.asked == [f"make {plural}", f"read {plural}"]
    found = await cluster.read("shop", "clicks")
    assert found is not None
    assert getattr(found, part)["metadata"]["uid"] == "without our label"

    await cluster.apply(manifest(kind))
    assert objects.asked[-1] == f"write {plural}", "the plan has judged that it is ours, and lost its label"

    objects = Objects(plural)
    cluster = KubernetesCluster(cast(KubernetesApi, objects), ObjectCache())
    with pytest.raises(ClusterChangedError):
        await cluster.apply(manifest(kind))
    objects.there.clear()
    found = await cluster.read("shop", "clicks")
    assert found is not None
    assert getattr(found, part) is None
    await cluster.apply(manifest(kind))
    objects.asked.clear()
    found = await cluster.read("shop", "clicks")
    assert found is not None
    assert (getattr(found, part)["metadata"]["uid"], objects.asked) == (f"uid of {plural}", [])


async def test_what_a_reading_finds_without_our_label_is_shown_by_the_next_one_too() -> None:
    objects, cache = Objects("statefulsets"), ObjectCache()
    cluster = KubernetesCluster(cast(KubernetesApi, objects), cache)
    await cluster.read("shop", "clicks")
    cache.invalidate(("shop", "clicks"))

    for _ in range(3):
        found = await cluster.read("shop", "clicks")
        assert found is not None
        assert (found.stateful_set or {})["metadata"]["uid"] == "without our label"


async def test_of_what_is_listed_only_what_is_in_a_served_namespace_is_kept() -> None:
    cache, served = ObjectCache(), {"shop"}
    cluster = KubernetesCluster(cast(KubernetesApi, Objects()), cache, (), served.__contains__)
    assert await cluster.read("shop", "clicks") is not None
    assert [each["metadata"]["namespace"] for each in cache.groups()] == ["shop"]

    cache, served = ObjectCache(), {"web"}
    cluster = KubernetesCluster(cast(KubernetesApi, Objects()), cache, (), served.__contains__)
    await cluster._relist_if_due(cache)
    assert (len(cache), cache.groups()) == (0, [])
