"""A log that was cut off, and has grown since: noticed by the epochs of its leaders, and by nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.leader_epochs import LogChecks, Mark
from shardherd.source.reading import lost_records
from shardherd.source.reading.lost_records import RangeLostError
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange
from tests.unit.source.played_kafka import Log, PlayedKafka

A = ShardId("clicks/0")


@pytest.fixture
def kafka() -> Iterator[PlayedKafka]:
    """Two brokers; the first one leads a log of 640 records under epoch 3."""
    with PlayedKafka({0: Log(1, 640, ((3, 0),), followers=(2,))}, {1: "", 2: ""}, records=64) as played:
        yield played


@pytest.fixture
def brokers(kafka: PlayedKafka) -> Iterator[Brokers]:
    made = Brokers(kafka.bootstrap)
    yield made
    made.close()


def read(brokers: Brokers, start: int, stop: int, *marks: Mark, fail: bool = True) -> list[int]:
    batches = read_ranges(
        brokers, [ShardRange(A, start, stop)], ("offset",), marks={A: marks}, fail_on_data_loss=fail, topic_ids={}
    )
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def epoch_requests(kafka: PlayedKafka) -> list[int]:
    """Which epochs leaders were asked for the ends of."""
    found = [each.request for each in kafka.asked if type(each.request).__name__.startswith("OffsetForLeaderEpoch")]
    return [part.leader_epoch for request in found for topic in request.topics for part in topic.partitions]


def test_an_end_says_under_which_epoch_it_was_seen(kafka: PlayedKafka, brokers: Brokers) -> None:
    end_offsets = brokers.end_offsets([A], 10)

    assert (end_offsets, end_offsets.leaders) == ({A: 640}, {A: 3})


def test_a_log_ends_behind_open_transactions_also_for_who_reads_committed_records(kafka: PlayedKafka) -> None:
    committed = Brokers(kafka.bootstrap, committed=True)
    assert (committed.end_offsets([A], 10), committed.log_ends([A], 10)) == ({A: 640}, {A: 640})
    committed.close()

    asked = [each.request for each in kafka.asked if type(each.request).__name__.startswith("ListOffsets")]
    assert [each.isolation_level for each in asked] == [1, 0]


def test_a_fetch_names_the_epoch_and_is_sent_again_when_a_new_leader_was_elected(kafka: PlayedKafka, brokers: Brokers) -> None:
    assert brokers.end_offsets([A], 10) == {A: 640}
    kafka.logs[0] = kafka.logs[0].elected(1)  # the same broker: nothing but the epoch says so

    assert read(brokers, 0, 640) == list(range(640))
    asked = [
        part.current_leader_epoch
        for each in kafka.asked
        if type(each.request).__name__.startswith("FetchRequest")
        for topic in each.request.topics
        for part in topic.partitions
    ]
    assert (asked[0], asked[-1]) == (3, 4)


def test_while_nobody_was_elected_nothing_is_asked(kafka: PlayedKafka, brokers: Brokers) -> None:
    assert read(brokers, 100, 640, Mark(100, 3), Mark(640, 3)) == list(range(100, 640))
    assert epoch_requests(kafka) == []


def test_an_election_that_lost_nothing_is_asked_about_once(kafka: PlayedKafka, brokers: Brokers) -> None:
    kafka.logs[0] = Log(1, 640, ((2, 0), (3, 320)), followers=(2,)).elected(2, end=1280).elected(1)

    assert read(brokers, 100, 640, Mark(100, 2), Mark(640, 3)) == list(range(100, 640))
    assert epoch_requests(kafka) == [2, 3]


def test_a_log_that_was_cut_off_and_grew_past_the_range_is_an_error(kafka: PlayedKafka, brokers: Brokers) -> None:
    kafka.logs[0] = kafka.logs[0].elected(2, cut=320, end=1280)

    with pytest.raises(
        RangeLostError,
        match=r"shard clicks/0: an unclean election cut its log off at offset 320; the records from there up to offset 640 are "
        r"lost, and others may be in their place \(it was led under epoch 3 when they were there, and is under 4\); set failOn",
    ):
        read(brokers, 100, 640, Mark(640, 3))


def test_a_cut_below_the_position_is_an_error_though_the_range_was_planned_after_it(
    kafka: PlayedKafka, brokers: Brokers
) -> None:
    kafka.logs[0] = kafka.logs[0].elected(2, cut=64, end=1280)

    with pytest.raises(
        RangeLostError, match=r"cut its log off at offset 64; the records from there up to offset 1280 are lost"
    ):
        read(brokers, 640, 1280, Mark(640, 3), Mark(1280, 4))


def test_a_cut_behind_the_range_is_none_of_its_business(kafka: PlayedKafka, brokers: Brokers) -> None:
    kafka.logs[0] = kafka.logs[0].elected(2, cut=320, end=1280)

    assert read(brokers, 0, 320, Mark(640, 3)) == list(range(320))


def test_an_election_in_the_middle_of_a_range_is_asked_about(kafka: PlayedKafka, brokers: Brokers) -> None:
    ranges = [ShardRange(A, 0, 640)]
    batches = read_ranges(brokers, ranges, ("offset",), marks={A: (Mark(640, 3),)})
    kafka.record_limit = 128
    assert next(batches).num_rows == 128

    kafka.logs[0] = kafka.logs[0].elected(1, cut=320, end=1280)

    with pytest.raises(RangeLostError, match="cut its log off at offset 320"):
        for _ in batches:
            pass


def test_without_fail_on_data_loss_what_there_is_is_read_and_it_is_said_once(
    kafka: PlayedKafka, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.logs[0] = kafka.logs[0].elected(2, cut=320, end=1280)

    with caplog.at_level(logging.WARNING, "shardherd"):
        assert read(brokers, 100, 640, Mark(640, 3), fail=False) == list(range(100, 640))
    assert [each.getMessage() for each in caplog.records if each.name == lost_records.__name__] == [
        "shard clicks/0: an unclean election cut its log off at offset 320; the records from there up to offset 640 are lost, "
        "and others may be in their place (it was led under epoch 3 when they were there, and is under 4); reading from offset "
        "100 on what there is, as failOnDataLoss is false"
    ]


def test_an_epoch_that_went_back_is_no_loss_at_once(
    kafka: PlayedKafka, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_records, "TRUNCATED_AFTER", 0.3)

    with pytest.raises(
        RangeLostError, match=r"the records before offset 640 are not those that were there .*: it is a new topic"
    ):
        read(brokers, 100, 640, Mark(640, 5))
    assert kafka.fetched_from() == [], "nothing was read meanwhile"
    assert read(brokers, 100, 640, Mark(640, 5), fail=False) == list(range(100, 640))


def test_only_shards_with_marks_that_are_read_now_have_something_to_be_asked_of() -> None:
    b, c = ShardId("clicks/1"), ShardId("clicks/2")
    checks = LogChecks({A: (Mark(9, 3),), c: (Mark(4, 2),)})

    assert (checks.marked({A: 3, b: 3}), LogChecks().marked({A: 3, b: 3})) == ({A: 3}, {})


def test_brokers_that_do_not_say_their_epoch_are_asked_nothing() -> None:
    checks = LogChecks({A: (Mark(9, 3),)})

    assert (checks.ahead(A, -1), checks.doubtful(A, -1)) == (None, ())
