"""What the bytes of a shard tell of when the first record was written that a group has yet to read, and what it costs."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import kafka.errors as errors
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.util import calc_crc32c

from shardherd.adapters.kafka.times import LEAST_ROOM, MOST_BYTES, MOST_ROOM, Aborted, FirstRecord, RecordTimes, first_written

T = 1_700_000_000_000
GZIP, NONE = 1, 0
PRODUCER = 7


def batch(
    base: int, *times: int, codec: int = NONE, transactional: bool = False, control: bool = False, **fields: Any
) -> bytes:
    """A batch of records from `base` on, written so many milliseconds after T."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, PRODUCER, 0, 0, 1 << 20)
    for number, time in enumerate(times):
        builder.append(number, T + time, None, b"x" * 20, [])
    made = bytearray(builder.build())
    struct.pack_into(">q", made, 0, base)
    attributes = struct.unpack_from(">h", made, 21)[0] | (0x20 if control else 0) | int(fields.get("attributes", 0))
    struct.pack_into(">h", made, 21, attributes)
    struct.pack_into(">I", made, 17, calc_crc32c(bytes(made[21:])))
    return bytes(made)


def first(data: bytes, position: int, *aborted: Aborted) -> tuple[bool, int | None, int]:
    """Whether there is a record, milliseconds after T, and where the bytes end."""
    found, written, reached = (answer := first_written(data, position, aborted)).found, answer.written, answer.next
    return found, None if written is None else written - T, reached


class TestTheTime:
    def test_is_that_of_the_record_at_the_position(self) -> None:
        data = batch(10, 0, 2_000, 4_000) + batch(13, 9_000)
        assert [first(data, position) for position in (10, 11, 12, 13)] == [
            (True, 0, 13),
            (True, 2_000, 13),
            (True, 4_000, 13),
            (True, 9_000, 14),
        ]

    def test_is_that_of_the_record_where_a_producer_wrote_younger_ones_first(self) -> None:
        data = batch(10, 0, -3_600_000, -7_200_000)
        assert [first(data, position)[1] for position in (9, 10, 11, 12)] == [0, 0, -3_600_000, -7_200_000]

    def test_is_that_of_the_record_in_a_batch_that_was_written_within_a_moment(self) -> None:
        assert first(batch(10, 0, 900), 11) == (True, 900, 12)

    def test_is_that_of_the_next_record_where_compaction_took_this_one(self) -> None:
        assert first(batch(10, 0) + batch(50, 7_000), 20) == (True, 7_000, 51)

    def test_is_the_first_ones_of_a_compressed_batch_which_is_not_decompressed(self) -> None:
        damaged = batch(10, 0, 60_000, codec=GZIP)[:-5] + b"-bad-"
        assert first(damaged, 11) == (True, 0, 12)

    def test_is_when_the_broker_took_it_where_the_topic_says_so(self) -> None:
        assert first(batch(10, 0, 60_000, attributes=0x08), 10) == (True, 60_000, 12)

    def test_is_not_when_compaction_may_drop_the_batch(self) -> None:
        assert first(batch(10, 0, 60_000, attributes=0x40), 11) == (True, 60_000, 12)
        assert first(batch(10, 0, 60_000, attributes=0x40, codec=GZIP), 10) == (True, None, 12)

    def test_is_unknown_of_a_record_without_one(self) -> None:
        assert first(batch(10, -T - 1), 10)[:2] == (True, None)

    def test_of_messages_of_old_formats_is_read_if_they_are_not_compressed(self) -> None:
        def message(codec: int, offset: int, time: int) -> bytes:
            builder = LegacyRecordBatchBuilder(1, codec, 1 << 20)
            builder.append(0, T + time, None, b"x" * 20)
            made = bytearray(builder.build())
            struct.pack_into(">q", made, 0, offset)
            return bytes(made)

        assert first(message(NONE, 10, 0) + message(NONE, 11, 5), 11) == (True, 5, 12)
        assert first(message(GZIP, 10, 0), 10) == (True, None, 11)

    def test_of_bytes_that_are_no_batches_is_an_error(self) -> None:
        with pytest.raises(errors.KafkaError):
            first_written(struct.pack(">qi", 0, 2) + b"\x00\x00", 0, ())


class TestNoRecord:
    def test_is_a_mark_of_a_transaction(self) -> None:
        commit = batch(12, 5, transactional=True, control=True)
        assert first(commit, 12) == (False, None, 13)
        assert first(commit + batch(13, 9), 12) == (True, 9, 14)

    def test_is_what_was_aborted_up_to_its_mark(self) -> None:
        written, mark = batch(10, 0, 1, transactional=True), batch(12, 2, transactional=True, control=True)
        later = batch(13, 9, transactional=True)
        assert first(written + mark + later, 10, Aborted(PRODUCER, 10)) == (True, 9, 14)
        assert first(written, 11, Aborted(PRODUCER, 4)) == (False, None, 12)
        assert first(written, 10, Aborted(PRODUCER + 1, 10), Aborted(PRODUCER, 13)) == (True, 0, 12)
        assert first(batch(10, 3), 10, Aborted(PRODUCER, 10)) == (True, 3, 11)

    def test_is_in_a_cut_off_batch_whose_size_is_not_known_yet(self) -> None:
        assert first(batch(10, 0)[:40], 10) == (False, None, 10)
        assert first_written(b"", 10, ()) == FirstRecord(False, None, 10)


class Broker:
    """Node 1 and 2: answers as brokers do, within the room that it is given. `written` are batches by partition number."""

    def __init__(self, written: dict[int, bytes], *, end: int = 100, error: int = 0) -> None:
        self.written, self.end, self.error = written, end, error
        self.requests: list[tuple[int, dict[int, tuple[int, int]]]] = []

    async def send(self, request: Any, node: int) -> Any:
        (topic,) = request.topics
        rooms = {part.partition: (part.fetch_offset, part.partition_max_bytes) for part in topic.partitions}
        self.requests.append((node, rooms))
        assert (request.max_wait_ms, request.max_bytes, request.isolation_level) == (0, MOST_BYTES, 0)
        left, parts = request.max_bytes, []
        for number, (_, room) in rooms.items():
            data = self.written.get(number, b"")
            if len(data) > min(room, left) and left < request.max_bytes:
                data = b""
            left -= len(data)
            parts.append(
                SimpleNamespace(
                    partition_index=number,
                    error_code=self.error,
                    high_watermark=self.end,
                    last_stable_offset=self.end,
                    aborted_transactions=None,
                    records=data or None,
                )
            )
        return SimpleNamespace(error_code=0, responses=[SimpleNamespace(topic=topic.topic, partitions=parts)])


async def asked(times: RecordTimes, broker: Any, wanted: dict[int, tuple[int, int]]) -> dict[int, float | None]:
    """The answers for these partitions, each (leader, offset)."""
    found = await times.read(broker, {("t", number): at for number, at in wanted.items()})
    return {number: time for (_, number), time in found.items()}


class TestAFetch:
    async def test_is_one_for_each_broker(self) -> None:
        broker = Broker({0: batch(5, 1_500), 2: batch(6, 0)}, end=8)
        times = RecordTimes(read_committed=False)
        assert await asked(times, broker, {0: (1, 5), 1: (1, 8), 2: (2, 6)}) == {0: T / 1000 + 1.5, 1: None, 2: T / 1000}
        assert broker.requests == [(1, {0: (5, LEAST_ROOM), 1: (8, LEAST_ROOM)}), (2, {2: (6, LEAST_ROOM)})]

    async def test_leaves_out_what_the_broker_refuses(self) -> None:
        broker = Broker({0: batch(5, 0)}, error=errors.NotLeaderForPartitionError.errno)
        assert await asked(RecordTimes(read_committed=False), broker, {0: (1, 5)}) == {}

    async def test_has_more_room_the_next_time_for_batches_that_found_none_and_less_once_they_are_small(self) -> None:
        large = batch(5, *range(1_000))
        assert LEAST_ROOM < len(large) < 4 * LEAST_ROOM
        broker, times = Broker(dict.fromkeys(range(3), large)), RecordTimes(read_committed=False)
        wanted = dict.fromkeys(range(3), (1, 5))
        assert (await asked(times, broker, wanted)).keys() == {0}
        assert (await asked(times, broker, wanted)).keys() == {0, 1, 2}
        broker.written = {0: batch(5, 0)}
        await asked(times, broker, {0: (1, 5)})
        await asked(times, broker, {0: (1, 5)})
        assert [rooms[0][1] for _, rooms in broker.requests] == [LEAST_ROOM, 4 * LEAST_ROOM, len(large), LEAST_ROOM]

    async def test_never_has_more_room_than_an_answer_may_have_bytes(self) -> None:
        broker, times = Broker({}), RecordTimes(read_committed=False)
        for _ in range(9):
            await asked(times, broker, {0: (1, 5)})
        assert broker.requests[-1] == (1, {0: (5, MOST_ROOM)})

    async def test_has_no_more_room_only_because_it_asks_about_many(self) -> None:
        small = batch(5, *range(450))
        broker, times = Broker(dict.fromkeys(range(250), small)), RecordTimes(read_committed=False)
        assert MOST_BYTES - LEAST_ROOM < len(small) * (MOST_BYTES // len(small)) < MOST_BYTES
        for _ in range(2):
            found = await asked(times, broker, dict.fromkeys(range(250), (1, 5)))
            assert len(found) == MOST_BYTES // len(small)
        assert broker.requests[1][1][0][1] == LEAST_ROOM
