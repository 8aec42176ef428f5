"""Whole workers with real threads, against the real coordinator over HTTP; records come from memory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from shardherd.client import pod
from shardherd.clock import boot_time
from shardherd.consumer.gauges import Gauges
from shardherd.core.consumer.holdings import Holdings
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.core.model.gauges import Marks, Watermarks
from shardherd.core.model.nouns import HeartbeatReply, Offset, ShardId
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.testing.group import PlayedGroup
from shardherd.worker import AsyncCheckpoint, AsyncProcessor, Checkpoint, Listener, Options, Processor, Records, Worker
from tests.unit.worker.scene import Logs, in_threads

SHARDS = tuple(ShardId(f"records/{number}") for number in range(4))


@pytest.fixture
def group() -> Iterator[PlayedGroup]:
    with PlayedGroup(shards=4) as group:
        yield group


class Seen:
    """Makes processors that note the offsets of what they have processed, by shard."""

    def __init__(self, process: Callable[[Records, Checkpoint], Offset | None] | None = None) -> None:
        self.offsets: dict[ShardId, list[Offset]] = {}
        self.calls: list[tuple[str, ShardId]] = []
        self.threads: set[str] = set()
        self.gauge: Callable[[], float] | None = None
        self._process = process

    def __call__(self) -> Processor:
        seen = self

        class Notes(Processor):
            def initialize(self, shard: ShardId) -> None:
                seen.calls.append(("initialize", shard))

            def process(self, records: Records, checkpoint: Checkpoint) -> Offset | None:
                seen.threads.add(threading.current_thread().name)
                for record in records:
                    seen.offsets.setdefault(records.shard, []).append(record.offset)
                return seen._process(records, checkpoint) if seen._process is not None else None

            def shutdown(self, checkpoint: Checkpoint) -> None:
                seen.calls.append(("shutdown", checkpoint.shard))
                super().shutdown(checkpoint)

        return Notes()

    def and_then(self, other: Seen) -> dict[ShardId, list[Offset]]:
        """What was processed here and then there."""
        return {shard: self.offsets.get(shard, []) + other.offsets.get(shard, []) for shard in SHARDS}

    def all_of(self, count: int) -> bool:
        return self.offsets == {shard: list(range(count)) for shard in SHARDS}


def written(count: int) -> Logs:
    logs = Logs()
    for shard in SHARDS:
        logs.append(shard, count)
    return logs


def worker_of(
    group: PlayedGroup, name: str, factory: Callable[[], Any], logs: Logs, listener: Listener | None = None, **options: Any
) -> Worker:
    given = {"fetch_interval": 0.02, "save_interval": 0.1, "drain_timeout": 5.0, **options}
    return Worker(
        factory,
        options=Options(**given),
        environment=group.environment(name),
        fetcher=in_threads(logs),
        listener=listener,
        bootstrap="nowhere:9092",
    )


@contextmanager
def running(worker: Worker) -> Iterator[list[BaseException]]:
    """The worker in a thread; what it raises is in the list. At the end it is shut down."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield raised
    finally:
        assert worker.shutdown(10)
        thread.join()


def test_a_worker_that_has_ended_leaves_no_thread_behind(group: PlayedGroup) -> None:
    before = {*threading.enumerate()}

    class Works(AsyncProcessor):
        async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> None:
            for _ in records:
                pass

    with running(worker_of(group, "played-0", Works, written(5))):
        group.until("everything is processed", lambda: group.checkpoints() == dict.fromkeys(SHARDS, 5))
    left = [each for each in {*threading.enumerate()} - before if each.name.startswith("shardherd-worker")]
    for each in left:
        each.join(5)
    assert [each.name for each in left if each.is_alive()] == []


class Hangs:
    """A source that is away in such a way that nothing returns, in the one or in the other call."""

    def __init__(self, method: str, logs: Logs) -> None:
        self.method, self.hangs, self.goes_on = method, threading.Event(), threading.Event()
        self.fetch = in_threads(logs).fetch

    def connect(self) -> None:
        self._maybe("connect")

    def close(self) -> None:
        self._maybe("close")

    def _maybe(self, method: str) -> None:
        if method == self.method:
            self.hangs.set()
            self.goes_on.wait(60)


@pytest.mark.parametrize("method", ["connect", "close"])
def test_a_source_that_hangs_keeps_no_worker_that_is_to_end(
    group: PlayedGroup, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = Hangs(method, written(5))
    worker = Worker(Seen(), environment=group.environment("played-0"), fetcher=source, bootstrap="nowhere:9092")
    with running(worker) as raised:
        try:
            if method == "connect":
                assert source.hangs.wait(10)
            else:
                group.until("it has all shards", lambda: len(group.held_by("played-0")) == 4)
            assert worker.shutdown(20)
        finally:
            source.goes_on.set()
    assert (raised, any("not closed within" in line for line in caplog.messages)) == ([], method == "close")


@pytest.mark.parametrize("options", [{}, {"now": True}, {"callback": print}], ids=str)
def test_a_checkpoint_that_was_kept_says_that_the_worker_has_ended(group: PlayedGroup, options: dict[str, Any]) -> None:
    kept: list[Checkpoint] = []

    class Keeps(Processor):
        def process(self, records: Records, checkpoint: Checkpoint) -> None:
            kept.append(checkpoint)

    with running(worker_of(group, "played-0", Keeps, written(5))):
        group.until("everything is processed", lambda: group.checkpoints() == dict.fromkeys(SHARDS, 5))
    with pytest.raises(ConsumerStoppedError, match=r"the worker has ended: nothing of shard records/. can be saved any more"):
        kept[0].save(5, **options)


@pytest.mark.parametrize("is_coroutine", [False, True], ids=["a function", "a coroutine"])
def test_a_shutdown_that_the_program_asks_for_where_the_worker_calls_it_does_not_wait_for_itself(
    group: PlayedGroup, is_coroutine: bool
) -> None:
    answers: list[bool] = []

    class Ends(Processor):
        def process(self, records: Records, checkpoint: Checkpoint) -> None:
            answers.append(worker.shutdown(60))

    class EndsLater(AsyncProcessor):
        async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> None:
            answers.append(worker.shutdown(60))

    worker = worker_of(group, "played-0", EndsLater if is_coroutine else Ends, written(5), drain_timeout=60.0)
    began = boot_time()
    worker.run()
    assert (set(answers), boot_time() - began < 30) == ({False}, True)


async def test_a_worker_does_not_run_on_an_event_loop_and_says_how_it_does(group: PlayedGroup) -> None:
    worker = worker_of(group, "played-0", Seen(), written(5))
    with pytest.raises(RuntimeError, match=r"it cannot run on this one: call its `run` in a thread, as by `await asyncio\."):
        worker.run()


def test_a_worker_that_no_signal_can_end_says_so(group: PlayedGroup, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        return [line.getMessage() for line in caplog.records if "main thread" in line.getMessage()]

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with running(worker_of(group, "played-0", Seen(), written(5))):
            group.until("it has all shards", lambda: len(group.held_by("played-0")) == 4)
        assert said() == [], "the program sees to it"
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with running(worker_of(group, "played-1", Seen(), written(5))):
            group.until("it has all shards", lambda: len(group.held_by("played-1")) == 4)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert said() == [
        "this worker runs beside the main thread, where alone signals arrive, so that SIGTERM ends the process without a drain:"
        " handle it there by Worker.shutdown, or run the worker there"
    ]


def test_workers_share_the_shards_and_one_that_is_shut_down_leaves_the_rest_to_the_other(group: PlayedGroup) -> None:
    logs, first, second = written(10), Seen(), Seen()
    with running(worker_of(group, "played-0", first, logs)) as raised:
        group.until("all is processed", lambda: first.all_of(10))
        with running(worker_of(group, "played-1", second, logs)):
            group.until("each has two", lambda: (len(group.held_by("played-0")), len(group.held_by("played-1"))) == (2, 2))
            for shard in SHARDS:
                logs.append(shard, 5)
            group.until("the rest is", lambda: first.and_then(second) == {shard: list(range(15)) for shard in SHARDS})
        group.until("one has all", lambda: len(group.held_by("played-0")) == 4)
    assert (raised, group.checkpoints(), group.holders()) == ([], dict.fromkeys(SHARDS, 15), {})
    assert (logs.connected, logs.closed) == (True, True)
    assert sorted(call for call in second.calls) == sorted(
        (what, shard) for what in ("initialize", "shutdown") for shard in second.offsets
    )


def test_a_listener_and_the_callbacks_of_saves_are_called_in_the_workers_threads(group: PlayedGroup) -> None:
    told: list[tuple[str, ShardId, Offset]] = []
    threads: set[str] = set()

    class Told(Listener):
        def on_assigned(self, shard: ShardId, position: Offset) -> None:
            told.append(("assigned", shard, position))
            threads.add(threading.current_thread().name)

        def on_revoked(self, shard: ShardId, checkpoint: Checkpoint) -> None:
            checkpoint.save(now=True)
            told.append(("revoked", shard, checkpoint.position))
            threads.add(threading.current_thread().name)

    def process(records: Records, checkpoint: Checkpoint) -> None:
        def saved(position: Offset, error: Exception | None) -> None:
            assert error is None
            told.append(("saved", records.shard, position))
            threads.add(threading.current_thread().name)

        checkpoint.save(callback=saved)

    with running(worker_of(group, "played-0", Seen(process), written(10), listener=Told())) as raised:
        group.until("all is durable", lambda: sum(what == "saved" for what, _, _ in told) == len(SHARDS))
    assert raised == []
    for shard in SHARDS:
        assert [(what, position) for what, name, position in told if name == shard] == [
            ("assigned", 0),
            ("saved", 10),
            ("revoked", 10),
        ]
    assert {name.rpartition("-")[0] for name in threads} == {"shardherd-worker"}


def test_a_signal_drains_ends_the_batch_in_hand_and_saves(group: PlayedGroup) -> None:
    logs, entered, go_on = written(10), threading.Event(), threading.Event()

    def held_up(records: Records, checkpoint: Checkpoint) -> None:
        entered.set()
        assert go_on.wait(5)

    seen = Seen(held_up)
    worker = worker_of(group, "played-0", seen, logs, threads=1, batch_size=5)

    def send() -> None:
        assert entered.wait(5)
        os.kill(os.getpid(), signal.SIGTERM)
        # Nothing is given to who drains: the coordinator has heard of it.
        group.until("it drains", lambda: any(row.draining for row in group._coordination().view(group.identity).consumers))
        go_on.set()

    sender = threading.Thread(target=send)
    sender.start()
    worker.run()
    sender.join()
    (shard,) = seen.offsets
    assert seen.offsets == {shard: [0, 1, 2, 3, 4]}
    assert group.checkpoints() == {each: 5 if each == shard else 0 for each in SHARDS}
    assert group.holders() == {}


def test_heartbeats_go_on_while_process_works() -> None:
    timeout, go_on = 1.0, threading.Event()

    def held_up(records: Records, checkpoint: Checkpoint) -> None:
        assert go_on.wait(10)

    with PlayedGroup(shards=1, session_timeout=timeout) as group:
        logs = Logs()
        logs.append(SHARDS[0], 1)
        seen = Seen(held_up)
        with running(worker_of(group, "played-0", seen, logs)) as raised:
            group.until("it is in process", lambda: bool(seen.offsets))
            began = boot_time()
            group.until("it works for longer than it may be silent", lambda: boot_time() - began > 1.5 * timeout)
            assert group.held_by("played-0") == SHARDS[:1]
            go_on.set()
            group.until("it is saved", lambda: group.checkpoints() == {SHARDS[0]: 1})
        assert (raised, len(seen.calls)) == ([], 2)


def test_a_save_is_durable_when_it_returns_and_says_how_far(group: PlayedGroup) -> None:
    told: list[tuple[Offset, Offset, int | None]] = []

    def save(records: Records, checkpoint: Checkpoint) -> None:
        checkpoint.save(records.position + 2, now=True)
        told.append((checkpoint.position, checkpoint.done, group.checkpoints()[checkpoint.shard]))
        checkpoint.save(now=True)
        told.append((checkpoint.position, checkpoint.done, group.checkpoints()[checkpoint.shard]))

    logs = Logs()
    logs.append(SHARDS[0], 10)
    with running(worker_of(group, "played-0", Seen(save), logs, save_interval=60.0)):
        group.until("it is saved", lambda: len(told) == 2)
    assert told == [(2, 2, 2), (10, 10, 10)]


def test_batches_that_a_thread_does_in_a_row_are_not_repeated_when_a_later_one_fails(group: PlayedGroup) -> None:
    failing = [True]

    def fail(records: Records, checkpoint: Checkpoint) -> None:
        if records.position == 6 and failing:
            raise RuntimeError("the sink is away")

    logs, seen = Logs(), Seen(fail)
    logs.append(SHARDS[0], 10)
    with running(worker_of(group, "played-0", seen, logs, batch_size=2)):
        group.until("what was done is saved", lambda: group.checkpoints()[SHARDS[0]] == 6)
        failing.clear()
        group.until("it is processed", lambda: group.checkpoints()[SHARDS[0]] == 10)
    assert seen.offsets[SHARDS[0]][:6] == [0, 1, 2, 3, 4, 5]
    assert set(seen.offsets[SHARDS[0]][6:-2]) == {6, 7}
    assert seen.offsets[SHARDS[0]][-2:] == [8, 9]


def test_a_position_in_the_midst_of_a_row_goes_back_to_it(group: PlayedGroup) -> None:
    batches: list[tuple[Offset, Offset]] = []

    def go_back(records: Records, checkpoint: Checkpoint) -> Offset | None:
        batches.append((records.position, records.next))
        return {3: 5}.get(len(batches))

    logs = Logs()
    logs.append(SHARDS[0], 10)
    with running(worker_of(group, "played-0", Seen(go_back), logs, batch_size=2, save_interval=60.0)):
        group.until("it is processed", lambda: batches[-1:] == [(8, 10)])
    assert batches == [(0, 2), (2, 4), (4, 6), (5, 6), (6, 8), (8, 10)]
    assert group.checkpoints()[SHARDS[0]] == 10


def test_coroutines_do_the_same(group: PlayedGroup) -> None:
    seen: dict[ShardId, list[Offset]] = {}

    class Notes(AsyncProcessor):
        async def process(self, records: Records, checkpoint: AsyncCheckpoint) -> Offset | None:
            for record in records:
                seen.setdefault(records.shard, []).append(record.offset)
            await checkpoint.save(now=True)
            return None

    with running(worker_of(group, "played-0", Notes, written(10), save_interval=60.0)):
        group.until("all is saved", lambda: group.checkpoints() == dict.fromkeys(SHARDS, 10))
    assert seen == {shard: list(range(10)) for shard in SHARDS}


def test_a_thread_that_does_not_end_is_given_up_and_its_shard_is_in_no_other_hand_meanwhile(group: PlayedGroup) -> None:
    logs, entered, go_on = Logs(), threading.Event(), threading.Event()
    refused: list[str] = []

    def held_up(records: Records, checkpoint: Checkpoint) -> None:
        if entered.is_set():
            return
        entered.set()
        assert go_on.wait(10)
        try:
            checkpoint.save()
        except FencedEpochError as error:
            refused.append(str(error))
            raise

    logs.append(SHARDS[0], 3)
    seen = Seen(held_up)
    with running(worker_of(group, "played-0", seen, logs, revoke_timeout=0.2)):
        assert entered.wait(5)
        group.revoke(SHARDS[0])
        group.until("another one has it", lambda: group.held_by("others") == SHARDS[:1])
        group.grant("played-0", SHARDS[0])
        group.until("it is back", lambda: SHARDS[0] in group.held_by("played-0"))
        assert seen.calls.count(("initialize", SHARDS[0])) == 1
        go_on.set()
        group.until("it is processed again", lambda: group.checkpoints()[SHARDS[0]] == 3)
    assert seen.offsets == {SHARDS[0]: [0, 1, 2, 0, 1, 2]}
    assert refused == ["shard records/0 was given up while this ran: it is read again elsewhere"]


def test_a_thread_that_does_not_end_keeps_its_shard_in_an_ordered_group() -> None:
    with PlayedGroup(shards=1, ordered=True) as group:
        logs, entered, go_on = Logs(), threading.Event(), threading.Event()

        def held_up(records: Records, checkpoint: Checkpoint) -> None:
            entered.set()
            assert go_on.wait(10)

        logs.append(SHARDS[0], 3)
        with running(worker_of(group, "played-0", Seen(held_up), logs, revoke_timeout=0.1)):
            assert entered.wait(5)
            group.revoke(SHARDS[0])
            began = boot_time()
            group.until("the bound is over", lambda: boot_time() - began > 0.5)
            assert group.held_by("others") == ()
            go_on.set()
            group.until("another one has it", lambda: group.held_by("others") == SHARDS[:1])
        assert group.checkpoints() == {SHARDS[0]: 3}


def test_a_worker_whose_pod_has_another_run_ends_with_an_error(group: PlayedGroup) -> None:
    seen = Seen()
    with running(worker_of(group, "played-0", seen, written(1))) as raised:
        group.until("all is processed", lambda: seen.all_of(1))
        group.kill("played-0")
        group.until("it has ended", lambda: bool(raised))
    assert isinstance(raised[0], ConsumerStoppedError)
    assert "this run of played-0 is over" in str(raised[0])


def test_a_worker_is_given_shards_although_kafka_is_away_when_it_begins(group: PlayedGroup) -> None:
    class Away(Logs):
        def connect(self) -> None:
            raise BrokersUnavailableError("no broker")

    logs, seen = Away(), Seen()
    for shard in SHARDS:
        logs.append(shard, 2)
    with running(worker_of(group, "played-0", seen, logs)):
        group.until("all is processed", lambda: seen.all_of(2))


def test_shutdown_before_run_ends_it_at_once_and_it_says_so(group: PlayedGroup, caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    worker = worker_of(group, "played-0", seen, written(1))
    assert not worker.shutdown(0.0)
    worker.run()
    said = [line for line in caplog.messages if "asked to end" in line]
    assert (seen.calls, group.holders()) == ([], {})
    assert said == ["this worker was asked to end before it began, and processes nothing"]


def test_a_worker_runs_once_and_says_so_while_it_runs_and_when_it_has(group: PlayedGroup) -> None:
    seen = Seen()
    worker = worker_of(group, "played-0", seen, written(1))
    with running(worker) as raised:
        group.until("all is processed", lambda: seen.all_of(1))
        with pytest.raises(RuntimeError) as refused:
            worker.run()
        assert str(refused.value) == "this worker runs already, and runs once: make another Worker for another run"
    with pytest.raises(RuntimeError) as refused:
        worker.run()
    assert str(refused.value) == "this worker has run already, and runs once: make another Worker for another run"
    assert (raised, seen.all_of(1)) == ([], True)


def test_a_worker_that_is_too_full_is_paused_and_reads_on_by_itself_once_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod, "Gauges", partial(Gauges, every=0.02))
    told: list[bool] = []
    real = Holdings.confirm

    def confirm(holdings: Holdings, reply: HeartbeatReply) -> None:
        told.append(reply.paused)
        real(holdings, reply)

    monkeypatch.setattr(Holdings, "confirm", confirm)
    used, logs, seen = [0.5], Logs(), Seen()
    group = PlayedGroup(shards=1)
    group._spec = replace(group._spec, settings=replace(group._spec.settings, watermarks=Watermarks(own=Marks(85, 90, 95))))
    seen.gauge = lambda: used[0]
    with group, running(worker_of(group, "played-0", seen, logs)) as raised:
        group.until("it has the shard", lambda: group.held_by("played-0") == SHARDS[:1])
        used[0] = 0.99
        group.until("it is paused", lambda: told[-1:] == [True])
        logs.append(SHARDS[0], 3)
        paused = len(told)
        group.until("it has been told so again", lambda: len(told) > paused + 3)
        assert (seen.offsets, set(told[paused:])) == ({}, {True})
        used[0] = 0.6
        group.until("it reads on", lambda: seen.offsets == {SHARDS[0]: [0, 1, 2]})
    assert raised == []
