"""After the story's end: the operator's process is killed while a consumer joins, and nothing may change for it.

Called by the end-to-end tests, with a story that has been told. It leaves the group at three consumers.
"""

from __future__ import annotations

import time

from dev.demo.account import Line, moved_shards
from dev.demo.report import await_that
from dev.demo.sink import Rows, count, duplicates, longest_pauses
from dev.demo.story import DRAIN_S, GROUP, RATE, RESOURCE, START_S, Story

PAUSE_S = 10.0
"""What a Spark application that starts on the same two cores may cost the others; the operator is away for longer."""


def grow_without_operator(story: Story) -> list[Line]:
    """Add a consumer, kill the operator's process meanwhile, and read all that was produced; lines as those of the table."""
    story.reporter.step("Encore: maxReplicas becomes 3, and the operator is killed while the third application starts")
    story.traffic.start(backlog=0, rate=RATE, seed=2)
    since = time.time()
    patch = '{"spec":{"scaling":{"maxReplicas":3}}}'
    story.lab.kube.run("patch", RESOURCE, GROUP, "-n", story.namespace, "--type=merge", "-p", patch)
    await_that("a third pod exists", lambda: len(story.pods()) == 3, within=60, seen=story.explain)
    killed = time.time()
    story.lab.kill_operator()
    away = time.time() - killed
    story.reporter.say(f"the operator answers again after {away:.0f} s")
    story.await_settled(shards=12, consumers=3, within=START_S)
    story.await_read_by_owners("the encore")
    more = story.traffic.stop()
    produced = {shard: story.produced.get(shard, 0) + more.get(shard, 0) for shard in {*story.produced, *more}}

    def read() -> Rows | None:
        rows = story.sink.rows()
        return rows if count(rows, produced).missing == 0 else None

    rows = await_that("all of it is read", read, within=DRAIN_S, every=2, seen=story.explain)
    moved = moved_shards(rows, since, time.time())
    pauses = longest_pauses(rows, since, time.time())
    unmoved = max((pause for shard, pause in pauses.items() if shard not in moved), default=0.0)
    repeated = sum(1 for duplicate in duplicates(rows) if duplicate.again_at >= since)
    return [
        Line("operator away", f"{away:.0f} s"),
        Line("duplicates while the operator was killed", f"{repeated:,}", "0", repeated == 0),
        Line("shards moved while the operator was killed", f"{len(moved)}", "4: those of the third", len(moved) == 4),
        Line(
            "longest pause of unmoved shards meanwhile",
            f"{unmoved:.1f} s",
            f"at most {PAUSE_S:.0f} s",
            unmoved <= PAUSE_S,
        ),
    ]
