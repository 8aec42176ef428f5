"""After the story's end: the operator's process is killed while a consumer joins, and while one drains, and nothing may change.

Called by the end-to-end tests, with a story that has been told. It leaves the group at two consumers, as the story did.
"""

from __future__ import annotations

import time

from dev.demo.account import Line, moved_shards
from dev.demo.report import await_that
from dev.demo.sink import Rows, count, duplicates, longest_pauses
from dev.demo.story import DRAIN_S, MOVE_S, START_S, Story

STAY_S = 10.0
"""Seconds that a shard which stays may pause while a consumer starts or drains beside it, on two cores."""


def grow_without_operator(story: Story) -> list[Line]:
    """Add a consumer, kill the operator's process meanwhile, and read all that was produced; lines as those of the table."""
    story.reporter.step("Encore: maxReplicas becomes 3, and the operator is killed while the third application starts")
    story.traffic.start(backlog=0, rate=story.place.rate, seed=2)
    since = time.time()
    story.place.limit(3)
    await_that(
        "there is a third application", lambda: len(story.place.consumers()) == 3, within=60, explain=story.place.explain
    )
    away = _kill(story)
    story.await_settled(shards=12, consumers=3, within=START_S)
    story.await_read_by_owners("the encore", since=since)
    return _lines(story, since, away, "a consumer joined")


def shrink_without_operator(story: Story) -> list[Line]:
    """Drain the third consumer, with the operator's process killed before it has given up all of its shards."""
    story.reporter.step("Encore: maxReplicas becomes 2, and the operator is killed while the third application drains")
    story.traffic.start(backlog=0, rate=story.place.rate, seed=3)
    since = time.time()
    story.place.limit(2)
    away = _kill(story)
    story.await_settled(shards=12, consumers=2, within=MOVE_S)
    await_that(
        "the third application is gone", lambda: len(story.place.consumers()) == 2, within=MOVE_S, explain=story.place.explain
    )
    story.await_read_by_owners("the encore", since=since)
    return _lines(story, since, away, "a consumer drained")


def _kill(story: Story) -> float:
    """Seconds until an operator leads again."""
    killed = time.time()
    story.place.kill_operator()
    away = time.time() - killed
    story.reporter.say(f"an operator leads again after {away:.0f} s")
    return away


def _lines(story: Story, since: float, away: float, what: str) -> list[Line]:
    """Stop the producer, wait until all is read, and count what happened since then."""
    more = story.traffic.stop()
    produced = {shard: story.produced.get(shard, 0) + more.get(shard, 0) for shard in {*story.produced, *more}}
    story.produced = produced
    sink = story.sink

    def read() -> Rows | None:
        rows = sink.rows()
        return rows if count(rows, produced).missing == 0 else None

    rows = await_that("all of it is read", read, within=DRAIN_S, every=2, explain=story.place.explain)
    moved = moved_shards(rows, since, time.time())
    pauses = longest_pauses(rows, since, time.time())
    unmoved = max((pause for shard, pause in pauses.items() if shard not in moved), default=0.0)
    repeated = sum(1 for duplicate in duplicates(rows) if duplicate.again_at >= since)
    return [
        Line(f"operator away while {what}", f"{away:.0f} s"),
        Line(f"duplicates while {what}", f"{repeated:,}", "0", repeated == 0),
        Line(f"shards moved while {what}", f"{len(moved)}", "4: those of the third", len(moved) == 4),
        Line(f"longest pause of unmoved shards while {what}", f"{unmoved:.1f} s", f"less than {STAY_S:g} s", unmoved < STAY_S),
    ]
