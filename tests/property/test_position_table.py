"""Whatever several coordinators do with one table of positions, and whatever fails: what was acknowledged is there."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from shardherd.adapters.kinesis.positions import TableOffsetStore
from shardherd.core.model.nouns import GroupIdentity, ShardId
from shardherd.ports import CommitFencedError, OutcomeUnknownError, OwnershipUnavailableError, SourceUnavailableError
from tests.harness.memory_positions import MemoryPositions

GROUP = GroupIdentity("demo", "clicks", "uid-1")
SHARDS = [ShardId(f"orders/shardId-{number:012d}") for number in range(3)]

FAULTS = st.sampled_from(["none", "none", "none", "not written", "written unheard", "lost"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from(["take over", *["commit"] * 6, "deleted"]),
        st.integers(0, 2),
        FAULTS,
    ),
    min_size=12,
    max_size=40,
)
"""Which coordinator, what it does, with which shard, and what becomes of its write."""


class World:
    """Three coordinators, who of them may write, and what must be durable."""

    def __init__(self) -> None:
        self.table = MemoryPositions()
        self.stores = [TableOffsetStore(self.table, GROUP, "orders", interval=0.0) for _ in range(3)]
        self.durable: dict[ShardId, int] = {}
        self.writer: int | None = None
        self.next = 10**55

    def fail(self, fault: str) -> None:
        if fault == "not written":
            self.table.faults.fail("save", OwnershipUnavailableError("refused"))
        elif fault != "none":
            self.table.faults.fail("save", OutcomeUnknownError("no answer"), done=fault == "written unheard")

    async def step(self, who: int, what: str, number: int, fault: str) -> None:
        if what == "deleted":
            self.table.stored.clear()
            self.durable = {}
            self.writer = None
            return
        self.fail(fault)
        if what == "take over":
            await self.take_over(who, fault)
        else:
            await self.commit(who, SHARDS[number], fault)
        self.table.faults.before.clear()
        self.table.faults.after.clear()

    async def take_over(self, who: int, fault: str) -> None:
        try:
            await self.stores[who].take_over()
        except SourceUnavailableError:
            assert fault != "none"
            # Its own mark may be there, under which it does not know that it may write; nobody else's is then.
            if fault == "written unheard" or self.writer == who:
                self.writer = None
        else:
            assert fault == "none"
            self.writer = who

    async def commit(self, who: int, shard: ShardId, fault: str) -> None:
        self.next += 10**40
        try:
            await self.stores[who].commit({shard: self.next}, {})
        except CommitFencedError:
            assert self.writer != who
        except SourceUnavailableError:
            assert fault == "not written"
        except OutcomeUnknownError:
            assert self.writer == who or fault == "lost"
            if fault == "written unheard":
                self.durable[shard] = self.next
        else:
            assert (self.writer, fault) == (who, "none"), "a coordinator that was fenced wrote"
            self.durable[shard] = self.next

    async def check(self) -> None:
        assert await self.stores[0].read(SHARDS) == self.durable


@given(STEPS)
def test_what_was_acknowledged_is_there_and_nobody_writes_that_was_fenced(steps: list[tuple[int, str, int, str]]) -> None:
    async def play() -> None:
        world = World()
        for step in [(0, "take over", 0, "none"), *steps]:
            await world.step(*step)
            await world.check()

    asyncio.run(play())
