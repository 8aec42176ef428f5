"""Which operator leads: the Lease, proof of death, the leader's label, and who may still write. The API server is played."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from kubernetes.client.configuration import Configuration

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.leading import LeadersApi
from shardherd.adapters.kubernetes.lease import START, LeaseLeadership, LeaseTimes
from shardherd.adapters.kubernetes.operators import LEADER_LABEL, OperatorPods, holder_of
from tests.harness.simulated_clock import SimulatedClock

Json = dict[str, Any]

LEASE = "/apis/coordination.k8s.io/v1/namespaces/system/leases/shardherd"
PODS = "/api/v1/namespaces/system/pods"
TIMES = LeaseTimes(duration=15.0, renew_deadline=10.0, retry=2.0, look=0.001)


class PlayedApi:
    """One API server: objects by path, with versions, and as much of patches and selectors as is used here."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.requests: list[str] = []
        self.refuse: dict[str, ApiError] = {}
        self.before: Callable[[str, str], None] = lambda _method, _path: None
        self._version = 0

    def put(self, path: str, item: Json) -> None:
        self._version += 1
        item = copy.deepcopy(item)
        item.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        self.objects[path] = item

    async def acall(self, method: str, path: str, body: Any = None, *, query: Json | None = None, **_: Any) -> Any:
        self.requests.append(f"{method} {path}")
        self.before(method, path)
        if method in self.refuse:
            raise self.refuse.pop(method)
        await asyncio.sleep(0)
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            self.put(path, body)
        elif query is not None:
            wanted = dict(item.split("=") for item in query["labelSelector"].split(","))
            below = [item for where, item in self.objects.items() if where.startswith(f"{path}/")]
            return {"items": [copy.deepcopy(item) for item in below if wanted.items() <= item["metadata"]["labels"].items()]}
        elif path not in self.objects:
            raise ApiError("not found", 404, "NotFound")
        elif method == "PUT":
            if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
                raise ApiError("changed", 409, "Conflict")
            self.put(path, body)
        elif method == "PATCH":
            found = copy.deepcopy(self.objects[path])
            if found["metadata"]["uid"] != body["metadata"]["uid"]:
                raise ApiError("another pod", 409, "Conflict")
            labels = found["metadata"]["labels"] | body["metadata"]["labels"]
            found["metadata"]["labels"] = {key: value for key, value in labels.items() if value is not None}
            self.put(path, found)
        return copy.deepcopy(self.objects[path])

    def pod(self, name: str, uid: str, *, labels: Json | None = None, **status: Any) -> None:
        release = {"app.kubernetes.io/name": "shardherd", "app.kubernetes.io/instance": "shardherd"}
        metadata = {"name": name, "uid": uid, "labels": release | (labels or {})}
        statuses = [{"name": "operator", **status}] if status else []
        self.put(f"{PODS}/{name}", {"metadata": metadata, "status": {"containerStatuses": statuses}})

    def labelled(self) -> list[str]:
        return [
            item["metadata"]["name"] for item in self.objects.values() if LEADER_LABEL in item["metadata"].get("labels", {})
        ]

    def holder(self) -> str:
        return str(self.objects[LEASE]["spec"]["holderIdentity"])


@pytest.fixture
def api() -> PlayedApi:
    return PlayedApi()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def pods(api: PlayedApi, pod: str, uid: str) -> OperatorPods:
    return OperatorPods(cast("KubernetesApi", api), "system", pod, uid)


def operator(
    api: PlayedApi, clock: SimulatedClock, number: int, start: str = "first", times: LeaseTimes = TIMES
) -> LeaseLeadership:
    """The leadership of operator pod `number`."""
    name, uid = f"operator-{number}", f"uid-{number}"
    return LeaseLeadership(
        cast("KubernetesApi", api),
        clock,
        "system",
        "shardherd",
        holder_of(name, uid),
        times,
        start=start,
        obituaries=pods(api, name, uid),
    )


def ended(start: str, **more: Any) -> Json:
    return {"terminated": {"exitCode": 137, "message": json.dumps({"start": start}), **more}}


async def becomes(what: Callable[[], bool]) -> None:
    for _ in range(5000):
        if what():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came about")


async def looks(api: PlayedApi, count: int) -> None:
    """Until who waits has looked at the Lease so many times more."""
    wanted = api.requests.count(f"GET {LEASE}") + count
    await becomes(lambda: api.requests.count(f"GET {LEASE}") >= wanted)


async def test_others_respect_a_lease_for_no_less_than_its_holder_trusts_it(api: PlayedApi, clock: SimulatedClock) -> None:
    api.pod("operator-0", "uid-0", state={"running": {}})
    first = operator(api, clock, 0, times=replace(TIMES, duration=15.4, renew_deadline=15.25))

    await first.acquire()

    assert (api.objects[LEASE]["spec"]["leaseDurationSeconds"], first.deadline() - clock.now()) == (16, 15.25)
    await first.release()


async def test_a_container_that_is_started_again_in_the_same_pod_leads_at_once(api: PlayedApi, clock: SimulatedClock) -> None:
    api.pod("operator-0", "uid-0", state={"running": {}})
    await operator(api, clock, 0).acquire()

    again = operator(api, clock, 0, "second")
    await asyncio.wait_for(again.acquire(), 5)

    assert api.objects[LEASE]["metadata"]["annotations"] == {START: "second"}
    assert api.objects[LEASE]["spec"]["leaseTransitions"] == 0


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param({"state": ended("first")}, id="terminated"),
        pytest.param({"state": {"waiting": {}}, "lastState": ended("first")}, id="waits to be started again"),
        pytest.param({"state": {"running": {}}, "lastState": ended("first")}, id="started again, and not leading yet"),
        pytest.param(None, id="pod gone"),
        pytest.param({"uid": "uid-of-another"}, id="another pod of that name"),
    ],
)
async def test_a_holder_that_is_proven_dead_is_succeeded_before_its_lease_runs_out(
    api: PlayedApi, clock: SimulatedClock, fate: Json | None
) -> None:
    api.pod("operator-0", "uid-0", state={"running": {}})
    await operator(api, clock, 0).acquire()
    second = operator(api, clock, 1)
    waiting = asyncio.create_task(second.acquire())
    await looks(api, 3)
    clock.advance(1.5)

    del api.objects[f"{PODS}/operator-0"]
    if fate is not None:
        api.pod("operator-0", fate.pop("uid", "uid-0"), **fate)

    await asyncio.wait_for(waiting, 5)
    assert api.holder() == "operator-1_uid-1"
    assert api.objects[LEASE]["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param({"state": {"running": {}}}, id="runs"),
        pytest.param({"state": ended("an earlier one")}, id="an earlier start ended"),
        pytest.param({"state": ended("first", reason="ContainerStatusUnknown")}, id="its node is away"),
        pytest.param({"state": {"terminated": {"message": "out of memory"}}}, id="the message names no start"),
        pytest.param({}, id="nothing is known of its container"),
    ],
)
async def test_a_holder_that_is_not_proven_dead_keeps_the_lease_until_it_runs_out(
    api: PlayedApi, clock: SimulatedClock, fate: Json
) -> None:
    api.pod("operator-0", "uid-0", **fate)
    await operator(api, clock, 0).acquire()
    second = operator(api, clock, 1)
    waiting = asyncio.create_task(second.acquire())
    await looks(api, 3)

    clock.advance(14.9)
    await looks(api, 3)
    assert not waiting.done()

    clock.advance(0.2)
    await asyncio.wait_for(waiting, 5)
    assert api.holder() == "operator-1_uid-1"


async def test_a_holder_that_renews_while_its_death_is_being_proven_keeps_the_lease(
    api: PlayedApi, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.pod("operator-0", "uid-0", state=ended("first"))
    await operator(api, clock, 0).acquire()
    second = operator(api, clock, 1)
    waiting = asyncio.create_task(second.acquire())
    await looks(api, 3)
    caplog.set_level(logging.INFO)

    def renew(method: str, path: str) -> None:
        if path == f"{PODS}/operator-0":
            api.put(LEASE, api.objects[LEASE])

    api.before = renew
    clock.advance(1.5)
    await becomes(lambda: "was not taken" in caplog.text)

    assert not waiting.done()
    assert api.holder() == "operator-0_uid-0"
    waiting.cancel()


async def test_a_process_on_somebodys_machine_is_never_looked_up_as_a_pod(api: PlayedApi) -> None:
    assert not await pods(api, "operator-1", "uid-1").died("laptop", "first")
    assert api.requests == []


@pytest.mark.parametrize("now", ["held by another", "given back by another", "deleted"])
async def test_a_holder_that_was_suspended_past_its_deadline_does_not_go_on_if_somebody_has_led_meanwhile(
    api: PlayedApi, clock: SimulatedClock, now: str
) -> None:
    first = LeaseLeadership(
        cast("KubernetesApi", api), clock, "system", "shardherd", "operator-0_uid-0", replace(TIMES, retry=0.001)
    )
    await first.acquire()
    clock.advance(3600.0)
    assert clock.now() >= first.deadline(), "the time of the suspension counts"

    if now == "deleted":
        del api.objects[LEASE]
    else:
        other = copy.deepcopy(api.objects[LEASE])
        other["spec"] |= {"holderIdentity": "operator-1_uid-1" if now == "held by another" else "", "leaseTransitions": 1}
        api.put(LEASE, other)

    await asyncio.wait_for(first.lost(), 5)
    assert clock.now() >= first.deadline()


async def test_a_failure_of_ours_in_a_renewal_is_the_end_of_leading(
    api: PlayedApi, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    leader = operator(api, clock, 0, times=replace(TIMES, retry=0.001))
    await leader.acquire()

    def fail(_method: str, _path: str) -> None:
        raise LookupError("nobody expected this")

    api.before = fail
    await asyncio.wait_for(leader.lost(), 5.0)

    assert leader.deadline() == float("-inf")
    assert "is not renewed any more, after a failure of ours" in caplog.text


async def test_releasing_lets_who_waits_lead_at_once(api: PlayedApi, clock: SimulatedClock) -> None:
    first, second = operator(api, clock, 0), operator(api, clock, 1)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())

    await first.release()

    await asyncio.wait_for(waiting, 5)
    assert api.holder() == "operator-1_uid-1"
    assert first.deadline() < clock.now()


async def test_a_renewal_that_comes_between_does_not_keep_the_lease_from_being_released(
    api: PlayedApi, clock: SimulatedClock
) -> None:
    first = operator(api, clock, 0)
    await first.acquire()
    api.put(LEASE, api.objects[LEASE])

    await first.release()

    assert api.holder() == ""


async def test_a_lease_that_another_holds_by_now_is_not_released(api: PlayedApi, clock: SimulatedClock) -> None:
    first = operator(api, clock, 0)
    await first.acquire()
    taken = copy.deepcopy(api.objects[LEASE])
    taken["spec"]["holderIdentity"] = "operator-1_uid-1"
    api.put(LEASE, taken)

    await first.release()

    assert api.holder() == "operator-1_uid-1"


class TestLabel:
    async def lead(self, api: PlayedApi, until: Callable[[], bool], certain: Callable[[], bool] = lambda: True) -> None:
        """Let operator-1 lead until this holds."""
        leading = asyncio.create_task(pods(api, "operator-1", "uid-1").lead(certain))
        await becomes(until)
        leading.cancel()

    async def test_the_leader_has_it_and_nobody_else_of_the_release(self, api: PlayedApi) -> None:
        api.pod("operator-0", "uid-0", labels={LEADER_LABEL: "true"})
        api.pod("operator-1", "uid-1")
        api.pod("of-another-release", "uid-9", labels={LEADER_LABEL: "true", "app.kubernetes.io/instance": "another"})

        await self.lead(api, lambda: api.labelled() == ["operator-1", "of-another-release"])

    async def test_an_api_server_that_refuses_is_asked_again(self, api: PlayedApi) -> None:
        api.pod("operator-1", "uid-1")
        api.refuse["PATCH"] = ApiError("try later", 429, "TooManyRequests")

        await self.lead(api, lambda: api.labelled() == ["operator-1"])

    async def test_a_pod_of_the_same_name_that_is_not_ours_is_left_alone(self, api: PlayedApi) -> None:
        api.pod("operator-1", "uid-of-another")

        await self.lead(api, lambda: f"PATCH {PODS}/operator-1" in api.requests)

        assert api.labelled() == []

    async def test_who_may_not_lead_any_more_sets_nothing(self, api: PlayedApi) -> None:
        api.pod("operator-1", "uid-1")

        asked: list[bool] = []

        def certain() -> bool:
            asked.append(False)
            return False

        await self.lead(api, lambda: len(asked) >= 2, certain)

        assert api.requests == []

    async def test_who_renewed_its_lease_too_late_and_leads_all_the_same_has_it_again(self, api: PlayedApi) -> None:
        """Nobody has held the lease meanwhile, so it leads on; without the label its consumers ask whoever had it before."""
        api.pod("operator-0", "uid-0", labels={LEADER_LABEL: "true"})
        api.pod("operator-1", "uid-1")
        answers = iter([False])

        await self.lead(api, lambda: api.labelled() == ["operator-1"], lambda: next(answers, True))


def test_who_may_not_lead_any_more_reads_but_writes_nothing() -> None:
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    api = LeadersApi(configuration, lambda: False)
    with pytest.raises(ApiUnavailableError, match="PATCH /apis/apps was not sent: this operator may not lead any more"):
        api.call("PATCH", "/apis/apps", {})
    with pytest.raises(ApiUnavailableError, match="no answer from the API server"):
        api.call("GET", "/apis/apps")
    api.close()
