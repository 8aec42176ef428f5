"""Asynchronous calls for the records of a shard, in a worker."""

from __future__ import annotations

import asyncio
import functools
import re
from itertools import islice
from typing import Any

import pytest

from shardherd.worker import AsyncOperator, Record, WorkerOptionError
from tests.unit.worker.scene import A, Scene, story


class Lookup(AsyncOperator):
    """Emits offsets. Element i takes i % 3 + 1 milliseconds, as in the specification's demo."""

    pause = 1.0

    def __init__(self, ordered: bool = True, **fails: Any) -> None:
        self.ordered = ordered
        self.emitted: list[int] = []
        self.called: list[int] = []
        self.slow: set[int] = fails.get("slow", set())
        self.broken: dict[int, int] = fails.get("broken", {})
        self.unwritable: dict[int, int] = fails.get("unwritable", {})

    async def invoke(self, record: Record) -> list[int]:
        self.called.append(record.offset)
        await asyncio.sleep(1000.0 if record.offset in self.slow else (record.offset % 3 + 1) / 1000)
        if self.broken.get(record.offset, 0) > 0:
            self.broken[record.offset] -= 1
            raise ConnectionError("away")
        return [record.offset]

    async def emit(self, result: int) -> None:
        if self.unwritable.get(result, 0) > 0:
            self.unwritable[result] -= 1
            raise ConnectionError("the sink is away")
        self.emitted.append(result)


@pytest.mark.parametrize(
    ("ordered", "expected"),
    [(True, [[each] for each in range(10)]), (False, [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]])],
    ids=["ordered", "unordered"],
)
def test_results_are_emitted_in_order_or_as_they_come(ordered: bool, expected: list[list[int]]) -> None:
    lookup = Lookup(ordered)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 10)])
        left = iter(lookup.emitted)
        assert [sorted(islice(left, len(part))) for part in expected] == expected

    story(body, factory=lambda: lookup, save_interval=1.0)


def test_at_capacity_no_further_call_is_made_while_heartbeats_go_on_and_the_position_stays() -> None:
    lookup = Lookup(slow={0})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 20)
        scene.coordinator.assign((A, 1, 0))
        await asyncio.sleep(100.0)
        assert (lookup.called, lookup.emitted, scene.coordinator.checkpoints) == ([0, 1, 2, 3, 4], [], [])
        assert scene.loop.time() - scene.coordinator.answered[-1] < 4.0

    story(body, factory=lambda: lookup, max_pending=5)


def test_a_call_is_tried_again_in_its_place_and_a_record_whose_calls_all_failed_comes_again() -> None:
    lookup = Lookup(broken={1: 2, 3: 3})
    lookup.retries = 2

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert lookup.emitted == [0, 1, 2, 4, 3]

    story(body, factory=lambda: lookup, save_interval=1.0)


def test_a_record_whose_results_are_not_emitted_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    lookup = Lookup(unwritable={1: 2})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert (lookup.emitted, lookup.called) == ([0, 2, 1], [0, 1, 2, 1, 1])

    story(body, factory=lambda: lookup, save_interval=1.0)
    said = [(line.levelname, line.getMessage(), line.exc_info is None) for line in caplog.records if "emitted" in line.msg]
    assert said == [("WARNING", "results of record 1 are not emitted, try 1: the sink is away", False)]


def test_a_timeout_fails_the_record_unless_something_stands_in_for_its_results() -> None:
    class Stands(Lookup):
        timeout = 1.0

        def timed_out(self, record: Record) -> list[int]:
            if record.offset == 2:
                return super().timed_out(record)  # type: ignore[return-value]
            return [-record.offset]

    lookup = Stands(slow={1, 2})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: lookup.called.count(2) == 2)
        assert lookup.emitted == [0, -1, 3]
        lookup.slow.clear()
        await scene.until(lambda: lookup.emitted == [0, -1, 3, 2])

    story(body, factory=lambda: lookup)


class GaveUp(BaseException):
    """As a library has one for its timeouts."""


@pytest.mark.parametrize(
    "raised", [GaveUp(), SystemExit(1), asyncio.CancelledError()], ids=["no Exception", "exit", "cancelled"]
)
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_whatever_timed_out_raises_fails_the_record_which_takes_the_place_of_its_earlier_call(
    raised: BaseException, ordered: bool
) -> None:
    class Bounded(Lookup):
        timeout = 2.0

        def timed_out(self, record: Record) -> list[int]:
            self.slow.remove(record.offset)
            raise raised

        def watermark(self, record: Record) -> int | None:
            return record.offset if not self.ordered else None

    lookup = Bounded(ordered, slow={1})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 4)])
        assert (lookup.called, lookup.emitted) == ([0, 1, 2, 3, 1], [0, 2, 3, 1] if ordered else [0, 1, 2, 3])

    story(body, factory=lambda: lookup, save_interval=1.0)


def test_of_100_calls_without_an_order_one_that_takes_more_than_1_000_ms_fails_and_holds_up_nobody() -> None:
    """The specification's example: unordered, a timeout of 1,000 ms, a capacity of 100."""
    lookup = Lookup(ordered=False, slow={7})
    lookup.timeout = 1.0

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 150)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(lookup.emitted) == 149)
        assert (sorted(lookup.emitted), scene.processing.counts.failures) == ([*range(7), *range(8, 150)], {})
        await scene.until(lambda: bool(scene.processing.counts.failures))
        lookup.slow.clear()
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 150)])
        assert (lookup.emitted[-1], lookup.called.count(7)) == (7, 2)

    story(body, factory=lambda: lookup, max_pending=100, batch_size=200, save_interval=1.0)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_record_that_is_called_for_again_after_its_time_takes_the_place_of_its_earlier_call(ordered: bool) -> None:
    lookup = Lookup(ordered, slow={0, 1})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.counts.failures))
        lookup.slow.clear()
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 4)], within=3.0)
        assert lookup.emitted == ([0, 1, 2, 3] if ordered else [0, 1, 3, 2])
        assert lookup.called == [0, 1, 0, 1, 2, 3]
        assert scene.processing.counts.failures == {"process": 2}, "no more than their times"

    story(body, factory=lambda: lookup, max_pending=2, ack_timeout=5.0, save_interval=0.1)


def test_a_shard_that_is_wanted_has_its_calls_cancelled_after_the_revoke_timeout() -> None:
    lookup = Lookup(slow={2})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: lookup.emitted == [0, 1])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert scene.coordinator.checkpoints == [(A, 1, 2)]

    story(body, factory=lambda: lookup, revoke_timeout=5.0)


class Reconnects(Lookup):
    """Its client cancels what waits for it, once for each of these offsets, in the one or in the other call."""

    def __init__(self, *, invoking: set[int], emitting: set[int]) -> None:
        super().__init__()
        self.invoking, self.emitting = invoking, emitting

    async def invoke(self, record: Record) -> list[int]:
        await self._wait(record.offset, self.invoking)
        return await super().invoke(record)

    async def emit(self, result: int) -> None:
        await self._wait(result, self.emitting)
        await super().emit(result)

    async def _wait(self, offset: int, cancelled: set[int]) -> None:
        if offset in cancelled:
            cancelled.remove(offset)
            pending = asyncio.get_running_loop().create_future()
            pending.cancel()
            await pending


@pytest.mark.parametrize(
    ("cancelled", "retries", "emitted"),
    [
        ({"invoking": {2}, "emitting": set()}, 0, [0, 1, 3, 4, 2]),
        ({"invoking": {2}, "emitting": set()}, 1, [0, 1, 2, 3, 4]),
        ({"invoking": set(), "emitting": {2}}, 0, [0, 1, 3, 4, 2]),
        ({"invoking": set(), "emitting": {3}}, 0, [0, 1, 2, 4, 3]),
    ],
    ids=["a call", "a call that is made again", "a result", "a result that waited for another record's"],
)
def test_what_a_client_cancels_fails_as_any_other_call(cancelled: Any, retries: int, emitted: list[int]) -> None:
    lookup = Reconnects(**{name: set(offsets) for name, offsets in cancelled.items()})
    lookup.retries = retries

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert lookup.emitted == emitted

    story(body, factory=lambda: lookup, save_interval=1.0)


# Watermarks.


class Marked(Lookup):
    """A watermark after every record whose offset is in `marks`; it is emitted as `-offset`."""

    def __init__(self, marks: set[int], **given: Any) -> None:
        super().__init__(ordered=False, **given)
        self.marks = marks
        self.asked: list[int] = []
        self.away = 0

    def watermark(self, record: Record) -> int | None:
        self.asked.append(record.offset)
        return record.offset if record.offset in self.marks else None

    async def emit_watermark(self, time: int) -> None:
        if self.away:
            self.away -= 1
            raise ConnectionError("the sink is away")
        self.emitted.append(-time)


def test_without_an_order_no_result_passes_a_watermark() -> None:
    marked = Marked({2, 4})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 6)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 6)])
        assert marked.emitted == [0, 1, 2, -2, 3, 4, -4, 5]

    story(body, factory=lambda: marked, save_interval=1.0)


@pytest.mark.parametrize("fails", [{"broken": {1: 2}}, {"unwritable": {1: 2}}], ids=["the call", "emit"])
def test_a_watermark_waits_for_a_record_that_failed_and_comes_again(fails: dict[str, dict[int, int]]) -> None:
    marked = Marked({2}, **fails)

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert marked.emitted == [0, 2, 1, -2, 3, 4]
        assert marked.asked == [0, 1, 2, 3, 4], "once of each record"

    story(body, factory=lambda: marked, save_interval=1.0)


def test_a_watermark_waits_for_a_record_whose_time_was_over() -> None:
    marked = Marked({2}, slow={1})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: marked.called.count(1) == 2)
        assert marked.emitted == [0, 2]
        marked.slow.clear()
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 4)])
        assert marked.emitted == [0, 2, 1, -2, 3]

    story(body, factory=lambda: marked, ack_timeout=5.0, save_interval=1.0)


def test_a_watermark_does_not_wait_for_a_record_that_is_passed_over() -> None:
    marked = Marked({2}, broken={1: 100})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 4)])
        assert marked.emitted == [0, 2, -2, 3]

    story(body, factory=lambda: marked, tries=2, bad_records="skip", save_interval=1.0)


def test_a_watermark_that_could_not_be_emitted_is_tried_again_and_nothing_passes_it(caplog: pytest.LogCaptureFixture) -> None:
    marked = Marked({1})
    marked.away = 2

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert marked.emitted == [0, 1, -1, 2]

    story(body, factory=lambda: marked, save_interval=1.0)
    said = [record.message for record in caplog.records if "watermark" in record.message]
    assert said == ["watermark 1 is not emitted yet, trying on: the sink is away"] * 2


def test_a_record_whose_watermark_cannot_be_told_fails_as_one_whose_call_does() -> None:
    class Wrong(Marked):
        def watermark(self, record: Record) -> int | None:
            if record.offset == 1 and self.asked.count(1) < 2:
                self.asked.append(1)
                raise KeyError("no time in it")
            return super().watermark(record)

    wrong = Wrong({1})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert (wrong.emitted, wrong.asked) == ([0, 2, 1, -1], [0, 1, 2, 1, 1])

    story(body, factory=lambda: wrong, save_interval=1.0)


def test_no_watermark_passes_a_record_whose_own_could_not_be_told_yet() -> None:
    class Wrong(Marked):
        def watermark(self, record: Record) -> int | None:
            if record.offset == 1 and self.asked.count(1) < 2:
                self.asked.append(1)
                raise KeyError("no time in it")
            return super().watermark(record)

    wrong = Wrong({0, 1, 2, 3})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
        assert wrong.emitted == [0, 0, 2, 1, -2, 3, -3, 4], "that of 2 follows that of 1 at once, and stands for both"
        assert wrong.asked == [0, 1, 2, 3, 4, 1, 1]

    story(body, factory=lambda: wrong, save_interval=1.0)


async def emit_nothing(self: AsyncOperator, result: int) -> None:
    pass


def emit_at_once(self: AsyncOperator, result: int) -> None:
    pass


@functools.wraps(emit_nothing)
def emit_around(self: AsyncOperator, result: int) -> Any:
    return emit_nothing(self, result)


WRONG = [
    ({"retries": -1}, "retries of Wrong must be 0 or more, not -1"),
    ({"retries": 1.5}, "retries of Wrong must be a whole number, 0 or more, not 1.5"),
    ({"retries": True}, "retries of Wrong must be a whole number, 0 or more, not True"),
    ({"timeout": "1"}, "timeout of Wrong must be a number of seconds, 0 or more, not '1'"),
    ({"timeout": float("nan")}, "timeout of Wrong must be a number of seconds, 0 or more, not nan"),
    ({"timeout": -1}, "timeout of Wrong must be 0 or more, not -1"),
    ({"pause": float("inf")}, "pause of Wrong must be a number of seconds, 0 or more, not inf"),
    ({"ordered": "false"}, "ordered of Wrong must be True or False, not 'false'"),
    ({"emit": emit_at_once}, "emit of Wrong must be a coroutine, not a function: write `async def emit`"),
    ({"watermark": emit_nothing}, "watermark of Wrong must be a function, not a coroutine: write `def watermark`"),
    ({"timed_out": emit_nothing}, "timed_out of Wrong must be a function, not a coroutine: write `def timed_out`"),
]


@pytest.mark.parametrize(("attributes", "message"), WRONG)
def test_what_an_operator_cannot_be_is_refused_when_its_class_is_defined(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkerOptionError, match=re.escape(message)):
        type("Wrong", (AsyncOperator,), attributes)
    type("Right", (AsyncOperator,), {"emit": emit_around, "retries": 0, "timeout": 3, "pause": 0.0, "ordered": False})


def test_what_an_operator_makes_of_itself_ends_the_worker_if_it_cannot_be() -> None:
    lookup = Lookup()
    lookup.retries = -1

    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        with pytest.raises(WorkerOptionError, match="retries of Lookup must be 0 or more, not -1"):
            await scene.ended()

    story(body, factory=lambda: lookup)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "TypeError: invoke must return a list of results, which is empty for none, not None"),
        ("abc", "TypeError: invoke must return a list of results, which is empty for none, not 'abc'"),
        (b"abc", "TypeError: invoke must return a list of results, which is empty for none, not b'abc'"),
    ],
)
def test_what_invoke_returns_that_are_no_results_fails_the_record_and_is_named(returned: Any, message: str) -> None:
    class Returns(Lookup):
        async def invoke(self, record: Record) -> Any:
            return returned

    lookup = Returns()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert (message in scene.processing.troubles[A], lookup.emitted) == (True, [])

    story(body, factory=lambda: lookup)


def test_an_invoke_that_is_no_coroutine_is_named_with_the_remedy() -> None:
    class Returns(Lookup):
        def invoke(self, record: Record) -> Any:
            return [record.offset]

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert "invoke must be a coroutine, and returned [0] at once: write `async def invoke`" in scene.processing.troubles[A]

    story(body, factory=Returns)


# What is emitted, and by whom.


def test_watermarks_of_records_that_are_passed_over_take_no_place_that_others_need() -> None:
    class Waits(Marked):
        async def invoke(self, record: Record) -> list[int]:
            if record.offset == 0:
                await go_on.wait()
            return await super().invoke(record)

    go_on = asyncio.Event()
    waits = Waits(set(range(1, 31)), broken=dict.fromkeys(range(1, 29), 100))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 31)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: 30 in waits.called)
        assert waits.emitted == []
        go_on.set()
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 31)])
        assert (waits.emitted, waits.asked) == ([0, -28, 29, -29, 30, -30], [*range(31)])

    story(body, factory=lambda: waits, max_pending=3, tries=1, bad_records="skip", in_order=False, save_interval=1.0)


class SlowSink(Marked):
    """Its `emit` takes `seconds`."""

    seconds = 0.0

    async def emit(self, result: int) -> None:
        await asyncio.sleep(self.seconds)
        await super().emit(result)


def test_a_record_whose_time_is_over_while_it_is_emitted_holds_its_watermark_until_it_is_emitted_again() -> None:
    sink = SlowSink({1})
    sink.seconds = 8.0

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(sink.emitted) >= 1)
        sink.seconds = 0.0
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert (sink.emitted.count(-1), sink.asked) == (1, [0, 1, 2])
        before = sink.emitted[: sink.emitted.index(-1)]
        assert (2 in before, {*before} >= {0, 1}) == (False, True)

    story(body, factory=lambda: sink, ack_timeout=5.0, save_interval=1.0)


def test_a_record_that_is_late_does_not_cut_off_what_is_emitted_of_others() -> None:
    class First(SlowSink):
        async def invoke(self, record: Record) -> list[int]:
            if record.offset == 0:
                self.called.append(0)
                raise ConnectionError("away")
            return await super().invoke(record)

    sink = First(set())
    sink.ordered, sink.seconds = True, 3.0

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 4)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 4)])
        assert sink.emitted == [1, 2, 3]
        assert scene.processing.counts.bad_records == {"skipped": 1}

    story(body, factory=lambda: sink, ack_timeout=12.0, tries=1, bad_records="skip", in_order=False, save_interval=1.0)


def test_nothing_is_emitted_any_more_once_the_shard_is_given_up() -> None:
    sink = SlowSink(set(), broken={0: 100})
    sink.seconds = 4.0
    ended: list[list[int]] = []

    class Ends(SlowSink):
        def shutdown(self, checkpoint: Any) -> None:
            ended.append(list(sink.emitted))

    sink.__class__ = Ends

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 6)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(sink.emitted) == 1)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        await asyncio.sleep(60.0)
        assert ended == [sink.emitted]

    story(body, factory=lambda: sink, tries=1, bad_records="skip", in_order=False, revoke_timeout=5.0)
