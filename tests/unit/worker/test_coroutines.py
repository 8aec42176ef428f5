"""Records that coroutines process, each by one of its own: how many run, what comes of them at the end, and what they raise."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from shardherd.client.consumer import CANCEL_GRACE
from shardherd.core.model.nouns import Offset
from shardherd.worker import Ack, AsyncProcessor, BadRecordError, Listener, Out, Record, RecordProcessor, TreeProcessor, Tuple
from tests.unit.worker.scene import A, B, Scene, story


class Slow:
    """What coroutines of several processors do: each works for `seconds`, and takes `ending` to be cancelled."""

    def __init__(self, ending: float = 0.0) -> None:
        self.ending = ending
        self.events: list[Any] = []
        self.made = 0
        self.running: Counter[Offset] = Counter()
        self.most = 0

    def __call__(self) -> RecordProcessor:
        self.made += 1
        return Works(self, self.made)


class Works(RecordProcessor):
    def __init__(self, slow: Slow, number: int) -> None:
        self.slow, self.number = slow, number

    async def process(self, record: Record, ack: Ack) -> None:
        slow = self.slow
        slow.events.append((self.number, "begins", record.offset))
        slow.running[record.offset] += 1
        slow.most = max(slow.most, slow.running.total())
        try:
            await asyncio.sleep(600.0)
        finally:
            await asyncio.sleep(slow.ending)
            slow.running[record.offset] -= 1
            slow.events.append((self.number, "ended", record.offset))

    def shutdown(self, checkpoint: Any) -> None:
        self.slow.events.append((self.number, "shutdown"))


def test_an_attempt_that_is_late_is_cancelled_so_that_no_more_run_than_may_be_pending() -> None:
    slow = Slow()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: slow.events.count((1, "begins", 0)) == 5)
        assert (slow.most, max(slow.running.values())) == (4, 1)

    story(body, factory=slow, ack_timeout=5.0, max_pending=4, in_order=False)


def test_shutdown_waits_for_coroutines_that_take_a_moment_to_be_cancelled() -> None:
    slow = Slow(ending=CANCEL_GRACE / 2)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: slow.running.total() == 1)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert slow.events == [(1, "begins", 0), (1, "ended", 0), (1, "shutdown")]
        assert scene.processing.adrift == set()

    story(body, factory=slow, revoke_timeout=3.0)


def test_coroutines_that_do_not_end_when_cancelled_are_given_up_and_no_other_of_their_shard_runs_beside_them() -> None:
    slow = Slow(ending=20.0)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: slow.running.total() == 1)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert 3.0 + CANCEL_GRACE <= took < 3.0 + CANCEL_GRACE + 1
        assert scene.processing.adrift == {A}
        scene.coordinator.assign((A, 2, 0))
        await scene.until(lambda: slow.made == 2 and slow.running.total() == 1)
        assert slow.events == [(1, "begins", 0), (1, "ended", 0), (2, "begins", 0)], "no shutdown, and one after the other"
        assert scene.processing.adrift == set()

    story(body, factory=slow, revoke_timeout=3.0)


def test_a_worker_of_an_ordered_group_that_leaves_says_that_its_coroutines_still_run() -> None:
    slow = Slow(ending=100.0)

    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: slow.running.total() == 1)
        drain = asyncio.create_task(scene.consumer.drain(5.0))
        await scene.until(lambda: scene.coordinator.leaves == 1)
        assert (scene.coordinator.stopped, scene.processing.adrift) == (False, {A})
        await drain

    story(body, factory=slow, revoke_timeout=3.0)


class TimeIsOver(BaseException):
    """What some libraries raise for a timeout, so that no `except Exception` takes it for another."""


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("by a client"), TimeIsOver()], ids=repr
)
def test_a_function_that_raises_what_is_no_exception_has_its_record_processed_again(error: BaseException) -> None:
    raises, given = [error], []

    class Raises(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> None:
            given.append(record.offset)
            if record.offset == 1 and raises:
                raise raises.pop()
            ack()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert given == [0, 1, 1, 2]

    story(body, factory=Raises, save_interval=0.1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncio.CancelledError("by a client"), "CancelledByProgramError: process raised asyncio.CancelledError"),
        (SystemExit(3), "ExitedByProgramError: process raised SystemExit(3)"),
        (TimeIsOver(), "RaisedByProgramError: process raised TimeIsOver(), which is no Exception"),
    ],
    ids=repr,
)
def test_a_coroutine_that_raises_what_is_no_exception_has_its_record_processed_again(
    error: BaseException, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    raises, given = [error], []

    class Raises(RecordProcessor):
        async def process(self, record: Record, ack: Ack) -> None:
            given.append(record.offset)
            if record.offset == 1 and raises:
                raise raises.pop()
            ack()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert (given, scene.processing.counts.failures) == ([0, 1, 2, 1], {"process": 1})

    story(body, factory=Raises, save_interval=0.1)
    assert any(reason.partition(": ")[2] in record.message for record in caplog.records)


@pytest.mark.parametrize("is_coroutine", [False, True], ids=["a function", "a coroutine"])
def test_what_is_raised_of_a_record_that_is_acknowledged_changes_nothing_and_is_told_once(
    is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Raises(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> None:
            ack()
            raise ValueError("afterwards")

    class RaisesLater(RecordProcessor):
        async def process(self, record: Record, ack: Ack) -> None:
            ack()
            raise ValueError("afterwards")

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])

    story(body, factory=RaisesLater if is_coroutine else Raises, save_interval=0.1)
    said = [(line.getMessage(), line.exc_info is None) for line in caplog.records if line.levelname == "WARNING"]
    assert said == [
        (
            "process of record 0 raised, after that was acknowledged, had failed or was late: it changes nothing, and more of"
            " this kind is in the log at level DEBUG: afterwards",
            False,
        )
    ]


def test_a_stage_of_a_tree_that_wants_to_exit_has_its_record_processed_again() -> None:
    exits = [SystemExit(3)]

    class Exits(TreeProcessor):
        def root(self, record: Record, out: Out) -> None:
            out.emit("stage", record.offset)

        def stage(self, tuple_: Tuple, out: Out) -> None:
            if exits:
                raise exits.pop()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert (exits, scene.processing.counts.failures) == ([], {"process": 1})

    story(body, factory=Exits, save_interval=0.1)


def test_another_shard_that_comes_does_not_cut_short_the_moment_that_a_cancelled_coroutine_has() -> None:
    events: list[str] = []

    class Cleans(AsyncProcessor):
        async def process(self, records: Any, checkpoint: Any) -> None:
            if records.shard == B:
                return
            events.append("begins")
            try:
                await asyncio.sleep(100.0)
            finally:
                await asyncio.sleep(CANCEL_GRACE / 2)
                events.append("is cleaned up")

    class Hears(Listener):
        def on_revoked(self, shard: Any, checkpoint: Any) -> None:
            events.append(f"on_revoked {shard}")

        def on_lost(self, shard: Any) -> None:
            events.append(f"on_lost {shard}")

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: events == ["begins"])
        scene.coordinator.assign()
        await asyncio.sleep(2.0 + CANCEL_GRACE / 4)
        scene.coordinator.assign((B, 1, 0))
        await scene.until(lambda: len(events) == 3)
        assert events == ["begins", "is cleaned up", f"on_revoked {A}"]

    story(body, factory=Cleans, listener=Hears(), revoke_timeout=2.0)


def test_what_ends_a_worker_of_an_ordered_group_is_told_before_coroutines_that_do_not_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Bad(RecordProcessor):
        async def process(self, record: Record, ack: Ack) -> None:
            if record.offset == 1:
                raise ValueError("no JSON")
            try:
                await asyncio.sleep(600.0)
            finally:
                await asyncio.sleep(100.0)

    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(
            lambda: "no more records are handed out: BadRecordError: record 1 of shard t/0 failed 1 times" in caplog.text
        )
        await scene.until(
            lambda: "what runs of this shard has not ended in time, and is waited for" in caplog.text, within=10.0
        )
        with pytest.raises(BadRecordError):
            await scene.ended()

    story(body, factory=Bad, tries=1, bad_records="fail", in_order=False)
