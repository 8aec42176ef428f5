"""Rolling out, with the real operator and broker and consumers on the real protocol: who reads what, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import MERGE_PATCH
from tests.harness.cluster import Names
from tests.harness.kubelet import PlayedKubelet, Range
from tests.harness.long import long
from tests.integration.controller.bench import fill_topic, unique, until
from tests.integration.controller.process import OperatorProcess, operating

SHARDS = 4
RECORDS = 600
"""Records of each shard: more than are read in a test."""


@pytest.fixture(scope="module")
def operator(cluster: Cluster, names: Names, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operating(cluster, unique(names, "rollout"), tmp_path_factory.mktemp("rollout")) as process:
        process.start()
        yield process


@pytest.fixture(scope="module")
def topic(cluster: Cluster, names: Names) -> str:
    """A topic with records in every partition."""
    topic = unique(names, "rollout")
    fill_topic(cluster, topic, SHARDS, RECORDS)
    return topic


class Rollout:
    """A group of two consumers, two shards each, whose pods are played."""

    def __init__(self, operator: OperatorProcess, kubelet: PlayedKubelet, name: str, topic: str) -> None:
        self.operator, self.kubelet, self.name, self.topic = operator, kubelet, name, topic
        self.shards = [f"{topic}/{number}" for number in range(SHARDS)]

    @property
    def path(self) -> str:
        """Where its resource is."""
        return f"{self.operator.groups}/{self.name}"

    def change(self, **application: Any) -> None:
        """Declare something else."""
        self.operator.api.call("PATCH", self.path, {"spec": {"application": application}}, content_type=MERGE_PATCH)

    def status(self) -> dict[str, Any]:
        """Its status."""
        found: dict[str, Any] = self.operator.api.call("GET", self.path).get("status", {})
        return found

    def until_rollout(self, state: str) -> dict[str, Any]:
        """The status of the rollout once it is about the last declaration and in this state."""

        def reached() -> dict[str, Any] | None:
            resource = self.operator.api.call("GET", self.path)
            status = resource.get("status", {})
            rollout: dict[str, Any] = status.get("rollout", {})
            known = status.get("observedGeneration") == resource["metadata"]["generation"]
            return rollout if known and rollout.get("state") == state else None

        return until(reached, lambda: (self.status(), self.kubelet.lives, self.kubelet.failures), within=90)

    def images(self) -> set[str]:
        """What its pods run."""
        pods = self.operator.api.call("GET", f"/api/v1/namespaces/{self.operator.namespace}/pods")["items"]
        return {pod["spec"]["containers"][0]["image"] for pod in pods if pod["metadata"]["name"].startswith(f"{self.name}-")}

    def until_all_are_read(self) -> None:
        """Wait until every shard was read once more."""
        before = {shard: len(self.kubelet.of(shard)) for shard in self.shards}
        until(
            lambda: all(len(self.kubelet.of(shard)) > before[shard] for shard in self.shards),
            lambda: (self.status(), self.kubelet.failures),
        )


@contextmanager
def group(
    operator: OperatorProcess,
    topic: str,
    name: str,
    *,
    end: Callable[[str], float] = lambda _: math.inf,
    read_before_return: bool = False,
    **spec: Any,
) -> Iterator[Rollout]:
    """A group that reads, each shard to its end if that is given, and is gone afterwards.

    With `read_before_return` a consumer that is replaced is back only once every shard was read by another.
    """
    body = {
        "apiVersion": "shardherd.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {
            "source": {"kafka": {"bootstrapServers": operator.cluster.kafka_bootstrap, "topics": [topic]}},
            "scaling": {"shardsPerConsumer": 2},
            "heartbeatInterval": "500ms",
            "initialAssignmentDelay": "30s",
            "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py", "executor": {"instances": 0}},
            **spec,
        },
    }
    url = f"http://127.0.0.1:{operator.api_port}"
    shards = [f"{topic}/{number}" for number in range(SHARDS)]

    def may_return(pod: str, since: float) -> bool:
        return not read_before_return or all(
            any(item.at >= since and item.consumer != pod for item in played.of(shard)) for shard in shards
        )

    broken = ("example/broken:1",)
    played = PlayedKubelet(operator.api, operator.namespace, url, broken=broken, end=end, may_return=may_return)
    with played.running() as kubelet:
        operator.api.call("POST", operator.groups, body)
        rollout = Rollout(operator, kubelet, name, topic)
        try:
            rollout.until_rollout("Complete")
            rollout.until_all_are_read()
            yield rollout
        finally:
            operator.api.call("DELETE", rollout.path)
            until(lambda: not rollout.images(), lambda: kubelet.failures)


def assert_nothing_is_missing_or_repeated(ranges: list[Range]) -> None:
    """Every record from the first on was read by exactly one."""
    assert [item.begin for item in ranges] == list(range(len(ranges)))


def test_shards_are_read_on_by_others_while_a_consumer_is_replaced(operator: OperatorProcess, topic: str) -> None:
    # Were they not read on meanwhile, the rollout would not get on.
    with group(operator, topic, "drains", read_before_return=True) as rollout:
        rollout.change(image="example/clicks:2")
        assert rollout.until_rollout("Complete")["updated"] == 2
        rollout.until_all_are_read()
        assert rollout.images() == {"example/clicks:2"}
        down = rollout.kubelet.down()
        assert [pod for pod, _, _ in down] == ["drains-1", "drains-0"]
        for shard in rollout.shards:
            ranges = rollout.kubelet.of(shard)
            assert_nothing_is_missing_or_repeated(ranges)
            for pod, begin, end in down:
                readers = {item.consumer for item in ranges if begin <= item.at <= end}
                assert readers - {pod}, f"{shard} was not read while {pod} was replaced"


def test_in_place_no_shard_moves(operator: OperatorProcess, topic: str) -> None:
    in_place: dict[str, Any] = {"rollout": {"strategy": "InPlace"}, "rejoinGrace": "60s"}
    with group(operator, topic, "stays", **in_place) as rollout:
        rollout.change(env=[{"name": "MODE", "value": "new"}])
        rollout.until_rollout("Complete")
        rollout.until_all_are_read()
        assert [pod for pod, _, _ in rollout.kubelet.down()] == ["stays-1", "stays-0"]
        for shard in rollout.shards:
            ranges = rollout.kubelet.of(shard)
            assert_nothing_is_missing_or_repeated(ranges)
            assert len({item.consumer for item in ranges}) == 1


@long
def test_a_declaration_that_does_not_run_is_taken_back_and_reading_goes_on(operator: OperatorProcess, topic: str) -> None:
    with group(operator, topic, "broken", rollout={"progressDeadline": "8s"}) as rollout:
        rollout.change(image="example/broken:1")
        taken_back = rollout.until_rollout("RolledBack")
        assert "did not run within spec.rollout.progressDeadline (8 s): Pod broken-1 was not ready." in taken_back["message"]
        until(lambda: rollout.images() == {"example/clicks:1"}, rollout.images)
        rollout.until_all_are_read()
        conditions = {item["type"]: (item["status"], item["reason"]) for item in rollout.status()["conditions"]}
        assert (conditions["Stalled"], conditions["Ready"]) == (("True", "RolledBack"), ("False", "RolledBack"))
        # The consumer that was not replaced was never touched.
        assert {pod for pod, _, _ in rollout.kubelet.down()} <= {"broken-1"}
        rollout.change(image="example/clicks:3")
        rollout.until_rollout("Complete")
        assert rollout.images() == {"example/clicks:3"}
        for shard in rollout.shards:
            assert_nothing_is_missing_or_repeated(rollout.kubelet.of(shard))
