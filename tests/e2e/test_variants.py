"""Two more shapes of a group, side by side: one with real executor pods, one that is ordered.

The one with executors is the manifest that the tests of local mode run unchanged on one machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dev.demo.account import moved_shards
from dev.demo.kube import is_ready
from dev.demo.lab import Lab
from dev.demo.place import CLAIM
from dev.demo.sink import count, disorder, duplicates
from shardherd.core.model.event_reasons import CONSUMER_DIED, PROGRESS_TIMEOUT, RELEASE_TIMEOUT, SESSION_TIMEOUT, SINK_TIMEOUT
from tests.e2e.groups import RESOURCE, group
from tests.e2e.groups import VARIANTS as NAMESPACE
from tests.e2e.running import Running, start
from tests.harness.cluster import Tell
from tests.harness.executors import MANIFEST
from tests.harness.executors import NAME as EXECUTORS
from tests.harness.long import long

pytestmark = pytest.mark.timeout(600)

ORDERED = "ordered"
BACKLOG = 20_000
START_S = 240


@pytest.fixture(scope="module")
def groups(installed: Lab, tell: Tell) -> Iterator[dict[str, Running]]:
    """Both groups, Ready. They end with the tests, also if they never become so: others need the machine."""
    lab = installed
    lab.make_volume(NAMESPACE, CLAIM)
    in_order = group(
        ORDERED,
        NAMESPACE,
        source__kafka={"bootstrapServers": "kafka:9092", "topics": [ORDERED]},
        application__arguments=[f"/data/{ORDERED}/rows"],
        ordered=True,
        scaling__shardsPerConsumer=2,
    )

    def executors() -> None:
        lab.kube.run("apply", "-n", NAMESPACE, "-f", str(MANIFEST))

    running = {
        EXECUTORS: start(lab, NAMESPACE, EXECUTORS, 2, BACKLOG, 200, executors),
        ORDERED: start(lab, NAMESPACE, ORDERED, 4, BACKLOG, 500, lambda: lab.kube.apply(in_order)),
    }
    try:
        for one in running.values():
            one.await_ready(START_S)
            tell(f"group {one.name} is ready")
        yield running
    finally:
        for one in running.values():
            one.traffic.end()
            lab.kube.run("delete", RESOURCE, one.name, "-n", NAMESPACE, "--ignore-not-found", "--wait=false")


@long
def test_a_lost_executor_pod_costs_no_record_and_the_query_goes_on(groups: dict[str, Running], tell: Tell) -> None:
    running = groups[EXECUTORS]
    executors = running.until("has executors", lambda: running.pods("executor"), 60)
    running.until("reads both shards", lambda: len(running.sink.rows().shards) == 2, 60)
    (driver,), grants, begun = running.pods("consumer"), running.grants(), time.time()
    assert {holder for holder, _, _ in grants.values()} == {f"{EXECUTORS}-0"}
    name = executors[0]["metadata"]["name"]
    running.lab.kube.run("delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force")

    def replaced() -> bool:
        others = [pod for pod in running.pods("executor") if is_ready(pod) and pod["metadata"]["name"] != name]
        return len(others) == len(executors)

    def read_on() -> bool:
        """Whether both shards were read up to records that were written after the loss."""
        rows = running.sink.rows()
        return len(rows.shards) == 2 and all(rows.event_time[rows.shard == at].max() > begun for at in range(2))

    running.until("has another executor", replaced, 120)
    running.until("is read on", read_on, 120)
    tell(f"an executor's pod lost: records written after it are in the sink {time.time() - begun:.1f} s later")
    rows = running.sink.rows()
    assert [path.name for path in running.sink.path.iterdir()] == [f"{EXECUTORS}-0.1"], "the application was not started again"
    so_far = {shard: int(rows.offset[rows.shard == at].max()) + 1 for at, shard in enumerate(rows.shards)}
    held = count(rows, so_far)
    assert (held.missing, held.foreign, held.duplicates) == (0, 0, 0)
    assert running.grants() == grants, "no shard was granted anew"
    (now,) = running.pods("consumer")
    assert now["metadata"]["uid"] == driver["metadata"]["uid"]


def test_no_second_copy_of_pyspark_is_compiled_by_each_process_that_spark_starts(groups: dict[str, Running]) -> None:
    running = groups[EXECUTORS]
    executor = running.until("has an executor", lambda: [pod for pod in running.pods("executor") if is_ready(pod)], 120)[0]
    for each in (running.pods("consumer")[0], executor):
        pod = each["metadata"]["name"]
        found = running.lab.kube.run("exec", "-n", NAMESPACE, pod, "--", "find", "/opt/venv", "-name", "pyspark*.zip")
        assert found == ""


def test_executors_read_everything_once(groups: dict[str, Running]) -> None:
    running = groups[EXECUTORS]
    executors = running.until("has executors", lambda: running.pods("executor"), 60)
    driver = running.pods("consumer")[0]["metadata"]
    labels = executors[0]["metadata"]["labels"]
    assert labels["shardherd.dev/consumer"] == driver["name"]
    assert labels["shardherd.dev/incarnation"] == f"{driver['uid']}.1"
    assert executors[0]["metadata"]["name"].startswith(f"{driver['name']}-1-")
    produced = running.finish()
    held = count(running.sink.rows(), produced)
    assert (held.missing, held.foreign, held.duplicates) == (0, 0, 0)
    assert held.produced > BACKLOG


def test_a_deleted_group_leaves_nothing_but_its_offsets(groups: dict[str, Running], lab: Lab) -> None:
    running = groups[EXECUTORS]
    lab.kube.run("delete", RESOURCE, EXECUTORS, "-n", NAMESPACE, "--timeout=60s", timeout=70)
    running.until("has no pod left", lambda: not running.pods(), 90)

    def left() -> list[str]:
        kinds = "statefulsets,services,poddisruptionbudgets,configmaps,pods"
        objects = lab.kube.items(kinds, "-n", NAMESPACE, "-l", f"shardherd.dev/consumergroup={EXECUTORS}")
        return [f"{found['kind']}/{found['metadata']['name']}" for found in objects]

    running.until("has no object left", lambda: not left(), 60)
    assert set(lab.describe_group(f"{NAMESPACE}.{EXECUTORS}")) == {f"{EXECUTORS}/0", f"{EXECUTORS}/1"}


ENDS = (CONSUMER_DIED, SESSION_TIMEOUT, RELEASE_TIMEOUT, PROGRESS_TIMEOUT, SINK_TIMEOUT)
"""Reasons of Events that tell of a consumer whose last micro-batch others read again."""


def test_an_ordered_group_keeps_order_through_a_kill(groups: dict[str, Running], lab: Lab) -> None:
    running = groups[ORDERED]
    running.until("is read by two", lambda: len(running.sink.rows().owners) == 2, 60)
    dead = f"{ORDERED}-1"

    def of_the_dead() -> set[str] | None:
        found = {str(shard) for shard, (holder, _, _) in running.grants().items() if holder == dead}
        return found if len(found) == 2 else None

    theirs = running.until("holds two shards each", of_the_dead, 60)
    killed, _ = lab.kill_process(NAMESPACE, dead, lab.child_of_init(NAMESPACE, dead))

    running.until("has moved its shards", lambda: theirs <= moved_shards(running.sink.rows(), killed, time.time()), 120)
    produced = running.finish()
    rows = running.sink.rows()
    held = count(rows, produced)
    assert (held.missing, held.foreign, disorder(rows)) == (0, 0, 0)
    warned = [(reason, message) for kind, reason, message in running.events() if kind == "Warning"]
    # A machine that is busy may keep a consumer from running for longer than its session lasts: then that one was expired, too.
    ended = {dead} | {name for name in rows.owners if any(reason in ENDS and name in message for reason, message in warned)}
    assert {duplicate.first_owner for duplicate in duplicates(rows)} <= ended, warned
