"""A KafkaOutput asks what stands of the topic that there is now. Kafka is played: what it keeps is a position of each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.encoding.record_encoding import Producer
from shardherd.transactions.kafka_transactions import Output, Transaction
from shardherd.transactions.outcomes import Stored
from shardherd.worker import KafkaOutput, OutputsError, Record, ShardGrant

SHARD = ShardId("clicks/1")


class PlayedTransactions:
    """What `Transactions` does, with nobody beside."""

    def __init__(self) -> None:
        self.stored: dict[ShardId, Stored] = {}

    def partitions(self, topic: str) -> int:
        return 3

    def look(self, output: Output, shards: Iterable[ShardId]) -> tuple[dict[ShardId, Stored], set[ShardId]]:
        return {shard: self._stood(output, shard) for shard in shards if shard in self.stored}, set()

    def begin_open(self, output: Output, shard: ShardId) -> Callable[[], Transaction]:
        stood = self._stood(output, shard) if shard in self.stored else None
        return lambda: Transaction(shard, output.transactional_id(shard), Producer(1, 0), stood)

    def begin_send(self, output: Output, transaction: Transaction, rounds: list[Any]) -> Callable[[], None]:
        return lambda: None

    def begin_commit(self, output: Output, transaction: Transaction, stored: Stored) -> Callable[[], None]:
        return lambda: self.stored.update({transaction.shard: stored})

    def _stood(self, output: Output, shard: ShardId) -> Stored:
        """Who knows of no id, or knew of none, means the topic that there is: as Kafka's own is asked."""
        found, now = self.stored[shard], output.topic_ids.get(shard, "")
        return found._replace(topic_id=found.topic_id if found.topic_id and now else now)


def output_of(kafka: PlayedTransactions) -> KafkaOutput:
    output: KafkaOutput = type("Events", (KafkaOutput,), {"topic": "events"})()
    output._kafka = kafka  # type: ignore[assignment]
    return output


def grant(epoch: int, start: int, topic_id: str) -> ShardGrant:
    return ShardGrant("uid", SHARD, epoch, start, topic_id)


def test_what_was_written_of_a_topic_that_was_made_anew_since_skips_nothing_of_the_one_that_there_is() -> None:
    kafka = PlayedTransactions()
    first = output_of(kafka)
    assert first.position(grant(1, 0, "id-1")) == 0
    first.write_once([Record(0, None, b"a", 0, ())], grant(1, 0, "id-1"), 0, 100)
    assert kafka.stored == {SHARD: Stored(100, 1, "id-1")}

    assert output_of(kafka).position(grant(2, 0, "id-1")) == 100, "the same topic, of a group that was reset"
    anew = output_of(kafka)
    assert anew.position(grant(3, 0, "id-2")) == 0
    anew.write_once([Record(0, None, b"b", 0, ())], grant(3, 0, "id-2"), 0, 1)
    assert kafka.stored == {SHARD: Stored(1, 3, "id-2")}


def test_without_an_id_of_either_a_position_is_of_the_topic_that_there_is() -> None:
    kafka = PlayedTransactions()
    kafka.stored = {SHARD: Stored(100, 1, "")}
    assert output_of(kafka).position(grant(2, 0, "id-1")) == 100
    assert kafka.stored == {SHARD: Stored(100, 2, "id-1")}
    assert output_of(kafka).position(grant(3, 0, "")) == 100


@pytest.mark.parametrize("seconds", ["120", float("nan"), -1, 0])
def test_a_transaction_that_could_not_be_ended_in_time_is_refused_before_anything_is_asked(seconds: object) -> None:
    output: KafkaOutput = type("Events", (KafkaOutput,), {"topic": "events", "transaction_timeout": seconds})()
    with pytest.raises(
        OutputsError, match=f"transaction_timeout of Events must be a number of seconds above 0, up to 2147483, not {seconds!r}"
    ):
        output.open(SHARD)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"topic": ""}, "topic of Events must be the name of a topic, and is empty"),
        ({"topic": 5}, "topic of Events must be the name of a topic, and is 5"),
        ({"compression": ["gzip"]}, r"compression of Events must be one of none, .*, not \['gzip'\]"),
        ({"transaction_timeout": 1e10}, "transaction_timeout of Events must be .* above 0, up to 2147483, not 10000000000.0"),
    ],
)
def test_what_an_output_cannot_be_is_named_before_anything_is_asked(attributes: dict[str, object], says: str) -> None:
    output: KafkaOutput = type("Events", (KafkaOutput,), {"topic": "events"} | attributes)()
    with pytest.raises(OutputsError, match=says):
        output.open(SHARD)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (Record(7, None, '{"a": 1}', 0, ()), "record 7 has a value of type str, and Kafka takes bytes: encode it where it is"),  # type: ignore[arg-type]
        (Record(7, 5, b"a", 0, ()), "record 7 has a key of type int, and Kafka takes bytes"),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_was_made_of_no_bytes_is_named(record: Record, says: str) -> None:
    kafka = PlayedTransactions()
    output = output_of(kafka)
    assert output.position(grant(1, 7, "id-1")) == 7
    with pytest.raises(TypeError, match=says):
        output.write_once([record], grant(1, 7, "id-1"), 7, 8)
    assert output.position(grant(1, 7, "id-1")) == 7
