"""Records that are acknowledged one by one, in a worker: its position, what failed, what is bad, and the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from queue import SimpleQueue
from typing import Any

import pytest

from shardherd.core.consumer.pending import Pending
from shardherd.core.model.nouns import Phase, ShardId
from shardherd.testing.group import PlayedGroup
from shardherd.worker import (
    Ack,
    BadRecordError,
    Checkpoint,
    Processor,
    Record,
    RecordProcessor,
    Records,
    WorkerOptionError,
)
from shardherd.worker.processor import AnyProcessor
from tests.unit.worker.acknowledged import Graveyard, Kept
from tests.unit.worker.scene import A, B, Logs, Scene, story
from tests.unit.worker.test_worker import running, worker_of


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3)], ids=repr)
def test_what_a_processor_raises_when_it_hears_of_a_record_that_is_late_or_gone_is_in_the_log_and_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Hears(Kept):
        def late(self, record: Record) -> None:
            raise error

        def gone(self, record: Record) -> None:
            raise error

    hears = Hears(lambda record, ack: ack() if record.offset else None)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert (hears.given.count(0), scene.processing.failure) == (2, None)

    story(body, factory=lambda: hears, ack_timeout=1.0, tries=2, bad_records="skip", save_interval=0.1)
    errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR" and "failed;" in line.msg]
    assert errors == [
        "late of record 0 failed; it changes nothing",
        "late of record 0 failed; it changes nothing",
        "gone of record 0 failed; it changes nothing",
    ]


@pytest.mark.parametrize("name", ["record", "tries", "offset"])
@pytest.mark.parametrize("is_coroutine", [False, True], ids=["a function", "a coroutine"])
def test_a_processor_that_sets_what_an_acknowledgement_says_has_failed_and_is_told_so(
    name: str, is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Sets(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> Any:
            if ack.tries == 1:
                setattr(ack, name, None)
            assert ack()

    class SetsLater(Sets):
        async def process(self, record: Record, ack: Ack) -> None:
            super().process(record, ack)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 2)])
        assert (scene.processing.failure, scene.processing.counts.failures) == (None, {"process": 2})

    story(body, factory=SetsLater if is_coroutine else Sets, save_interval=0.1)
    failed = [line.getMessage() for line in caplog.records if "failed, try 1" in line.getMessage()]
    assert failed == [f"record {at} failed, try 1: property '{name}' of 'Ack' object has no setter" for at in (0, 1)]


def test_the_lowest_pending_offset_is_committed_every_two_seconds_and_not_with_every_ack() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(kept.given) == 10)
        kept.ack(*range(1, 10))
        await asyncio.sleep(10.0)
        assert scene.coordinator.checkpoints == [], "0 is pending"
        kept.ack(0)
        took = await scene.until(lambda: bool(scene.coordinator.checkpoints))
        assert (scene.coordinator.checkpoints, 1.9 < took < 2.1) == ([(A, 1, 10)], True)

    story(body, factory=lambda: kept, save_interval=2.0)


def test_a_record_that_is_processed_for_5_000_ms_delays_no_acknowledgement_of_another() -> None:
    """In Storm one that was handled 5 ms after it was sent, at 33:891, was acknowledged at 38:895, as the spout slept."""
    acknowledged: list[float] = []

    class Sleeps(RecordProcessor):
        async def process(self, record: Record, ack: Ack) -> None:
            await asyncio.sleep(5.0 if record.offset else 0.005)
            assert ack()
            acknowledged.append(asyncio.get_running_loop().time())

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.picture().held and scene.processing.picture().held[0].in_hand))
        begun = scene.loop.time()
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 1)], within=1.0)
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 1), (A, 1, 2)])
        assert [round(each - begun, 1) for each in acknowledged] == [0.0, 5.0]

    story(body, factory=Sleeps, save_interval=0.1)


def test_what_is_done_is_saved_and_told_of_while_a_thread_has_the_next_record_in_hand() -> None:
    goes_on = threading.Event()

    class Blocks(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> None:
            assert record.offset != 3 or goes_on.wait(60)
            ack()

    with PlayedGroup(shards=1) as group:
        logs = Logs()
        logs.append(group.shards[0], 5)
        worker = worker_of(group, "played-0", Blocks, logs, save_interval=0.1)
        with running(worker):
            group.until("what is before it is durable", lambda: group.checkpoints() == {group.shards[0]: 3})
            goes_on.set()
            group.until("all is durable", lambda: group.checkpoints() == {group.shards[0]: 5})


def test_a_record_that_failed_is_given_again_and_the_shard_waits_for_it() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 1, 2])
        kept.acks[1].fail("the sink is away")
        kept.ack(0, 2)
        scene.logs.append(A, 2)
        took = await scene.until(lambda: kept.given == [0, 1, 2, 1])
        assert (0.4 < took < 0.6, kept.acks[1].tries, scene.processing.about()) == (True, 2, Phase.WRITING)
        await asyncio.sleep(5.0)
        assert kept.given == [0, 1, 2, 1]
        kept.ack(1)
        await scene.until(lambda: kept.given == [0, 1, 2, 1, 3, 4])
        kept.ack(3, 4)
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])

    story(body, factory=lambda: kept, save_interval=1.0)


def test_out_of_order_new_records_go_on_until_too_many_are_pending() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 1, 2, 3])
        kept.acks[0].fail()
        kept.ack(2)
        await scene.until(lambda: kept.given == [0, 1, 2, 3, 4])
        await scene.until(lambda: kept.given == [0, 1, 2, 3, 4, 0])

    story(body, factory=lambda: kept, in_order=False, max_pending=4)


def test_a_shard_with_too_many_pending_records_is_paused_and_read_on_after_an_ack() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.size = 1024 * 1024
        scene.logs.append(A, 40)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.paused == (A,))
        assert kept.given == [0, 1]
        for offset in range(40):
            await scene.until(lambda offset=offset: offset in kept.given)  # type: ignore[misc]
            kept.ack(offset)
        await scene.until(lambda: scene.processing.paused == ())

    story(body, factory=lambda: kept, max_pending=2, memory=16 * 1024 * 1024)


def test_after_so_many_tries_a_record_goes_to_the_dead_letters_and_the_position_goes_on() -> None:
    graves = Graveyard(failing=2)

    def does(record: Record, ack: Ack) -> None:
        if record.offset == 1:
            raise ValueError("no JSON")
        ack()

    kept = Kept(does)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert kept.given == [0, 1, 1, 1, 2]
        assert graves.buried == [(A, 1, "ValueError: no JSON", 3)]
        assert scene.processing.counts.bad_records == {"dead-letter": 1}

    story(
        body,
        factory=lambda: kept,
        graveyard=graves,
        tries=3,
        bad_records="dead-letter",
        dead_letters="bad",
        save_interval=1.0,
    )


def test_bad_records_are_passed_over_and_told_where_the_options_say_so(caplog: pytest.LogCaptureFixture) -> None:
    def does(record: Record, ack: Ack) -> None:
        ack.fail("no JSON") if record.offset % 2 else ack()

    kept = Kept(does)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 4)])
        assert kept.given == [0, 1, 1, 2, 3, 3]
        assert scene.processing.counts.bad_records == {"skipped": 2}

    story(body, factory=lambda: kept, tries=2, bad_records="skip", save_interval=1.0)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told == [f"record {offset} of shard t/0 failed 2 times, and is passed over: no JSON" for offset in (1, 3)]


def test_a_bad_record_ends_the_worker_where_the_options_say_so_and_what_is_before_is_durable() -> None:
    kept = Kept(lambda record, ack: ack.fail("no JSON") if record.offset else ack())

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        with pytest.raises(BadRecordError, match="record 1 of shard t/0 failed 1 times: no JSON"):
            await scene.ended()
        assert scene.coordinator.checkpoints == [(A, 1, 1)]

    story(body, factory=lambda: kept, tries=1, bad_records="fail")


def test_bad_records_are_no_option_for_a_processor_of_whole_batches() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        with pytest.raises(WorkerOptionError, match="bad_records is 'skip', and Recorder has its records in batches"):
            await scene.ended()

    story(body, tries=1, bad_records="skip")


def test_a_position_that_does_not_move_is_told_with_the_record_that_holds_it(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 1, 2])
        kept.ack(0, 2)
        await asyncio.sleep(130.0)
        assert scene.processing.troubles.keys() == {A}
        kept.ack(1)
        await scene.until(lambda: scene.processing.troubles == {})

    story(body, factory=lambda: kept)
    told = [record.getMessage() for record in caplog.records if "has not moved" in record.getMessage()]
    assert told == [
        f"the position of shard t/0 has not moved from 1 for {seconds} s: that record is not acknowledged; it was handed out 1"
        " times, 1 are pending"
        for seconds in (60, 120)
    ]


def test_what_is_not_acknowledged_in_time_comes_again() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0])
        first = kept.acks[0]
        took = await scene.until(lambda: kept.given == [0, 0])
        assert (30.4 < took < 30.6, first(), kept.acks[0]()) == (True, False, True)

    story(body, factory=lambda: kept, ack_timeout=30.0)


def test_a_shard_that_has_nothing_to_hand_out_any_more_keeps_no_other_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes while a shard is looked at: its attempt ends just after it was looked for, and just before it is asked what
    is due. B has the only slot until 1.2, the record of A comes again at 1.5, and C waits."""
    kept, expire, hidden = Kept(), Pending.expire, list[float]()
    c = ShardId("t/2")

    def just_after(self: Pending[Record], now: float) -> list[Any]:
        if not hidden and len(self) and self.due_in(now, failed=False) == 0.0:
            hidden.append(now)
            return []
        return expire(self, now)

    class Slow(Processor):
        def process(self, records: Records, checkpoint: Checkpoint) -> None:
            seen.append((records.shard, kept.given.copy()))

    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.shards == [A])
        scene.coordinator.assign((A, 1, 0), (B, 1, 0), (c, 1, 0))
        await scene.until(lambda: len(made) == 3)
        scene.logs.append(A, 1)
        await scene.until(lambda: kept.given == [0])
        scene.logs.append(B, 1)
        await asyncio.sleep(1.1)
        scene.logs.append(c, 1)
        await scene.until(lambda: len(seen) == 2)
        assert (seen, len(hidden)) == ([(B, [0]), (c, [0])], 1)

    seen, made = list[tuple[ShardId, list[int]]](), list[AnyProcessor]()

    def factory() -> AnyProcessor:
        made.append(Slow() if made else kept)
        return made[-1]

    monkeypatch.setattr(Pending, "expire", just_after)
    story(body, factory=factory, ack_timeout=1.0, in_order=False, threads=1, takes={"_in_thread": 1.2}, fetch_interval=0.0)


def test_a_shard_that_is_wanted_waits_for_what_is_pending_and_hands_out_nothing() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 1])
        scene.coordinator.assign()
        await asyncio.sleep(3.0)
        assert scene.coordinator.named == [(A, 1)]
        kept.ack(0, 1)
        await scene.until(lambda: scene.coordinator.named == [])
        assert (scene.coordinator.checkpoints, kept.given) == ([(A, 1, 2)], [0, 1])

    story(body, factory=lambda: kept, max_pending=2)


def test_what_is_pending_for_longer_than_the_revoke_timeout_is_given_up_and_can_not_be_acknowledged() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(kept.given) == 5)
        kept.ack(0, 2)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert (4.9 < took < 5.5, kept.acks[1](), scene.coordinator.checkpoints) == (True, False, [(A, 1, 1)])

    story(body, factory=lambda: kept, revoke_timeout=5.0)


def test_coroutines_of_a_shard_run_at_once_and_are_cancelled_after_the_revoke_timeout() -> None:
    class Slow(RecordProcessor):
        running = cancelled = 0
        done: list[int] = []  # noqa: RUF012

        async def process(self, record: Record, ack: Ack) -> None:
            Slow.running += 1
            try:
                await asyncio.sleep(1.0 if record.offset != 3 else 1000.0)
            except asyncio.CancelledError:
                Slow.cancelled += 1
                raise
            finally:
                Slow.running -= 1
            self.done.append(record.offset)
            ack()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: Slow.running == 5)
        await scene.until(lambda: sorted(Slow.done) == [0, 1, 2, 4, 5, 6, 7, 8, 9])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        await scene.until(lambda: Slow.cancelled == 1)
        assert scene.coordinator.checkpoints == [(A, 1, 3)]

    story(body, factory=Slow, max_pending=5, revoke_timeout=5.0)


def test_a_partition_that_is_added_later_is_read_from_its_beginning() -> None:
    kept = Kept(lambda _record, ack: ack())

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 1])
        scene.logs.append(B, 3)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: (kept.given, kept.shards) == ([0, 1, 0, 1, 2], [A, B]))

    story(body, factory=lambda: kept)


def test_pending_records_and_shutdown_together_keep_a_shard_for_the_revoke_timeout_and_a_moment() -> None:
    class Lingering(Kept):
        async def shutdown(self, checkpoint: Any) -> None:
            await asyncio.sleep(1000.0)

    kept = Lingering()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 1])
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert 7.9 < took < 8.5, "5 s for what is pending, and then 3 s for shutdown"

    story(body, factory=lambda: kept, revoke_timeout=5.0)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_nothing_of_what_was_fetched_is_kept_once_it_is_processed(one_by_one: bool) -> None:
    kept = Kept(lambda _record, ack: ack())
    fetched: list[weakref.ref[Any]] = []

    async def body(scene: Scene) -> None:
        make = scene.logs._part

        def remembered(shard: Any, wanted: Any) -> Any:
            made = make(shard, wanted)
            if made.size:
                fetched.append(weakref.ref(made.tables))
            return made

        scene.logs._part = remembered  # type: ignore[method-assign]
        scene.logs.append(A, 25)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 25)])
        gc.collect()
        assert [each() for each in fetched] == [None]

    story(body, factory=(lambda: kept) if one_by_one else None, batch_size=10, save_interval=1.0)


def test_a_record_that_comes_again_waits_quietly_while_the_group_is_paused() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0])
        scene.coordinator.paused = True
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.consumer.paused)
        kept.acks[0].fail("the sink is away")
        await asyncio.sleep(1.0)
        loop: Any = scene.loop
        before = loop.jumping.turns
        await asyncio.sleep(20.0)
        turns = loop.jumping.turns - before
        assert (kept.given, turns < 1000) == ([0], True), f"the loop of the heartbeats went round {turns} times"
        scene.coordinator.paused = False
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 0])

    story(body, factory=lambda: kept, ack_timeout=100.0)


def test_what_is_done_what_failed_and_what_is_pending_is_counted() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        def seen() -> tuple[int, int, int]:
            counts = scene.processing.counts
            return counts.records, counts.failures["process"], sum(each.in_hand for each in scene.processing.picture().held)

        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(kept.given) == 5)
        assert seen() == (0, 0, 5)
        kept.ack(1, 2)
        kept.acks[3].fail("the sink is away")
        await scene.until(lambda: seen() == (2, 1, 3))
        kept.ack(0)
        await scene.until(lambda: kept.acks[3].tries == 2)
        kept.ack(3)
        await scene.until(lambda: seen() == (4, 1, 1))
        await scene.until(lambda: kept.acks[4].tries == 2)  # its time was over
        kept.ack(4)
        await scene.until(lambda: seen() == (5, 2, 0))

    story(body, factory=lambda: kept, ack_timeout=30.0)


@pytest.mark.parametrize("in_order", [True, False])
def test_acks_from_many_threads_while_records_are_handed_out_lose_none(in_order: bool) -> None:
    with PlayedGroup(shards=2) as group:
        logs, lock, failed = Logs(), threading.Lock(), set[tuple[int, int]]()
        for shard in group.shards:
            logs.append(shard, 600)

        class Crowd(RecordProcessor):
            def initialize(self, shard: Any) -> None:
                self.left: SimpleQueue[Ack | None] = SimpleQueue()
                self.number = int(shard.rpartition("/")[2])
                self.helpers = [threading.Thread(target=self.help, daemon=True) for _ in range(4)]
                for helper in self.helpers:
                    helper.start()

            def help(self) -> None:
                while (ack := self.left.get()) is not None:
                    with lock:
                        fails = ack.offset % 200 == 7 and (self.number, ack.offset) not in failed
                        failed.update({(self.number, ack.offset)} if fails else ())
                    assert ack.fail("once") if fails else ack()

            def process(self, record: Record, ack: Ack) -> None:
                self.left.put(ack)

            def shutdown(self, checkpoint: Any) -> None:
                for _ in self.helpers:
                    self.left.put(None)

        worker = worker_of(group, "played-0", Crowd, logs, threads=2, in_order=in_order, max_pending=50)
        with running(worker):
            group.until("all is done", lambda: set(group.checkpoints().values()) == {600})
        assert failed == {(number, offset) for number in (0, 1) for offset in (7, 207, 407)}
