"""Outputs in a worker: batches, partial failures, the position, the end, and the guarantees. In simulated time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import Offset, Phase
from shardherd.worker import Output, Outputs, OutputsError, Record, TransactionalOutput
from tests.unit.worker.acknowledged import Graveyard
from tests.unit.worker.scene import A, B, Scene, story
from tests.unit.worker.taken import Place, Table, fails_once, output, outputs, raises, refuses, table_output, waits_for

AWAY = raises(ConnectionError("the sink is away"))


class TimeIsOver(BaseException):
    """What some libraries raise for a timeout, so that no `except Exception` takes it for another."""


def told(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def queued(scene: Scene) -> int:
    return sum(held.queued for held in scene.processing.picture().held)


def test_records_go_to_every_output_in_batches_and_the_position_is_after_what_all_have() -> None:
    first, second = Place(), Place()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 12)
        scene.coordinator.assign((A, 1, 0))
        took = await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 12)])
        assert took < 4.0
        for place in (first, second):
            assert place.batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
            assert place.values == [str(offset).encode() for offset in range(12)]

    story(body, factory=outputs(output(first, "first"), output(second, "second")), save_interval=1.0)


def test_only_what_was_not_taken_is_sent_again_and_the_position_waits_for_it() -> None:
    place = Place(refuses(1, 3), refuses(3))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 7)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(place.batches) == 1)
        await asyncio.sleep(0.4)
        assert (place.batches, scene.coordinator.checkpoints) == ([[0, 1, 2, 3, 4]], [(A, 1, 1)])
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 7)])
        assert place.batches == [[0, 1, 2, 3, 4], [1, 3], [3], [5, 6]]
        counts = scene.processing.counts
        assert (counts.taken, counts.retried, counts.dropped) == ({"place": 7}, {"place": 3}, {})

    story(body, factory=outputs(output(place)), save_interval=0.1)


def test_an_output_that_is_away_holds_the_position_and_is_named_while_the_other_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away, there = Place(*[AWAY] * 4), Place()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(there.took) == 10)
        await scene.until(lambda: bool(scene.processing.troubles))
        assert (scene.coordinator.checkpoints, scene.processing.about()) == ([], Phase.WRITING)
        assert scene.processing.troubles == {
            A: "output away: took none of 5 records from 0 on: ConnectionError: the sink is away"
        }
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 10)])
        assert away.batches == [[0, 1, 2, 3, 4]] * 5 + [[5, 6, 7, 8, 9]]
        await scene.until(lambda: scene.processing.troubles == {})

    story(body, factory=outputs(output(away, "away"), output(there, "there")), save_interval=1.0)
    assert told(caplog)[0] == (
        "output away: took none of 5 records from 0 on: ConnectionError: the sink is away; trying again in 0.5 s"
    )


def test_filtered_records_advance_the_checkpoint() -> None:
    place = Place()

    def nothing(_: Outputs, __: Record) -> None:
        return None

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 10)])
        assert place.batches == []

    story(body, factory=outputs(output(place), select=nothing), save_interval=1.0)


def test_what_is_filtered_is_acknowledged_with_what_is_sent_before_it() -> None:
    event = asyncio.Event()
    place = Place(waits_for(event))

    def odd(self: Outputs, record: Record) -> Record | None:
        return None if record.offset % 2 == 0 else msgspec.structs.replace(record, value=b"odd")

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 11)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(place.batches))
        await asyncio.sleep(5.0)
        assert scene.coordinator.checkpoints == [(A, 1, 1)], "0 is filtered, 1 is not taken"
        event.set()
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 11)])
        assert (place.took, place.values) == ([1, 3, 5, 7, 9], [b"odd"] * 5)

    story(body, factory=outputs(output(place), select=odd), save_interval=0.5)


def test_a_select_that_fails_has_its_record_given_again() -> None:
    place = Place()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 4)])
        assert sorted(place.took) == [0, 1, 2, 3]

    story(body, factory=outputs(output(place), select=fails_once(2)), save_interval=0.5)


@pytest.mark.parametrize(
    ("made", "name"), [(Record(7, None, None, 0, ()), "record 7"), (Record(0, None, None, 0, (), sub=2), "record 0, sub 2")]
)
def test_a_select_that_returns_another_place_fails_and_is_told_of_both(
    made: Record, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    place, wrong = Place(), [made]

    def select(self: Outputs, record: Record) -> Record:
        return wrong.pop() if wrong else record

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 2)])
        assert sorted(place.took) == [0, 1]

    story(body, factory=outputs(output(place), select=select), save_interval=0.5)
    assert told(caplog) == [
        f"record 0 failed, try 1: select must keep `offset` and `sub`: it was given record 0, and returned {name}"
    ]


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), TimeIsOver("odd")], ids=repr)
def test_what_acknowledged_raises_is_in_the_log_and_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place()
    told_of: list[Offset] = []

    def tell(_: Outputs, records: Sequence[Record]) -> None:
        told_of.extend(record.offset for record in records)
        raise error

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 12)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 12)])
        assert (place.took, told_of, scene.processing.failure) == ([*range(12)], [*range(12)], None)

    story(body, factory=outputs(output(place), acknowledged=tell), save_interval=0.5)
    assert "acknowledged failed; the records are done all the same" in told(caplog, logging.ERROR)


@pytest.mark.parametrize(("made", "shown"), [(True, "True"), (b"value", "b'value'"), ([], "[]")])
def test_what_select_returns_that_is_no_record_is_named(made: Any, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    place, wrong = Place(), [made]

    def select(_: Outputs, record: Record) -> Any:
        return wrong.pop() if wrong else record

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 2)])
        assert sorted(place.took) == [0, 1]

    story(body, factory=outputs(output(place), select=select), save_interval=0.5)
    assert told(caplog) == [
        "record 0 failed, try 1: select must return the record that is sent, which may be another one under the same offset, or"
        f" None to send none, not {shown}"
    ]


def test_acks_are_delivered_in_batch_order_and_joined_and_each_once() -> None:
    first, second = Place(), Place()
    acknowledged: list[list[Offset]] = []
    event = asyncio.Event()
    second.answers = [waits_for(event)]

    def tell(self: Outputs, records: Sequence[Record]) -> None:
        acknowledged.append([record.offset for record in records])

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 15)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(first.took) == 15)
        assert acknowledged == []
        event.set()
        await scene.until(lambda: len(second.took) == 15)
        await asyncio.sleep(0.1)
        assert acknowledged == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]

    story(body, factory=outputs(output(first, "first"), output(second, "second"), acknowledged=tell))


def test_a_queue_of_4096_events_is_sent_by_2048_and_stops_the_intake_until_an_ack() -> None:
    event = asyncio.Event()
    place = Place(waits_for(event))

    async def body(scene: Scene) -> None:
        scene.logs.most = 500
        scene.logs.append(A, 5000)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: queued(scene) == 4096)
        await asyncio.sleep(5.0)
        held = scene.processing.picture().held[0]
        assert (held.queued, held.in_hand, [len(batch) for batch in place.batches]) == (4096, 4096, [2048])
        event.set()
        await scene.until(lambda: len(place.took) == 5000)
        # The last one waits to be filled until its time is over.
        assert [len(batch) for batch in place.batches] == [2048, 2048, 904]

    story(body, factory=outputs(output(place), batch_size=2048), max_pending=4096)


def test_with_a_batch_size_of_one_records_are_sent_directly() -> None:
    place = Place()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        took = await scene.until(lambda: len(place.took) == 3)
        assert (took < 0.5, place.batches) == (True, [[0], [1], [2]])

    story(body, factory=outputs(output(place), batch_size=1))


def test_a_queue_is_bounded_in_bytes_too() -> None:
    event = asyncio.Event()
    place = Place(waits_for(event))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 20)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(place.batches))
        await asyncio.sleep(5.0)
        held = scene.processing.picture().held[0]
        assert (held.queued, held.queued_bytes) == (5, 5 * 201)
        event.set()
        await scene.until(lambda: len(place.took) == 20)

    story(body, factory=outputs(output(place), queue_bytes=1000))


def test_what_does_not_fit_is_dropped_and_counted_only_where_that_was_chosen() -> None:
    event = asyncio.Event()
    place = Place(waits_for(event))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 20)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.counts.dropped == {"queue": 13})
        event.set()
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 20)])
        assert place.took == list(range(7))

    story(body, factory=outputs(output(place), when_full="drop"), max_pending=8, save_interval=1.0)


# Begin and end.


def test_outputs_begin_before_the_first_record_and_end_in_the_reverse_order_and_the_position_is_last() -> None:
    calls: list[str] = []
    first, second = Place(), Place()
    first.calls = second.calls = calls

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: queued(scene) == 3)
        assert calls == ["open t/0", "open t/0"]
        began = scene.loop.time()
        await scene.consumer.drain(10.0)
        assert (calls[2:], scene.loop.time() - began < 1.0) == (["write", "write", "close", "close"], True)
        assert (scene.coordinator.checkpoints, first.took, second.took) == ([(A, 1, 3)], [0, 1, 2], [0, 1, 2])

    story(body, factory=outputs(output(first, "first"), output(second, "second"), batch_wait=60.0))


def test_what_is_behind_is_opened_first_and_closed_last() -> None:
    calls: list[str] = []

    def named(name: str) -> Any:
        class Named(Output):
            def open(self, shard: str) -> None:
                calls.append(f"open {name}")

            def write(self, records: Sequence[Record]) -> None:
                calls.append(f"write {name}")

            def close(self) -> None:
                calls.append(f"close {name}")

        Named.name = name
        return Named

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 1)])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert (calls[:2], sorted(calls[2:4]), calls[4:]) == (
            ["open a", "open b"],
            ["write a", "write b"],
            ["close b", "close a"],
        )

    story(body, factory=outputs(named("a"), named("b")), save_interval=0.1)


def test_an_output_that_cannot_be_opened_is_tried_again_and_those_before_it_are_closed() -> None:
    failing = [OSError("no route")]
    first, place = Place(), Place()

    class Fails(Output):
        async def open(self, shard: str) -> None:
            if failing:
                raise failing.pop()

        async def write(self, records: Sequence[Record]) -> Any:
            return await place.write(records)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: place.took == [0])
        assert first.calls == ["open t/0", "close", "open t/0", "write"]

    story(body, factory=outputs(output(first), Fails))


def test_an_output_that_wants_to_exit_as_it_is_made_is_made_again_and_those_before_it_are_closed() -> None:
    failing = [SystemExit("no route")]
    first, place = Place(), Place()

    def makes() -> Output:
        if failing:
            raise failing.pop()
        return output(place, "second")()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: place.took == [0])
        assert first.calls == ["open t/0", "close", "open t/0", "write"]

    story(body, factory=outputs(output(first), makes))


def test_revoke_while_sink_is_blocked() -> None:
    place, never = Place(), asyncio.Event()
    place.answers = [lambda _: None, waits_for(never)]

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: len(place.batches) == 2)
        scene.coordinator.assign((B, 1, 0))
        took = await scene.until(lambda: scene.coordinator.named == [(B, 1)])
        assert 4.9 < took < 5.5, "what is out has revoke_timeout, and no longer"
        assert (scene.coordinator.checkpoints, place.calls[-1]) == ([(A, 1, 5)], "close")
        # Whoever has it now gets the late ones again.
        never.set()
        scene.coordinator.assign((A, 3, 5), (B, 1, 0))
        await scene.until(lambda: place.took == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])

    story(body, factory=outputs(output(place)), revoke_timeout=5.0)


def test_what_was_sent_late_is_acknowledged_before_the_shard_goes() -> None:
    place = Place(lambda _: asyncio.sleep(3.0))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 7)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(place.batches) == 1)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert (2.9 < took < 3.5, place.took, scene.coordinator.checkpoints) == (True, list(range(7)), [(A, 1, 7)])

    story(body, factory=outputs(output(place), batch_wait=60.0))


def test_what_all_outputs_have_is_not_sent_again_though_its_acknowledgement_came_too_late() -> None:
    place = Place(lambda _: asyncio.sleep(3.2))
    told: list[Offset] = []

    def tell(_: Outputs, records: Sequence[Record]) -> None:
        told.extend(record.offset for record in records)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 7)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 7)])
        assert scene.processing.counts.failures["process"] >= 5
        assert (place.batches, told) == ([[0, 1, 2, 3, 4], [5, 6]], list(range(7)))

    story(body, factory=outputs(output(place), acknowledged=tell), save_interval=0.5, ack_timeout=3.0)


# Records that an output never takes.


def test_a_record_that_was_refused_too_often_does_not_wait_for_a_later_one_that_select_failed_for() -> None:
    graves, place = Graveyard(), Place(*[refuses(1)] * 3)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert (sorted(place.took), [offset for _, offset, *_ in graves.buried]) == ([0, 2, 3, 4], [1])

    given = outputs(output(place), select=fails_once(3))
    dead: dict[str, Any] = {"graveyard": graves, "tries": 3, "bad_records": "dead-letter", "dead_letters": "bad"}
    story(body, factory=given, save_interval=0.5, **dead)


@pytest.mark.parametrize("ends", [9.0, 12.0])  # beside the third attempt, and after it
def test_records_whose_write_hangs_are_not_bad_however_often_they_were_not_acknowledged_in_time(ends: float) -> None:
    graves, place = Graveyard(), Place(lambda _: asyncio.sleep(ends))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert (place.batches, graves.buried) == ([[0, 1, 2, 3, 4]], [])

    dead: dict[str, Any] = {"graveyard": graves, "tries": 3, "bad_records": "dead-letter", "dead_letters": "bad"}
    story(body, factory=outputs(output(place)), save_interval=0.5, ack_timeout=3.0, **dead)


def test_a_record_that_was_late_and_is_refused_too_often_goes_to_the_dead_letters_at_once() -> None:
    graves, place = Graveyard(), Place(lambda _: asyncio.sleep(12.0, [1]), refuses(1), refuses(1))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(graves.buried))
        assert (place.batches, [offset for _, offset, *_ in graves.buried]) == ([[0, 1, 2, 3, 4], [1], [1]], [1])
        took = await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert took < 1.0

    dead: dict[str, Any] = {"graveyard": graves, "tries": 3, "bad_records": "dead-letter", "dead_letters": "bad"}
    story(body, factory=outputs(output(place)), save_interval=0.5, ack_timeout=3.0, **dead)


def test_exactly_once_a_record_whose_write_hangs_is_written_and_is_no_dead_letter() -> None:
    graves, table = Graveyard(), Table(lambda _: asyncio.sleep(60.0))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert (table.took, graves.buried) == ([0, 1, 2, 3, 4], [])

    dead: dict[str, Any] = {"graveyard": graves, "tries": 3, "bad_records": "dead-letter", "dead_letters": "bad"}
    given = outputs(table_output(table), guarantee="exactly-once")
    story(body, factory=given, save_interval=0.5, ack_timeout=3.0, **dead)


def test_a_shard_that_is_wanted_back_does_not_wait_for_what_is_queued_behind_a_record_that_was_refused_too_often() -> None:
    graves, place = Graveyard(), Place(*[refuses(1)] * 3)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(place.batches) == 2)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert (took < 3.0, place.batches, graves.buried) == (True, [[0, 1, 2, 3, 4], [1], [1]], [])
        assert scene.coordinator.checkpoints == [(A, 1, 1)], (
            "who has the shard next gets the record, and those behind it, again"
        )

    dead: dict[str, Any] = {"graveyard": graves, "tries": 3, "bad_records": "dead-letter", "dead_letters": "bad"}
    story(body, factory=outputs(output(place)), revoke_timeout=60.0, **dead)


def test_what_an_output_refused_too_often_goes_to_the_dead_letters_and_the_others_keep_it() -> None:
    graves = Graveyard()
    refusing, other = Place(*[refuses(1)] * 3), Place()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert refusing.batches == [[0, 1, 2, 3, 4], [1], [1]]
        assert (refusing.took, other.took) == ([0, 2, 3, 4], [0, 1, 2, 3, 4])
        assert graves.buried == [(A, 1, "output refusing: did not take 1 of 1 records, the first at 1", 3)]

    story(
        body,
        factory=outputs(output(refusing, "refusing"), output(other, "other")),
        graveyard=graves,
        tries=3,
        bad_records="dead-letter",
        dead_letters="bad",
        save_interval=0.5,
    )


def test_an_output_that_is_away_makes_no_record_bad() -> None:
    graves = Graveyard()
    place = Place(*[AWAY] * 6)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert (place.took, graves.buried) == ([0, 1, 2, 3, 4], [])

    story(
        body,
        factory=outputs(output(place)),
        graveyard=graves,
        tries=2,
        bad_records="dead-letter",
        dead_letters="bad",
        save_interval=0.5,
    )


def test_without_a_limit_a_record_that_is_refused_is_sent_again_and_again() -> None:
    place = Place(*[refuses(0)] * 8)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: place.took == [0])
        assert place.batches == [[0]] * 9

    story(body, factory=outputs(output(place)))


async def cancelled() -> None:
    """What waits for a client that connects again."""
    pending = asyncio.get_running_loop().create_future()
    pending.cancel()
    await pending


def test_a_write_that_a_client_cancels_fails_as_any_other(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(lambda _: cancelled())

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert (place.batches, place.took) == ([[0, 1, 2, 3, 4]] * 2, [0, 1, 2, 3, 4])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])

    story(body, factory=outputs(output(place)), save_interval=0.5)
    assert told(caplog) == [
        "output place: took none of 5 records from 0 on: CancelledByProgramError: write raised asyncio.CancelledError, and was"
        " not cancelled: something that it awaited was, as by a client that connects again; trying again in 0.5 s"
    ]


def test_a_write_that_raises_what_is_no_exception_fails_as_any_other(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(raises(TimeIsOver()))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert (place.batches, place.took) == ([[0, 1, 2, 3, 4]] * 2, [0, 1, 2, 3, 4])

    story(body, factory=outputs(output(place)), save_interval=0.5)
    assert told(caplog) == [
        "output place: took none of 5 records from 0 on: RaisedByProgramError: write raised TimeIsOver(), which is no"
        " Exception; trying again in 0.5 s"
    ]


def test_at_most_once_a_write_that_a_client_cancels_drops_its_records() -> None:
    place = Place(lambda _: cancelled())

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: place.took == [5, 6, 7, 8, 9])
        assert scene.processing.counts.dropped == {"place": 5}

    story(body, factory=outputs(output(place), guarantee="at-most-once"))


def test_exactly_once_a_client_that_cancels_has_the_output_asked_again() -> None:
    table, asked = Table(lambda _: cancelled()), [0]

    class Reconnects(table_output(table)):  # type: ignore[misc]
        async def position(self, grant: Any) -> Offset | None:
            asked[0] += 1
            if asked[0] == 1:
                await cancelled()
            return await super().position(grant)  # type: ignore[no-any-return]

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert (asked, table.took) == ([3], [0, 1, 2, 3, 4])

    story(body, factory=outputs(Reconnects, guarantee="exactly-once"), save_interval=0.5)


def test_an_output_that_a_client_cancels_as_it_opens_is_opened_again_and_one_that_closes_hinders_no_other() -> None:
    calls: list[str] = []

    class Reconnects(Output):
        async def open(self, shard: Any) -> None:
            calls.append("open")
            if len(calls) == 1:
                await cancelled()

        async def write(self, records: Sequence[Record]) -> None:
            calls.append("write")

        async def close(self) -> None:
            calls.append("close")
            await cancelled()

    place = Place()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert (calls, place.calls[-1]) == (["open", "open", "write", "close"], "close")

    story(body, factory=outputs(output(place), Reconnects), save_interval=0.5)


# Guarantees.


def test_at_most_once_the_position_is_durable_before_a_batch_is_sent_and_what_fails_is_dropped() -> None:
    durable: list[Offset] = []

    async def body(scene: Scene) -> None:
        def notes(offsets: list[Offset]) -> None:
            durable.append(scene.coordinator.checkpoints[-1][2] - offsets[-1])

        def notes_and_fails(offsets: list[Offset]) -> None:
            notes(offsets)
            raise ConnectionError("the sink is away")

        place.answers = [notes, notes_and_fails, notes]
        scene.logs.append(A, 15)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(place.took) == 10)
        assert (place.batches, place.took) == (
            [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]],
            [0, 1, 2, 3, 4, 10, 11, 12, 13, 14],
        )
        assert min(durable) >= 1
        counts = scene.processing.counts
        assert (counts.taken, counts.dropped, counts.retried) == ({"place": 10}, {"place": 5}, {})
        assert acknowledged == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]

    place = Place()
    acknowledged: list[Offset] = []

    def tell(self: Outputs, records: Sequence[Record]) -> None:
        acknowledged.extend(record.offset for record in records)

    story(body, factory=outputs(output(place), guarantee="at-most-once", acknowledged=tell), save_interval=1000.0)


def test_at_most_once_the_position_passes_the_last_record_of_a_batch_whose_order_is_not_that_of_offsets() -> None:
    durable: list[bool] = []

    async def body(scene: Scene) -> None:
        def notes(offsets: list[Offset]) -> None:
            durable.append(scene.coordinator.checkpoints[-1][2] > max(offsets))

        place.answers = [notes] * 3
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(place.took) == 5)
        assert (place.batches, durable) == ([[0, 2, 3, 4, 1]], [True])

    place = Place()
    given = outputs(output(place), guarantee="at-most-once", batch_size=5, batch_wait=2.0, select=fails_once(1))
    story(body, factory=given, save_interval=1000.0, in_order=False)


def test_at_most_once_nothing_is_sent_while_the_position_cannot_be_durable() -> None:
    place = Place()

    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: place.calls == ["open t/0"])
        scene.coordinator.fault = CoordinatorUnavailableError("away")
        scene.logs.append(A, 5)
        await asyncio.sleep(5.0)
        assert place.batches == []
        scene.coordinator.fault = None
        await scene.until(lambda: place.batches == [[0, 1, 2, 3, 4]])

    story(body, factory=outputs(output(place), guarantee="at-most-once"))


def test_at_most_once_what_is_committed_is_sent_yet_when_the_shard_goes() -> None:
    place = Place(lambda _: asyncio.sleep(2.0))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 12)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(place.batches) == 1)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert (place.took, scene.coordinator.checkpoints[-1]) == (list(range(12)), (A, 1, 12))

    story(body, factory=outputs(output(place), guarantee="at-most-once"))


@pytest.mark.parametrize("goes", ["at once", "later"])
def test_at_most_once_what_is_durable_is_sent_although_a_record_behind_it_fails_and_the_shard_goes(goes: str) -> None:
    place, refusing = Place(), [2]

    def select(_: Outputs, record: Record) -> Record:
        if record.offset in refusing:
            raise ValueError("not yet")
        return record

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: place.calls == ["open t/0"])
        await asyncio.sleep(0.02 if goes == "at once" else 5.0)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert (place.took, scene.coordinator.checkpoints[-1]) == ([0, 1], (A, 1, 2))
        refusing.clear()
        scene.coordinator.assign((A, 2, 2))
        await scene.until(lambda: place.took == [0, 1, 2, 3, 4])
        assert (scene.processing.counts.taken, scene.processing.counts.dropped) == ({"place": 5}, {})

    story(body, factory=outputs(output(place), guarantee="at-most-once", select=select), in_order=False)


def test_exactly_once_an_output_is_asked_what_it_has_and_gets_the_rest() -> None:
    table = Table(position=7)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 12)
        scene.coordinator.assign((A, 4, 3))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 4, 12)])
        assert (table.batches, table.stands, set(table.epochs)) == ([[7, 8, 9, 10, 11]], 12, {4})

    story(body, factory=outputs(table_output(table), guarantee="exactly-once"), save_interval=0.5)


def test_exactly_once_a_commit_whose_outcome_nobody_knows_is_not_repeated() -> None:
    table = Table(AWAY)
    table.lies = 1

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 10)])
        assert (table.took, table.asked) == (list(range(10)), 3)

    story(body, factory=outputs(table_output(table), guarantee="exactly-once"), save_interval=0.5)


def test_exactly_once_records_are_not_lost_while_an_output_cannot_say_its_position() -> None:
    table = Table()
    failing = [OSError("no route")] * 3

    class Keeps(TransactionalOutput):
        async def position(self, grant: Any) -> Offset | None:
            if failing:
                raise failing.pop()
            return None

        async def write_once(self, records: Sequence[Record], grant: Any, before: Offset | None, position: Offset) -> None:
            await table.write(records)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: "does not say its position" in scene.processing.troubles.get(A, ""))
        await scene.until(lambda: table.took == [0, 1, 2, 3, 4])

    story(body, factory=outputs(Keeps, guarantee="exactly-once"))


def test_exactly_once_records_that_were_not_acknowledged_in_time_are_there_once() -> None:
    table = Table(*[AWAY] * 4)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 12)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 12)])
        assert (table.took, table.stands) == (list(range(12)), 12)

    story(body, factory=outputs(table_output(table), guarantee="exactly-once"), save_interval=0.5, ack_timeout=3.0)


@pytest.mark.parametrize("said", [(2,), "2", 2.0, True], ids=["a row", "a text", "a float", "a truth"])
def test_exactly_once_what_is_no_position_is_refused_by_its_method_and_asked_for_again(
    said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [said, None]
    taken: list[tuple[Offset, ...]] = []

    class Says(TransactionalOutput):
        def position(self, grant: Any) -> Any:
            return answers.pop(0)

        def write_once(self, records: Sequence[Record], grant: Any, before: Offset | None, position: Offset) -> None:
            taken.append(tuple(each.offset for each in records))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert taken == [(0, 1, 2)]

    story(body, factory=outputs(Says, guarantee="exactly-once"), save_interval=0.5)
    assert [line.getMessage() for line in caplog.records if line.levelname == "WARNING"] == [
        f"output Says: does not say its position: TypeError: position of Says must return None or a position, which is an int,"
        f" not {said!r}; trying again in 0.5 s"
    ]


def test_exactly_once_an_output_that_cannot_say_its_position_is_closed_at_once_when_the_shard_has_to_go() -> None:
    calls: list[str] = []

    class Away(TransactionalOutput):
        def position(self, grant: Any) -> Offset | None:
            calls.append("position")
            raise OSError("no route")

        def write_once(self, records: Sequence[Record], grant: Any, before: Offset | None, position: Offset) -> None:
            raise NotImplementedError

        def close(self) -> None:
            calls.append("close")

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        # From then on it is asked every 30 s.
        await scene.until(lambda: len(calls) == 8)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert 4.9 < took < 5.5
        assert calls == ["position"] * 8 + ["close"]

    story(body, factory=outputs(Away, guarantee="exactly-once"), revoke_timeout=5.0)


class Plain(Output):
    async def write(self, records: Sequence[Record]) -> None:
        pass


class Keeping(TransactionalOutput):
    pass


class Told(Plain):
    def __init__(self, url: str, *, user: str, size: int = 1) -> None:
        pass


def named(name: Any, makes: type[Plain] = Plain) -> type[Plain]:
    return type("Named", (makes,), {"name": name})


def named_when_made(name: Any) -> Callable[[], Output]:
    return lambda: named(property(lambda _: name))()


def at_once(self: Outputs, what: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"guarantee": "exactly-once", "outputs": (Plain,)}, "output Plain cannot give it, as it keeps no position with its"),
        ({"outputs": (Keeping,)}, "output Keeping is a TransactionalOutput, and guarantee is 'at-least-once': set it to"),
        ({"guarantee": "twice"}, "guarantee of Wrong must be one of at-most-once, at-least-once, exactly-once, not 'twice'"),
        ({"when_full": "cry"}, "when_full of Wrong must be one of wait, drop, not 'cry'"),
        ({"guarantee": "exactly-once", "when_full": "drop"}, "drops nothing: set when_full to 'wait'"),
        ({"batch_size": 0}, "batch_size of Wrong must be 1 or more, not 0"),
        ({"batch_wait": -1.0}, r"batch_wait of Wrong must be 0 or more, not -1\.0"),
        ({"queue_bytes": 0}, "queue_bytes of Wrong must be 1 or more, not 0"),
        ({"batch_size": "5"}, "batch_size of Wrong must be a whole number, 1 or more, not '5'"),
        ({"batch_wait": "1"}, "batch_wait of Wrong must be a number of seconds, 0 or more, not '1'"),
        ({"write_timeout": float("nan")}, "write_timeout of Wrong must be a number of seconds, 1 or more, not nan"),
        ({"queue_file_bytes": 1.5}, r"queue_file_bytes of Wrong must be a whole number, 1 or more, not 1\.5"),
        ({"queue_directory": 7}, "queue_directory of Wrong must be the path of a folder, or empty for none, not 7"),
        (
            {"outputs": Plain},
            r"outputs of Wrong must be a tuple of classes of Output, also of one alone, as in \(Warehouse,\), not",
        ),
        (
            {"outputs": (Plain(),)},
            "must be classes of Output, or functions that make one, not .*: name its class, Plain, as each",
        ),
        ({"outputs": (Plain, 7)}, "outputs of Wrong must be classes of Output, or functions that make one, not 7$"),
        ({"outputs": (Told,)}, r"and Told needs url, user: name a function .*, such as `lambda: Told\(url, user\)`"),
        ({"outputs": (dict,)}, "output dict has no open: derive it from Output"),
        (
            {"outputs": (Plain, named(7))},
            "name of output Named must be a text, by which metrics, the log and a queue's file call it, or empty for that of"
            " its class, not 7$",
        ),
        ({"outputs": (named([]),)}, r"name of output Named must be a text, .*, not \[\]$"),
        ({"outputs": (named(b"sink"),)}, "name of output Named must be a text, .*, not b'sink'$"),
        ({"outputs": (named("\udc80"),)}, r"name of output Named must be a text, .*, not '\\udc80'$"),
        ({"initialize": at_once}, "initialize of Wrong must be a coroutine, as that of Outputs is: write `async def"),
        ({"shutdown": at_once}, "shutdown of Wrong must be a coroutine, as that of Outputs is: write `async def"),
        ({"outputs": "Plain"}, "outputs of Wrong must be a tuple of classes of Output, also .*, not 'Plain'"),
    ],
)
def test_what_outputs_cannot_be_is_refused_when_the_class_is_defined(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OutputsError, match=message):
        type("Wrong", (Outputs,), attributes)


def test_a_coroutine_cannot_select() -> None:
    async def select(self: Outputs, record: Record) -> Record:
        return record

    with pytest.raises(OutputsError, match="select of Wrong must be a function, not a coroutine"):
        type("Wrong", (Outputs,), {"select": select})


@pytest.mark.parametrize(
    ("makes", "attributes", "message"),
    [
        ((), {}, "Drawn has no outputs: name at least one class in `outputs`"),
        ((output(Place()), output(Place())), {}, "outputs need names of their own, not place, place"),
        ((lambda: Plain(),), {"guarantee": "exactly-once"}, "output Plain cannot give it"),
        ((named_when_made(7),), {}, "name of output Named must be a text, .*, not 7$"),
        ((named_when_made("\udc80"),), {}, r"name of output Named must be a text, .*, not '\\udc80'$"),
        ((lambda: 7,), {}, "output int has no open: derive it from Output"),
        ((output(Place()),), {"when_full": "drop"}, "takes max_pending of 2 or more, not 1"),
    ],
)
def test_what_shows_only_when_outputs_are_made_ends_the_worker(makes: Any, attributes: Any, message: str) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        with pytest.raises(OutputsError, match=message):
            await scene.ended()

    story(body, factory=outputs(*makes, **attributes), max_pending=1)


def test_exactly_once_cannot_be_where_records_go_on_beside_one_that_failed() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        with pytest.raises(OutputsError, match="guarantee is 'exactly-once', which needs the option in_order"):
            await scene.ended()

    story(body, factory=outputs(table_output(Table()), guarantee="exactly-once"), in_order=False)
