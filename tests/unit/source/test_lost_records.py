"""What a task does about records that are no more, case by case."""

import logging

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.reading.lost_records import TRUNCATED_AFTER, Losses, RangeLostError

A = ShardId("clicks/0")
PART = Fetched(A, 40, b"batches", 100, topic_id="id-1")


def losses(*, fail: bool = True, **topic_ids: str) -> Losses:
    return Losses({A: 90}, topic_ids, fail=fail)


def test_a_shard_that_has_its_records_lost_none() -> None:
    assert losses().resume(PART, 0.0) is None
    assert losses(clicks="id-1").resume(PART, 0.0) is None


def test_a_topic_that_has_got_its_id_by_an_upgrade_of_the_brokers_is_no_other_one() -> None:
    watch = losses(clicks="")

    assert watch.resume(PART, 0.0) is None
    with pytest.raises(RangeLostError, match=r"made anew \(its id was id-1 and is id-2\)"):
        watch.resume(PART._replace(topic_id="id-2"), 0.0)


def test_records_that_retention_deleted_are_an_error_or_skipped() -> None:
    part = PART._replace(data=b"", start=60)

    with pytest.raises(
        RangeLostError, match=r"shard clicks/0: the records from offset 40 up to 60 are lost; it starts at 60 now"
    ):
        losses().resume(part, 0.0)
    assert losses(fail=False).resume(part, 0.0) == 60
    assert losses(fail=False).resume(part._replace(start=95), 0.0) == 90, "never past what the task was told to read"


def test_a_position_past_the_shards_end_is_an_error_or_the_end_of_the_range() -> None:
    part = PART._replace(data=b"", start=0, end=7)

    watch = losses()
    assert watch.resume(part, 0.0) is None, "a new leader may not know its end yet"
    with pytest.raises(RangeLostError, match=r"the records from offset 40 up to 90 are lost; it ends at 7 now"):
        watch.resume(part, TRUNCATED_AFTER)
    watch = losses(fail=False)
    assert [watch.resume(part, now) for now in (0.0, TRUNCATED_AFTER)] == [None, 90]


def test_a_new_leader_has_a_while_to_learn_its_end() -> None:
    short = PART._replace(data=b"", end=40)
    watch = losses()

    assert watch.resume(short, 0.0) is None
    assert watch.resume(short, TRUNCATED_AFTER - 1) is None
    assert watch.resume(short._replace(data=b"batches", end=100), TRUNCATED_AFTER) is None, "it has learned it"
    assert watch.resume(short, TRUNCATED_AFTER + 1) is None
    with pytest.raises(RangeLostError, match="the records from offset 40 up to 90 are lost; it ends at 40 now"):
        watch.resume(short, 2 * TRUNCATED_AFTER + 1)


def test_what_an_open_transaction_holds_back_is_not_lost() -> None:
    held = PART._replace(data=b"", end=40, written=100)
    watch = losses()

    assert [watch.resume(held, now) for now in (0.0, TRUNCATED_AFTER + 1)] == [None, None]


def test_a_topic_that_was_made_anew_is_never_read_for_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RangeLostError, match=r"topic 'clicks' was deleted and made anew \(its id was id-0 and is id-1\)"):
        losses(clicks="id-0").resume(PART, 0.0)

    watch = losses(fail=False)
    assert watch.resume(PART, 0.0) is None, "the first id that is seen is the topic's"
    with caplog.at_level(logging.WARNING):
        assert watch.resume(PART._replace(topic_id="id-2"), 0.0) == 90
    assert "going on without them, as failOnDataLoss is false" in caplog.text


def test_a_topic_is_left_out_once_the_brokers_say_for_a_while_and_nothing_else_that_it_is_not_there() -> None:
    left = {A: 3, ShardId("views/0"): 4}
    lenient, strict = (Losses({A: 10}, {}, fail=fail) for fail in (False, True))
    for each in (lenient, strict):
        each.missing("clicks", 100.0)
    assert lenient.without("clicks", left, 100.0 + TRUNCATED_AFTER - 1) == ()
    lenient.missing("", 110.0)
    lenient.missing("clicks", 111.0)
    assert lenient.without("clicks", left, 100.0 + TRUNCATED_AFTER) == ()
    assert lenient.without("clicks", left, 111.0 + TRUNCATED_AFTER) == (A,)
    assert strict.without("clicks", left, 1e9) == ()
