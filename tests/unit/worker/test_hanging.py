"""A program's own functions that do not return: what is told of them, what is kept for them, and what is closed after them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from shardherd.core.model.nouns import Phase, ShardId
from shardherd.worker import Output, Record, RecordProcessor
from tests.unit.worker.scene import A, B, Scene, story
from tests.unit.worker.taken import Place, outputs, waits_for


def queued(scene: Scene) -> bool:
    return any(held.queued for held in scene.processing.picture().held)


class Writes:
    """What outputs whose methods are functions were asked, when it was done."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def output(self) -> type[Output]:
        calls = self.calls

        class Blocking(Output):
            name = "blocking"

            def open(self, shard: ShardId) -> None:
                calls.append(f"open {shard}")

            def write(self, records: Sequence[Record]) -> None:
                calls.append([each.offset for each in records])

            def close(self) -> None:
                calls.append("close")

        return Blocking


def test_a_write_that_hangs_is_named_and_counted_and_its_worker_writes_on_for_all_who_ask(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writes = Writes()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert scene.processing.troubles == {
            A: "output blocking: write has not returned for 20 s, with 3 records from 0 on: it hangs, or the sink is away"
        }
        assert (scene.processing.about(), scene.processing.counts.failures) == (Phase.WRITING, {"write": 1})
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        await scene.until(lambda: scene.processing.troubles == {})
        assert scene.processing.counts.failures == {"write": 1}

    takes = {"write": 70.0}
    story(body, factory=outputs(writes.output(), write_timeout=20.0), takes=takes, save_interval=1.0, alarm_after=0)
    told = [each.getMessage() for each in caplog.records if "has not returned" in each.getMessage()]
    assert [each.split(" s,")[0] for each in told] == [
        "output blocking: write has not returned for 20",
        "output blocking: write has not returned for 40",
    ]


def test_a_coroutine_that_does_not_end_is_named_too() -> None:
    place, never = Place(), asyncio.Event()
    place.answers = [waits_for(never)]

    class Waits(Output):
        name = "waits"

        async def write(self, records: Sequence[Record]) -> None:
            await place.write(records)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert scene.processing.troubles[A].startswith(
            "output waits: write has not returned for 20 s, with 1 records from 0 on"
        )

    story(body, factory=outputs(Waits, write_timeout=20.0))


def test_an_ordered_group_keeps_a_shard_that_is_wanted_until_the_write_has_ended() -> None:
    writes = Writes()

    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: scene.processing.about() is Phase.WRITING and queued(scene))
        scene.coordinator.assign((B, 1, 0))
        took = await scene.until(lambda: scene.coordinator.named == [(B, 1)])
        assert (took > 60, writes.calls[-2:]) == (True, [[0, 1, 2], "close"])
        assert scene.coordinator.checkpoints[-1] == (A, 1, 3)

    story(body, factory=outputs(writes.output()), takes={"write": 70.0}, revoke_timeout=5.0)


def test_an_ordered_groups_worker_that_leaves_while_a_write_hangs_says_that_it_goes_on() -> None:
    """Else somebody else would write beside it."""
    writes = Writes()

    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.about() is Phase.WRITING and queued(scene))
        assert not await scene.consumer.drain(10.0)
        assert (scene.coordinator.stopped, writes.calls) == (False, ["open t/0"])
        assert scene.processing.adrift == {A}

    story(body, factory=outputs(writes.output()), takes={"write": 100.0})


def test_in_an_unordered_group_a_write_that_hangs_is_given_up_and_nothing_of_its_shard_begins_beside_it() -> None:
    writes = Writes()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: queued(scene))
        scene.coordinator.assign((B, 1, 0))
        took = await scene.until(lambda: scene.coordinator.named == [(B, 1)])
        assert 4.9 < took < 12.0
        scene.coordinator.assign((A, 3, 0), (B, 1, 0))
        await scene.until(lambda: [0, 1, 2] in writes.calls)
        assert writes.calls == ["open t/0", "open t/1", [0, 1, 2]]
        await scene.until(lambda: len(writes.calls) == 6)
        assert writes.calls[3:] == ["close", "open t/0", [0, 1, 2]], (
            "the late write is closed, and what was not saved is repeated"
        )

    story(body, factory=outputs(writes.output()), takes={"write": 70.0}, revoke_timeout=5.0)


def test_outputs_are_closed_though_the_program_hangs_in_select_and_nothing_of_it_is_sent_any_more() -> None:
    writes = Writes()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: "open t/0" in writes.calls)
        await asyncio.sleep(1.0)
        scene.coordinator.assign((B, 1, 0))
        await scene.until(lambda: scene.coordinator.named == [(B, 1)])
        await scene.until(lambda: "close" in writes.calls, within=5.0)
        assert scene.processing.adrift == {A}
        await scene.until(lambda: scene.processing.adrift == set())
        assert writes.calls == ["open t/0", "open t/1", "close"]

    story(body, factory=outputs(writes.output()), takes={"_hand_out": 70.0}, revoke_timeout=5.0)


def test_a_processor_that_hangs_when_the_run_is_over_is_known() -> None:
    class Hangs(RecordProcessor):
        def process(self, record: Record, ack: Any) -> None:
            ack()

    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.about() is Phase.WRITING)
        assert scene.processing.adrift == set()
        scene.consumer.session.end("the coordinator says that this run is over")
        await scene.until(lambda: scene.processing.adrift == {A})

    story(body, factory=Hangs, takes={"_hand_out": 70.0})
