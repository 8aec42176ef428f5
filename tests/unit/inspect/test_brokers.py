"""What doctor makes of what brokers say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardherd.adapters.kafka.survey import Producers, Survey, TopicSurvey
from shardherd.inspect.brokers import UNTOLD, Asked, judged
from shardherd.inspect.checks import Check

WALL = 1_700_000_000.0
SETTINGS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
WELL = TopicSurvey("clicks", partitions=4, replicas=3, in_sync=3, settings=SETTINGS, producers=Producers(2))


def lines(*topics: TopicSurvey, **asked: Any) -> list[tuple[str, str, str]]:
    """What is said of these topics, between the first line and the last."""
    found = judged([Asked("shop/clicks", Survey("4.1", 3, topics), **asked)], WALL)
    _, *said, _ = [(check.name.removesuffix(" of shop/clicks"), check.verdict, check.message) for check in found]
    return said


def said(about: str, *topics: TopicSurvey, **asked: Any) -> tuple[str, str]:
    """How it is in this respect, and in which words; the topic, which is one, is left out."""
    (found,) = [(verdict, message) for name, verdict, message in lines(*topics, **asked) if name == about]
    return found[0], found[1].removeprefix("clicks: ")


def test_topics_that_are_well_and_what_nobody_tells_a_broker() -> None:
    found = list(judged([Asked("shop/clicks", Survey("4.1", 3, (WELL,)), behind=70)], WALL))
    assert found == [
        Check("broker of shop/clicks, from here", "ok", "3 brokers of Kafka 4.1 by what they serve"),
        Check("replicas of shop/clicks", "ok", "clicks: 3 replicas, of which producers with acks=all need 2"),
        Check("retention of shop/clicks", "ok", "clicks: records are kept for 7 d, and the group is 70 s behind"),
        Check("batches of shop/clicks", "ok", "clicks: up to 1048588 bytes (max.message.bytes)"),
        Check(
            "timestamps of shop/clicks",
            "ok",
            "clicks: the producers' (CreateTime): the age of the lag is as right as their clocks",
        ),
        Check(
            "producers of shop/clicks",
            "ok",
            "clicks: 2 with an id (idempotent or transactional) wrote lately, no transaction is open",
        ),
        Check("producers' settings", "unknown", UNTOLD),
    ]


def test_what_is_so_of_several_topics_is_said_once() -> None:
    topics = [replace(WELL, name=name) for name in "abcd"]
    assert len(lines(*topics)) == 5
    assert lines(*topics)[0][2] == "a, b, c and others: 3 replicas, of which producers with acks=all need 2"


@pytest.mark.parametrize(
    ("least", "replicas", "in_sync", "expected"),
    [
        ("4", 3, 3, ("bad", "min.insync.replicas is 4, and there are 3: producers with acks=all cannot write")),
        ("2", 3, 1, ("bad", "1 of 3 are in sync, and min.insync.replicas is 2: producers with acks=all cannot write")),
        ("2", 3, 2, ("note", "2 of 3 are in sync")),
        ("1", 1, 1, ("note", "1 replica: what is written is lost with its broker's disk")),
        (
            "1",
            3,
            3,
            ("note", "min.insync.replicas is 1 of 3: what one broker alone has is told to be written, and can be lost with it"),
        ),
        ("3", 3, 3, ("note", "min.insync.replicas is 3 of 3: while one broker is away, producers with acks=all cannot write")),
    ],
)
def test_replicas_are_judged_by_what_producers_with_acks_all_need(
    least: str, replicas: int, in_sync: int, expected: tuple[str, str]
) -> None:
    topic = replace(WELL, replicas=replicas, in_sync=in_sync, settings={**SETTINGS, "min.insync.replicas": least})
    assert said("replicas", topic) == expected


def test_partitions_that_nobody_leads_are_bad() -> None:
    assert said("replicas", replace(WELL, leaderless=2)) == (
        "bad",
        "2 partitions have no leader, and can be neither read nor written",
    )


def of(**settings: str) -> TopicSurvey:
    """A topic with other settings, `_` for `.`."""
    return replace(WELL, settings=SETTINGS | {name.replace("_", "."): value for name, value in settings.items()})


def test_records_that_go_before_they_are_read_are_bad() -> None:
    day = "86400000"
    kept = "records are kept for 24 h"
    assert said("retention", of(retention_ms=day), behind=69_000) == ("ok", f"{kept}, and the group is 19 h behind")
    assert said("retention", of(retention_ms=day), behind=70_000) == (
        "bad",
        f"{kept}, and the group is 19 h behind: records go before they are read",
    )
    assert said("retention", of(retention_ms=day)) == ("ok", kept)
    assert said("retention", of(retention_ms="-1"), behind=1e9)[0] == "ok"
    assert said("retention", of(retention_ms="-1"))[1] == "records are kept for ever"
    assert said("retention", of(retention_ms="90000", retention_bytes="9"))[1] == (
        "records are kept for 90 s and up to 9 bytes a partition"
    )


def test_a_compacted_topic_is_noted() -> None:
    compacted = ("note", "compacted: of records with the same key a group that is behind may see the last one only")
    assert said("retention", of(cleanup_policy="compact"), behind=1e9) == compacted
    both = [line for line in lines(of(cleanup_policy="compact,delete")) if line[0] == "retention"]
    assert [verdict for _, verdict, _ in both] == ["note", "ok"]


def test_batches_are_held_against_what_is_read_at_once() -> None:
    assert said("batches", of(max_message_bytes="22000000"))[0] == "ok"
    assert said("batches", of(max_message_bytes="23000000")) == (
        "note",
        "up to 23000000 bytes (max.message.bytes): a worker needs 69000000 bytes for batches like that, more than"
        " maxFetchBytesPerTask by default",
    )
    assert said("batches", of(max_message_bytes="100000001")) == (
        "bad",
        "up to 100000001 bytes (max.message.bytes): the operator takes answers of 100000000, and cannot tell the age of the lag"
        " at a larger batch",
    )


def test_the_brokers_own_clock_is_said() -> None:
    assert said("timestamps", of(message_timestamp_type="LogAppendTime")) == ("ok", "the brokers' (LogAppendTime)")


def test_a_transaction_that_was_forgotten_is_bad_for_who_reads_what_is_committed() -> None:
    wrote = "1 with an id (idempotent or transactional) wrote lately, 1 transaction is open"
    slow, forgotten = (replace(WELL, producers=Producers(1, 1, WALL - age)) for age in (60.0, 7200.0))
    assert said("producers", slow, read_committed=True) == ("ok", wrote)
    assert said("producers", forgotten) == ("note", f"{wrote}, one without a write for 2 h")
    assert said("producers", forgotten, read_committed=True) == (
        "bad",
        f"{wrote}, one without a write for 2 h: the group reads nothing that comes after it",
    )
    assert said("producers", replace(WELL, producers=Producers())) == (
        "ok",
        "none with an id wrote lately; one without may write a record twice when it tries again",
    )


def test_what_the_brokers_do_not_tell_is_unknown() -> None:
    blind = replace(WELL, settings=None, settings_refused="denied", producers=None, producers_refused="too old")
    assert lines(blind) == [
        ("settings", "unknown", "clicks: denied (it takes DESCRIBE_CONFIGS on the topic)"),
        ("replicas", "ok", "clicks: 3 replicas"),
        ("producers", "unknown", "clicks: too old"),
    ]


def test_a_topic_that_is_missing_is_bad() -> None:
    found = list(judged([Asked("shop/clicks", Survey("4.1", 1, missing={"gone": "UnknownTopicOrPartitionError"}))], WALL))
    assert found[1] == Check(
        "topics of shop/clicks",
        "bad",
        "gone: UnknownTopicOrPartitionError",
        "create the topic, or let the group's user read it",
    )


def test_brokers_that_cannot_be_reached_are_bad_only_where_they_should_be_reached() -> None:
    asked = [Asked("shop/clicks", refused="no Kafka broker answers")]
    name = "broker of shop/clicks, from here"
    assert list(judged(asked, WALL)) == [Check(name, "bad", "no Kafka broker answers")]
    assert list(judged(asked, WALL, "kubectl exec")) == [
        Check(name, "unknown", "no Kafka broker answers; to ask from inside of the cluster: kubectl exec")
    ]
