"""Groups under the names of kafka_exporter."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest

from shardherd.core.model.nouns import Condition, GroupIdentity, GroupView, ShardState
from shardherd.core.model.reasons import GROUP_ID_TAKEN
from shardherd.telemetry.kafka_names import KafkaNames
from tests.unit.core.planning.builders import IDENTITY, consumers, shards, view

OTHER = GroupIdentity("shop", "other", "uid-other")


NAMES = {IDENTITY: "shop.clicks", OTHER: "mine"}


def scraped(views: Mapping[GroupIdentity, GroupView], limit: int = 10, names: Mapping[GroupIdentity, str] = NAMES) -> set[str]:
    registry = CollectorRegistry()
    registry.register(KafkaNames(lambda: views, lambda: names, limit))
    return {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}


def picture(end: int = 100) -> GroupView:
    free = structs.replace(shards(2, ShardState.NOT_ALLOC, lag_records=None, begin=5, end=7)[1], checkpoint=None)
    return view((*shards(1, checkpoint=90, begin=3, end=end), free), consumers=consumers(1), source="kafka")


SUMS = {
    'kafka_consumergroup_current_offset_sum{consumergroup="shop.clicks",topic="clicks"} 90.0',
    'kafka_consumergroup_lag_sum{consumergroup="shop.clicks",topic="clicks"} 10.0',
    'kafka_consumergroup_members{consumergroup="shop.clicks"} 1.0',
    'kafka_topic_partitions{topic="clicks"} 2.0',
}


def test_a_group_is_named_as_in_kafka_and_a_shard_by_topic_and_partition() -> None:
    assert scraped({IDENTITY: picture()}) == SUMS | {
        'kafka_consumergroup_current_offset{consumergroup="shop.clicks",partition="0",topic="clicks"} 90.0',
        'kafka_consumergroup_lag{consumergroup="shop.clicks",partition="0",topic="clicks"} 10.0',
        'kafka_topic_partition_current_offset{partition="0",topic="clicks"} 100.0',
        'kafka_topic_partition_current_offset{partition="1",topic="clicks"} 7.0',
        'kafka_topic_partition_oldest_offset{partition="0",topic="clicks"} 3.0',
        'kafka_topic_partition_oldest_offset{partition="1",topic="clicks"} 5.0',
    }


def test_a_group_of_too_many_shards_is_shown_by_topic_only() -> None:
    assert scraped({IDENTITY: picture()}, limit=1) == SUMS


def test_a_topic_that_two_groups_read_is_there_once() -> None:
    lines = [line for line in scraped({IDENTITY: picture(), OTHER: picture(end=120)}) if line.startswith("kafka_topic")]
    assert 'kafka_topic_partition_current_offset{partition="0",topic="clicks"} 120.0' in lines
    assert len(lines) == 5


def test_of_two_groups_of_one_name_the_one_that_is_served_is_shown() -> None:
    taken = structs.replace(picture(), withheld=(Condition(GROUP_ID_TAKEN, "an older ConsumerGroup has it"),))
    for views in ({IDENTITY: picture(), OTHER: taken}, {OTHER: taken, IDENTITY: picture()}):
        assert scraped(views, names={IDENTITY: "shop.clicks", OTHER: "shop.clicks"}) == scraped({IDENTITY: picture()})


def test_what_is_over_has_no_lag_and_a_group_of_another_source_no_such_names() -> None:
    over = view(shards(1, ShardState.OVER, lag_records=3, checkpoint=9, end=9), source="kafka")
    assert 'kafka_consumergroup_lag{consumergroup="shop.clicks",partition="0",topic="clicks"} 0.0' in scraped({IDENTITY: over})
    assert scraped({IDENTITY: structs.replace(picture(), source="kinesis")}) == set()
