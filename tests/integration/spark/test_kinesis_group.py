"""A real Spark application in a group that reads Kinesis, with the real coordinator; the stream is played."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable

from shardherd.core.model.nouns import ShardState
from tests.harness.kinesis import PlayedKinesis, open_shards, put, stream, update_count
from tests.harness.kinesis_group import KinesisGroup
from tests.harness.long import long
from tests.integration.spark.drivers import START, Driver, Site
from tests.integration.spark.test_executors import CONF as EXECUTOR
from tests.integration.spark.test_executors import executors

LOW, HIGH = "orders/shardId-000000000000", "orders/shardId-000000000001"
HASHES = {"low": 0, "high": 2**128 - 1}
"""What the keys of each shard are hashed to."""


@pytest.fixture
def orders(kinesis: PlayedKinesis) -> Iterator[Any]:
    with stream(kinesis, "orders", 2) as client:
        yield client


@pytest.fixture
def group(kinesis: PlayedKinesis, orders: Any) -> Iterator[KinesisGroup]:
    with KinesisGroup(kinesis, "orders", session_timeout=45.0) as started:
        yield started


@pytest.fixture
def site(tmp_path: Path, group: KinesisGroup) -> Iterator[Site]:
    made = Site(tmp_path, "", group.url)
    yield made
    made.close()


def write(client: Any, first: int, count: int) -> None:
    """So many numbered records to each shard."""
    numbers = range(first, first + count)
    put(client, "orders", [(key, str(number).encode()) for number in numbers for key in HASHES], HASHES)


def start(site: Site, group: KinesisGroup, run: int = 1, /, **settings: str) -> Driver:
    environment = group.environment("played-0") | {"SHARDHERD_START": str(run)}
    return site.start("played-0", run, environment["SHARDHERD_POD_UID"], **environment, **settings)


def read(site: Site) -> Counter[tuple[str, int]]:
    """How often the records of each shard were written, by their values."""
    lines = [line for path in site.sink.glob("*.jsonl") for line in path.read_text().splitlines()]
    return Counter((row["shard"], int(row["value"])) for row in map(json.loads, lines))


def each(start: int, stop: int, *shards: str) -> Counter[tuple[str, int]]:
    return Counter((shard, number) for shard in shards for number in range(start, stop))


def test_available_now_reads_what_there_was_of_the_shards_that_stay_and_ends(
    site: Site, group: KinesisGroup, kinesis: PlayedKinesis, orders: Any
) -> None:
    group.grant("played-0", LOW, HIGH)
    write(orders, 0, 30)
    (site.sink / "wait-played-0.1").touch()
    options = '{"maxOffsetsPerTrigger": "20"}'
    driver = start(site, group, TEST_AVAILABLE_NOW="yes", TEST_OPTIONS=options)
    site.wait_until((site.sink / "waits-played-0.1").exists, "its first micro-batch has begun", START)

    write(orders, 30, 10)
    group.revoke(HIGH)
    site.wait_until(lambda: "is to give up" in driver.log.read_text(), "it hears that one shard is another's now")
    kinesis.played.empty_answers = 40
    (site.sink / "wait-played-0.1").unlink()
    assert driver.process.wait(START) == 0, driver.log.read_text()[-3000:]
    assert kinesis.played.empty_answers == 0
    assert read(site) == each(0, 30, LOW) + each(0, 10, HIGH), "what came later is not read, and not what has moved"
    group.until("it is checkpointed, and has left", lambda: group.held_by("others") == (HIGH,))
    assert group.checkpoints() == {
        LOW: kinesis.numbers("orders", LOW.rpartition("/")[2])[29] + 1,
        HIGH: kinesis.numbers("orders", HIGH.rpartition("/")[2])[9] + 1,
    }

    group.grant("played-0", LOW, HIGH)
    again = start(site, group, 2, TEST_AVAILABLE_NOW="yes", TEST_OPTIONS=options)
    assert again.process.wait(START) == 0, again.log.read_text()[-3000:]
    assert read(site) == each(0, 40, LOW, HIGH), "each once"


def test_a_delta_table_has_each_record_once_although_its_writer_is_killed_and_the_count_of_shards_updated(
    site: Site, group: KinesisGroup, kinesis: PlayedKinesis, orders: Any
) -> None:
    """It is killed after a commit. Shards are doubled before it goes on, then halved; children are read after parents."""
    table = site.folder / "table"
    settings = {"TEST_APPLICATION": str(Path(__file__).with_name("sink_application.py")), "TEST_TABLE": str(table)}

    def rows() -> Counter[tuple[str, int]]:
        found = DeltaTable(str(table)).to_pyarrow_table(columns=["shard", "value"]).to_pylist()
        return Counter((row["shard"], int(row["value"])) for row in found)

    def opened() -> tuple[str, ...]:
        """The shards that the keys are written to now, which are the consumer's once they may be read."""
        found = tuple(f"orders/{shard}" for shard in open_shards(orders, "orders"))
        group.grant("played-0", *found)
        return found[0], found[-1]

    assert opened() == (LOW, HIGH)
    write(orders, 0, 30)
    (site.sink / "after-commit-played-0.1").touch()
    first = start(site, group, **settings)
    site.wait_until((site.sink / "at-after-commit-played-0.1").exists, "it has committed, and nobody knows of it", START)
    first.kill()
    site.wait_until(lambda: not first.children(), "its JVM and its workers end with it")
    group.kill("played-0")
    write(orders, 30, 10)
    update_count(orders, "orders", 4)
    children = opened()
    write(orders, 40, 10)

    second = start(site, group, 2, **settings)
    wanted = each(0, 40, LOW, HIGH) + each(40, 50, *children)
    site.wait_until(lambda: rows().total() >= wanted.total(), "the next run has written the rest", START)
    update_count(orders, "orders", 2)
    grandchildren = opened()
    write(orders, 50, 10)
    wanted += each(50, 60, *grandchildren)
    site.wait_until(lambda: rows().total() >= wanted.total(), "it reads what they were merged into")
    assert rows() == wanted
    ends = {shard: kinesis.numbers("orders", shard.rpartition("/")[2])[-1] + 1 for shard in grandchildren}
    site.wait_until(lambda: group.checkpoints().items() >= ends.items(), "all is checkpointed")
    site.wait_until(lambda: list(group.states().values()).count(ShardState.OVER) == 6, "what was closed is over")
    told = [json.loads(line) for line in (site.sink / "ranges-played-0.2").read_text().splitlines()]
    stops = {shard: stop for ranges in told for shard, (_, stop, _) in ranges.items()}
    assert {shard: stops[shard] for shard in grandchildren} == ends, "with all of their digits"
    for parent, child in (*zip((LOW, HIGH), children, strict=True), *zip(children, grandchildren, strict=True)):
        batches = {shard: [at for at, ranges in enumerate(told) if shard in ranges] for shard in (parent, child)}
        assert max(batches[parent]) < min(batches[child]), f"{child} is read after {parent}: {told}"
    assert second.terminate() == 0


@long
def test_an_executor_on_another_machine_and_the_driver_keep_to_the_limits_of_a_shard_together(
    site: Site, group: KinesisGroup, kinesis: PlayedKinesis, orders: Any
) -> None:
    """It does not see what the driver notes in its folder for temporary files. More is written than both may read at once."""
    elsewhere = site.folder / "elsewhere"
    elsewhere.mkdir()
    pod = {"spark.executorEnv.SPARK_EXECUTOR_ID": "1", "spark.executorEnv.TMPDIR": str(elsewhere)}
    home = str(Path(pyspark.__file__).parent)
    group.grant("played-0", LOW, HIGH)
    driver = start(site, group, SHARDHERD_SPARK_CONF=json.dumps(EXECUTOR | pod), SPARK_HOME=home)
    site.wait_until(lambda: bool(executors(driver)), "it has an executor", START)
    kinesis.played.limits = True
    for turn in range(4):
        numbers = range(400 * turn, 400 * (turn + 1))
        put(orders, "orders", [(key, str(number).rjust(4000).encode()) for number in numbers for key in HASHES], HASHES)
        wanted = each(0, numbers.stop, LOW, HIGH)
        site.wait_until(lambda wanted=wanted: read(site).total() >= wanted.total(), f"turn {turn} is read", START)  # type: ignore[misc]
    assert (read(site), kinesis.played.calls["throttled"]) == (wanted, 0)
    assert list(elsewhere.rglob("shardherd-kinesis-*")), "the tasks have run there"
    assert driver.terminate() == 0
