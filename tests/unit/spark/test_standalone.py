"""A query without a coordinator, against a Kafka that is a dictionary. Time is a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shardherd.core.model.naming import split
from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.leader_epochs import EndOffsets, Mark
from shardherd.source.kafka.listing import Listed
from shardherd.source.kafka.partitions import EARLIEST, LATEST
from shardherd.source.reading.start_positions import RangeBoundError
from shardherd.spark import standalone
from shardherd.spark.batch_planner import ReaderSettings
from shardherd.spark.offsets import STANDALONE, Offsets
from shardherd.spark.options import Settings, read_options
from shardherd.spark.standalone import FIRST_TIMEOUT, DataLostError, Standalone, ranges_between

A, B, C = ShardId("clicks/0"), ShardId("clicks/1"), ShardId("clicks/2")
NOTHING = Offsets(STANDALONE).as_dict()


class FakeKafka:
    """Topics with an id, and the first and next offset of each of their shards."""

    def __init__(self, **shards: tuple[int, int]) -> None:
        self.topics = {"clicks": "id-1"}
        self.spans = {ShardId(f"clicks/{name[1:]}"): span for name, span in shards.items()}
        self.size = 100.0
        self.away = 0
        self.silent: set[ShardId] = set()
        self.reigns: dict[ShardId, list[int]] = {}
        """Where each leader's log began, by shard; the leader's epoch is its number."""
        self.undecided: dict[ShardId, int] = {}
        """Where the first open transaction of a shard begins: it ends there for those who read committed records only."""
        self.committed = False
        self.closed = 0

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise BrokersUnavailableError("connection refused")

    def now(self, timeout: float) -> Listed:
        self._answer()
        return Listed(frozenset(shard for shard in self.spans if split(shard)[0] in self.topics), dict(self.topics))

    def complete(self, timeout: float) -> Listed:
        return self.now(timeout)

    def offsets(self, times: Mapping[ShardId, int], timeout: float) -> dict[ShardId, int]:
        self._answer()
        ends = {shard: self.undecided.get(shard, end) if self.committed else end for shard, (_, end) in self.spans.items()}
        return {shard: self.spans[shard][0] if at == EARLIEST else ends[shard] for shard, at in times.items()}

    def begins(self, shards: frozenset[ShardId], timeout: float) -> dict[ShardId, int]:
        return self.offsets(dict.fromkeys(shards - self.silent, EARLIEST), timeout)

    def end_offsets(self, shards: frozenset[ShardId], timeout: float) -> EndOffsets:
        found = self.offsets(dict.fromkeys(shards - self.silent, LATEST), timeout)
        return EndOffsets(found, {shard: len(reigns) - 1 for shard, reigns in self.reigns.items() if shard in found})

    def log_ends(self, shards: frozenset[ShardId], timeout: float) -> dict[ShardId, int]:
        self._answer()
        return {shard: self.spans[shard][1] for shard in shards - self.silent}

    def cuts(self, marks: Mapping[ShardId, Mark], timeout: float) -> dict[ShardId, int]:
        return {shard: self.reigns[shard][mark.epoch + 1] for shard, mark in marks.items()}

    def sizes(self, positions: Mapping[ShardId, int], timeout: float) -> dict[ShardId, float]:
        return dict.fromkeys(positions, self.size)

    def close(self) -> None:
        self.closed += 1


class Query:
    """What Spark does with the offsets: each micro-batch starts where the last one ended."""

    def __init__(self, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        monkeypatch.setattr(standalone, "IDLE_WAIT", 0.0)
        monkeypatch.setattr(standalone, "RETRY_DELAY", 0.0)
        self.kafka = kafka
        self.time = 0.0
        self.settings = settings(**options)
        self.at: dict[str, Any] = NOTHING
        self.start()

    def start(self) -> None:
        """A new process, as after a restart: it knows nothing but the offsets that Spark has."""
        self.kafka.committed = bool(self.settings.committed)
        self.side = Standalone(self.settings, 2, self.kafka, lambda: self.time)

    def next(self, *, once: bool = False, after: float = 1.0) -> dict[str, tuple[int, int]] | None:
        """The next micro-batch's ranges with records, by shard; None if there is nothing to do."""
        self.time += after
        end = self.side.latest(self.at, once=once).end
        if end is None:
            return None
        self.at = end
        return {shard: (begin, stop) for shard, (begin, stop, _) in end["shards"].items() if begin < stop}


def settings(**options: str) -> Settings:
    given = {"kafka.bootstrap.servers": "kafka:9092", "subscribe": "clicks", "startingOffsets": "earliest", **options}
    if "startingTimestamp" in given:
        del given["startingOffsets"]
    return read_options(given, batch=False)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def test_the_first_answer_fixes_where_every_shard_starts_even_if_there_is_nothing_to_read(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(3, 10), s1=(0, 5)), patch, startingOffsets="latest")

    assert query.next() == {}
    assert query.at == {
        "group": STANDALONE,
        "shards": {A: [10, 10, 0], B: [5, 5, 0]},
        "topics": {"clicks": "id-1"},
        "v": 1,
        "warm": 0,
    }
    query.kafka.spans[A] = (3, 12)
    query.start()
    assert query.next() == {A: (10, 12)}, "what was written while the query was down is read"


def test_a_restart_before_the_first_micro_batch_was_logged_resolves_the_start_again(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    assert query.next() == {A: (0, 10)}

    query.at = NOTHING
    query.start()
    assert query.next() == {A: (0, 10)}, "nothing of it was read"


def test_every_micro_batch_begins_where_the_last_one_ended(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10), s1=(0, 100)), patch, maxOffsetsPerTrigger="40")

    assert query.next() == {A: (0, 4), B: (0, 36)}
    assert query.next() == {A: (4, 8), B: (36, 72)}
    query.start()
    assert query.next() == {A: (8, 10), B: (72, 100)}
    assert query.next() is None


def test_an_unfinished_micro_batch_is_replayed_whole(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10), s1=(0, 5)), patch)
    query.next()
    query.start()

    assert query.side.replay(query.at) == {A, B}


def test_new_partitions_are_read_from_their_beginning(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, startingOffsets="latest")
    query.next()
    query.kafka.spans[B] = (0, 7)

    assert query.next() == {B: (0, 7)}
    assert query.next() is None


def test_partitions_are_looked_for_once_a_second(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.next()
    query.kafka.spans[B] = (0, 7)

    assert query.next(after=0.5) is None
    assert query.next(after=0.5) == {B: (0, 7)}


def test_a_new_partition_without_a_leader_holds_up_no_other(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.next()
    query.kafka.spans |= {A: (0, 20), B: (0, 7)}
    query.kafka.silent = {B}

    assert query.next() == {A: (10, 20)}
    query.kafka.silent = set()
    assert query.next() == {B: (0, 7)}


def test_topics_that_match_a_pattern_later_are_read_from_their_beginning(patch: pytest.MonkeyPatch) -> None:
    kafka = FakeKafka()
    kafka.topics = {}
    query = Query(kafka, patch, startingOffsets="latest")
    query.settings = read_options({"kafka.bootstrap.servers": "kafka:9092", "subscribePattern": "cl.*"}, batch=False)
    query.start()
    assert query.next() == {}

    kafka.topics, kafka.spans = {"clicks": "id-1"}, {A: (0, 5)}
    assert query.next() == {A: (0, 5)}


def test_kafka_may_be_away_before_and_between_micro_batches(
    patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.kafka.away = 3
    assert query.next() == {A: (0, 10)}

    caplog.clear()
    query.kafka.away = 2
    query.kafka.spans[A] = (0, 15)
    assert [query.next(), query.next(), query.next()] == [None, None, {A: (10, 15)}]
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["cannot ask Kafka for new records, trying on: connection refused", "Kafka answers again"]


def test_a_kafka_that_never_comes_is_an_error_of_the_first_micro_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(standalone, "FIRST_TIMEOUT", -1.0)
    query = Query(FakeKafka(), patch)
    query.kafka.away = 1

    with pytest.raises(BrokersUnavailableError, match="connection refused"):
        query.next()


def test_few_records_wait_for_more_until_the_delay_is_over(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, minOffsetsPerTrigger="20", maxTriggerDelay="60s")
    assert query.next() == {}, "the first one fixes the start, whatever there is"

    assert query.next(after=58) is None
    assert query.next(after=3) == {A: (0, 10)}
    query.kafka.spans[A] = (0, 30)
    assert query.next() == {A: (10, 30)}


def test_bytes_are_bounded_by_the_size_of_the_next_records(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 100), s1=(0, 100)), patch, maxBytesPerTrigger="5000")

    assert query.next() == {A: (0, 25), B: (0, 25)}
    query.kafka.size = 10.0
    assert query.next() == {A: (25, 100), B: (25, 100)}


def test_trigger_once_reads_all_there_is_whatever_the_limits(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 100)), patch, maxOffsetsPerTrigger="5", minOffsetsPerTrigger="5")

    assert query.next(once=True) == {A: (0, 100)}


def test_available_now_ends_with_what_there_was_when_it_began(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 100)), patch, maxOffsetsPerTrigger="60")
    query.side.prepare()
    query.kafka.spans = {A: (0, 500), B: (0, 9)}

    assert [query.next(), query.next(), query.next()] == [{A: (0, 60)}, {A: (60, 100)}, None]
    query.start()
    query.side.prepare()
    assert query.next() == {A: (100, 158), B: (0, 2)}


class Clock:
    """Each look at it takes a quarter of a second."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 0.25
        return self.time


def again(query: Query) -> dict[str, tuple[int, int]] | None:
    """The first micro-batch of the next run by Trigger.AvailableNow."""
    query.side = Standalone(query.settings, 2, query.kafka, Clock())
    query.side.prepare()
    return query.next()


def test_available_now_does_not_end_without_a_word_of_a_loss(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10), s1=(0, 10)), patch)
    query.next()
    query.kafka.spans |= {A: (0, 4), B: (0, 12)}

    assert again(query) == {B: (10, 12)}
    with pytest.raises(DataLostError, match="shard clicks/0 was read up to offset 10, but ends at 4"):
        query.next()
    query.kafka.topics = {"clicks": "id-2"}
    with pytest.raises(DataLostError, match="topic 'clicks' was deleted and made anew"):
        again(query)
    query.kafka.topics = {}
    with pytest.raises(DataLostError, match="topic 'clicks' does not exist any more"):
        query.side.latest(query.at, once=False)


def test_available_now_goes_on_at_what_there_is_where_that_is_wanted(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, failOnDataLoss="false")
    query.next()
    query.kafka.topics, query.kafka.spans[A] = {"clicks": "id-2"}, (0, 40)

    assert [again(query), query.next()] == [{A: (0, 40)}, None]
    query.kafka.topics, query.kafka.spans, query.kafka.silent = {"clicks": "id-3"}, {A: (0, 30)}, {A}
    query.side = Standalone(query.settings, 2, query.kafka, clock := Clock())
    query.side.prepare()
    assert query.next() is None
    assert clock.time > FIRST_TIMEOUT, "its leader may have been elected meanwhile"
    query.kafka.topics = {}
    assert again(query) is None


def test_available_now_does_not_end_while_kafka_or_a_leader_is_away(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10), s1=(0, 10)), patch, maxOffsetsPerTrigger="10")
    assert again(query) == {A: (0, 5), B: (0, 5)}
    query.kafka.away = 3
    assert query.next() == {A: (5, 10), B: (5, 10)}
    query.kafka.spans = {A: (0, 20), B: (0, 10)}
    query.side = Standalone(query.settings, 2, query.kafka, clock := Clock())
    query.side.prepare()
    query.kafka.silent = {A}
    assert query.next() is None, "its leader did not come back"
    assert FIRST_TIMEOUT < clock.time < FIRST_TIMEOUT + 10


def test_a_topic_made_anew_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.next()
    query.kafka.topics, query.kafka.spans[A] = {"clicks": "id-2"}, (0, 4)

    assert query.next() is None, "a broker that was away may be wrong for a moment"
    with pytest.raises(
        DataLostError, match=r"topic 'clicks' was deleted and made anew \(its id was id-1, and is id-2\): .* or"
    ):
        query.next(after=5)


def test_a_topic_made_anew_is_read_from_its_beginning_where_that_is_wanted(
    patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, failOnDataLoss="false")
    query.next()
    query.kafka.topics, query.kafka.spans[A] = {"clicks": "id-2"}, (0, 40)

    assert query.next() is None
    assert query.next(after=5) == {A: (0, 40)}
    assert query.at["topics"] == {"clicks": "id-2"}
    assert query.next() is None
    assert [r.message for r in caplog.records if "made anew" in r.message] == [
        "topic 'clicks' was deleted and made anew (its id was id-1, and is id-2): going on with what there is, because "
        "failOnDataLoss is false"
    ]


def test_nothing_of_a_topic_made_anew_goes_on_where_the_one_before_was_read_to(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10), s1=(0, 10), s2=(0, 10)), patch, failOnDataLoss="false")
    query.next()
    query.kafka.topics, query.kafka.spans = {"clicks": "id-2"}, {A: (0, 40), B: (0, 50)}
    query.kafka.silent = {B}

    assert query.next() is None
    assert query.next(after=5) == {A: (0, 40)}
    query.kafka.silent = set()
    assert query.next() == {B: (0, 50)}, "its leader was elected a moment later"
    query.start()
    query.kafka.spans[C] = (0, 60)
    assert query.next() == {C: (0, 60)}, "the topic has grown to as many partitions as the one before had"


def test_a_topic_that_is_gone_for_a_moment_is_no_loss(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.next()
    for _ in range(3):
        query.kafka.topics = {}
        assert query.next(after=3) is None
        query.kafka.topics = {"clicks": "id-1"}
        assert query.next(after=3) is None
    query.kafka.topics = {}
    query.next()
    with pytest.raises(DataLostError, match="topic 'clicks' does not exist any more"):
        query.next(after=5)


def test_a_shard_that_ends_below_its_position_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10), s1=(0, 10)), patch)
    query.next()
    query.kafka.spans |= {A: (0, 4), B: (0, 12)}

    assert query.next() == {B: (10, 12)}, "the others are read meanwhile"
    with pytest.raises(DataLostError, match="shard clicks/0 was read up to offset 10, but ends at 4"):
        query.next(after=5)


def test_a_shard_that_was_cut_off_goes_on_at_its_end_where_that_is_wanted(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, failOnDataLoss="false")
    query.next()
    query.kafka.spans[A] = (0, 4)
    query.next()
    assert query.next(after=5) == {}, "the new position is logged"
    query.kafka.spans[A] = (0, 6)
    assert query.next() == {A: (4, 6)}
    assert query.next() is None


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_was_read_of_an_open_transaction_before_is_no_loss_to_who_reads_committed_records(
    patch: pytest.MonkeyPatch, fail: str
) -> None:
    query = Query(FakeKafka(s0=(0, 10), s1=(0, 10)), patch, failOnDataLoss=fail)
    query.kafka.undecided = {A: 6}
    assert query.next() == {A: (0, 10), B: (0, 10)}

    query.settings = settings(failOnDataLoss=fail, **{"kafka.isolation.level": "read_committed"})
    query.start()
    query.kafka.spans |= {A: (0, 14), B: (0, 12)}
    assert [query.next(), query.next(after=60)] == [{B: (10, 12)}, None]
    query.kafka.undecided = {}
    assert query.next() == {A: (10, 14)}, "nothing is read twice, and nothing left out"


def test_a_shard_that_is_cut_off_is_told_also_where_a_transaction_is_open(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, failOnDataLoss="false", **{"kafka.isolation.level": "read_committed"})
    query.next()
    query.kafka.spans, query.kafka.undecided = {A: (0, 8)}, {A: 6}

    assert [query.next(), query.next(after=5)] == [None, {}]
    query.kafka.spans, query.kafka.undecided = {A: (0, 9)}, {}
    assert query.next() == {A: (8, 9)}, "the records from 6 up to 8 were read before"


def test_where_a_log_ends_of_which_the_leader_is_silent_nobody_knows(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, **{"kafka.isolation.level": "read_committed"})
    query.next()
    query.kafka.undecided = {A: 6}
    patch.setattr(query.kafka, "log_ends", lambda shards, _: {} if shards == {A} else pytest.fail("all were asked"))
    patch.setattr(query.kafka, "end_offsets", lambda shards, _: EndOffsets(dict.fromkeys(shards, 6)))

    assert [query.next(), query.next(after=60)] == [None, None]


def test_topics_that_are_not_subscribed_any_more_are_kept_and_no_loss(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.next()
    query.settings = settings(subscribe="views")
    query.kafka.topics, query.kafka.spans = {"views": "id-9"}, {ShardId("views/0"): (0, 3)}
    query.start()

    assert query.next(after=60) == {"views/0": (0, 3)}
    assert query.at["shards"][A] == [10, 10, 0]


def test_it_tells_what_its_tasks_need_and_closes_once(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)

    assert query.side.reader_settings == ReaderSettings(STANDALONE, "kafka:9092", 2, {})
    assert query.side.latest(NOTHING, once=False).end_offsets == {A: 10}
    query.side.close()
    query.side.close()
    assert query.kafka.closed == 1


def between(kafka: FakeKafka, **options: str) -> dict[str, tuple[int, int]]:
    given = {"kafka.bootstrap.servers": "kafka:9092", "subscribe": "clicks", **options}
    settings = read_options(given, batch=True)
    kafka.committed = bool(settings.committed)
    found = ranges_between(settings, kafka)
    return {shard: (each.start, each.stop) for shard, each in found.shards.items()}


def test_a_batch_is_what_lies_between_two_places() -> None:
    kafka = FakeKafka(s0=(3, 10), s1=(0, 5))

    assert between(kafka) == {A: (3, 10), B: (0, 5)}
    some = between(kafka, startingOffsets='{"clicks": {"0": 4, "1": -2}}', endingOffsets='{"clicks": {"0": 9, "1": -1}}')
    assert some == {A: (4, 9), B: (0, 5)}


@pytest.mark.parametrize(
    ("start", "stop", "reason"),
    [
        (5, 50, "shard clicks/0 is to be read up to offset 50 .*, but it has records up to 10 only: correct the options"),
        (9, 7, "shard clicks/0 is to be read up to offset 7 .*, but it starts at 9, after that"),
    ],
)
def test_a_batch_that_cannot_be_read_whole_is_refused_unless_losses_are_allowed(start: int, stop: int, reason: str) -> None:
    kafka = FakeKafka(s0=(3, 10))
    options = {"startingOffsets": f'{{"clicks": {{"0": {start}}}}}', "endingOffsets": f'{{"clicks": {{"0": {stop}}}}}'}

    with pytest.raises(RangeBoundError, match=reason):
        between(kafka, **options)
    assert between(kafka, **options, failOnDataLoss="false") == {A: (start, max(start, min(stop, 10)))}


def test_a_batch_whose_end_an_open_transaction_holds_back_says_so() -> None:
    kafka = FakeKafka(s0=(3, 10))
    kafka.undecided = {A: 6}

    def read(stop: int, **more: str) -> dict[str, tuple[int, int]]:
        options = {"kafka.isolation.level": "read_committed", "endingOffsets": f'{{"clicks": {{"0": {stop}}}}}', **more}
        return between(kafka, **options)

    with pytest.raises(RangeBoundError, match="but a transaction that is still open holds its records back from offset 6 on:"):
        read(10)
    with pytest.raises(RangeBoundError, match="but it has records up to 6 only: correct the options"):
        read(11)
    assert (read(10, failOnDataLoss="false"), read(6)) == ({A: (3, 6)}, {A: (3, 6)})


def test_a_log_that_was_cut_off_and_has_grown_past_the_position_is_told(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.kafka.reigns = {A: [0]}
    assert query.next() == {A: (0, 10)}
    assert query.at["leaders"] == {A: 0}

    query.kafka.reigns, query.kafka.spans = {A: [0, 7]}, {A: (0, 20)}
    query.start()
    assert query.next() is None, "what is seen once may be over"
    with pytest.raises(
        DataLostError,
        match=r"clicks/0 was read up to offset 10, but an unclean election cut its log off at 7, and it has grown since "
        r"\(its leader's epoch was 0, and is 1\)",
    ):
        query.next(after=standalone.LOSS_GRACE)


def test_without_fail_on_data_loss_what_was_written_in_place_of_it_is_read(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch, failOnDataLoss="false")
    query.kafka.reigns = {A: [0]}
    assert query.next() == {A: (0, 10)}

    query.kafka.reigns, query.kafka.spans = {A: [0, 7]}, {A: (0, 20)}
    assert [query.next(), query.next(after=standalone.LOSS_GRACE)] == [None, {A: (7, 20)}]
    assert query.at["leaders"] == {A: 1}
    assert query.next() is None, "that was told"


def test_a_leader_that_was_elected_and_has_everything_is_no_loss(patch: pytest.MonkeyPatch) -> None:
    query = Query(FakeKafka(s0=(0, 10)), patch)
    query.kafka.reigns = {A: [0]}
    assert query.next() == {A: (0, 10)}

    query.kafka.reigns, query.kafka.spans = {A: [0, 10, 12]}, {A: (0, 20)}
    assert query.next() == {A: (10, 20)}
    assert query.at["leaders"] == {A: 2}
