"""A Fetch on the wire is kafka-python's, byte for byte, and its answer is what kafka-python takes it for."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.frame import KafkaBytes

from shardherd.source.kafka.raw_fetch import Asked, Question, RawFetch

_Topic = FetchRequest.FetchTopic
_Answer = FetchResponse.FetchableTopicResponse
_Shard = _Answer.PartitionData

CLICKS = Question({"clicks": [Asked(partition=3, offset=5, most=1000, epoch=-1)]}, {"clicks": None}, 1 << 20, True, "zone-1")

OFFSETS = st.integers(0, 2**63 - 1)
SIZES = st.integers(1, 2**31 - 1)
SHARDS = st.builds(Asked, st.integers(0, 100_000), OFFSETS, SIZES, st.integers(-1, 2**31 - 1))
NAMES = st.text("abcdefghijklmnopqrstuvwxyz._-", min_size=1, max_size=249)
QUESTIONS = st.dictionaries(NAMES, st.lists(SHARDS, min_size=1, max_size=4), min_size=1, max_size=3).flatmap(
    lambda topics: st.builds(
        Question,
        st.just(topics),
        st.fixed_dictionaries({name: st.uuids() for name in topics}),
        SIZES,
        st.booleans(),
        st.text(max_size=200),
    )
)


def of_kafka_python(question: Question) -> Any:
    """The same request, all of it made by kafka-python."""
    topics = [
        _Topic(
            topic=name,
            topic_id=question.ids[name],
            partitions=[
                _Topic.FetchPartition(
                    partition=each.partition,
                    current_leader_epoch=each.epoch,
                    fetch_offset=each.offset,
                    last_fetched_epoch=-1,
                    partition_max_bytes=each.most,
                )
                for each in shards
            ],
        )
        for name, shards in question.topics.items()
    ]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=question.most,
        isolation_level=int(question.committed),
        session_id=0,
        session_epoch=-1,
        topics=topics,
        forgotten_topics_data=[],
        rack_id=question.rack,
    )


def ready(request: Any, version: int) -> Any:
    """A request as a connection sends it that has chosen this version."""
    request.API_VERSION = version
    request.with_header(correlation_id=7, client_id="shardherd")
    return request


def sent(request: Any, version: int) -> bytes:
    """What goes over the wire."""
    found: bytes = ready(request, version).encode(framed=True, header=True)
    return found


@pytest.mark.parametrize("version", [4, 11, 12, 13])
@given(question=QUESTIONS)
def test_the_request_on_the_wire_is_kafka_pythons(version: int, question: Question) -> None:
    assert sent(RawFetch(question), version) == sent(of_kafka_python(question), version)


@pytest.mark.parametrize("shards", [126, 127, 128, 20_000])
def test_the_request_for_many_shards_is_kafka_pythons(shards: int) -> None:
    many = [Asked(number, number, 1000, 3) for number in range(shards)]
    question = Question({"clicks": many}, {"clicks": uuid.UUID(int=1)}, 1 << 20, False, "")

    assert sent(RawFetch(question), 13) == sent(of_kafka_python(question), 13)


def test_topics_go_by_their_ids_where_all_have_one_and_the_broker_knows_them() -> None:
    both = {name: [Asked(0, 5, 1000, 3)] for name in ("clicks", "orders")}
    ids: dict[str, uuid.UUID | None] = {"clicks": uuid.UUID(int=1), "orders": uuid.UUID(int=2)}

    def chosen(known: dict[str, uuid.UUID | None], newest: int) -> Any:
        broker = BrokerVersionData(api_versions={FetchRequest.API_KEY: (4, newest)}, broker_version=(4, 0))
        return broker.api_version(RawFetch(Question(both, known, 1 << 20, False, "")))

    assert [chosen(ids, 17), chosen(ids | {"orders": None}, 17), chosen(ids, 11)] == [13, 12, 11]


def test_the_answer_is_what_kafka_python_takes_it_for() -> None:
    aborted = _Shard.AbortedTransaction(producer_id=4, first_offset=2)
    shard = _Shard(
        partition_index=3,
        error_code=0,
        high_watermark=9,
        last_stable_offset=8,
        log_start_offset=0,
        aborted_transactions=[aborted],
        preferred_read_replica=-1,
        records=b"a few batches",
    )
    sent = FetchResponse(
        throttle_time_ms=0, error_code=0, session_id=0, responses=[_Answer(topic="clicks", partitions=[shard])], version=12
    )
    sent.with_header(correlation_id=7)
    raw = sent.encode(header=True)

    def received() -> KafkaBytes:
        data = KafkaBytes(len(raw))
        data.write(raw)
        data.seek(0)
        return data

    def read(asked: Any) -> tuple[Any, Any]:
        data, kind = received(), asked.header.get_response_class()
        return kind.parse_header(data), kind.decode(data)

    ours, theirs = read(ready(RawFetch(CLICKS), 12)), read(ready(of_kafka_python(CLICKS), 12))

    assert repr(ours) == repr(theirs)
    assert ours[1].responses[0].partitions[0].records == b"a few batches"
