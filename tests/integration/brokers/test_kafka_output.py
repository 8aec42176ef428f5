"""Records of a worker in a topic of real brokers, with the position of their shard in one transaction: each once, in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka.errors as errors
import pytest
from kafka import KafkaConsumer, TopicPartition

from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.core.model.security import Security
from shardherd.source.security.environment import KafkaAccess
from shardherd.testing.group import PlayedGroup
from shardherd.transactions.kafka_transactions import Transactions, WriteRefusedError
from shardherd.transactions.outcomes import ConflictError, TableError
from shardherd.worker import KafkaOutput, OutputsError, Record, ShardGrant
from shardherd.worker.output import MovedPositionError
from tests.harness.kafka import KafkaLab
from tests.harness.long import long

ROOT = Path(__file__).resolve().parents[3]
WITHIN = 120.0


class KilledError(BaseException):
    """The process is gone."""


class Topics:
    """A source's topic of two partitions, which nobody reads, and an output topic of three, for all tests."""

    def __init__(self, lab: KafkaLab) -> None:
        self.lab = lab
        self.bootstrap = lab.trio.bootstrap()
        self.source, self.output = lab.create(2), lab.create(3, min_insync_replicas="2")

    def read(self, topic: str, partitions: int, *, committed: bool = True) -> list[list[Any]]:
        """All records of each partition, as a consumer reads them."""
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        # The end of all that is there: what was committed last may not be marked yet, and is waited for.
        with _consumer(self.bootstrap, "read_uncommitted") as anyone:
            ends = anyone.end_offsets(parts)
        found: list[list[Any]] = [[] for _ in parts]
        with _consumer(self.bootstrap, "read_committed" if committed else "read_uncommitted") as consumer:
            consumer.assign(parts)
            consumer.seek_to_beginning(*parts)
            while any(consumer.position(part) < ends[part] for part in parts):
                for part, batch in consumer.poll(timeout_ms=200).items():
                    found[part.partition] += batch
        return found


@contextlib.contextmanager
def _consumer(bootstrap: str, level: str) -> Iterator[Any]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=level, enable_auto_commit=False)
    try:
        yield consumer
    finally:
        consumer.close()


class Site:
    """What one test writes of the shard 1: its records are known by their values, and it has a group of its own."""

    def __init__(self, topics: Topics, topic: str = "") -> None:
        self.topics = topics
        self.topic = topic or topics.output
        self.shard = ShardId(f"{topics.source}/1")
        self.group = str(uuid.uuid4())
        self.tag = self.group[:8].encode()

    def record(self, offset: Offset) -> Record:
        return Record(offset, None, b"%s:%d" % (self.tag, offset), 1_700_000_000_000 + offset, ())

    def records(self, start: Offset, stop: Offset) -> list[Record]:
        return [self.record(offset) for offset in range(start, stop)]

    def output(self, **attributes: Any) -> KafkaOutput:
        """As in a process of its own."""
        made = type("Events", (KafkaOutput,), {"topic": self.topic, **attributes})
        output: KafkaOutput = made()
        output.reach(KafkaAccess(self.topics.bootstrap, Security(), None))
        output.open(self.shard)
        return output

    def grant(self, epoch: int, start: Offset = 0) -> ShardGrant:
        return ShardGrant(self.group, self.shard, epoch, start)

    def offsets(self, *, committed: bool = True) -> list[int]:
        """What is there, in the order of the partition to which the shard's records without a key go."""
        values = [each.value or b"" for each in self.topics.read(self.topic, 3, committed=committed)[1]]
        return [int(each.split(b":")[1]) for each in values if each.startswith(self.tag)]


@pytest.fixture(scope="module")
def topics(kafka: KafkaLab) -> Topics:
    return Topics(kafka)


@pytest.fixture
def site(topics: Topics) -> Site:
    return Site(topics)


def test_records_and_position_are_there_together_batch_after_batch(site: Site) -> None:
    output, grant = site.output(), site.grant(3, start=10)
    assert output.position(grant) == 10, "the group's own position where there is no other"
    output.write_once(site.records(10, 15), grant, 10, 15)
    output.write_once(site.records(15, 40), grant, 15, 44)  # the last ones were not selected
    output.close()

    assert (site.output().position(site.grant(4, start=10)), site.offsets()) == (44, list(range(10, 40)))


def test_the_outputs_position_wins_over_the_groups_and_groups_and_names_have_their_own(site: Site) -> None:
    output, grant = site.output(), site.grant(1)
    output.position(grant)
    output.write_once(site.records(0, 20), grant, 0, 20)

    again = [
        site.output().position(site.grant(2, start=7)),
        site.output(name="other").position(site.grant(2, start=7)),
        site.output().position(site.grant(2, start=7)._replace(group="another")),
    ]
    assert again == [20, 7, 7]


STEPS = (
    ("_send", "after"),
    ("_end", "before"),
    ("_end", "after"),
    *(
        pytest.param(*each, marks=long)
        for each in (("_open", "before"), ("_open", "after"), ("_send", "before"), ("_commit", "before"), ("_commit", "after"))
    ),
)


@pytest.mark.parametrize(("step", "when"), STEPS)
def test_a_worker_that_is_killed_at_any_request_leaves_each_record_once(
    site: Site, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is gone says nothing to the brokers any more: no request of it follows, and nothing is aborted."""
    output, grant = site.output(), site.grant(1)
    output.position(grant)
    output.write_once(site.records(0, 20), grant, 0, 20)
    work = getattr(Transactions, step)

    async def vanishes(self: Transactions, *arguments: Any, **more: Any) -> Any:
        if when == "after":
            await work(self, *arguments, **more)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, step, vanishes)
        patched.setattr(Transactions, "abort", lambda *_: None)
        if step == "_open":
            output.close()
        with pytest.raises(KilledError):
            output.write_once(site.records(20, 40), grant, 20, 40)

    after, grant = site.output(), site.grant(2)
    position = after.position(grant)
    assert position == (40 if (step, when) in (("_commit", "after"), ("_end", "after")) else 20)
    if position < 50:
        after.write_once(site.records(position, 50), grant, position, 50)
    assert site.offsets() == list(range(50))


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_which_nobody_knows_is_looked_up_by_the_position(
    site: Site, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, grant = site.output(), site.grant(1)
    output.position(grant)
    end = Transactions._end

    async def lost(self: Transactions, wire: Any, transaction: Any, *, committed: bool) -> None:
        if happened:
            await end(self, wire, transaction, committed=committed)
        raise errors.KafkaConnectionError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "_again", lambda _self, _wire, work: work())
        patched.setattr(Transactions, "_end", lost)
        patched.setattr(Transactions, "abort", lambda *_: None)
        with pytest.raises(ConflictError, match="were committed is not known"):
            output.write_once(site.records(0, 20), grant, 0, 20)
    position = output.position(grant)
    assert position == (20 if happened else 0)
    output.write_once(site.records(position, 30), grant, position, 30)
    assert site.offsets() == list(range(30))


def test_a_holder_that_comes_back_after_its_shard_has_moved_writes_nothing(site: Site) -> None:
    """It is fenced as soon as the next one has asked, also by what it has begun; and it fences nobody when it asks again."""
    late, now = site.output(), site.output()
    late.position(site.grant(1))
    late.write_once(site.records(0, 20), site.grant(1), 0, 20)
    assert now.position(site.grant(2)) == 20
    with pytest.raises(ConflictError, match="another producer has taken over"):
        late.write_once(site.records(20, 40), site.grant(1), 20, 40)
    for _ in range(2):
        with pytest.raises(FencedEpochError, match="was written under epoch 2 already, and this consumer was given it under 1"):
            late.write_once(site.records(20, 40), site.grant(1), 20, 40)
    now.write_once(site.records(20, 33), site.grant(2), 20, 33)
    assert site.offsets() == list(range(33))


def test_a_holder_that_stood_still_before_its_commit_is_fenced(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its records are acknowledged by the brokers; the next holder ends its transaction without them."""
    late, now = site.output(), site.output()
    late.position(site.grant(1))
    begin = Transactions.begin_commit
    moved: list[bool] = []

    def stands_still(self: Transactions, *arguments: Any) -> Any:
        if not moved:
            moved.append(True)
            assert site.offsets(committed=False) == list(range(40))
            assert now.position(site.grant(2)) == 0
            now.write_once(site.records(0, 33), site.grant(2), 0, 33)
        return begin(self, *arguments)

    monkeypatch.setattr(Transactions, "begin_commit", stands_still)
    with pytest.raises(ConflictError):
        late.write_once(site.records(0, 40), site.grant(1), 0, 40)
    assert (moved, site.offsets()) == ([True], list(range(33)))


def test_two_that_hold_the_same_grant_write_each_record_once(site: Site) -> None:
    """As a run of a pod that goes on beside the next one: whoever asks last writes, the other asks again."""
    one, other, grant = site.output(), site.output(), site.grant(1)
    one.position(grant)
    one.write_once(site.records(0, 10), grant, 0, 10)
    other.position(grant)
    other.write_once(site.records(10, 20), grant, 10, 20)
    with pytest.raises(ConflictError):
        one.write_once(site.records(10, 30), grant, 10, 30)
    with pytest.raises(MovedPositionError, match="is 20, and not 10"):
        one.write_once(site.records(10, 30), grant, 10, 30)
    one.write_once(site.records(20, 30), grant, 20, 30)
    assert site.offsets() == list(range(30))


def test_all_that_a_record_has_is_read_back_and_its_key_says_where(site: Site) -> None:
    output, grant = site.output(compression="zstd"), site.grant(1)
    output.position(grant)
    first = Record(0, b"key", b"value", 1_700_000_000_001, (("a", b"1"), ("b", None)))
    output.write_once([first, Record(1, b"key", None, 1_700_000_000_002, ()), site.record(2)], grant, 0, 3)

    parts = site.topics.read(site.topic, 3)
    found = [(each.key, each.value, each.timestamp, list(each.headers)) for part in parts for each in part if each.key]
    assert found == [
        (b"key", b"value", 1_700_000_000_001, [("a", b"1"), ("b", None)]),
        (b"key", None, 1_700_000_000_002, []),
    ]
    assert site.offsets() == [2]


def test_what_is_refused_leaves_nothing_and_says_what_to_do(topics: Topics) -> None:
    site = Site(topics, topics.lab.create(3, max_message_bytes="1000"))
    output, grant = site.output(), site.grant(1)
    output.position(grant)
    large = Record(1, None, b"x" * 5000, 1, ())
    with pytest.raises(WriteRefusedError, match=r"raise max\.message\.bytes of the topic above the size of its records"):
        output.write_once([site.record(0), large], grant, 0, 2)
    assert output.position(grant) == 0
    output.write_once(site.records(0, 1), grant, 0, 1)
    assert site.offsets() == [0]


def test_where_it_writes_is_checked_when_it_is_opened(site: Site) -> None:
    for attributes, said in (
        ({"topic": ""}, "topic of Events must be the name of a topic, and is empty"),
        ({"compression": "lzma"}, "compression of Events must be one of none, gzip, snappy, lz4, zstd, not 'lzma'"),
        (
            {"transaction_timeout": 0},
            "transaction_timeout of Events must be a number of seconds above 0, up to 2147483, not 0",
        ),
        ({"kafka": {"client.id": "x"}}, "kafka of Events must have bootstrap.servers, beside client.id"),
        ({"kafka": {"bootstrap.servers": "x:9092", "acks": "0"}}, "kafka of Events: .*acks"),
    ):
        with pytest.raises(OutputsError, match=said):
            site.output(**attributes)
    with pytest.raises(OutputsError, match="nobody has said where Events writes: set `kafka` of it, or SHARDHERD_KAFKA"):
        type("Events", (KafkaOutput,), {"topic": "x"})().open(site.shard)
    with pytest.raises(TableError, match="has no topic 'nowhere': create it"):
        site.output(topic="nowhere").position(site.grant(1))


PROGRAM = """
import os, time
from shardherd.worker import KafkaOutput, Outputs, run

class Copied(KafkaOutput):
    topic = os.environ["TOPIC"]

    def write_once(self, *arguments):
        time.sleep(0.02)
        super().write_once(*arguments)

class Copies(Outputs):
    outputs = (Copied,)
    guarantee = "exactly-once"
    batch_size = 50
    batch_wait = 0.2

run(Copies, save_interval=0.5, max_pending=400)
"""


@pytest.mark.timeout(400)
def test_a_worker_that_is_killed_in_the_middle_copies_each_record_once_and_in_order(topics: Topics, tmp_path: Path) -> None:
    shards, count, kafka = 2, 400, topics.lab
    source, topic = topics.source, kafka.create(2)
    kafka.send(source, shards, count, size=0)
    program, log = tmp_path / "copies.py", tmp_path / "log"
    program.write_text(PROGRAM)

    def start() -> subprocess.Popen[bytes]:
        where = {"SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": kafka.trio.bootstrap(), "TOPIC": topic}
        env = {**os.environ, **group.environment("played-0"), **where, "PYTHONPATH": str(ROOT / "operator")}
        with log.open("ab") as file:
            return subprocess.Popen([sys.executable, str(program)], env=env, stdout=file, stderr=file)

    def there() -> list[list[bytes]]:
        return [[each.value for each in part] for part in topics.read(topic, shards)]

    def until(true: Any) -> None:
        deadline = time.monotonic() + WITHIN
        while not true():
            assert (worker.poll(), time.monotonic() < deadline) == (None, True), log.read_text()[-4000:]
            time.sleep(0.05)

    with PlayedGroup(shards=shards, topic=source) as group:
        worker = start()
        try:
            until(lambda: sum(map(len, there())) > 100)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            # Whoever reads committed records waits here until its transaction is given up, for a minute a shard.
            assert sum(map(len, topics.read(topic, shards, committed=False))) < shards * count
            worker = start()
            until(lambda: set(group.checkpoints().values()) == {count})
        finally:
            worker.terminate()
            assert worker.wait(60) == 0
    assert there() == [[b"%d:%d:" % (shard, number) for number in range(count)] for shard in range(shards)]
