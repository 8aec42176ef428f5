"""Who is let in, with real tokens and pods; and what a caller reads who is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import jwt
import pytest
from msgspec.structs import replace

from dev.cluster import Cluster
from shardherd import protocol
from shardherd.client import AsyncConsumerClient
from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    ForbiddenError,
    GroupReplacedError,
    InvalidRequestError,
    ProtocolVersionError,
    UnauthenticatedError,
    UnknownGroupError,
)
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Heartbeat, Incarnation
from tests.harness.cluster import Names
from tests.integration.contract.labs import KubernetesLab
from tests.integration.coordinator.rig import Coordinator, Rig, becomes, grant


@pytest.fixture(scope="module")
def other_namespace(kubernetes: KubernetesLab, names: Names) -> str:
    return kubernetes.namespace(names.fresh("other"))


@pytest.fixture
async def spec(rig: Rig, name: str, topic: str) -> GroupSpec:
    return await rig.group(name, (topic,), consumers=2)


@pytest.fixture
async def coordinator(rig: Rig, spec: GroupSpec) -> Coordinator:
    coordinator = await rig.coordinator()
    coordinator.server.coordination.apply(spec)
    await becomes(lambda: coordinator.server.coordination.view(spec.identity) is not None)
    return coordinator


async def pod_of(rig: Rig, name: str, namespace: str | None = None) -> Any:
    return await rig.kubernetes.api.acall("GET", f"/api/v1/namespaces/{namespace or rig.namespace}/pods/{name}")


def beat(consumer: str, pod: Any) -> Heartbeat:
    return Heartbeat(ConsumerId(consumer), Incarnation(pod["metadata"]["uid"], 1), seq=1, revision=0, group_uid="any")


async def test_the_pod_itself_is_let_in(rig: Rig, coordinator: Coordinator, spec: GroupSpec) -> None:
    consumer = await rig.consumer(coordinator, spec, 0)

    assert (await consumer.heartbeat()).session_timeout == spec.settings.session_timeout


async def test_a_forged_token_is_refused(rig: Rig, coordinator: Coordinator, spec: GroupSpec) -> None:
    pod = await pod_of(rig, f"{spec.identity.name}-0")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)
    client = rig.client(coordinator, spec, token[:-6] + "AAAAAA")

    with pytest.raises(UnauthenticatedError, match="not valid for this coordinator"):
        await client.heartbeat(beat(f"{spec.identity.name}-0", pod), 0)

    assert coordinator.counted("shardherd_callers_refused_total", reason="InvalidToken") == 1


async def test_a_token_for_another_audience_is_refused(rig: Rig, coordinator: Coordinator, spec: GroupSpec) -> None:
    pod = await pod_of(rig, f"{spec.identity.name}-0")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod, audience="https://elsewhere")

    with pytest.raises(UnauthenticatedError, match="audience 'shardherd'"):
        await rig.client(coordinator, spec, token).heartbeat(beat(f"{spec.identity.name}-0", pod), 0)


async def test_no_token_is_refused(rig: Rig, coordinator: Coordinator, spec: GroupSpec) -> None:
    pod = await pod_of(rig, f"{spec.identity.name}-0")

    with pytest.raises(UnauthenticatedError, match="carries no bearer token"):
        await rig.client(coordinator, spec, "").heartbeat(beat(f"{spec.identity.name}-0", pod), 0)


async def test_a_pod_of_another_namespace_is_refused(
    rig: Rig, coordinator: Coordinator, spec: GroupSpec, other_namespace: str
) -> None:
    name = spec.identity.name
    await rig.kubernetes.service_account(other_namespace, spec.service_account)
    pod = (await rig.kubernetes.stateful_set(other_namespace, name, spec.service_account))[0]
    token = await rig.kubernetes.token(other_namespace, spec.service_account, pod)

    with pytest.raises(ForbiddenError, match=f"the caller is in namespace '{other_namespace}'"):
        await rig.client(coordinator, spec, token).heartbeat(beat(f"{name}-0", pod), 0)


async def test_another_service_account_is_refused(rig: Rig, coordinator: Coordinator, spec: GroupSpec, name: str) -> None:
    await rig.kubernetes.service_account(rig.namespace, f"{name}-other")
    pod = await rig.kubernetes.pod(rig.namespace, f"{name}-9", f"{name}-other")
    token = await rig.kubernetes.token(rig.namespace, f"{name}-other", pod)

    with pytest.raises(ForbiddenError, match=f"service account is '{name}-other', the group's is '{name}'"):
        await rig.client(coordinator, spec, token).heartbeat(beat(f"{name}-9", pod), 0)


async def test_a_token_without_a_pod_is_refused(rig: Rig, coordinator: Coordinator, spec: GroupSpec) -> None:
    pod = await pod_of(rig, f"{spec.identity.name}-0")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, None)

    with pytest.raises(ForbiddenError, match="not bound to a pod"):
        await rig.client(coordinator, spec, token).heartbeat(beat(f"{spec.identity.name}-0", pod), 0)


async def test_a_pod_that_the_group_does_not_control_is_refused(
    rig: Rig, coordinator: Coordinator, spec: GroupSpec, name: str
) -> None:
    pod = await rig.kubernetes.pod(rig.namespace, f"{name}-stray", spec.service_account)
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)

    with pytest.raises(ForbiddenError, match=f"'{name}-stray' is controlled by no StatefulSet, not by .* '{name}'"):
        await rig.client(coordinator, spec, token).heartbeat(beat(f"{name}-stray", pod), 0)


async def test_a_pod_does_not_speak_for_another(rig: Rig, coordinator: Coordinator, spec: GroupSpec, name: str) -> None:
    pod = await pod_of(rig, f"{name}-0")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)

    with pytest.raises(ForbiddenError, match=f"pod '{name}-0' speaks for consumer '{name}-1'"):
        await rig.client(coordinator, spec, token).heartbeat(beat(f"{name}-1", pod), 0)


async def test_a_pod_does_not_name_another_uid(rig: Rig, coordinator: Coordinator, spec: GroupSpec, name: str) -> None:
    pod = await pod_of(rig, f"{name}-0")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)

    with pytest.raises(ForbiddenError, match="the request names incarnation 'another'"):
        await rig.client(coordinator, spec, token).heartbeat(
            Heartbeat(ConsumerId(f"{name}-0"), Incarnation("another", 1), seq=1, revision=0, group_uid="any"), 0
        )


def expired(cluster: Cluster, token: str) -> str:
    """The same token as it will be two hours later, signed with the cluster's own key."""
    claims = jwt.decode(token, options={"verify_signature": False})
    for claim in ("exp", "iat", "nbf"):
        claims[claim] -= 2 * 3600
    headers = {"kid": jwt.get_unverified_header(token)["kid"]}
    return jwt.encode(claims, (cluster.layout.certificates / "sa.key").read_text(), "RS256", headers)


async def test_each_refusal_is_counted_by_its_reason(
    rig: Rig, cluster: Cluster, coordinator: Coordinator, spec: GroupSpec, name: str
) -> None:
    kubernetes, mine, other = rig.kubernetes, await pod_of(rig, f"{name}-0"), await pod_of(rig, f"{name}-1")
    good = await kubernetes.token(rig.namespace, spec.service_account, mine)
    body = beat(f"{name}-0", mine)
    wrong = {
        "forged": good[:-6] + "AAAAAA",
        "expired": expired(cluster, good),
        "of another audience": await kubernetes.token(rig.namespace, spec.service_account, mine, audience="https://elsewhere"),
        "of no pod": await kubernetes.token(rig.namespace, spec.service_account, None),
        "of another pod": await kubernetes.token(rig.namespace, spec.service_account, other),
    }
    refused: dict[str, str] = {}
    for kind, token in wrong.items():
        with pytest.raises((UnauthenticatedError, ForbiddenError)) as error:
            await rig.client(coordinator, spec, token).heartbeat(body, 0)
        refused[kind] = error.value.code

    assert refused == {
        "forged": "Unauthenticated",
        "expired": "Unauthenticated",
        "of another audience": "Unauthenticated",
        "of no pod": "Forbidden",
        "of another pod": "Forbidden",
    }
    reasons = ("InvalidToken", "NoPod", "OtherConsumer")
    assert [coordinator.counted("shardherd_callers_refused_total", reason=reason) for reason in reasons] == [3, 1, 1]


async def test_a_pod_of_a_group_that_was_replaced_is_refused(rig: Rig, coordinator: Coordinator, spec: GroupSpec) -> None:
    consumer = await rig.consumer(coordinator, spec, 0)
    consumer.group_uid = "the-uid-of-the-group-that-was-deleted"

    with pytest.raises(GroupReplacedError, match=f"the group of that name is now {spec.identity.uid}: end this process"):
        await consumer.heartbeat()


async def test_an_unknown_group_is_named_with_the_remedy(
    rig: Rig, coordinator: Coordinator, spec: GroupSpec, name: str
) -> None:
    pod = await pod_of(rig, f"{name}-0")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)
    client = rig.client(
        coordinator,
        GroupSpec(
            identity=spec.identity.__class__(rig.namespace, "nothing", "uid"),
            source=spec.source,
            settings=spec.settings,
            wanted=1,
        ),
        token,
    )

    with pytest.raises(UnknownGroupError, match=r"no ConsumerGroup 'nothing' .*create it, or correct SHARDHERD_GROUP"):
        await client.heartbeat(beat("nothing-0", pod), 0)


async def test_right_after_a_start_an_unknown_group_is_told_to_ask_again(rig: Rig, spec: GroupSpec, name: str) -> None:
    coordinator = await rig.coordinator(unknown_group_grace=60.0)
    consumer = await rig.consumer(coordinator, spec, 0)

    with pytest.raises(CoordinatorUnavailableError, match="not known yet"):
        await consumer.heartbeat()


async def test_a_group_that_the_controller_has_not_come_to_is_told_to_ask_again(rig: Rig, spec: GroupSpec) -> None:
    """It is in the API server, whatever keeps the controller from announcing it to its coordinator."""
    consumer = await rig.consumer(await rig.coordinator(), spec, 0)

    with pytest.raises(CoordinatorUnavailableError, match="not known yet: the controller has not come to it"):
        await consumer.heartbeat()


async def test_a_known_caller_is_let_in_while_the_api_server_is_away(
    rig: Rig, coordinator: Coordinator, spec: GroupSpec
) -> None:
    known, stranger = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await known.heartbeat()

    coordinator.api._configuration.host = "http://127.0.0.1:1"

    assert (await known.client.group()).group_epoch > 0
    with pytest.raises(CoordinatorUnavailableError, match="cannot be reviewed now"):
        await stranger.client.group()


async def ask(coordinator: Coordinator, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, Any]:
    """Status, headers and JSON of a POST."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{coordinator.url}{path}", data=body, headers=headers) as response,
    ):
        return response.status, response.headers, json.loads(await response.read())


async def test_another_version_of_the_protocol_is_told_both(coordinator: Coordinator, spec: GroupSpec) -> None:
    path = f"/v1/namespaces/{spec.identity.namespace}/consumergroups/{spec.identity.name}/heartbeat"

    status, _, body = await ask(coordinator, path, b"{}", {protocol.PROTOCOL_HEADER: "5"})

    error = protocol.load_error(status, json.dumps(body).encode())
    assert status == 426
    assert isinstance(error, ProtocolVersionError)
    assert "names version '5', this coordinator serves version 3 and 4" in error.message


@pytest.mark.parametrize(
    ("query", "change", "message"),
    [
        ("", lambda beat: beat | {"seq": "1"}, 'field Heartbeat.seq is "1"; it must be an integer'),
        ("", lambda beat: {key: value for key, value in beat.items() if key != "seq"}, "field Heartbeat.seq is missing"),
        ("", lambda beat: beat | {"extra": 1}, "unknown field Heartbeat.extra; remove it"),
        ("", lambda beat: beat | {"seq": 0}, "seq starts at 1"),
        ("", lambda beat: beat | {"groupUid": ""}, "field Heartbeat.groupUid is missing; send the UID of the ConsumerGroup"),
        ("", lambda beat: beat | {"capacity": 0}, "capacity 0 and zone ''; a capacity is 1 to 1000000"),
        ("?waitMs=-1", lambda beat: beat, "query parameter waitMs is '-1'"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong(
    rig: Rig,
    coordinator: Coordinator,
    spec: GroupSpec,
    query: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    message: str,
) -> None:
    name = f"{spec.identity.name}-0"
    pod = await pod_of(rig, name)
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)
    path = f"/v1/namespaces/{rig.namespace}/consumergroups/{spec.identity.name}/heartbeat{query}"
    headers = {protocol.PROTOCOL_HEADER: "3", "Authorization": f"Bearer {token}"}
    sent = protocol.encode(replace(beat(name, pod), group_uid=spec.identity.uid))

    status, _, body = await ask(coordinator, path, json.dumps(change(sent)).encode(), headers)

    assert status == 400
    assert body["error"]["code"] == InvalidRequestError.code
    assert message in body["error"]["message"]


async def test_a_body_that_is_too_large_is_refused(rig: Rig, coordinator: Coordinator, spec: GroupSpec) -> None:
    pod = await pod_of(rig, f"{spec.identity.name}-0")
    token = await rig.kubernetes.token(rig.namespace, spec.service_account, pod)
    path = f"/v1/namespaces/{rig.namespace}/consumergroups/{spec.identity.name}/heartbeat"
    headers = {protocol.PROTOCOL_HEADER: "3", "Authorization": f"Bearer {token}"}

    status, _, body = await ask(coordinator, path, b" " * (16 * 1024 * 1024 + 1), headers)

    assert (status, body["error"]["code"]) == (413, InvalidRequestError.code)


async def test_who_does_not_lead_says_so_with_a_time_to_ask_again(rig: Rig, spec: GroupSpec) -> None:
    coordinator = await rig.coordinator()
    coordinator.leadership.until = 0.0
    path = f"/v1/namespaces/{rig.namespace}/consumergroups/{spec.identity.name}/heartbeat"

    status, headers, body = await ask(coordinator, path, b"{}", {protocol.PROTOCOL_HEADER: "3"})

    assert (status, headers["Retry-After"], body["error"]["code"]) == (503, "1", "NotLeading")


async def test_a_checkpoint_is_forced_by_whom_a_role_allows_it(
    rig: Rig, coordinator: Coordinator, spec: GroupSpec, names: Names
) -> None:
    editor = await grant(rig, names.fresh("editor"), spec.identity.name, "get", "update")
    viewer = await grant(rig, names.fresh("viewer"), spec.identity.name, "get")
    await becomes(lambda: 0 in {row.checkpoint for row in coordinator.view(spec.identity).shards})
    first = next(row for row in coordinator.view(spec.identity).shards if row.checkpoint == 0)
    place = (coordinator.url, rig.namespace, spec.identity.name)

    async with AsyncConsumerClient(*place, lambda: editor) as allowed, AsyncConsumerClient(*place, lambda: viewer) as looking:
        assert await allowed.force_checkpoint(first.shard, 3) == ""
        assert (await looking.shard(first.shard)).checkpoint == 3
        with pytest.raises(ForbiddenError, match="may not update consumergroups/checkpoints"):
            await looking.force_checkpoint(first.shard, 5)


async def test_who_has_no_right_and_is_no_consumer_sees_nothing(
    rig: Rig, coordinator: Coordinator, spec: GroupSpec, names: Names
) -> None:
    stranger = await grant(rig, names.fresh("stranger"), "another-group", "get", "update")

    async with AsyncConsumerClient(coordinator.url, rig.namespace, spec.identity.name, lambda: stranger) as client:
        with pytest.raises(ForbiddenError, match="may not get consumergroups/checkpoints"):
            await client.group()
