"""What is asked for, what is paused, and what is dropped. Its bounds of memory are in `test_processing`, too."""

from __future__ import annotations

import asyncio

from shardherd.core.model.nouns import ShardId
from shardherd.worker.stream import LEAST, MOST, Stream, Wanted
from tests.unit.source.kafka_bytes import Record, batch_of
from tests.unit.worker.scene import A, B, part
from tests.unit.worker.test_fetched import answer

MIB = 1024 * 1024


def opened(stream: Stream, *shards: ShardId, position: int = 0) -> list[ShardId]:
    """Open these shards; the list has each for every time that something of it has come."""
    woken: list[ShardId] = []
    for shard in shards:
        stream.open(shard, position, lambda shard=shard: woken.append(shard))  # type: ignore[misc]
    return woken


def test_shards_that_have_more_and_shards_that_have_not_are_asked_for_apart() -> None:
    stream = Stream(16 * MIB)
    woken = opened(stream, A, B)
    asked = stream.ask(behind=True)
    assert (asked, stream.ask(behind=False)) == ({A: Wanted(0, MOST), B: Wanted(0, MOST)}, {})
    assert stream.ask(behind=True) == {}, "they are asked for already"
    stream.arrived(asked, [part(A, 0, [0, 1], 2, 5), part(B, 0, [], 0, 0)])
    assert woken == [A]
    assert (stream.ask(behind=True), stream.ask(behind=False)) == ({A: Wanted(2, MOST)}, {B: Wanted(0, MOST)})


def test_a_shard_that_is_read_to_where_it_is_to_be_read_is_not_asked_for_until_that_is_later() -> None:
    stream, stops = Stream(16 * MIB), {A: 2}
    stream.open(A, 0, lambda: None, lambda: stops[A])
    asked = stream.ask(behind=True)
    assert asked == {A: Wanted(0, MOST, 2)}
    stream.arrived(asked, [part(A, 0, [0, 1], 2, 2)])
    assert (stream.ask(behind=True), stream.ask(behind=False)) == ({}, {})
    stops[A] = 5
    assert stream.ask(behind=False) == {A: Wanted(2, MOST, 5)}
    stream.skip(A, 0)
    assert stream.ask(behind=True) == {A: Wanted(0, MOST, 5)}


def test_a_shard_of_which_nothing_was_said_is_asked_for_again() -> None:
    stream = Stream(8 * MIB)
    opened(stream, A)
    stream.arrived(stream.ask(behind=True), ())
    assert stream.ask(behind=True) == {A: Wanted(0, MOST)}


def test_a_full_queue_pauses_its_shard_alone_until_what_is_in_hand_of_it_is_processed() -> None:
    stream = Stream(4 * MIB)
    opened(stream, A, B)
    stream.arrived(stream.ask(behind=True), [part(A, 0, [0], 1, 9, 2 * MIB), part(B, 0, [0], 1, 9, MIB + MIB // 2)])
    assert list(stream.paused) == [A]
    assert stream.ask(behind=True) == {B: Wanted(1, MIB // 2)}
    assert stream.pop(A) is not None
    assert (list(stream.paused), stream.ask(behind=True)) == ([A], {}), "what is in hand is still there"
    stream.done(A)
    assert (list(stream.paused), stream.ask(behind=True)) == ([], {A: Wanted(1, MIB)})


def test_the_next_part_of_a_shard_is_fetched_while_one_is_processed() -> None:
    stream = Stream(4 * MIB)
    opened(stream, A)
    stream.arrived(stream.ask(behind=True), [part(A, 0, [0], 1, 9, 2 * MIB)])
    assert stream.pop(A) is not None
    assert stream.ask(behind=True) == {A: Wanted(1, 2 * MIB)}


def test_also_where_small_answers_are_processed_as_one_and_a_shard_has_little_room() -> None:
    stream = Stream(4 * LEAST)
    opened(stream, A)
    for at in range(4):
        stream.arrived({}, [answer(batch_of([Record(at)]), at, size=LEAST)])
    assert stream.paused == (A,)
    in_hand = stream.pop(A)
    assert in_hand is not None
    assert in_hand.next == 2, "two of four were taken"
    stream.done(A)
    assert stream.pop(A) is not None
    assert stream.ask(behind=False) == {A: Wanted(4, 2 * LEAST)}


def test_with_very_many_shards_each_has_the_least() -> None:
    stream = Stream(MIB)
    opened(stream, *(ShardId(f"t/{number}") for number in range(1000)))
    assert set(stream.ask(behind=True).values()) == {Wanted(0, LEAST)}


def test_shards_take_turns_in_being_the_first_of_a_request() -> None:
    stream = Stream(64 * MIB)
    opened(stream, A, B)
    asked = stream.ask(behind=True)
    assert list(asked) == [A, B]
    stream.arrived(asked, [part(A, 0, [0], 1, 9)])
    assert list(stream.ask(behind=True)) == [B, A]


def test_what_comes_of_a_shard_that_was_closed_or_is_wanted_from_elsewhere_is_dropped() -> None:
    stream = Stream(8 * MIB)
    opened(stream, A, B)
    asked = stream.ask(behind=True)
    stream.close(B)
    stream.close(A)
    opened(stream, A, position=7)
    stream.arrived(asked, [part(A, 0, [0], 1, 9), part(B, 0, [0], 1, 9)])
    assert (stream.pop(A), stream.ask(behind=True)) == (None, {A: Wanted(7, MOST)})


def test_a_shard_that_is_held_anew_from_elsewhere_has_nothing_of_what_waited() -> None:
    stream = Stream(8 * MIB)
    opened(stream, A)
    stream.arrived(stream.ask(behind=True), [part(A, 0, [0, 1], 2, 2, 100)])
    stream.close(A)
    opened(stream, A, position=1)
    assert (stream.pop(A), stream.ask(behind=True)) == (None, {A: Wanted(1, MOST)})


async def test_who_fetches_is_woken_by_a_shard_that_is_opened_and_by_room() -> None:
    stream = Stream(8 * MIB)
    waiting = asyncio.create_task(stream.may_ask())
    await asyncio.sleep(0)
    opened(stream, A)
    await waiting
    stream.arrived(stream.ask(behind=True), [part(A, 0, [0], 1, 1, 8 * MIB)])
    waiting = asyncio.create_task(stream.may_ask())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.pop(A)
    stream.done(A)
    await waiting


async def test_who_fetches_is_woken_by_a_shard_that_has_more_now_and_not_by_one_that_is_read_to_its_end_again() -> None:
    stream = Stream(8 * MIB)
    opened(stream, A, B)
    stream.arrived(stream.ask(behind=True), [part(A, 0, [], 0, 0), part(B, 0, [], 0, 0)])
    asked = stream.ask(behind=False)
    waiting = asyncio.create_task(stream.may_ask())
    await asyncio.sleep(0)
    stream.arrived(asked, [part(A, 0, [0], 1, 1, 100)])
    assert stream.pop(A) is not None
    stream.done(A)
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.arrived(stream.ask(behind=False), [part(B, 0, [], 0, 5), part(A, 1, [], 1, 1)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.done()
    assert stream.ask(behind=True) == {B: Wanted(0, 2 * MIB)}


def test_it_is_behind_as_long_as_anything_waits_or_is_known_of() -> None:
    stream = Stream(8 * MIB)
    seen = [stream.behind]
    opened(stream, A)
    seen.append(stream.behind)
    stream.arrived(stream.ask(behind=True), [part(A, 0, [0], 1, 1)])
    seen.append(stream.behind)
    stream.pop(A)
    assert [*seen, stream.behind] == [False, True, True, False]
