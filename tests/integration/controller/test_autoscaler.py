"""The real HorizontalPodAutoscaler controller sets the number of consumers, by the lag that the real operator measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dev.cluster import Cluster
from tests.harness.cluster import Names, Tell
from tests.harness.external_metrics import external_metrics
from tests.harness.long import long
from tests.integration.controller.autoscaling import autoscaler, condition
from tests.integration.controller.bench import fill_topic, unique, until
from tests.integration.controller.process import operating
from tests.integration.controller.test_rollout import SHARDS, assert_nothing_is_missing_or_repeated, group

RECORDS = 250
"""Records of each shard: one consumer needs a minute to read all of them."""

EACH = 150


@long
@pytest.mark.timeout(300)
def test_an_autoscaler_adds_consumers_for_a_backlog_and_takes_them_away_once_it_is_read(
    cluster: Cluster, names: Names, tmp_path: Path, tell: Tell
) -> None:
    namespace, topic = unique(names, "scaled"), unique(names, "scaled")
    fill_topic(cluster, topic, SHARDS, RECORDS)
    external: dict[str, Any] = {"replicas": 1, "scaling": {"mode": "External", "shardsPerConsumer": None}}
    with operating(cluster, namespace, tmp_path) as operator:
        operator.start()
        with (
            external_metrics(cluster, namespace, operator.metrics),
            group(operator, topic, "scaled", end=lambda _: RECORDS, **external) as rollout,
        ):
            assert rollout.status()["replicas"] == 1
            manifest = autoscaler(namespace, "scaled", most=SHARDS, each=EACH)
            cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))

            def explain() -> object:
                return cluster.kubectl("describe", "hpa", "scaled", "-n", namespace), rollout.status(), rollout.kubelet.failures

            def settled(replicas: int) -> bool:
                resource = operator.api.call("GET", rollout.path)
                status = resource["status"]
                return bool((resource["spec"]["replicas"], status["replicas"], status["readyReplicas"]) == (replicas,) * 3)

            until(lambda: settled(SHARDS), explain)
            assert rollout.status()["scaling"]["reason"] == "External"
            until(lambda: settled(1), explain, within=120)
            until(lambda: all(len(rollout.kubelet.of(shard)) == RECORDS for shard in rollout.shards), explain)

            assert condition(cluster, namespace, "scaled") == ("True", "ValidMetricFound")
            resource = operator.api.call("GET", rollout.path)
            setters = [item["manager"] for item in resource["metadata"]["managedFields"] if item.get("subresource") == "scale"]
            assert setters == ["kube-controller-manager"]
            readers = {item.consumer for shard in rollout.shards for item in rollout.kubelet.of(shard)}
            assert readers == {f"scaled-{ordinal}" for ordinal in range(SHARDS)}
            for shard in rollout.shards:
                assert_nothing_is_missing_or_repeated(rollout.kubelet.of(shard))
            assert rollout.kubelet.fenced == []
            down = [pod for pod, _, _ in rollout.kubelet.down()]
            assert down == [], "no consumer was replaced"
            deleted = [life for life in rollout.kubelet.lives if life.event == "deleted"]
            tell("scaled in by the autoscaler: " + ", ".join(life.pod for life in deleted))
            assert [life.pod for life in deleted] == ["scaled-3", "scaled-2", "scaled-1"]
