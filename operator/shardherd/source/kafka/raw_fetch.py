"""A Fetch as kafka-python's connections send it, written and read with less work than they would spend on it.

kafka-python makes an object of each shard of a request and writes it field by field, which is most of what a Fetch costs whose
answer is small; and it copies an answer four times. Brokers from Kafka 2.7 on are asked in the bytes of version 12 or 13, as
they are written here, older ones as kafka-python does it. `brokers` makes the requests. Decides nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32

from shardherd.core.model.nouns import Offset

WAIT_MS = 500
"""Milliseconds for which a broker holds a Fetch that has nothing to say."""

OLDEST = 4
"""The oldest version that is asked in: the first with transactions."""

COMPACT = 12
"""From this version on lengths are varints; such a request is written here."""

BY_ID = 13
"""From this version on topics go by their ids, so that one which was made anew is never read in place of the old one."""

_HEADER = Struct(">hhih")
"""API, version, the number that the answer will have, and the length of the client's name."""

_BODY = Struct(">iiiibii")
"""Replica, longest wait, fewest and most bytes, isolation, session, its epoch."""

_SHARD = Struct(">iiqiqiB")
"""Partition, leader epoch, offset, the epoch read last, a replica's first offset, most bytes, and no tagged fields."""

_NONE = -1
_NO_TAGS = b"\0"
_EMPTY = b"\1"


class Asked(NamedTuple):
    """A shard of a request: so many bytes at most from `offset` on. `epoch` is under which its leader leads, as we know it."""

    partition: int
    offset: Offset
    most: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Question:
    """What one broker is asked: for at most so many bytes of these shards, which are given by their topics.

    `ids` are those of the topics, None for one that has none.
    """

    topics: Mapping[str, Sequence[Asked]]
    ids: Mapping[str, uuid.UUID | None]
    most: int
    committed: bool
    rack: str


class _Response:
    """FetchResponse of one version, decoded from where the answer was read to."""

    def __init__(self, version: int) -> None:
        self._versioned = FetchResponse[version]

    def parse_header(self, data: Any) -> Any:
        return self._versioned.parse_header(data)

    def decode(self, data: Any) -> Any:
        return self._versioned.decode(memoryview(data)[data.tell() :])


class _Header(RequestHeader, init=False):  # type: ignore[misc, call-arg]  # kafka-python has no types
    def get_response_class(self) -> _Response:
        return _Response(self.request_api_version)


class RawFetch(FetchRequest, init=False):  # type: ignore[misc, call-arg]  # kafka-python has no types
    """A FetchRequest whose answer is copied once: into the bytes of each shard."""

    header_class = _Header

    def __init__(self, question: Question) -> None:
        newest = BY_ID if all(question.ids[topic] for topic in question.topics) else BY_ID - 1
        super().__init__(min_version=OLDEST, max_version=newest)
        self.question = question

    def encode(self, version: int | None = None, header: bool = False, framed: bool = False) -> bytes:
        """The request's bytes in the version that the broker's connection has chosen, as kafka-python asks for them."""
        if header and framed and version is None and (self.API_VERSION or 0) >= COMPACT:
            return self._written()
        self._fill()
        found: bytes = super().encode(version=version, header=header, framed=framed)
        return found

    def _written(self) -> bytes:
        asked, head, by_id = self.question, self.header, self.API_VERSION >= BY_ID
        client = head.client_id.encode()
        parts = [
            _HEADER.pack(head.request_api_key, head.request_api_version, head.correlation_id, len(client)),
            client,
            _NO_TAGS,
            _BODY.pack(_NONE, WAIT_MS, 1, asked.most, asked.committed, 0, _NONE),
            _count(len(asked.topics)),
        ]
        for topic, shards in asked.topics.items():
            known = asked.ids[topic]
            parts.append(known.bytes if by_id and known is not None else _text(topic))
            parts.append(_count(len(shards)))
            parts += [_SHARD.pack(each.partition, each.epoch, each.offset, _NONE, _NONE, each.most, 0) for each in shards]
            parts.append(_NO_TAGS)
        parts += (_EMPTY, _text(asked.rack), _NO_TAGS)  # no topics to forget
        size = sum(map(len, parts))
        return b"".join((size.to_bytes(4, "big"), *parts))

    def _fill(self) -> None:
        """Give kafka-python the fields that it writes."""
        asked, kind = self.question, self.FetchTopic
        self.max_wait_ms, self.min_bytes, self.max_bytes = WAIT_MS, 1, asked.most
        self.isolation_level = int(asked.committed)
        self.session_id, self.session_epoch = 0, _NONE
        self.forgotten_topics_data: list[Any] = []
        self.rack_id = asked.rack
        self.topics = [
            kind(
                topic=topic,
                topic_id=asked.ids[topic],
                partitions=[
                    kind.FetchPartition(
                        partition=each.partition,
                        current_leader_epoch=each.epoch,
                        fetch_offset=each.offset,
                        last_fetched_epoch=_NONE,
                        partition_max_bytes=each.most,
                    )
                    for each in shards
                ],
            )
            for topic, shards in asked.topics.items()
        ]


def _count(items: int) -> bytes:
    """The length of an array: one more, as 0 stands for none at all."""
    found: bytes = UnsignedVarInt32.encode(items + 1)
    return found


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _count(len(encoded)) + encoded
