"""Which answers that wait are processed as one: nothing is lost, repeated or out of order, whatever they hold."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import pytest

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding.record_batches import CorruptRecordsError
from shardherd.source.decoding.transactions import Aborted
from shardherd.worker.fetched import SMALL, TOGETHER, Part, Undecoded, batches, take
from shardherd.worker.fetching import CACHED, LAST
from shardherd.worker.records import Record
from tests.unit.source.kafka_bytes import Record as Written
from tests.unit.source.kafka_bytes import batch_of, control_batch, empty_batch, legacy_batch, sealed, transactional
from tests.unit.worker.scene import A


def answer(data: bytes, asked: Offset, *, stop: Offset = LAST, aborted: Sequence[Aborted] = (), size: int = 0) -> Part:
    """What a Fetch from `asked` brought, as `KafkaFetcher` hands it on."""
    scanned = record_batches.scan(A, data, asked, aborted=aborted)
    next_offset = min(scanned.next_offset, stop)
    return Part(A, asked, next_offset, next_offset, size or len(data), Undecoded(A, (scanned,), asked, stop, CACHED))


def answers(*batches_: Sequence[Offset]) -> list[Part]:
    """One answer for each batch."""
    found, asked = list[Part](), 0
    for offsets in batches_:
        found.append(answer(batch_of([Written(at, value=b"%d" % at) for at in offsets]), asked))
        asked = offsets[-1] + 1
    return found


def records_of(*parts: Part, most: int = TOGETHER) -> list[Record]:
    return [record for part in parts for records in batches(part, most) for record in records]


def reach(part: Part) -> tuple[ShardId, Offset, Offset, Offset, int]:
    return part.shard, part.asked, part.next, part.end, part.size


def taken(*parts: Part) -> list[list[Offset]]:
    """The offsets of what is taken out of these, one after the other."""
    waiting, found = deque(parts), list[list[Offset]]()
    while waiting:
        found.append([record.offset for record in records_of(take(waiting))])
    return found


def test_an_answer_by_itself_is_taken_as_it_is() -> None:
    (only,) = answers([0, 1])
    assert take(deque([only])) is only


def test_answers_that_wait_are_one_with_all_their_records() -> None:
    parts = answers([0], [1, 2], [5])
    waiting = deque(parts)
    one = take(waiting)
    assert (reach(one), len(waiting)) == ((A, 0, 6, 6, sum(each.size for each in parts)), 0)
    assert records_of(one) == records_of(*parts)


def test_answers_are_joined_up_to_a_size_and_the_rest_is_taken_next() -> None:
    parts = [answer(batch_of([Written(at)]), at, size=SMALL // 2) for at in range(3)]
    assert taken(*parts) == [[0, 1], [2]]
    assert taken(answer(batch_of([Written(0)]), 0, size=SMALL + 1), *parts[1:]) == [[0], [1, 2]]


def test_an_answer_that_was_cut_at_where_the_shard_was_to_be_read_to_is_not_joined_with_what_came_later() -> None:
    data = batch_of([Written(at) for at in range(6)], codec="zstd")
    assert taken(answer(data, 0, stop=3), answer(data, 3)) == [[0, 1, 2], [3, 4, 5]]


def test_an_answer_that_begins_within_a_batch_of_a_new_leader_is_not_joined_with_what_came_before() -> None:
    assert taken(*answers([0, 1, 2]), answer(batch_of([Written(at) for at in (1, 2, 3)]), 3)) == [[0, 1, 2], [3]]


def test_answers_of_old_formats_which_may_begin_anywhere_are_not_joined_with_what_came_before() -> None:
    old = [answer(legacy_batch([Written(at)], magic=1), at) for at in (1, 2)]
    assert taken(*answers([0]), *old, answer(batch_of([Written(3)]), 3)) == [[0], [1], [2, 3]]


def test_records_that_are_gone_are_gone_past_by_themselves() -> None:
    gone = Part(A, 1, 9, 9, 0, tuple)
    first, last = *answers([0]), answer(batch_of([Written(9)]), 9)
    assert taken(first, gone, last) == [[0], [], [9]]


def test_what_an_aborted_transaction_wrote_stays_hidden_and_its_end_is_the_end() -> None:
    first = answer(transactional(batch_of([Written(0), Written(1)]), 7) + batch_of([Written(2)]), 0, aborted=[Aborted(7, 0)])
    last = answer(batch_of([Written(3)]) + control_batch(4, producer=7, abort=True) + empty_batch(5, 8), 3)
    one = take(deque([first, last]))
    assert ([record.offset for record in records_of(one)], one.next) == ([2, 3], 9)
    assert [each.next for each in batches(one, 1)] == [3, 9]


def test_what_came_before_damaged_bytes_is_given_first_and_the_error_names_them() -> None:
    whole = batch_of([Written(2), Written(3)])
    damaged = sealed(whole[:57] + b"\x7f\xff\xff\xff" + whole[61:], base=2, last_delta=0x7FFFFFFF, attributes=0)
    one = take(deque([*answers([0], [1]), answer(damaged, 2)]))
    given = list[Offset]()

    def give() -> None:
        for records in batches(one, 500):
            given.extend(record.offset for record in records)

    with pytest.raises(CorruptRecordsError, match="batch at offset 2: 2147483647 records cannot be in"):
        give()
    assert given == [0, 1]


def test_any_answers_joined_give_the_records_that_they_give_one_by_one() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    for _ in range(50):
        parts, at = list[Part](), draw.randrange(5)
        for _ in range(draw.randint(1, 8)):
            data, asked = b"", at
            for _ in range(draw.randint(1, 3)):
                offsets = sorted(draw.sample(range(at, at + 12), draw.randint(1, 6)))
                records = [
                    Written(
                        offset, offset, draw.choice([None, b"", b"key"]), draw.choice([None, b"", b"x" * draw.randrange(90)])
                    )
                    for offset in offsets
                ]
                at = offsets[-1] + 1 + draw.randrange(3)
                data += batch_of(records, codec=draw.choice(["none", "lz4", "zstd"]), last_offset=at - 1)
            parts.append(answer(data, asked))
        assert records_of(take(deque(parts)), most=draw.randint(1, 50)) == records_of(*parts), f"seed {seed}"
