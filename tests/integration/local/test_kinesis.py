"""The example orders-kinesis as `shardherd local up` runs it, while its stream is written, split and merged. It is played."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardherd.local.report import shards
from shardherd.local.state import State
from tests.harness.kinesis import PlayedKinesis, stream
from tests.harness.long import long
from tests.harness.orders import ORDERS, Line, Writer, events, lines, split_and_merge
from tests.integration.local.test_laptop import Laptop

SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "aws", "namespace": "demo", "labels": {"shardherd.dev/kafka-credentials": "true"}},
    "stringData": {"accessKeyId": "played", "secretAccessKey": "played"},
}


SPARK = {
    "image": "example/orders:1",
    "mainApplicationFile": "/opt/app/kinesis_application.py",
    "arguments": ["/data/journal"],
    "checkpoint": {"path": "/data/checkpoints"},
    "driver": {
        "memory": "640m",
        "template": {
            "spec": {
                "containers": [{"name": "driver", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            }
        },
    },
    "executor": {"instances": 0},
}
"""An application of Spark in the place of the example's."""


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    found = Laptop(tmp_path / "app", "no Kafka", application="orders-kinesis")
    (found.folder / "aws.yaml").write_text(yaml.safe_dump(SECRET))
    yield found
    found.close()


def journal(laptop: Laptop) -> list[Line]:
    """What all consumers have written."""
    return lines((laptop.folder / ".shardherd").rglob("journal/*.jsonl"))


@contextlib.contextmanager
def declared(laptop: Laptop) -> Iterator[dict[str, Any]]:
    """The group's `spec` in its manifest, which is written anew."""
    manifest = laptop.folder / "consumergroup.yaml"
    group = yaml.safe_load(manifest.read_text())
    yield group["spec"]
    manifest.write_text(yaml.safe_dump(group))


def up(laptop: Laptop, service: PlayedKinesis, *, consumers: int, **spec: Any) -> None:
    """Start the example, with what else is declared; it has as many consumers as the stream has shards, at most so many."""
    with declared(laptop) as its:
        its |= {"heartbeatInterval": "1s", "initialAssignmentDelay": "1s", **spec}
        its["source"]["kinesis"]["endpoint"] = service.url
        its["scaling"] |= {"shardsPerConsumer": 1, "maxReplicas": consumers}
    process = laptop.start("shardherd local up -f consumergroup.yaml -f aws.yaml")
    laptop.until("it leads", lambda: "leading: " in laptop.said(process) or process.poll() is not None)
    assert process.poll() is None, laptop.said(process)


def states(laptop: Laptop) -> Counter[str]:
    """How many shards are in each state, as the coordinator says."""
    state = State(laptop.folder / ".shardherd")
    objects = state.objects()
    try:
        return Counter(each["state"] for each in shards(state, objects, "demo", "orders-kinesis") or ())
    finally:
        objects.database.close()


def apply(laptop: Laptop, **spec: Any) -> None:
    with declared(laptop) as its:
        its |= spec
    laptop.type("shardherd local apply -f consumergroup.yaml -f aws.yaml")


def test_no_event_of_an_order_is_lost_repeated_or_out_of_order_while_the_stream_is_split_and_merged(
    laptop: Laptop, kinesis: PlayedKinesis
) -> None:
    """After a reset all is read once more, of shards that were read to their ends, too, in no order of the shards."""
    with stream(kinesis, "orders", 2) as client:
        up(laptop, kinesis, consumers=2)
        writer = Writer(client)
        try:
            split_and_merge(laptop.until, partial(journal, laptop), client)
        finally:
            writer.end()
        laptop.until("all is read", lambda: len(journal(laptop)) >= writer.rounds * len(ORDERS))
        assert events(journal(laptop)) == {each: list(range(writer.rounds)) for each in ORDERS}
        assert len({line["shard"] for line in journal(laptop)}) == 5
        files = (laptop.folder / ".shardherd").rglob("journal/*.jsonl")
        assert {file.name.split(".")[0] for file in files} == {"orders-kinesis-0", "orders-kinesis-1"}
        laptop.until("what was split or merged is over", lambda: states(laptop) == {"OVER": 3, "ALREADY_ALLOC": 2})

        apply(laptop, paused=True, reset={"id": "again", "to": "Earliest"})
        laptop.until("nothing is over", lambda: states(laptop) == {"NOT_ALLOC": 3, "ALREADY_ALLOC": 2})
        apply(laptop, paused=False)
        laptop.until("all is read again", lambda: len(journal(laptop)) >= 2 * writer.rounds * len(ORDERS))
        assert {each: sorted(found) for each, found in events(journal(laptop)).items()} == {
            each: sorted(2 * list(range(writer.rounds))) for each in ORDERS
        }
        laptop.until("they are over again", lambda: states(laptop) == {"OVER": 3, "ALREADY_ALLOC": 2})


@long
def test_spark_in_a_group_loses_none_either_also_when_its_driver_is_killed(laptop: Laptop, kinesis: PlayedKinesis) -> None:
    application = Path(__file__).with_name("kinesis_application.py")
    (laptop.folder / application.name).write_text(application.read_text())
    with stream(kinesis, "orders", 2) as client:
        up(laptop, kinesis, consumers=1, application=SPARK)
        writer = Writer(client)
        try:
            split_and_merge(laptop.until, partial(journal, laptop), client)
            before = len(journal(laptop))
            laptop.type("shardherd local kill orders-kinesis-0")
            laptop.until("it reads on", lambda: len(journal(laptop)) > before + len(ORDERS))
        finally:
            writer.end()
        wanted = {each: list(range(writer.rounds)) for each in ORDERS}
        laptop.until(
            "all is read", lambda: {each: sorted(set(found)) for each, found in events(journal(laptop)).items()} == wanted
        )
        again = sum(map(len, events(journal(laptop)).values())) - writer.rounds * len(ORDERS)
        assert {each: list(dict.fromkeys(found)) for each, found in events(journal(laptop)).items()} == wanted
        assert again <= 30 * 10 * len(ORDERS), "at most two micro-batches"
        assert len({line["shard"] for line in journal(laptop)}) == 5
