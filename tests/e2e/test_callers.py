"""Who may call the coordinator: nobody with a forged or foreign token, and nobody for what is not theirs."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dev.demo.kube import Json
from dev.demo.lab import Lab
from dev.demo.report import DemoError, await_that
from tests.e2e.calling import URL, authorities
from tests.e2e.groups import CALLERS as NAMESPACE
from tests.e2e.groups import RESOURCE, group
from tests.harness.cluster import Names

pytestmark = pytest.mark.timeout(300)

GROUP = "guarded"
Answer = tuple[int, dict[str, Any]]
Call = Callable[..., Answer]


@pytest.fixture(scope="module")
def topic(names: Names) -> str:
    """The topic of the group."""
    return names.fresh("guarded")


@pytest.fixture(scope="module")
def pod(installed: Lab, topic: str) -> Iterator[Json]:
    """A driver's pod of a real group. It need not run: its identity is what counts."""
    lab = installed
    lab.create_topic(topic, 2)
    lab.kube.apply(
        group(
            GROUP,
            NAMESPACE,
            source__kafka={"bootstrapServers": "kafka:9092", "topics": [topic]},
            application__image="shardherd/not-there:dev",
            application__driver__template=None,
        )
    )
    yield await_that(
        "the group's pod exists",
        lambda: next(iter(lab.kube.pods(NAMESPACE, f"shardherd.dev/consumergroup={GROUP}")), None),
        within=60,
        explain=lambda: lab.kube.explain(NAMESPACE, GROUP),
    )
    lab.kube.run("delete", RESOURCE, GROUP, "-n", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def token(lab: Lab, pod: Json) -> str:
    """The token that the pod itself would have."""
    return make_token(lab, "shardherd-spark", pod)


def make_token(lab: Lab, account: str, pod: Json | None = None, audience: str = "shardherd") -> str:
    """A token of an account of the namespace, bound to a pod if one is given."""
    bound: tuple[str, ...] = ()
    if pod is not None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}", f"--bound-object-uid={uid}")
    return lab.kube.run("create", "token", account, "-n", NAMESPACE, f"--audience={audience}", *bound).strip()


@pytest.fixture(scope="module")
def call(lab: Lab, pod: Json) -> Call:
    """POST to the coordinator: (path below the group, body, token, group) -> (status, body)."""
    address = lab.operator_pod()["status"]["podIP"]
    # A pod has no name of its own in the certificate; that it is by the published authority is what counts here.
    context = ssl.create_default_context(cafile=authorities(lab, NAMESPACE))
    context.check_hostname = False

    def once(path: str, body: Json, token: str, of: str) -> Answer:
        request = urllib.request.Request(
            f"https://{address}:8443/v1/namespaces/{NAMESPACE}/consumergroups/{of}/{path}",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Shardherd-Protocol": "3", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return answer.status, json.loads(answer.read() or "{}")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def post(path: str, body: Json, token: str, of: str = GROUP) -> Answer:
        # 503 asks to come again, as every client does: an operator that has just started may not know all groups yet.
        last: Answer = (0, {})

        def settled() -> Answer | None:
            nonlocal last
            last = once(path, body, token, of)
            return None if last[0] == 503 else last

        return await_that("the coordinator answers", settled, within=60, every=1, explain=lambda: str(last))

    return post


def heartbeat(pod: Json, consumer: str | None = None) -> Json:
    return {
        "consumer": consumer or pod["metadata"]["name"],
        "incarnation": {"podUid": pod["metadata"]["uid"], "start": 1},
        "seq": 1,
        "revision": 0,
        "held": [],
        "ready": False,
        "draining": False,
        "progress": 0,
        "groupUid": group_uid(pod),
    }


def group_uid(pod: Json) -> str:
    """The UID of the group that the pod was made for."""
    (container,) = pod["spec"]["containers"]
    return next(str(item["value"]) for item in container["env"] if item["name"] == "SHARDHERD_GROUP_UID")


def answer_but_503(call: Call, pod: Json, token: str) -> dict[str, Any] | None:
    """What a heartbeat for a group that does not exist is told, unless it is to try again."""
    status, body = call("heartbeat", heartbeat(pod), token, "nobody")
    assert status in (404, 503)
    return None if status == 503 else body


def test_a_forged_token_is_not_authenticated(call: Call, pod: Json) -> None:
    status, body = call("heartbeat", heartbeat(pod), "forged")
    assert (status, body["error"]["code"]) == (401, "Unauthenticated")


def test_a_token_for_another_audience_is_not_authenticated(call: Call, pod: Json, lab: Lab) -> None:
    status, body = call("heartbeat", heartbeat(pod), make_token(lab, "shardherd-spark", pod, "https://kubernetes.default.svc"))
    assert (status, body["error"]["code"]) == (401, "Unauthenticated")


def test_a_token_of_no_pod_is_forbidden(call: Call, pod: Json, lab: Lab) -> None:
    status, body = call("heartbeat", heartbeat(pod), make_token(lab, "shardherd-spark"))
    assert (status, body["error"]["code"]) == (403, "Forbidden")
    assert "pod" in body["error"]["message"]


def test_a_token_of_another_account_is_forbidden(call: Call, pod: Json, lab: Lab) -> None:
    status, body = call("heartbeat", heartbeat(pod), make_token(lab, "default"))
    assert (status, body["error"]["code"]) == (403, "Forbidden")


def test_a_pod_may_not_speak_for_another(call: Call, pod: Json, token: str) -> None:
    status, body = call("heartbeat", heartbeat(pod, "guarded-7"), token)
    assert (status, body["error"]["code"]) == (403, "Forbidden")
    assert "guarded-7" in body["error"]["message"]


def test_a_heartbeat_for_an_unknown_group_is_told_so(call: Call, pod: Json, token: str) -> None:
    # A coordinator that has just started asks callers to try again: it may not have been told of every group yet.
    body = await_that("the coordinator knows all groups", lambda: answer_but_503(call, pod, token), within=60)
    assert body["error"]["code"] == "UnknownGroup"
    assert "nobody" in body["error"]["message"]


def test_a_checkpoint_of_a_shard_that_is_not_held_is_fenced(call: Call, pod: Json, token: str, topic: str, lab: Lab) -> None:
    def free() -> bool:
        status: Json = lab.kube.get(RESOURCE, GROUP, "-n", NAMESPACE).get("status", {})
        return bool(status.get("shards", {}).get("notAlloc") == 2)

    def committed() -> dict[str, int]:
        try:
            return lab.committed(f"{NAMESPACE}.{GROUP}")
        except DemoError:
            return {}  # Kafka does not know the group yet

    await_that(
        "its two shards are known, and held by nobody", free, within=60, explain=lambda: lab.kube.explain(NAMESPACE, GROUP)
    )
    # Shards are known before their start positions are written.
    starts = {f"{topic}/{number}": 0 for number in range(2)}
    await_that("their start positions are durable", lambda: committed() == starts, within=60, every=1)
    shard = f"{topic}/0"
    body = {
        "consumer": pod["metadata"]["name"],
        "incarnation": {"podUid": pod["metadata"]["uid"], "start": 1},
        "checkpoints": [{"shard": shard, "ownerEpoch": 1, "offset": 5}],
        "groupUid": group_uid(pod),
    }
    status, answer = call("checkpoints", body, token)
    assert status == 200
    assert [(o["shard"], o["result"], o["actualEpoch"]) for o in answer["outcomes"]] == [(shard, "fenced", 0)]
    assert committed() == starts


def test_a_pod_finds_the_published_authorities_beside_its_token(pod: Json) -> None:
    (volume,) = [item for item in pod["spec"]["volumes"] if item["name"] == "token"]
    assert {"configMap": {"name": "shardherd-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}} in volume["projected"][
        "sources"
    ]
    environment = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
    assert (environment["SHARDHERD_COORDINATOR_URL"], environment["SHARDHERD_COORDINATOR_CA_FILE"]) == (
        URL,
        "/var/run/secrets/shardherd/ca.crt",
    )


def test_refused_callers_are_counted_by_reason(call: Call, pod: Json, lab: Lab) -> None:
    def counted() -> dict[str, float]:
        name = "shardherd_callers_refused_total"
        return {sample.labels["reason"]: sample.value for sample in lab.operator_metrics() if sample.name == name}

    before = counted()
    call("heartbeat", heartbeat(pod), "forged")
    call("heartbeat", heartbeat(pod), make_token(lab, "shardherd-spark"))
    after = counted()
    assert {reason: after[reason] - before.get(reason, 0) for reason in ("InvalidToken", "NoPod")} == {
        "InvalidToken": 1,
        "NoPod": 1,
    }


def test_the_right_token_is_welcome(call: Call, pod: Json, token: str) -> None:
    status, body = call("heartbeat?waitMs=0", heartbeat(pod), token)
    assert (status, body["confirmed"]) == (200, [])
