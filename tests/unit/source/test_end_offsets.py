"""The thread that learns where the shards end outlives whatever happens to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping

import pytest

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source import look_thread
from shardherd.source.kafka import end_offsets
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.end_offsets import EndWatcher
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.kafka.leader_epochs import EndOffsets, epochs_in

SHARD, OTHER = ShardId("clicks/0"), ShardId("clicks/1")


class Source:
    """Raises what it is given, one after the other; then answers. Two of the seven records are in an open transaction."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.committed = False
        self.silent: frozenset[ShardId] = frozenset()

    def end_offsets(self, shards: Iterable[ShardId], timeout: float) -> Mapping[ShardId, Offset]:
        if self.errors:
            raise self.errors.pop(0)
        if self.silent >= set(shards):
            raise BrokersUnavailableError("away")
        return {shard: 5 if self.committed else 7 for shard in shards if shard not in self.silent}

    def begin_fetch(
        self, positions: Mapping[ShardId, Offset], timeout: float, *, shard_bytes: int
    ) -> Callable[[], list[Fetched]]:
        raise AssertionError("nobody asks how large records are")


def test_neither_brokers_that_are_away_nor_a_defect_end_the_looks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(look_thread, "RETRY_DELAY", 0.001)
    changed = threading.Event()
    watcher = EndWatcher(Source(BrokersUnavailableError("away"), KeyError("a defect")), changed.set, 0.001)
    watcher.start()
    try:
        watcher.watch((SHARD,))
        assert changed.wait(5)
        assert watcher.known() == {SHARD: 7}
    finally:
        watcher.close()
    assert "a failure of ours" in caplog.text


def test_a_shard_that_is_read_up_to_an_offset_only_ends_there_for_a_query() -> None:
    changed = threading.Event()
    watcher = EndWatcher(Source(), changed.set, 0.001)
    watcher.start()
    try:
        watcher.watch((SHARD, OTHER), {SHARD: 3})
        assert changed.wait(5)
        assert watcher.known() == {SHARD: 3, OTHER: 7}
        assert asyncio.run(watcher.reached([SHARD])) == {SHARD: 3}
        watcher.watch((SHARD, OTHER), {SHARD: 9})
        assert watcher.known() == {SHARD: 7, OTHER: 7}, "the log has no more than that"
    finally:
        watcher.close()


def test_a_query_that_reads_committed_records_sees_where_the_decided_transactions_end() -> None:
    changed = threading.Event()
    watcher = EndWatcher(Source(), changed.set, 0.001)
    watcher.start()
    try:
        watcher.watch((SHARD,))
        assert changed.wait(5)
        assert watcher.known() == {SHARD: 7}
        changed.clear()
        watcher.read_committed(True)
        assert changed.wait(5)
        assert watcher.known() == {SHARD: 5}
    finally:
        watcher.close()


def test_it_says_that_there_may_be_more_than_is_known_until_every_shard_was_seen_and_long_after_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(end_offsets, "boot_time", lambda: now)
    monkeypatch.setattr(look_thread, "RETRY_DELAY", 0.0)
    source = Source()
    watcher = EndWatcher(source, lambda: None)
    assert not watcher.failing(), "nothing is watched"
    watcher.watch((SHARD, OTHER))
    assert watcher.failing(), "nobody has looked yet"
    watcher._look((SHARD, OTHER))
    assert not watcher.failing()
    for silent in (frozenset({OTHER}), frozenset({SHARD, OTHER})):
        now += end_offsets.STALE
        source.silent = silent
        watcher._look((SHARD, OTHER))
        assert not watcher.failing(), "a leader may have moved"
        now += 1.0
        assert watcher.failing(), f"{silent} was not seen for {end_offsets.STALE:g} s"
        source.silent = frozenset()
        watcher._look((SHARD, OTHER))
        assert not watcher.failing()
    watcher.watch((SHARD,))
    watcher._look((SHARD, OTHER))
    assert watcher.failing(), "that was an answer to an earlier question"


async def test_shards_reach_as_far_as_is_known_of_them_under_the_epochs_of_their_leaders() -> None:
    source = Source()
    found = EndOffsets({SHARD: 7, OTHER: 9}, {SHARD: 3, OTHER: 4})
    source.end_offsets = lambda *_: found  # type: ignore[method-assign]
    watcher = EndWatcher(source, lambda: None)
    watcher.watch((SHARD, OTHER))
    watcher._look((SHARD, OTHER))
    reached = await watcher.reached({SHARD, ShardId("clicks/2")})
    assert (dict(reached), epochs_in(reached)) == ({SHARD: 7}, {SHARD: 3})


def test_an_end_is_kept_with_the_epoch_under_which_it_was_told() -> None:
    answers: list[Mapping[ShardId, Offset]] = [
        EndOffsets({SHARD: 7, OTHER: 9}, {SHARD: 3, OTHER: 4}),
        EndOffsets({SHARD: 7}, {SHARD: 5}),
        {SHARD: 8},
    ]
    source, grown = Source(), 0

    def changed() -> None:
        nonlocal grown
        grown += 1

    watcher = EndWatcher(source, changed)
    watcher.watch((SHARD, OTHER))
    seen = []
    for each in answers:
        source.end_offsets = lambda *_, each=each: each  # type: ignore[method-assign]
        watcher._look((SHARD, OTHER))
        seen.append((dict(watcher.known()), epochs_in(watcher.known())))

    assert seen == [
        ({SHARD: 7, OTHER: 9}, {SHARD: 3, OTHER: 4}),
        ({SHARD: 7, OTHER: 9}, {SHARD: 5, OTHER: 4}),
        ({SHARD: 8, OTHER: 9}, {OTHER: 4}),
    ]
    assert grown == 2, "another leader alone is no news"
