"""Records are read from the near replica that a leader names, and from the leader when that one is of no use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from kafka.protocol.consumer import FetchRequest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka import replicas
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.leader_epochs import Mark
from shardherd.source.kafka.replicas import AWAY_FOR, BEHIND_FOR, NAMED_FOR, Replicas
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange
from shardherd.spark import reader
from shardherd.spark.reader import brokers_of
from tests.unit.source.played_kafka import Log, PlayedKafka

A, B = ShardId("clicks/0"), ShardId("clicks/1")
LEADER, NEAR = 1, 2
Connect = Callable[[str], Brokers]


@pytest.fixture
def kafka() -> Iterator[PlayedKafka]:
    """A leader in zone a, its follower in zone b."""
    with PlayedKafka(
        {0: Log(LEADER, 640, followers=(NEAR,))}, {LEADER: "a", NEAR: "b"}, records=64, record_limit=128
    ) as played:
        yield played


@pytest.fixture
def connect(kafka: PlayedKafka) -> Iterator[Connect]:
    made: list[Brokers] = []

    def connect(rack: str) -> Brokers:
        made.append(Brokers(kafka.bootstrap, rack=rack))
        return made[-1]

    yield connect
    for brokers in made:
        brokers.close()


def read(brokers: Brokers, start: int, stop: int, *marks: Mark) -> list[int]:
    batches = read_ranges(brokers, [ShardRange(A, start, stop)], ("offset",), marks={A: marks})
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def test_what_has_a_replica_in_our_zone_is_read_from_it(kafka: PlayedKafka, connect: Connect) -> None:
    assert read(connect("b"), 0, 640) == list(range(640))
    assert kafka.fetched_from() == [LEADER, *[NEAR] * 5]


@pytest.mark.parametrize("rack", ["", "a", "c"])
def test_without_one_the_leader_is_read(kafka: PlayedKafka, connect: Connect, rack: str) -> None:
    assert read(connect(rack), 0, 640) == list(range(640))
    assert kafka.fetched_from() == [LEADER] * 5


def test_a_replica_that_breaks_off_is_left_for_the_leader(kafka: PlayedKafka, connect: Connect) -> None:
    kafka.broken = {NEAR}

    assert read(connect("b"), 0, 640) == list(range(640))
    assert kafka.fetched_from() == [LEADER, NEAR, *[LEADER] * 5]


def test_a_replica_that_is_none_any_more_is_left_for_the_leader(kafka: PlayedKafka, connect: Connect) -> None:
    brokers = connect("b")
    assert read(brokers, 0, 128) == list(range(128))
    kafka.logs[0] = replace(kafka.logs[0], followers=())
    kafka.asked.clear()

    assert read(brokers, 128, 640) == list(range(128, 640))
    assert kafka.fetched_from() == [NEAR, *[LEADER] * 4]


def test_a_replica_that_is_behind_loses_no_record(kafka: PlayedKafka, connect: Connect) -> None:
    kafka.logs[0] = replace(kafka.logs[0], follower_end=128)

    assert read(connect("b"), 0, 640) == list(range(640))
    assert LEADER in kafka.fetched_from()[-3:]


def test_a_position_beyond_a_replica_is_no_loss(kafka: PlayedKafka, connect: Connect) -> None:
    brokers = connect("b")
    assert read(brokers, 0, 128) == list(range(128))
    kafka.logs[0] = replace(kafka.logs[0], follower_end=64)

    assert read(brokers, 128, 640) == list(range(128, 640))


def test_an_election_is_asked_about_at_the_leader(kafka: PlayedKafka, connect: Connect) -> None:
    kafka.logs[0] = kafka.logs[0].elected(LEADER)

    assert read(connect("b"), 0, 640, Mark(640, 0)) == list(range(640))
    asked = [each.broker for each in kafka.asked if type(each.request).__name__.startswith("OffsetForLeaderEpoch")]
    assert asked == [LEADER]
    assert set(kafka.fetched_from()) == {LEADER, NEAR}


def test_a_leader_that_must_answer_by_itself_is_not_told_where_we_are(kafka: PlayedKafka, connect: Connect) -> None:
    kafka.broken = {NEAR}
    read(connect("b"), 0, 640)

    racks = [(each.broker, each.request.rack_id) for each in kafka.asked if isinstance(each.request, FetchRequest)]
    assert racks == [(LEADER, "b"), (NEAR, "b"), *[(LEADER, "")] * 5]


def test_a_worker_is_where_its_pod_is_unless_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_open", {})
    monkeypatch.setenv("SHARDHERD_ZONE", "zone-1")
    made = [brokers_of("127.0.0.1:1", {}, rack=rack) for rack in (None, "", "rack-7")]
    try:
        assert [each._replicas.rack for each in made] == ["zone-1", "", "rack-7"]
    finally:
        for each in made:
            each.close()


# --- the rule -----------------------------------------------------------------------------------------------------------


def test_a_replica_is_read_until_it_is_time_to_ask_again() -> None:
    known = Replicas("b")
    known.named(A, NEAR, 0.0)

    def routes(now: float, has: bool = True) -> tuple[dict[int, list[ShardId]], set[int]]:
        route = known.route({A: LEADER, B: LEADER}, lambda _shard, _node: has, now)
        return {node: list(shards) for node, shards in route.shards.items()}, set(route.themselves)

    assert routes(NAMED_FOR - 1) == ({NEAR: [A], LEADER: [B]}, set())
    assert routes(NAMED_FOR) == ({LEADER: [A, B]}, set())
    assert routes(0.0, has=False) == ({LEADER: [A, B]}, {LEADER}), "or it would name the same one again"
    for seconds in (AWAY_FOR, BEHIND_FOR):
        known.named(A, NEAR, 0.0)
        known.failed(A, 10.0, seconds)
        assert routes(10.0 + seconds - 1) == ({LEADER: [A, B]}, {LEADER})
        assert routes(10.0 + seconds) == ({LEADER: [A, B]}, set())


def test_the_leader_is_read_for_less_long_after_a_replica_was_only_behind() -> None:
    assert replicas.BEHIND_FOR < replicas.AWAY_FOR < replicas.NAMED_FOR
