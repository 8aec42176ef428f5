"""One group's life in this coordinator: take it over, open its mailbox, watch its source, until it is stopped.

Called by the runtime. The order of taking over is the promise: the ownership under our leader epoch, then the offsets fenced,
then the positions read, and only then the first answer. A source that cannot be reached is a state of the group, never a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from shardherd.coordinator.ages import LagAge
from shardherd.coordinator.cleaning import Cleaning
from shardherd.coordinator.commits import Committer
from shardherd.coordinator.copies import Copies
from shardherd.coordinator.items import Ask, CommitError, CommitReport, IdInUse, Outcome, Prove, Tell
from shardherd.coordinator.mailbox import Mailbox
from shardherd.coordinator.ports import CoordinatorPorts, LeadershipLostError
from shardherd.coordinator.restrictions import Restrictions, check_whole
from shardherd.coordinator.size_limit import SizeLimit
from shardherd.coordinator.storage import GroupStorage
from shardherd.coordinator.stored import view_of_stored
from shardherd.coordinator.timed import Timed
from shardherd.coordinator.together import together
from shardherd.core.group.group import Group
from shardherd.core.group.notes import outdated
from shardherd.core.group.records import Ownership
from shardherd.core.model.errors import CoordinatorUnavailableError, OwnershipFormatError
from shardherd.core.model.event_reasons import OWNERSHIP_DAMAGED
from shardherd.core.model.nouns import (
    Condition,
    GroupSpec,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Offset,
    ResetReport,
    ShardId,
    ShardView,
)
from shardherd.core.model.reasons import OWNERSHIP_UNREADABLE
from shardherd.core.model.requests import Reply, Request, SettingsChanged, ShardsDiscovered
from shardherd.ports import OwnershipUnavailableError, ShardSource, SourceUnavailableError

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_FIRST = 0.5
RETRY_MAX = 5.0
"""Seconds between attempts to reach what did not answer; short, so that a source is used soon after it is back."""

LOADING_PATIENCE = 2.0
"""Seconds that a request waits for a group that is being loaded: after a restart most are loaded sooner."""

SOON = 0.2
"""Seconds until the next look after one that showed more shards: a source shows those of a topic that grows bit by bit."""

MEMBERS_INTERVAL = 60.0
"""Seconds between looks at the foreign members of the Kafka group; while there are some, every look at the source does."""


class GroupRunner:
    """One group. `step_down` is called with the reason when this process may not lead any more.

    `check_clock` is called with the time before anything of the group may time out. `new`: it is likely that nothing is stored
    of it.
    """

    def __init__(
        self,
        ports: CoordinatorPorts,
        spec: GroupSpec,
        discovery_interval: float,
        *,
        step_down: Callable[[str], None],
        check_clock: Callable[[float], None],
        new: bool = False,
    ) -> None:
        self.spec = spec
        self._new = new
        self.mailbox: Mailbox | None = None
        self._ports = ports
        self._interval = discovery_interval
        self._step_down = step_down
        self._check_clock = check_clock
        self._restrictions = Restrictions(spec.source)
        self._timed = Timed(ports, spec.identity)
        self._age = LagAge(ports, spec.identity, discovery_interval, group=lambda: self.mailbox.group if self.mailbox else None)
        self._size_limit = SizeLimit(
            ports.clock,
            lambda: self.group.shard_count,
            lambda message: self._set_restrictions(replace(self._restrictions, too_large=message)),
        )
        self._ownership: Ownership | None = None
        self._problem = ""
        self._unreadable = ""
        self._early: list[Tell] = []
        self._cleaning = Cleaning(ports.events)
        self._not_admitted: Condition | None = None
        self._admitted = asyncio.Event()
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # What the runtime calls.

    def start(self, after: Coroutine[Any, Any, None] | None = None) -> None:
        """Begin, once `after` is done."""
        self._task = asyncio.create_task(self._run(after), name=f"group {self.spec.identity}")

    async def stop(self) -> None:
        """End at once; whatever waits is refused."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def settled(self) -> bool:
        """Whether the group answers, or is known to be unable to."""
        return bool(self.mailbox or self._problem or self._not_admitted)

    def change(self, spec: GroupSpec) -> None:
        """A new spec with the same identity and source."""
        self.spec = spec
        self._size_limit.changed()
        self.tell(SettingsChanged(spec))

    def admit(self, refusal: Condition | None) -> None:
        """Whether the group may be served beside the others; None: it may. One that may not is granted and commits nothing.

        Before the first word it is not served.
        """
        if refusal is None:
            self._admitted.set()
        else:
            self._admitted.clear()
        if refusal == self._not_admitted:
            return
        self._not_admitted = refusal
        self._set_restrictions(replace(self._restrictions, not_admitted=refusal))

    def tell(self, request: Request) -> None:
        """Something that the group must know; kept until it is loaded."""
        if self.mailbox is not None:
            self.mailbox.put(Tell(request))
        else:
            self._early.append(Tell(request))

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        """The reply, after at most `wait` seconds. Raises a ShardherdError. Cancelling takes a parked one out."""
        reply: HeartbeatReply = await self._ask(heartbeat, wait)
        return reply

    async def ask(self, request: Request) -> Reply:
        """The reply to any other request of a consumer. Raises a ShardherdError."""
        reply: Reply = await self._ask(request, 0.0)
        return reply

    def view(self) -> GroupView | None:
        """The group as it is now; before it is loaded what is known, None if nothing is. From any thread."""
        mailbox = self.mailbox
        if mailbox is not None:
            return self._age.shown(mailbox.view())
        if self._ownership is None and not self.settled:
            return None
        return view_of_stored(self._ownership, self._restrictions, self._problem, self._unreadable)

    def shard(self, name: ShardId) -> ShardView | None:
        """One shard of `view`, None if it has no such shard or nothing is known."""
        if self.mailbox is not None:
            return self.mailbox.group.shard_view(name, self._ports.clock.now())
        view = self.view()
        return next((shard for shard in view.shards if shard.shard == name), None) if view is not None else None

    def reset(self) -> ResetReport | None:
        """How far the declared reset is. Raises CoordinatorUnavailableError while the group is loaded."""
        return self.group.reset_report

    # What its committer and its copies call (`items.Served`).

    @property
    def group(self) -> Group:
        return self._mailbox().group

    @property
    def commits(self) -> bool:
        return self._restrictions.commits

    async def prove(self) -> None:
        proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._mailbox().put(Prove(proven))
        await proven

    def report(self, report: CommitReport) -> None:
        # At once: whether another commit may be made depends on it.
        match report:
            case Outcome():
                self._mailbox().put(report)
            case CommitError(message=message):
                self._set_restrictions(replace(self._restrictions, commit_error=message))
            case IdInUse(in_use=in_use):
                self._set_restrictions(replace(self._restrictions, id_in_use=in_use))

    # Its life.

    async def _run(self, after: Coroutine[Any, Any, None] | None) -> None:
        if after is not None:
            await after
        while True:
            try:
                await self._serve()
            except LeadershipLostError as error:
                self._step_down(str(error))
                return
            except Exception:
                log.exception("group %s: loading it again after a failure of ours", self.spec.identity)
            self._problem = "the coordinator met a failure of its own and loads the group again; see its log"
            await asyncio.sleep(RETRY_FIRST)

    async def _serve(self) -> None:
        ports, spec = self._ports, self.spec
        storage = GroupStorage(ports.ownership, ports.leadership, ports.clock, spec)
        source, offsets = ports.connector.source(spec), ports.connector.offsets(spec)
        self._restrictions = Restrictions(spec.source, not_admitted=self._not_admitted, too_large=self._restrictions.too_large)
        self._opened.clear()
        copies = Copies(ports, spec.identity, storage, self)
        committer = Committer(ports, spec.identity, offsets, self, copies)
        try:
            await together(
                self._watch(storage, source, committer, copies), self._mail(), committer.work(), self._age.work(source)
            )
        finally:
            mailbox, self.mailbox = self.mailbox, None
            if mailbox is not None:
                mailbox.close()
            committer.close()
            await source.close()
            await offsets.close()

    async def _watch(self, storage: GroupStorage, source: ShardSource, committer: Committer, copies: Copies) -> None:
        """Take the group over, open it, then look at its source for ever."""
        ownership = self._ownership = await self._patiently(lambda: storage.take(copied=copies.load, new=self._new))
        self._unreadable = ""
        if storage.damage:
            self._report_loss(storage.damage)
        if not ownership.shards:
            # No position can be lost yet: it may answer that nobody holds anything, also while the source is away.
            self._open(self._group(ownership, {}, {}, copies), storage, committer, ownership)
        # Taking over would fence the group that keeps its positions in the same place.
        await self._admitted.wait()
        stored = tuple(ownership.shards)
        copies.begin(new=storage.created, undiscovered=not ownership.group.discovered)
        committer.refresh.resume(copies.refreshed)
        await self._patiently(committer.take_over)
        durable = await self._patiently(lambda: committer.read(stored))
        notes = await self._patiently(lambda: committer.notes(stored))
        members = await self._patiently(source.live_members)
        self._problem = ""
        self._set_restrictions(replace(self._restrictions, prepared=True, members=members, source_error="", commit_error=""))
        if self.mailbox is None:
            if outdated(ownership, notes):
                self._report_loss("the stored ownership is older than the committed positions: somebody put it back")
                ownership = await self._patiently(storage.begin_anew)
            self._open(self._group(ownership, durable, notes, copies), storage, committer, ownership)
        await self._discover(source, committer, copies)

    async def _discover(self, source: ShardSource, committer: Committer, copies: Copies) -> None:
        now = self._ports.clock.now()
        next_members = now + MEMBERS_INTERVAL
        delay, patience, count = self._interval, RETRY_FIRST, 0
        while True:
            try:
                before, count = count, await self._look(source, committer, copies.loaded)
                if self._ports.clock.now() >= next_members or self._restrictions.members:
                    members = await self._timed("describe_group", source.live_members)
                    self._set_restrictions(replace(self._restrictions, members=members))
                    next_members = self._ports.clock.now() + MEMBERS_INTERVAL
                if self._restrictions.commit_error and await committer.retake():
                    self._set_restrictions(replace(self._restrictions, commit_error=""))
                await self._reset(source)
                await self._cut_over(source)
                await self._cleaning.remind(committer.forget, self.spec)
                committer.remind()
                await copies.remind()
                delay, patience = min(self._interval, SOON) if count > before else self._interval, RETRY_FIRST
            except CoordinatorUnavailableError as error:
                log.warning("group %s: %s", self.spec.identity, error)
            except SourceUnavailableError as error:
                self._set_restrictions(replace(self._restrictions, source_error=str(error)))
                delay, patience = patience, min(patience * 2, RETRY_MAX)
            await asyncio.sleep(delay)

    async def _look(self, source: ShardSource, committer: Committer, copied: Mapping[ShardId, Offset]) -> int:
        """One look. How many shards it showed."""
        group = self.group
        sizes = group.wants_sizes(self._ports.clock.now())
        ends = group.begins_at_ends
        looked = await self._timed("discover", lambda: source.discover(sizes=sizes, ends=ends))
        if group.begins_at_ends:
            check_whole(looked)
        self._cleaning.seen(looked)
        found, (shards, kept_out) = len(looked.shards), self._size_limit.sift(looked.shards, group.unadmitted)
        unread = group.unread(shards)
        durable = await committer.read(unread)
        # What cannot be looked at may have been in the group before its ownership was lost.
        notes = await committer.notes((*unread, *looked.unlooked)) if unread else {}
        self._set_restrictions(self._restrictions.looked(looked))
        # A first look that shows nothing would be the first one all the same.
        if (shards or not found) and (unread or group.changed_by(shards, kept_out)):
            unlooked, read = frozenset(looked.unlooked), frozenset(unread)
            seen = ShardsDiscovered(shards, durable, notes, copied, unlooked, kept_out, read)
            self._mailbox().put(Tell(seen, insist=False))
        return found

    async def _reset(self, source: ShardSource) -> None:
        """Go on with a declared reset, if there is one to go on with. After a look: what it is decided from is new."""
        group = self.group
        wanted = self._size_limit.reset(group.reset_due, begun=group.reset_begun)
        if wanted is None:
            return
        if (timestamp := wanted.timestamp) is not None:
            found = await self._timed("positions_at", lambda: source.positions_at(timestamp))
            wanted = replace(wanted, positions=found)
        elif shards := group.reset_to_ends:
            found = await self._timed("log_ends", lambda: source.log_ends(shards))
            wanted = replace(wanted, positions=found)
        self._mailbox().put(Tell(replace(wanted, wall=self._ports.clock.wall()), insist=False))

    async def _cut_over(self, source: ShardSource) -> None:
        """Tell the group where its shards end, where new ones wait for that."""
        if not (wanted := self.group.cutovers_due(self._ports.clock.now())):
            return
        # In one request: else a topic that nobody answers for would keep the others from being asked.
        shards = tuple({shard: None for each in wanted for shard in each.shards})
        found = await self._timed("log_ends", lambda: source.log_ends(shards))
        for each in wanted:
            if ends := {shard: found[shard] for shard in each.shards if shard in found}:
                self._mailbox().put(Tell(replace(each, ends=ends), insist=False))

    async def _mail(self) -> None:
        await self._opened.wait()
        await self._mailbox().work()

    def _group(
        self, ownership: Ownership, durable: Mapping[ShardId, Offset], notes: Mapping[ShardId, str], copies: Copies
    ) -> Group:
        """The group as it was stored. Also one without shards has consumers and epochs; only one that says nothing is new."""
        now, assignors = self._ports.clock.now(), self._ports.assignors
        if ownership.says_nothing:
            return Group.new(self.spec, now, ownership.group.leader_epoch, assignors)
        return Group.restore(ownership, durable, self.spec, now, copies=copies.loaded, notes=notes, assignors=assignors)

    def _open(self, group: Group, storage: GroupStorage, committer: Committer, ownership: Ownership) -> None:
        mailbox = self.mailbox = Mailbox(
            self._ports,
            self.spec.identity,
            group,
            storage,
            committing=committer.put,
            admitted=self._size_limit.tried,
            check_clock=self._check_clock,
            forgot=self._cleaning.put,
        )
        mailbox.put(Tell(self._restrictions.request()))
        if group.spec != self.spec:
            mailbox.put(Tell(SettingsChanged(self.spec)))
        for tell in self._early:
            mailbox.put(tell)
        self._early = []
        self._opened.set()
        epoch, count = storage.leader_epoch, len(ownership.shards)
        log.info("serving group %s under leader epoch %d: %d shards stored", self.spec.identity, epoch, count)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a step of taking over, tried until it succeeds; meanwhile the group says what keeps it."""
        delay = RETRY_FIRST
        while True:
            try:
                return await call()
            except SourceUnavailableError as error:
                self._problem = str(error)
                self._set_restrictions(replace(self._restrictions, source_error=str(error)))
            except OwnershipUnavailableError as error:
                self._problem = str(error)
                log.warning("group %s: %s", self.spec.identity, error)
            except OwnershipFormatError as error:
                if self._unreadable != error.message:
                    log.error("group %s: %s", self.spec.identity, error)  # noqa: TRY400
                    self._ports.events.record(self.spec.identity, OWNERSHIP_UNREADABLE, error.message, warning=True)
                self._problem = self._unreadable = error.message
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_MAX)

    def _set_restrictions(self, restrictions: Restrictions) -> None:
        """Take note of what has changed, tell the group, and tell the user."""
        before, self._restrictions = self._restrictions, restrictions
        if restrictions == before:
            return
        if self.mailbox is not None and restrictions.request() != before.request():
            self.mailbox.put(Tell(restrictions.request()))
        for reason, message, warning in restrictions.events(before):
            log.log(logging.WARNING if warning else logging.INFO, "group %s: %s: %s", self.spec.identity, reason, message)
            self._ports.events.record(self.spec.identity, reason, message, warning=warning)

    def _report_loss(self, why: str) -> None:
        message = f"{why}; who holds which shard is found out from the committed positions and from the consumers"
        log.error("group %s: %s", self.spec.identity, message)
        self._ports.events.record(self.spec.identity, OWNERSHIP_DAMAGED, message, warning=True)

    async def _ask(self, request: Request, wait: float) -> Any:
        self._ports.observer.asked(request)
        if self.mailbox is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOADING_PATIENCE):
                    await self._opened.wait()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._mailbox().put(Ask(request, answer, wait))
        return await answer

    def _mailbox(self) -> Mailbox:
        if self.mailbox is None:
            reason = self._problem or "it is being loaded"
            raise CoordinatorUnavailableError(
                f"group {self.spec.identity} cannot be served yet: {reason}", group=str(self.spec.identity)
            )
        return self.mailbox
