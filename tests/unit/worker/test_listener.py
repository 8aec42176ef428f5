"""What a program is told of its shards, when, and what becomes of what it raises; and of saves that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from shardherd.client.consumer import CANCEL_GRACE
from shardherd.core.model.errors import FencedEpochError, StaleIncarnationError
from shardherd.core.model.nouns import CheckpointResult, Offset, ShardId
from shardherd.worker.callbacks import MOST_WAITING
from shardherd.worker.processor import AsyncCheckpoint, AsyncProcessor
from shardherd.worker.records import Records
from tests.unit.spark.simulated import simulate
from tests.unit.worker.acknowledged import Kept
from tests.unit.worker.scene import A, B, Scene

Calls = list[tuple[Any, ...]]


class Noted:
    """A listener whose calls are coroutines, beside those of processors in `calls`. `does` is done in a call of that name."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.does: dict[str, Callable[[Any], Any]] = {}

    async def on_assigned(self, shard: ShardId, position: Offset) -> None:
        self.calls.append(("assigned", shard, position))
        await self._do("assigned", shard)

    async def on_revoked(self, shard: ShardId, checkpoint: AsyncCheckpoint) -> None:
        self.calls.append(("revoked", shard, checkpoint.done))
        await self._do("revoked", checkpoint)

    async def on_lost(self, shard: ShardId) -> None:
        self.calls.append(("lost", shard))
        await self._do("lost", shard)

    async def _do(self, what: str, given: Any) -> None:
        if (does := self.does.get(what)) is not None:
            await does(given)


def listened(body: Callable[[Scene, Noted], Any], **options: Any) -> None:
    """Play a scene with a listener. Its calls are in the program's list, in order with those of the processors."""

    async def play() -> None:
        noted = Noted([])
        scene = Scene(listener=noted, **options)
        noted.calls = scene.program.calls
        async with scene:
            await body(scene, noted)

    simulate(play)


def test_a_shard_is_assigned_before_its_processor_and_revoked_after_its_last_record_and_before_shutdown() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        scene.logs.append(A, 10)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 3))
        await scene.until(lambda: scene.program.seen.get(A) == [3, 4])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert noted.calls == [
            ("assigned", A, 3),
            ("initialize", A),
            ("process", A, 3, 10),
            ("revoked", A, 6),
            ("shutdown", A, 6),
        ]
        assert scene.coordinator.checkpoints == [(A, 1, 6)]

    listened(body)


def test_what_is_saved_when_a_shard_is_revoked_is_durable_before_it_is_released() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        async def flush(checkpoint: AsyncCheckpoint) -> None:
            await checkpoint.save(now=True)
            saved.append((checkpoint.position, scene.coordinator.named))

        saved: list[Any] = []
        noted.does["revoked"] = flush
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.program.seen.get(A) == [0, 1, 2, 3])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert saved == [(4, [(A, 1)])]

    listened(body)


def test_each_shard_of_a_worker_that_drains_is_revoked() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: ("initialize", B) in noted.calls)
        await scene.consumer.drain(10.0)
        await scene.ended()
        assert noted.calls[4:] == [("revoked", A, 0), ("revoked", B, 0), ("shutdown", A, 0), ("shutdown", B, 0)]

    listened(body)


def test_a_shard_whose_records_are_acknowledged_is_revoked_once_what_is_pending_is_done() -> None:
    kept = Kept()

    async def body(scene: Scene, noted: Noted) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.given == [0, 1])
        scene.coordinator.assign()
        await asyncio.sleep(2.0)
        assert noted.calls == [("assigned", A, 0)]
        kept.ack(0, 1)
        await scene.until(lambda: scene.coordinator.named == [])
        assert noted.calls == [("assigned", A, 0), ("revoked", A, 2)]

    listened(body, factory=lambda: kept)


def test_a_shard_that_is_fenced_is_lost_and_nothing_of_it_can_be_saved() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        scene.logs.append(A, 1000)
        scene.program.takes = 1.0
        scene.coordinator.outcome = CheckpointResult.FENCED
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: ("lost", A) in noted.calls)
        await scene.until(lambda: noted.calls[-1][0] == "shutdown")
        assert [call[0] for call in noted.calls if call[0] != "process"] == ["assigned", "initialize", "lost", "shutdown"]

    listened(body, save_interval=1.0, batch_size=3)


def test_every_shard_of_a_worker_that_may_read_no_longer_is_lost() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: ("initialize", B) in noted.calls)
        scene.coordinator.fault = StaleIncarnationError("another run has taken over")
        scene.coordinator.assign()
        await scene.ended()
        assert sorted(call for call in noted.calls if call[0] in ("lost", "revoked")) == [("lost", A), ("lost", B)]

    listened(body)


def test_a_shard_that_is_given_up_while_its_processor_runs_is_lost_and_comes_back_only_once_that_has_ended() -> None:
    saves: list[str] = []
    hangs = asyncio.Event()

    class Hanging(AsyncProcessor):
        async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> None:
            while not hangs.is_set():
                try:
                    await hangs.wait()
                except asyncio.CancelledError:
                    continue  # as a thread, which cannot be cancelled
            try:
                await checkpoint.save(now=True)
            except FencedEpochError as error:
                saves.append(str(error))
                raise
            saves.append("saved")

    async def body(scene: Scene, noted: Noted) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await asyncio.sleep(1.0)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert noted.calls == [("assigned", A, 0), ("lost", A)]
        scene.coordinator.assign((A, 2, 0))
        await asyncio.sleep(50.0)
        assert noted.calls == [("assigned", A, 0), ("lost", A)]
        hangs.set()
        await scene.until(lambda: len(saves) == 2)
        assert noted.calls[2:] == [("assigned", A, 0)]
        assert saves == ["shard t/0 was given up while this ran: it is read again elsewhere", "saved"]

    listened(body, factory=Hanging, revoke_timeout=5.0)


def test_a_listener_that_raises_when_a_shard_comes_is_called_again_and_nothing_is_read_before() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        async def fail_twice(shard: ShardId) -> None:
            if len(noted.calls) < 3:
                raise ConnectionError("the sink is away")

        noted.does["assigned"] = fail_twice
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert scene.processing.troubles == {A: "on_assigned of shard t/0 failed, attempt 1: ConnectionError: the sink is away"}
        took = await scene.until(lambda: scene.program.seen.get(A) == [0, 1, 2, 3, 4])
        assert noted.calls[:4] == [("assigned", A, 0)] * 3 + [("initialize", A)]
        assert 1.5 <= took < 2.0
        assert scene.processing.counts.failures == {"on_assigned": 2}

    listened(body)


def test_a_listener_that_raises_when_a_shard_goes_does_not_keep_it(caplog: pytest.LogCaptureFixture) -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        async def fail(_: object) -> None:
            raise ConnectionError("the sink is away")

        noted.does = {"revoked": fail, "lost": fail}
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: scene.program.seen.get(A) == [0, 1, 2, 3, 4] and ("initialize", B) in noted.calls)
        scene.coordinator.assign((B, 1, 0))
        await scene.until(lambda: scene.coordinator.named == [(B, 1)])
        assert scene.coordinator.checkpoints == [(A, 1, 5)]
        scene.coordinator.assign((B, 2, 0))
        await scene.until(lambda: noted.calls[-1] == ("initialize", B))
        assert scene.processing.counts.failures == {"on_revoked": 1, "on_lost": 1}
        assert [call for call in noted.calls if call[1] == B] == [
            ("assigned", B, 0),
            ("initialize", B),
            ("lost", B),
            ("shutdown", B, 0),
            ("assigned", B, 0),
            ("initialize", B),
        ]

    with caplog.at_level(logging.ERROR):
        listened(body)
    # The end of the scene is one more failure.
    assert [record.getMessage() for record in caplog.records if record.name == "shardherd.worker.telling"][:2] == [
        "on_revoked failed; the shard goes all the same",
        "on_lost failed: ConnectionError: the sink is away",
    ]


@pytest.mark.parametrize(("what", "bound"), [("revoked", 8.0), ("lost", CANCEL_GRACE)])
def test_a_listener_that_does_not_end_keeps_a_shard_that_goes_for_a_bounded_time_only(what: str, bound: float) -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        over = asyncio.Event()
        # Else what hangs would keep the scene from its end.
        asyncio.get_running_loop().call_later(100.0, over.set)

        async def hang(_: object) -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue  # as a thread, which cannot be cancelled

        noted.does[what] = hang
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: ("initialize", A) in noted.calls)
        scene.coordinator.assign(*([(A, 2, 0)] if what == "lost" else []))
        took = await scene.until(lambda: (A, 1) not in scene.coordinator.named)
        assert bound <= took < bound + 4.0
        assert noted.calls[2:] == [(what, A, 0) if what == "revoked" else (what, A)], "nothing runs beside it"

    listened(body, revoke_timeout=8.0)


def test_a_shard_whose_on_assigned_returns_after_it_was_given_up_is_lost_before_it_comes_again() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        over = asyncio.Event()

        async def hang(_: object) -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue  # as a thread, which cannot be cancelled

        async def slow(_: object) -> None:
            await asyncio.sleep(1.0)
            noted.calls.append(("closed", A))

        noted.does.update(assigned=hang, lost=slow)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(noted.calls))
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert noted.calls == [("assigned", A, 0)]
        scene.coordinator.assign((A, 2, 0))
        await asyncio.sleep(50.0)
        over.set()
        await scene.until(lambda: ("initialize", A) in noted.calls)
        assert noted.calls == [("assigned", A, 0), ("lost", A), ("closed", A), ("assigned", A, 0), ("initialize", A)]

    listened(body, revoke_timeout=5.0)


def test_a_shard_that_goes_before_its_listener_was_told_of_it_is_not_told_of() -> None:
    async def body(scene: Scene, noted: Noted) -> None:
        async def fail(_: object) -> None:
            raise ConnectionError("the sink is away")

        noted.does["assigned"] = fail
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(noted.calls))
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert noted.calls == [("assigned", A, 0)]

    listened(body)


# --- saves that nobody waits for --------------------------------------------------------------------------------------------


class Saving(AsyncProcessor):
    """Saves each record with a callback. `told` is what these were told."""

    def __init__(self, told: list[tuple[Offset, str]], *, now: bool = False, does: Callable[[], None] = lambda: None) -> None:
        self.told = told
        self.now = now
        self.does = does
        self.saved = 0

    async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> None:
        for record in records:
            await checkpoint.save(record.offset + 1, now=self.now, callback=self.tell)
            self.saved += 1

    def tell(self, position: Offset, error: Exception | None) -> None:
        self.told.append((position, type(error).__name__ if error is not None else "durable"))
        self.does()

    async def shutdown(self, checkpoint: AsyncCheckpoint) -> None:
        """Saves nothing: the session does, once the shard is put back."""


@pytest.mark.parametrize(("now", "after"), [(False, 10.0), (True, 0.0)])
def test_a_save_with_a_callback_waits_for_nothing_and_is_told_of_in_order_once_it_is_durable(now: bool, after: float) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.checkpoint_time = 1.0
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        began = await scene.until(lambda: scene.processing.counts.records == 3)
        assert (began < 1.0, told) == (True, [])
        took = await scene.until(lambda: len(told) == 3)
        assert (told, after <= took < after + 2.1) == ([(1, "durable"), (2, "durable"), (3, "durable")], True)

    told: list[tuple[Offset, str]] = []
    playing(body, Saving(told, now=now), save_interval=10.0)


def playing(body: Callable[[Scene], Any], processor: Saving, **options: Any) -> None:
    async def play() -> None:
        async with Scene(factory=lambda: processor, **options) as scene:
            await body(scene)

    simulate(play)


def test_callbacks_of_a_shard_that_moves_are_called_once_it_is_durable_and_of_one_that_is_lost_with_the_reason() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.counts.records == 2)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert told == [(1, "durable"), (2, "durable")]
        scene.logs.append(A, 2)
        scene.coordinator.outcome = CheckpointResult.FENCED
        scene.coordinator.assign((A, 3, 2))
        await scene.until(lambda: len(told) == 4)
        assert told[2:] == [(3, "FencedEpochError"), (4, "FencedEpochError")]

    told: list[tuple[Offset, str]] = []
    playing(body, Saving(told), save_interval=10.0)


def test_a_worker_that_drains_waits_for_its_callbacks_and_one_that_must_stop_tells_them_so() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.counts.records == 2)
        if drains:
            await scene.consumer.drain(10.0)
            await scene.ended()
        else:
            scene.coordinator.fault = StaleIncarnationError("another run has taken over")
            scene.coordinator.assign()
            await scene.ended()

    ends = {}
    for drains in (True, False):
        told: list[tuple[Offset, str]] = []
        playing(body, Saving(told))
        ends[drains] = told
    assert ends == {
        True: [(1, "durable"), (2, "durable")],
        False: [(1, "FencedEpochError"), (2, "FencedEpochError")],
    }


def test_a_callback_that_raises_is_logged_and_counted_and_the_next_one_is_called(caplog: pytest.LogCaptureFixture) -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(told) == 2)
        await asyncio.sleep(0.1)
        assert (scene.processing.counts.failures, scene.processing.troubles) == ({"callback": 2}, {})

    def fail() -> None:
        raise ConnectionError("nobody listens")

    told: list[tuple[Offset, str]] = []
    with caplog.at_level(logging.ERROR):
        playing(body, Saving(told, now=True, does=fail))
    assert [record.getMessage() for record in caplog.records if record.name == "shardherd.worker.callbacks"] == [
        f"the callback of a save failed: shard t/0, position {position}" for position in (1, 2)
    ]


def test_of_callbacks_only_so_many_wait_and_then_all_are_sent_at_once() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.checkpoint_time = 5.0
        scene.logs.append(A, MOST_WAITING + 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: processor.saved == MOST_WAITING)
        await asyncio.sleep(4.0)
        assert (processor.saved, told) == (MOST_WAITING, [])
        await scene.until(lambda: processor.saved == MOST_WAITING + 10)
        await scene.until(lambda: len(told) == MOST_WAITING + 10, within=70.0)
        assert told == [(position, "durable") for position in range(1, MOST_WAITING + 11)]

    told: list[tuple[Offset, str]] = []
    processor = Saving(told)
    playing(body, processor, batch_size=2000)


def test_a_callback_that_saves_with_another_one_does_not_wait_for_room_that_there_is_only_once_it_has_returned() -> None:
    class SavesAgain(Saving):
        async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> None:
            async def again(position: Offset, error: Exception | None) -> None:
                await checkpoint.save(callback=self.tell)

            for record in records:
                await checkpoint.save(record.offset + 1, callback=again)
                self.saved += 1

    async def body(scene: Scene) -> None:
        scene.logs.append(A, MOST_WAITING + 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(told) == MOST_WAITING + 10, within=200.0)
        assert ({each for _, each in told}, processor.saved) == ({"durable"}, MOST_WAITING + 10)

    told: list[tuple[Offset, str]] = []
    processor = SavesAgain(told)
    playing(body, processor, batch_size=2000)
