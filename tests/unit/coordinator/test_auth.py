"""Who is let in, what is remembered, and what a refusal says. The rules with real tokens are integration tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from shardherd.adapters.memory import MemoryTokens
from shardherd.coordinator.auth import Authenticator, Bearer
from shardherd.coordinator.metrics import OperatorCounters
from shardherd.core.model.errors import CoordinatorUnavailableError, ForbiddenError, UnauthenticatedError
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Incarnation
from shardherd.ports import Caller
from shardherd.telemetry.operator_metrics import OperatorMetrics
from tests.harness.simulated_clock import SimulatedClock
from tests.unit.coordinator.rig import IDENTITY, spec_of

POD = Caller("demo", "default", "clicks-0", "uid-0", "clicks", group_uid=IDENTITY.uid)
CONSUMER, RUN = ConsumerId("clicks-0"), Incarnation("uid-0", 3)


class Gate:
    """An authenticator with what it stands on."""

    def __init__(self) -> None:
        self.tokens, self.clock, self.registry = MemoryTokens(), SimulatedClock(), CollectorRegistry()
        self.tokens.callers["good"] = POD
        self.door = Authenticator(self.tokens, self.clock, OperatorCounters(OperatorMetrics(self.registry)))

    def refused(self, reason: str) -> float:
        return self.registry.get_sample_value("shardherd_callers_refused_total", {"reason": reason}) or 0.0


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_a_bearer_token_tells_the_caller(gate: Gate) -> None:
    assert await gate.door.caller(Bearer.of("Bearer good")) == POD
    assert await gate.door.caller(Bearer.of("bearer  good ")) == POD


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer  ", "Basic good", "good", "Bearer goöd", "Bearer \udcff", "Bearer a.\udcff.b"]
)
async def test_without_a_bearer_token_nobody_is_let_in(gate: Gate, header: str | None) -> None:
    with pytest.raises(UnauthenticatedError, match="no bearer token"):
        await gate.door.caller(Bearer.of(header))

    assert gate.refused("NoToken") == 1
    assert gate.tokens.reviews == 0


async def test_a_review_holds_for_a_minute(gate: Gate) -> None:
    for _ in range(3):
        await gate.door.caller(Bearer.of("Bearer good"))
    gate.clock.advance(59.9)
    await gate.door.caller(Bearer.of("Bearer good"))
    assert gate.tokens.reviews == 1

    gate.clock.advance(0.2)
    await gate.door.caller(Bearer.of("Bearer good"))
    assert gate.tokens.reviews == 2


async def test_a_refusal_holds_for_a_minute_too(gate: Gate) -> None:
    for _ in range(3):
        with pytest.raises(UnauthenticatedError, match="forged, expired"):
            await gate.door.caller(Bearer.of("Bearer forged"))
    assert gate.tokens.reviews == 1

    gate.tokens.callers["forged"] = POD
    gate.clock.advance(60.0)
    assert await gate.door.caller(Bearer.of("Bearer forged")) == POD


async def test_a_review_that_fails_is_no_refusal_and_is_not_remembered(gate: Gate) -> None:
    gate.tokens.available = False
    with pytest.raises(CoordinatorUnavailableError, match="ask again"):
        await gate.door.caller(Bearer.of("Bearer good"))

    gate.tokens.available = True
    assert await gate.door.caller(Bearer.of("Bearer good")) == POD


async def test_a_remembered_caller_is_let_in_while_no_review_can_be_made(gate: Gate) -> None:
    await gate.door.caller(Bearer.of("Bearer good"))
    gate.tokens.available = False

    assert await gate.door.caller(Bearer.of("Bearer good")) == POD


async def test_no_token_is_kept(gate: Gate) -> None:
    await gate.door.caller(Bearer.of("Bearer good"))

    with pytest.raises(UnauthenticatedError):
        await gate.door.caller(Bearer.of("Bearer forged"))

    kept = [*gate.door._known, *gate.door._nobodys]
    assert len(kept) == 2
    assert [key for key in kept if b"good" in key or b"forged" in key] == []
    assert "good" not in repr((gate.door._known, gate.door._nobodys))


async def test_forged_tokens_make_room_for_each_other_and_push_nobody_out_who_is_known(gate: Gate) -> None:
    await gate.door.caller(Bearer.of("Bearer good"))
    for number in range(10_001):
        with pytest.raises(UnauthenticatedError):
            await gate.door.caller(Bearer.of(f"Bearer forged-{number}"))
    assert gate.tokens.reviews == 10_002

    await gate.door.caller(Bearer.of("Bearer good"))

    assert gate.tokens.reviews == 10_002
    assert (len(gate.door._known), len(gate.door._nobodys)) == (1, 10_000)
    assert [gate.door.needs_review(Bearer.of(f"Bearer forged-{number}")) for number in (0, 1)] == [True, False]


async def test_callers_who_were_reviewed_longest_ago_make_room(gate: Gate) -> None:
    for number in range(10_001):
        gate.tokens.callers[f"good-{number}"] = POD
        await gate.door.caller(Bearer.of(f"Bearer good-{number}"))

    assert [gate.door.needs_review(Bearer.of(f"Bearer good-{number}")) for number in (0, 1)] == [True, False]


async def test_a_token_needs_a_review_until_it_had_one_and_when_that_is_old(gate: Gate) -> None:
    assert [gate.door.needs_review(Bearer.of(header)) for header in (None, "", "Basic good")] == [False, False, False]
    assert gate.door.needs_review(Bearer.of("Bearer good"))
    await gate.door.caller(Bearer.of("Bearer good"))
    assert not gate.door.needs_review(Bearer.of("Bearer good"))

    gate.clock.advance(60.0)

    assert gate.door.needs_review(Bearer.of("Bearer good"))


async def test_a_token_that_is_good_no_more_is_nobodys_at_the_next_review(gate: Gate) -> None:
    await gate.door.caller(Bearer.of("Bearer good"))
    del gate.tokens.callers["good"]
    gate.clock.advance(60.0)

    with pytest.raises(UnauthenticatedError):
        await gate.door.caller(Bearer.of("Bearer good"))

    assert (len(gate.door._known), len(gate.door._nobodys)) == (0, 1)


def test_the_very_pod_may_speak_for_itself(gate: Gate) -> None:
    gate.door.check_namespace(POD, "demo", "clicks")
    gate.door.check_consumer(POD, spec_of(), CONSUMER, RUN)


@pytest.mark.parametrize(
    ("caller", "reason", "message"),
    [
        (replace(POD, service_account="other"), "WrongServiceAccount", "is 'other', the group's is 'default'"),
        (replace(POD, pod="", pod_uid="", stateful_set=""), "NoPod", "not bound to a pod"),
        (replace(POD, stateful_set="clicks2"), "ForeignPod", "controlled by StatefulSet 'clicks2'"),
        (replace(POD, stateful_set=""), "ForeignPod", "controlled by no StatefulSet"),
        (replace(POD, group_uid=""), "ForeignPod", f"not by the UID of the one .* this group .UID '{IDENTITY.uid}'"),
        (replace(POD, group_uid="another"), "ForeignPod", f"not by the UID of the one .* this group .UID '{IDENTITY.uid}'"),
        (replace(POD, pod="clicks-1"), "OtherConsumer", "pod 'clicks-1' speaks for consumer 'clicks-0'"),
        (replace(POD, pod_uid="uid-9"), "OtherPodUid", "token is of pod UID 'uid-9', the request names incarnation 'uid-0'"),
    ],
)
def test_every_refusal_says_what_does_not_match(gate: Gate, caller: Caller, reason: str, message: str) -> None:
    with pytest.raises(ForbiddenError, match=message) as refusal:
        gate.door.check_consumer(caller, spec_of(), CONSUMER, RUN)

    assert refusal.value.group == "demo/clicks"
    assert gate.refused(reason) == 1


async def test_a_pod_of_a_group_that_was_replaced_may_hear_so_and_not_look(gate: Gate) -> None:
    before = replace(POD, group_uid="the-group-before")

    gate.door.check_consumer(before, spec_of(), CONSUMER, RUN, "the-group-before")

    with pytest.raises(ForbiddenError):
        gate.door.check_consumer(before, spec_of(), CONSUMER, RUN, IDENTITY.uid)

    async def spec() -> GroupSpec:
        return spec_of()

    with pytest.raises(ForbiddenError):
        await gate.door.check_looks(before, "demo", "clicks", spec)


def test_another_namespace_is_refused_before_anything_is_told_of_the_group(gate: Gate) -> None:
    with pytest.raises(ForbiddenError, match="the caller is in namespace 'evil'"):
        gate.door.check_namespace(replace(POD, namespace="evil"), "demo", "clicks")

    assert gate.refused("ForeignNamespace") == 1
