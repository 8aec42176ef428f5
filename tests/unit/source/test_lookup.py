"""What is asked of Kafka about topics and offsets, and what is made of its answers: for the operator and for readers alike."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import kafka.errors as errors
from kafka.protocol.consumer import ListOffsetsRequest

from shardherd.source.kafka import lookup
from shardherd.source.kafka.lookup import Answers, Topics
from shardherd.source.kafka.partitions import EARLIEST, LATEST

ID = uuid.UUID(int=7)


def topic(name: str, *leaders: int, topic_id: Any = ID, error: int = 0, internal: bool = False) -> Any:
    partitions = [SimpleNamespace(partition_index=number, leader_id=leader) for number, leader in enumerate(leaders)]
    return SimpleNamespace(name=name, error_code=error, topic_id=topic_id, is_internal=internal, partitions=partitions)


def test_topics_are_told_with_their_ids_leaders_and_what_is_refused() -> None:
    response = SimpleNamespace(
        brokers=[SimpleNamespace(node_id=1, rack="a"), SimpleNamespace(node_id=2, rack=None)],
        topics=[
            topic("clicks", 1, -1),
            topic("old", 2, topic_id=uuid.UUID(int=0)),
            topic("older", 2, topic_id=None),
            topic("secret", error=errors.TopicAuthorizationFailedError.errno),
            topic("__offsets", 1, internal=True),
            topic("other", 1),
        ],
    )
    found = Topics()

    lookup.add_topics(found, response, lambda name, internal: not internal and name != "other")

    assert found == Topics(
        {"clicks": str(ID), "old": "", "older": ""},
        {"secret": errors.TopicAuthorizationFailedError},
        {("clicks", 0): 1, ("old", 0): 2, ("older", 0): 2},
        {("clicks", 1)},
        {1: "a"},
    )


def test_asking_for_topics_makes_none_and_no_names_mean_all() -> None:
    asked = [lookup.topics_request(names) for names in (("clicks",), None)]

    assert [each.allow_auto_topic_creation for each in asked] == [False, False]
    assert [each.topics and [named.name for named in each.topics] for each in asked] == [["clicks"], None]


class Cluster:
    """Brokers that answer for their partitions: an offset each, or an error. Those that are `away` do not answer."""

    def __init__(self, *away: int, **refused: int) -> None:
        self.away, self.refused = away, refused
        self.sent: list[tuple[int, Any]] = []

    async def _answer(self, request: Any, node: int) -> Any:
        if node in self.away:
            raise errors.NodeNotReadyError(f"broker {node}")
        topics = []
        for each in request.topics:
            name = each.name if isinstance(request, ListOffsetsRequest) else each.topic
            parts = [
                SimpleNamespace(
                    partition_index=getattr(part, "partition_index", None),
                    partition=getattr(part, "partition", None),
                    error_code=self.refused.get(name, 0),
                    offset=getattr(part, "timestamp", 0) + 100,
                    end_offset=getattr(part, "leader_epoch", 0) * 10,
                    leader_epoch=4 if name == "clicks" else -1,
                )
                for part in each.partitions
            ]
            topics.append(SimpleNamespace(name=name, topic=name, partitions=parts))
        return SimpleNamespace(topics=topics)

    def send(self, request: Any, node: int) -> Any:
        self.sent.append((node, request))
        return self._answer(request, node)


LEADERS = {("clicks", 0): 1, ("clicks", 1): 2, ("views", 0): 1}


async def test_offsets_are_asked_of_each_leader_at_once() -> None:
    cluster = Cluster()

    found = await lookup.offsets(cluster.send, LEADERS, LATEST, committed=False)

    assert found == Answers({("clicks", 0): 99, ("views", 0): 99, ("clicks", 1): 99}, {("clicks", 0): 4, ("clicks", 1): 4})
    assert [(node, [each.name for each in request.topics]) for node, request in cluster.sent] == [
        (1, ["clicks", "views"]),
        (2, ["clicks"]),
    ]


async def test_each_partition_may_be_asked_for_a_time_of_its_own() -> None:
    times = {("clicks", 0): EARLIEST, ("clicks", 1): 5, ("views", 0): LATEST}

    found = await lookup.offsets(Cluster().send, LEADERS, times, committed=False)

    assert found.offsets == {("clicks", 0): 98, ("clicks", 1): 105, ("views", 0): 99}


async def test_who_reads_what_is_committed_says_so_to_brokers_that_understand_it() -> None:
    cluster = Cluster()

    for committed in (False, True):
        await lookup.offsets(cluster.send, {("clicks", 0): 1}, LATEST, committed=committed)

    assert [(request.isolation_level, request._min_version) for _, request in cluster.sent] == [(0, 1), (1, 2)]


async def test_what_is_not_answered_is_told_apart_by_its_cause() -> None:
    found = await lookup.offsets(
        Cluster(2, views=errors.NotLeaderForPartitionError.errno).send, LEADERS, LATEST, committed=False
    )

    assert found.offsets == {("clicks", 0): 99}
    assert found.refused == {("views", 0): errors.NotLeaderForPartitionError}
    assert {node: str(error) for node, error in found.failed.items()} == {2: "NodeNotReadyError: broker 2"}


async def test_ends_of_epochs_are_asked_only_where_they_are_wanted() -> None:
    cluster = Cluster()

    found = await lookup.epoch_end_offsets(cluster.send, LEADERS, dict.fromkeys(LEADERS, 5), {("clicks", 1): 3})

    assert found == Answers({("clicks", 1): 30})
    ((node, request),) = cluster.sent
    part = request.topics[0].partitions[0]
    assert (node, part.partition, part.current_leader_epoch, part.leader_epoch) == (2, 1, 5, 3)
