"""The chart's two operators on a real node: how soon the other one answers, through the real Service, and `helm test`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dev.demo.kube import Json, is_ready
from dev.demo.lab import LEADER, RELEASE, SYSTEM, Lab
from dev.demo.report import await_that
from shardherd.client import AsyncConsumer
from shardherd.core.model.nouns import ConsumerId, Incarnation
from tests.e2e.calling import client
from tests.e2e.groups import CALLERS as NAMESPACE
from tests.e2e.groups import RESOURCE, group
from tests.e2e.test_callers import make_token
from tests.harness.cluster import Names, Tell
from tests.harness.listening import AFTER_A_CRASH, AFTER_SIGTERM, Answers, Listening

pytestmark = pytest.mark.timeout(300)

GROUP = "handed-over"


def operators(lab: Lab) -> list[Json]:
    """The operators that are ready, and are not about to go."""
    pods = lab.kube.pods(SYSTEM, "app.kubernetes.io/component=operator")
    return [pod for pod in pods if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def leading(lab: Lab) -> Json | None:
    """The operator that leads, if exactly one says so."""
    pods = lab.kube.pods(SYSTEM, LEADER)
    return pods[0] if len(pods) == 1 else None


def process(pod: Json) -> tuple[str, int]:
    """Which start of which pod this is."""
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]


def await_both(lab: Lab) -> None:
    await_that("two operators are ready", lambda: len(operators(lab)) == 2, within=90, explain=lambda: lab.kube.explain(SYSTEM))


@asynccontextmanager
async def consumer(lab: Lab, topic: str, answers: Answers) -> AsyncIterator[AsyncConsumer]:
    """A consumer outside of its pod, which needs no image: its identity is what counts."""
    source = {"bootstrapServers": "kafka:9092", "topics": [topic]}
    changes = {
        "heartbeatInterval": "1s",
        "application__image": "shardherd/not-there:dev",
        "application__driver__template": None,
    }
    lab.create_topic(topic, 2)
    lab.kube.apply(group(GROUP, NAMESPACE, source__kafka=source, **changes))
    pod = await_that(
        "the group's pod exists",
        lambda: next(iter(lab.kube.pods(NAMESPACE, f"shardherd.dev/consumergroup={GROUP}")), None),
        within=60,
        explain=lambda: lab.kube.explain(NAMESPACE, GROUP),
    )
    token = make_token(lab, "shardherd-spark", pod)
    try:
        async with (
            client(lab, NAMESPACE, GROUP, lambda: token) as calling,
            AsyncConsumer(
                Listening(calling, answers),
                ConsumerId(pod["metadata"]["name"]),
                Incarnation(pod["metadata"]["uid"], 1),
                group_uid=lab.kube.get(RESOURCE, GROUP, "-n", NAMESPACE)["metadata"]["uid"],
            ) as found,
        ):
            yield found
    finally:
        lab.kube.run("delete", RESOURCE, GROUP, "-n", NAMESPACE, "--wait=false")


async def becomes(what: Callable[[], bool], within: float = 60.0) -> None:
    """Wait until this holds, with the consumer's heartbeats going on meanwhile."""
    await asyncio.to_thread(await_that, "it came about", lambda: what() or None, within=within, every=0.05)


def test_the_charts_own_test_passes(installed: Lab) -> None:
    said = installed.cluster.helm("test", RELEASE, "-n", SYSTEM, "--timeout", "90s")
    assert "Succeeded" in said


async def test_the_other_operator_answers_soon(installed: Lab, names: Names, tell: Tell) -> None:
    lab, answers = installed, Answers()
    await asyncio.to_thread(await_both, lab)

    async def takeover(end: Callable[[Json], float]) -> float:
        """End the leader; for how many seconds after that the consumer is not answered, until another process leads."""
        leader = await asyncio.to_thread(await_that, "one operator leads", lambda: leading(lab), within=60.0)
        since = await asyncio.to_thread(end, leader)

        def taken_over() -> bool:
            now = leading(lab)
            return now is not None and process(now) != process(leader)

        # Seldom: each look takes of the processor that the takeover needs, and what was answered meanwhile is noted.
        await asyncio.to_thread(await_that, "another process leads", taken_over, within=60.0, every=1.0)
        led = time.monotonic()
        await becomes(lambda: answers.until_answered(led) is not None)
        found = answers.longest_silence(since)
        assert reader.held() == before
        await asyncio.to_thread(await_both, lab)
        return found

    def delete(pod: Json) -> float:
        lab.kube.run("delete", "pod", pod["metadata"]["name"], "-n", SYSTEM, "--wait=false")
        return time.monotonic()  # kubectl has said so, and its own start is none of the operator's affairs

    def kill(pod: Json) -> float:
        name = pod["metadata"]["name"]
        pid = lab.child_of_init(SYSTEM, name)
        now = time.monotonic()
        lab.kube.shell(SYSTEM, name, f"kill -9 {pid}")
        return now

    async with consumer(lab, names.fresh("handed-over"), answers) as reader:
        await becomes(lambda: len(reader.held()) == 2)
        before = reader.held()
        shutdown = await takeover(delete)
        crash = await takeover(kill)
    tell(f"through the Service: answered {shutdown:.2f} s after the leader's pod was deleted, {crash:.2f} s after a crash")
    assert shutdown <= AFTER_SIGTERM
    assert crash <= AFTER_A_CRASH
