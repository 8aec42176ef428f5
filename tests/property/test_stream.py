"""Whatever is opened, closed, skipped, processed or written: who fetches for a worker is woken for all that there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.fetched import Part
from shardherd.worker.stream import LEAST, Stream, Wanted
from tests.unit.spark.simulated import simulate

SHARDS = tuple(ShardId(f"t/{number}") for number in range(3))
SIZE = LEAST // 4
"""Of a record: a few fill a queue."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("write", "pop", "done", "close", "open", "skip", "let go", "wait")),
        st.sampled_from(SHARDS),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=40,
)


class Log:
    """Three shards, a stream that reads them, and the two tasks of a worker that fetch for it. A Fetch takes a second."""

    def __init__(self, memory: int) -> None:
        self.stream = Stream(memory)
        self.ends = dict.fromkeys(SHARDS, 0)
        self.read: dict[ShardId, Offset] = {}
        """Of the shards that are open, up to where they were taken out of the stream."""
        self.stops: dict[ShardId, Offset | None] = dict.fromkeys(SHARDS)

    async def fetch(self, *, behind: bool) -> None:
        while True:
            wanted = self.stream.ask(behind=behind)
            if not wanted:
                await self.stream.may_ask()
                continue
            await asyncio.sleep(1)
            self.stream.arrived(wanted, [self._part(shard, each) for shard, each in wanted.items()])
            if not behind:
                await asyncio.sleep(1)

    def _part(self, shard: ShardId, each: Wanted) -> Part:
        end = self.ends[shard]
        next_ = max(each.position, min(end, each.position + max(1, each.most // SIZE)))
        if each.stop is not None:
            next_, end = min(next_, each.stop), min(end, each.stop)
        return Part(shard, each.position, next_, end, SIZE * (next_ - each.position))

    def step(self, what: str, shard: ShardId, count: int) -> None:
        is_open = shard in self.read
        if what == "write":
            self.ends[shard] += count
        elif what == "open" and not is_open:
            self.open(shard, self.ends[shard] // 2)
        elif what == "close" and is_open:
            self.stream.close(shard)
            del self.read[shard]
        elif what == "skip" and is_open:
            self.read[shard] = max(0, self.read[shard] - count)
            self.stream.skip(shard, self.read[shard])
        elif what == "let go":
            self.stops[shard] = self.ends[shard] + count if self.stops[shard] is None else None
            self.stream.look_again()
        elif what == "pop" and is_open:
            self.pop(shard)
        elif what == "done" and is_open:
            self.stream.done(shard)

    def open(self, shard: ShardId, position: Offset) -> None:
        self.read[shard] = position
        self.stream.open(shard, position, lambda: None, self._stop_of(shard))

    def _stop_of(self, shard: ShardId) -> Callable[[], Offset | None]:
        return lambda: self.stops[shard]

    def pop(self, shard: ShardId) -> bool:
        part = self.stream.pop(shard)
        if part is None:
            return False
        assert part.asked == self.read[shard], "in order, and nothing twice or left out"
        self.read[shard] = part.next
        return True


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from((2 * LEAST, 12 * LEAST)))
def test_every_shard_is_read_to_its_end_whatever_came_and_went_before(
    steps: list[tuple[str, ShardId, int]], memory: int
) -> None:
    async def story() -> None:
        log = Log(memory)
        fetching = [asyncio.create_task(log.fetch(behind=behind)) for behind in (True, False)]
        for what, shard, count in steps:
            await asyncio.sleep(count if what == "wait" else 0)
            log.step(what, shard, count)
        # From here on only what waits is processed: no shard comes or goes, so nothing else wakes who fetches.
        for _ in range(400):
            await asyncio.sleep(1)
            for shard in log.read:
                log.pop(shard)
                log.stream.done(shard)
        wanted = {
            shard: max(at, log.ends[shard] if (stop := log.stops[shard]) is None else min(log.ends[shard], stop))
            for shard, at in log.read.items()
        }
        assert log.read == wanted
        for task in fetching:
            task.cancel()

    simulate(story)
