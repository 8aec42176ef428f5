"""To no consumer and back, with the real operator and broker and consumers on the real protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaProducer

from dev.cluster import Cluster
from tests.harness.cluster import Names
from tests.harness.long import long
from tests.integration.controller.bench import fill_topic, unique, until
from tests.integration.controller.process import operating
from tests.integration.controller.test_rollout import SHARDS, group

RECORDS = 60


@long
@pytest.mark.timeout(300)
def test_the_last_consumer_goes_when_all_is_read_and_the_first_record_brings_one_back(
    cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    namespace, topic = unique(names, "zero"), unique(names, "zero")
    fill_topic(cluster, topic, SHARDS, RECORDS)
    ends: dict[str, float] = {f"{topic}/{number}": RECORDS for number in range(SHARDS)}
    scale = {"mode": "Lag", "shardsPerConsumer": None, "minReplicas": 0, "stabilizationWindow": "2s"}
    with operating(cluster, namespace, tmp_path) as operator:
        operator.start()
        with group(operator, topic, "sleeps", end=ends.__getitem__, scaling=scale) as rollout:

            def decided(desired: int) -> str:
                """The reason for so many consumers, once there are as many as decided."""

                def found() -> str:
                    status = rollout.status()
                    scaling = status.get("scaling", {})
                    settled = (scaling.get("desired"), status.get("replicas")) == (desired, desired)
                    return str(scaling["reason"]) if settled else ""

                return until(found, lambda: (rollout.status(), rollout.kubelet.failures), within=90)

            assert decided(0) == "Idle"
            until(lambda: not rollout.images(), lambda: rollout.kubelet.lives)
            for shard in rollout.shards:
                assert [item.begin for item in rollout.kubelet.of(shard)] == list(range(RECORDS))

            producer = KafkaProducer(bootstrap_servers=cluster.kafka_bootstrap)
            producer.send(topic, value=b"one more", partition=2)
            producer.close()
            ends[f"{topic}/2"] += 1
            until(lambda: len(rollout.kubelet.of(f"{topic}/2")) == RECORDS + 1, lambda: rollout.status(), within=90)
            assert [item.begin for item in rollout.kubelet.of(f"{topic}/2")] == list(range(RECORDS + 1))
            events = operator.api.call(
                "GET",
                f"/api/v1/namespaces/{namespace}/events",
                query={"fieldSelector": "involvedObject.kind=ConsumerGroup,involvedObject.name=sleeps"},
            )["items"]
            assert [item["message"] for item in events if item["reason"] == "ScaledUp" and "From 0 to 1" in item["message"]]
            assert decided(0) == "Idle"
