"""A real Spark application over SASL and TLS: it outlives a broker, takes a rotated password, and shows no secret anywhere."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from kafka.admin import UserScramCredentialUpsertion

from dev.cluster.kafka import PASSWORDS, SUPER, KafkaTrio
from dev.cluster.ports import free_ports
from tests.harness.kafka import KafkaLab
from tests.integration.spark.drivers import START, Site
from tests.integration.spark.scripted import ScriptedCoordinator

SECOND = "second-word-36104"


def shown_by_the_ui(port: int) -> bytes:
    """Every page and answer of Spark's UI that could show a query's options and plans."""

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as reply:
            body: bytes = reply.read()
            return body

    (application,) = json.loads(get("/api/v1/applications"))
    answers = [get(f"/api/v1/applications/{application['id']}/{part}") for part in ("environment", "sql?details=true", "jobs")]
    return b"".join([*answers, get("/environment/"), get("/StreamingQuery/"), get("/SQL/")])


def files_with(folder: Path, words: tuple[str, ...]) -> list[str]:
    return [
        str(path) for path in folder.rglob("*") if path.is_file() and any(word.encode() in path.read_bytes() for word in words)
    ]


def test_a_secured_query_outlives_a_broker_and_a_rotation_and_shows_no_secret(
    trio: KafkaTrio, kafka: KafkaLab, coordinator: ScriptedCoordinator, tmp_path_factory: pytest.TempPathFactory
) -> None:
    credentials, (port,) = tmp_path_factory.mktemp("credentials"), free_ports(1)
    security = kafka.files(credentials, "SASL_SSL", "SCRAM-SHA-512")
    topic = kafka.create(4, on=(1, 2))
    shards = [f"{topic}/{number}" for number in range(4)]
    site = Site(tmp_path_factory.mktemp("site"), trio.bootstrap("SASL_SSL"), coordinator.url)
    conf = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    driver = site.start(
        "clicks-0",
        SHARDHERD_KAFKA_SECURITY=json.dumps(security.as_dict()),
        SHARDHERD_SPARK_CONF=json.dumps(conf | {"spark.ui.enabled": "true", "spark.ui.port": str(port)}),
        TEST_EXPLAIN="yes",
    )
    try:
        coordinator.wait_until(
            lambda: "clicks-0" in coordinator.heartbeats and coordinator.heartbeats["clicks-0"].ready, "it is warm", START
        )
        coordinator.grant("clicks-0", *shards)
        kafka.send(topic, 4, 100)
        site.wait_until(lambda: len(site.rows()) == 400, "the first hundred of each are read")

        kafka.admin.alter_user_scram_credentials([UserScramCredentialUpsertion(SUPER, "SCRAM-SHA-512", password=SECOND)])
        (credentials / "password").write_text(SECOND)
        trio.stop(1)
        kafka.send(topic, 4, 100)
        trio.start(1)
        kafka.send(topic, 4, 100)
        site.wait_until(lambda: len(site.rows()) >= 1200, "the others are read by new connections")

        assert site.counted() == Counter({(shard, offset): 1 for shard in shards for offset in range(300)})
        assert len(list(site.sink.glob("started-*"))) == 1, "the query was never restarted"
        shown = shown_by_the_ui(port)
        assert driver.terminate() == 0
        log = driver.log.read_text()
        assert "Parsed Logical Plan" in log
        assert "numInputRows" in log
        words = (PASSWORDS[SUPER], SECOND)
        assert files_with(site.folder, words) == []
        assert [word for word in words if word.encode() in shown] == []
    finally:
        site.close()
        kafka.admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(SUPER, "SCRAM-SHA-512", password=PASSWORDS[SUPER])]
        )
