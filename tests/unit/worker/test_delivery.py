"""A delivery by itself: what other threads do between two of its steps, which the whole worker does too seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardherd.core.model.nouns import Offset
from shardherd.worker.delivery import MOMENT, Delivery
from shardherd.worker.options import Options
from shardherd.worker.records import Record, Records, Whole
from tests.unit.spark.simulated import simulate
from tests.unit.worker.acknowledged import Kept
from tests.unit.worker.scene import A, rows


class _Shard:
    """Keeps what is saved. `saving` is called meanwhile."""

    def __init__(self) -> None:
        self.name, self.position, self.done = A, 0, 0
        self.saving: Callable[[], object] = lambda: None

    async def save_checkpoint(self, offset: Offset, *, now: bool) -> None:
        assert not now
        self.done = offset
        self.saving()


class _Hands:
    """Lends one batch. `taken` is called when it is taken, as another thread may do something just then."""

    over = False

    def __init__(self, batch: Records, taken: Callable[[_Hands], object] = lambda _: None) -> None:
        self.turned = asyncio.Event()
        self.busy, self.trouble = False, ""
        self.shard: Any = _Shard()
        self.options = Options()
        self.fields: dict[str, Any] = {}
        self.leaving = False
        self.patience = float("inf")
        self.counted = (0, 0)
        self._batches = [batch]
        self._taken = taken

    def may_hand_out(self, *, new: bool) -> bool:
        return not new or bool(self._batches)

    def no_hand_out(self) -> None:
        pass

    def next_batch(self) -> Records | None:
        if not self._batches:
            return None
        self._taken(self)
        return self._batches.pop()

    def batch_is_out(self) -> None:
        pass

    def count(self, *, records: int, failures: int) -> None:
        self.counted = (self.counted[0] + records, self.counted[1] + failures)

    def count_bad(self, outcome: str) -> None:
        raise AssertionError("no record is bad here")

    async def ran(self, work: Callable[[], Any]) -> Any:
        return work()

    async def ended(self, work: Callable[[], Any]) -> None:
        raise AssertionError("no coroutines run here")

    async def turn(self, seconds: float | None) -> None:
        async with asyncio.timeout(seconds):
            await self.turned.wait()
        self.turned.clear()


def test_a_batch_that_is_stopped_before_its_first_record_is_given_out_is_not_passed() -> None:
    """The shard is wanted just when a thread decodes the batch."""
    batch = Records(A, Whole(rows([0, 1, 2])), 0, 3)

    def wanted(hands: _Hands) -> None:
        hands.leaving = True
        batch.stop()

    async def body() -> tuple[list[Offset], Offset]:
        kept, hands = Kept(), _Hands(batch, wanted)
        await Delivery(hands, kept, None).run()
        return kept.given, hands.shard.done

    assert simulate(body) == ([], 0)


def test_a_batch_that_is_stopped_in_between_is_passed_up_to_the_first_record_that_was_not_given_out() -> None:
    batch = Records(A, Whole(rows([0, 1, 2])), 0, 3)

    async def body() -> tuple[list[Offset], Offset]:
        hands = _Hands(batch)

        def leave() -> None:
            hands.leaving = True
            hands.turned.set()

        def does(_: Any, ack: Any) -> None:
            ack()
            batch.stop()
            asyncio.get_running_loop().call_later(1.0, leave)

        kept = Kept(does)
        await Delivery(hands, kept, None).run()
        return kept.given, hands.shard.done

    assert simulate(body) == ([0], 1)


def test_an_acknowledgement_that_comes_while_the_last_position_is_saved_does_not_count() -> None:
    """It would say that the record is done, and the record were processed again."""
    batch = Records(A, Whole(rows([0, 1, 2])), 0, 3)

    async def body() -> tuple[Offset, list[bool], tuple[int, int]]:
        kept, hands, late = Kept(), _Hands(batch), list[bool]()
        task = asyncio.create_task(Delivery(hands, kept, None).run())
        await asyncio.sleep(1.0)
        hands.leaving, hands.patience = True, 0.0
        hands.shard.saving = lambda: late.append(kept.acks[hands.shard.done]())
        kept.ack(0)
        await task
        return hands.shard.done, late, hands.counted

    done, late, counted = simulate(body)
    assert (done, late, counted) == (2, [True, False], (2, 0))


def test_a_time_that_is_a_hair_ahead_is_waited_for_a_moment_and_not_in_a_circle() -> None:
    """A timer of no length ends at once, with the hair still ahead."""

    async def play() -> None:
        delivery = Delivery(_Hands(Records(A, Whole(rows([0])), 0, 1)), Kept(), None)
        delivery._ledger.emit((0, 0), a_record(), 0.0)
        delivery._alarm_at = 120.00000000000001
        assert delivery._wake_in(120.0, failed=True) == MOMENT

    simulate(play)


def a_record() -> Record:
    return Record(0, None, None, 0, ())
