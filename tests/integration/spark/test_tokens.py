"""Real Spark with tokens of a played issuer on real brokers: by itself, and as a consumer of a group. No secret is shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import shardherd.spark
from dev.cluster.kafka import PASSWORDS, SUPER, KafkaTrio
from shardherd.core.model.security import OAuth
from tests.harness.issuer import Issuer
from tests.harness.kafka import KafkaLab
from tests.harness.long import long
from tests.harness.spark import make_session
from tests.integration.spark.drivers import START, Site
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_secured import files_with

pytestmark = long


@pytest.fixture
def issuer(kafka: KafkaLab) -> Iterator[Issuer]:
    made = Issuer(kafka.trio.certificates, dict(PASSWORDS))
    yield made
    made.close()


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    made = make_session(tmp_path, {"spark.master": "local[2]"})
    shardherd.spark.register(made)
    yield made
    made.stop()


def test_a_query_by_itself_reads_with_tokens_and_its_plan_shows_none(
    kafka: KafkaLab, issuer: Issuer, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.create(2)
    kafka.send(topic, 2, 50)
    (tmp_path / "secret").write_text(PASSWORDS[SUPER])
    authorities = str(kafka.trio.certificates / "ca.crt")
    options = {
        "kafka.bootstrap.servers": kafka.trio.bootstrap("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": authorities,
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.username": SUPER,
        "kafka.sasl.password.file": str(tmp_path / "secret"),
        "kafka.sasl.oauthbearer.token.endpoint.url": issuer.url,
        "kafka.https.ca.location": authorities,
        "subscribe": topic,
    }

    frame = spark.read.format("shardherd").options(**options).load()
    frame.explain("extended")
    rows = [(row["partition"], row["offset"]) for row in frame.collect()]

    assert sorted(rows) == [(partition, offset) for partition in range(2) for offset in range(50)]
    shown = "".join(capfd.readouterr())
    assert "Parsed Logical Plan" in shown
    assert len(issuer.given) >= 2, "the driver has one, and its workers have others"
    assert [word for word in (PASSWORDS[SUPER], *issuer.given) if word in shown] == []


def test_a_consumers_query_outlives_its_tokens_and_shows_none(
    trio: KafkaTrio,
    kafka: KafkaLab,
    issuer: Issuer,
    coordinator: ScriptedCoordinator,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    issuer.seconds = 5
    credentials = tmp_path_factory.mktemp("credentials")
    security = kafka.files(credentials, "SASL_SSL", "OAUTHBEARER", oauth=OAuth(issuer.url))
    topic = kafka.create(4)
    shards = [f"{topic}/{number}" for number in range(4)]
    site = Site(tmp_path_factory.mktemp("site"), trio.bootstrap("SASL_SSL"), coordinator.url)
    driver = site.start("clicks-0", SHARDHERD_KAFKA_SECURITY=json.dumps(security.as_dict()), TEST_EXPLAIN="yes")
    try:
        coordinator.wait_until(
            lambda: "clicks-0" in coordinator.heartbeats and coordinator.heartbeats["clicks-0"].ready, "it is warm", START
        )
        coordinator.grant("clicks-0", *shards)
        for times in range(1, 4):
            given = len(issuer.given)
            kafka.send(topic, 4, 100)
            site.wait_until(lambda: len(site.rows()) == 400 * times, "what was sent is read")  # noqa: B023 - called at once
            site.wait_until(lambda: len(issuer.given) >= given + 4, "tokens were renewed")  # noqa: B023 - called at once

        assert site.counted() == Counter({(shard, offset): 1 for shard in shards for offset in range(300)})
        assert len(list(site.sink.glob("started-*"))) == 1, "the query was never restarted"
        assert driver.terminate() == 0
        assert "Parsed Logical Plan" in driver.log.read_text()
        assert files_with(site.folder, (PASSWORDS[SUPER], *issuer.given)) == []
    finally:
        site.close()
