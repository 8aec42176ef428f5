"""Makes a group's checkpoints durable: what several consumers asked for meanwhile goes into one transaction.

Called by the group's runner. It finds out what became of a commit whose outcome is unknown, and answers a fenced one by proving
that we still lead and taking the offsets over again. It must not change the group: what becomes of a commit is reported to the
runner, and goes through the mailbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping

from shardherd.coordinator.copies import Copies, place
from shardherd.coordinator.items import CommitError, Committing, IdInUse, Outcome, Served
from shardherd.coordinator.ports import CoordinatorPorts, LeadershipLostError
from shardherd.coordinator.refresh import Refresh
from shardherd.coordinator.timed import Timed
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.event_reasons import CHECKPOINT_RESTORED
from shardherd.core.model.nouns import GroupIdentity, Offset, ShardId
from shardherd.core.model.requests import CheckpointsCommitted, CheckpointsFailed, CheckpointsLost
from shardherd.ports import (
    CommitFencedError,
    OffsetStore,
    OutcomeUnknownError,
    OwnershipUnavailableError,
    SourceUnavailableError,
    UnknownShardsError,
)

log = logging.getLogger(__name__)

NOTHING = CheckpointsCommitted({})
"""The outcome of a commit that was surely not made."""

FENCES = 3
FENCE_WINDOW = 60.0
"""Fenced so often within so many seconds: somebody else uses our transactional id. We leave it alone for as long."""


class Committer:
    """Commits for one group, which is `served`. Before each commit its `copies` make way; if they cannot, there is none."""

    def __init__(
        self, ports: CoordinatorPorts, identity: GroupIdentity, offsets: OffsetStore, served: Served, copies: Copies
    ) -> None:
        self._ports = ports
        self._identity = identity
        self._timed = Timed(ports, identity)
        self._offsets = offsets
        self._served = served
        self._copies = copies
        self.refresh = Refresh(ports.clock, place(identity))
        self._moved: list[str] = []
        self._waiting: list[Committing] = []
        self._busy: list[Committing] = []
        self._filled = asyncio.Event()
        self._fenced_at: deque[float] = deque(maxlen=FENCES)
        self._taken_over = False
        self._turn = asyncio.Lock()
        # Who commits, or takes the offsets over.

    def put(self, committing: Committing) -> None:
        """Commit these offsets soon. Only on the event loop's thread."""
        self._waiting.append(committing)
        self._filled.set()

    def remind(self) -> None:
        """Called every now and then: if a refresh is due, it is made."""
        if self.refresh.due:
            self._filled.set()

    async def take_over(self) -> None:
        """Fence every other writer. Raises SourceUnavailableError, LeadershipLostError."""
        self._taken_over = False
        # What shows that we lead may have been long under way, and a new leader must not be fenced by one that was.
        self._check_lease()
        await self._timed("take_over", self._offsets.take_over)
        self._check_lease()
        self._taken_over = True

    async def retake(self) -> bool:
        """Take over once more, unless a commit is under way: it would be fenced, and finds out by itself. Whether it was done.

        Raises SourceUnavailableError, LeadershipLostError, CoordinatorUnavailableError if the proof cannot be made now.
        """
        if self._turn.locked():
            return False
        async with self._turn:
            await self._retake()
        return True

    async def _retake(self) -> None:
        """As the proven leader only: another one's commits must not be fenced by us."""
        self._taken_over = False
        await self._served.prove()
        await self.take_over()

    async def read(self, shards: Iterable[ShardId]) -> Mapping[ShardId, Offset]:
        """The durable positions of these shards. Raises SourceUnavailableError."""
        wanted = tuple(shards)
        return await self._timed("read_offsets", lambda: self._offsets.read(wanted)) if wanted else {}

    async def notes(self, shards: Iterable[ShardId]) -> Mapping[ShardId, str]:
        """What was noted with the durable positions of these shards. Raises SourceUnavailableError."""
        wanted = tuple(shards)
        return await self._timed("read_offsets", lambda: self._offsets.notes(wanted)) if wanted else {}

    async def work(self) -> None:
        """Commit for ever what is put. Raises LeadershipLostError."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            # Taking turns: what consumers wait for waits for a part of a refresh only.
            while self._waiting or self.refresh.due:
                if self._waiting:
                    await self._commit_waiting()
                if self.refresh.due:
                    await self._refresh()

    async def _commit_waiting(self) -> None:
        batch = self._busy = self._waiting
        self._waiting = []
        offsets = {shard: offset for committing in batch for shard, offset in committing.offsets.items()}
        outcome = await self._commit(offsets)
        if missing := frozenset(offsets) - frozenset(outcome.offsets):
            self._served.report(Outcome(CheckpointsFailed(missing)))
        self._served.report(Outcome(outcome, outcome.offsets, tuple(batch)))
        self._busy = []

    async def forget(self, shards: Iterable[ShardId]) -> None:
        """Delete the durable positions of shards that the group has forgotten, as the proven leader.

        Raises SourceUnavailableError, LeadershipLostError, CoordinatorUnavailableError if the proof cannot be made now.
        """
        async with self._turn:
            await self._served.prove()
            self._check_lease()
            await self._timed("forget_offsets", lambda: self._offsets.forget(sorted(shards)))

    def close(self) -> None:
        """Refuse what waits, and what was being committed: whether it was is for the next one to find out."""
        for committing in [*self._busy, *self._waiting]:
            if committing.answer is not None and not committing.answer.done():
                committing.answer.set_exception(
                    CoordinatorUnavailableError(f"the coordinator stops serving group {self._identity}; ask again")
                )
        self._waiting = []
        self._busy = []

    async def _refresh(self) -> None:
        """Look whether the source still has some of the positions, and commit these once more.

        Nobody else commits meanwhile, so none goes back; one that somebody else moved is put right, and reported.
        """
        refresh = self.refresh
        try:
            if not refresh.begun:
                if not self._served.group.refreshable():
                    refresh.failed()
                    return
                await self._served.prove()
                refresh.begin(self._served.group.refreshable())
                self._moved = []
            shards = refresh.next()
            found = await self.read(shards)
        except (CoordinatorUnavailableError, SourceUnavailableError) as error:
            log.warning("group %s: its positions are refreshed another time: %s", self._identity, error)
            refresh.failed()
            return
        # What is being committed, or waits for it, is left out: what was committed before is known by now.
        positions = self._served.group.refreshable(shards)
        if positions and (await self._commit(positions)).offsets != positions:
            log.warning("group %s: its positions are refreshed another time: they could not be committed", self._identity)
            refresh.failed()
            return
        self._moved += [
            f"{shard} at {found.get(shard, 'none')} instead of {position}"
            for shard, position in positions.items()
            if found.get(shard) != position
        ]
        if refresh.made(shards):
            log.info("group %s: refreshed its positions", self._identity)
            self._copies.refresh()
        if not refresh.begun:
            self._tell_of_moved()

    def _tell_of_moved(self) -> None:
        if not self._moved:
            return
        more = f" and {len(self._moved) - 5} more" if len(self._moved) > 5 else ""
        named = ", ".join(self._moved[:5])
        message = f"somebody else changed or removed committed positions, which are restored: {named}{more}"
        log.warning("group %s: %s", self._identity, message)
        self._ports.events.record(self._identity, CHECKPOINT_RESTORED, message, warning=True)

    async def _commit(self, offsets: Mapping[ShardId, Offset]) -> CheckpointsCommitted:
        """The positions of these shards that are durable afterwards; none of a shard that was surely not written."""
        async with self._turn:
            return await self._commit_now(offsets)

    async def _commit_now(self, offsets: Mapping[ShardId, Offset]) -> CheckpointsCommitted:
        self._check_lease()
        if not self._served.commits:
            return NOTHING
        try:
            if not self._taken_over:
                await self._retake()
            await self._copies.make_way(offsets)
            self._check_lease()
            await self._timed("commit_offsets", lambda: self._offsets.commit(offsets, self._served.group.notes(offsets)))
        except UnknownShardsError as error:
            return await self._without(error, offsets)
        except OwnershipUnavailableError as error:
            log.warning("group %s: nothing is committed: %s", self._identity, error)
            return NOTHING
        except (SourceUnavailableError, CoordinatorUnavailableError) as error:
            self._served.report(CommitError(str(error)))
            return NOTHING
        except OutcomeUnknownError as error:
            log.warning("group %s: %s; taking over again to find out", self._identity, error)
            self._served.report(CommitError(str(error)))
            return await self._find_out(offsets)
        except CommitFencedError as error:
            return await self._fenced(offsets, error)
        self._served.report(CommitError(""))
        return CheckpointsCommitted(offsets)

    async def _without(self, error: UnknownShardsError, offsets: Mapping[ShardId, Offset]) -> CheckpointsCommitted:
        """Commit the others: a topic that was deleted a moment ago, and is not missed yet, keeps no checkpoint of them back."""
        others = {shard: offset for shard, offset in offsets.items() if shard not in error.shards}
        if not others:
            self._served.report(CommitError(str(error)))
            return NOTHING
        log.info("group %s: %s; the positions of the other %d shards are committed", self._identity, error, len(others))
        return await self._commit_now(others)

    async def _find_out(self, offsets: Mapping[ShardId, Offset]) -> CheckpointsCommitted:
        """Prove that we lead, take over again and read back, for as long as it takes.

        What is absent then may have been written and be forgotten, so it is not the position before that holds.
        """
        delay = 0.5
        while True:
            try:
                await self._retake()
                found = await self.read(offsets)
            except (SourceUnavailableError, CoordinatorUnavailableError) as error:
                self._served.report(CommitError(str(error)))
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                self.refresh.soon()
                # Of a refresh nobody waits for anything. What is asked of its shards meanwhile is not lost with it.
                asked = {shard for committing in self._busy for shard in committing.offsets}
                if absent := frozenset(asked & offsets.keys() - found.keys()):
                    self._served.report(Outcome(CheckpointsLost(absent)))
                return CheckpointsCommitted(found, read_back=True)

    async def _fenced(self, offsets: Mapping[ShardId, Offset], error: CommitFencedError) -> CheckpointsCommitted:
        """Another producer took our transactional id: a new leader, which the proof shows, or a stranger."""
        log.warning("group %s: %s; proving that this coordinator leads", self._identity, error)
        self._taken_over = False
        now = self._ports.clock.now()
        self._fenced_at.append(now)
        outcome = await self._find_out(offsets)
        if len(self._fenced_at) == FENCES and now - self._fenced_at[0] < FENCE_WINDOW:
            self._fenced_at.clear()
            self._served.report(IdInUse(True))
            asyncio.get_running_loop().call_later(FENCE_WINDOW, self._served.report, IdInUse(False))
        return outcome

    def _check_lease(self) -> None:
        if self._ports.clock.now() >= self._ports.leadership.deadline():
            raise LeadershipLostError(f"the lease ran out before the offsets of group {self._identity} were written")
