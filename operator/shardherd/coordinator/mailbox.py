"""One group's mailbox: its requests one after the other, decided by the core, made durable, then answered.

Several requests share one write. A write that surely failed takes their changes back, so memory is never ahead of the store.
Called by the group's runner. Holds no rule of the protocol.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.coordinator.items import Ask, Committing, Item, Outcome, Prove, Tell, Waited
from shardherd.coordinator.parking import Parking
from shardherd.coordinator.ports import CoordinatorPorts
from shardherd.coordinator.storage import GroupStorage
from shardherd.core.group.decisions import Decision
from shardherd.core.group.group import Group
from shardherd.core.model.errors import CoordinatorUnavailableError, ShardherdError
from shardherd.core.model.event_reasons import REBALANCED, SHARDS_FORGOTTEN
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupView, Heartbeat, Offset, ShardId
from shardherd.core.model.requests import ClockGap, ConditionsChanged, Request, SettingsChanged, Tick
from shardherd.ports import OwnershipTooLargeError, OwnershipUnavailableError

log = logging.getLogger(__name__)

INSIST_AFTER = 1.0
"""Seconds until something that could not be stored is told, or timed out, again."""

SLOW = 0.25
"""Seconds that a write may take on the consumers' time."""

VIEW_TIMEOUT = 10.0
"""Seconds for which another thread waits for the end of a decision; one takes milliseconds."""

_ONLY_NEWEST = (SettingsChanged, ConditionsChanged)
"""Requests that say how things are now: one that could not be stored is told again only while it is the newest of its kind."""


@dataclass(slots=True)
class _Decided:
    item: Item
    decision: Decision


class Mailbox:
    """The mailbox of `group`. `committing` is called with every commit that the core asks for.

    `admitted` is called when something that takes room was let in or was kept out of the ownership: with what it is, and why it
    was kept out, empty if it was not. `check_clock` is called with the time before anything may time out: it puts a ClockGap
    first if this process did not run for a while.
    """

    def __init__(
        self,
        ports: CoordinatorPorts,
        identity: GroupIdentity,
        group: Group,
        storage: GroupStorage,
        *,
        committing: Callable[[Committing], None],
        admitted: Callable[[str, str], None],
        check_clock: Callable[[float], None],
        forgot: Callable[[tuple[ShardId, ...]], None],
    ) -> None:
        self.group = group
        self._decides = ports.observer.deciding(identity, lambda request, now: group.decide(request, now))
        self._deciding = threading.Lock()
        self._ports = ports
        self._identity = identity
        self._storage = storage
        self._committing = committing
        self._admitted = admitted
        self._check_clock = check_clock
        self._forgot = forgot
        self._items: deque[Item] = deque()
        self._filled = asyncio.Event()
        self._parking = Parking(lambda parked: self.put(Waited(parked)))
        self._insisting: set[asyncio.TimerHandle] = set()
        self._newest: dict[type[Request], Tell] = {}
        self._tick_after = float("-inf")
        self._stood = 0.0
        self._turn_at = 0.0
        """The group's time as the turn began: what the clock shows without the time that did not count."""
        self._stands_at: float | None = None
        """The group's time since writes are refused: it does not go on. None while they go through."""
        self._probe_after = float("-inf")

    def put(self, item: Item) -> None:
        """Add an item. Only on the event loop's thread."""
        if isinstance(item, Tell) and isinstance(item.request, _ONLY_NEWEST):
            self._newest[type(item.request)] = item
        self._items.append(item)
        self._filled.set()

    def view(self) -> GroupView:
        """A consistent picture of the group as it is now. From any thread. Raises TimeoutError if a decision takes too long."""
        if not self._deciding.acquire(timeout=VIEW_TIMEOUT):
            raise TimeoutError(f"group {self._identity} was being decided on for {VIEW_TIMEOUT:g} s")
        try:
            return self.group.view(self._ports.clock.now(), self._ports.clock.wall())
        finally:
            self._deciding.release()

    def gap(self, seconds: float) -> None:
        """This process did not run for so long: before anything else, every deadline is that much later."""
        self._stood += seconds
        self._items.appendleft(Tell(ClockGap(seconds)))
        self._filled.set()

    async def work(self) -> None:
        """Handle items for ever. Raises LeadershipLostError."""
        while True:
            batch = await self._next()
            try:
                await self._turn(batch)
            except BaseException:
                for item in batch:
                    _refuse(item, self._closed())
                raise

    def close(self) -> None:
        """Refuse whatever waits; the caller should ask again, here or at another coordinator."""
        for timer in self._insisting:
            timer.cancel()
        for item in self._items:
            _refuse(item, self._closed())
        self._items.clear()
        for parked in list(self._parking.take(self._parking.everyone())):
            if not parked.answer.done():
                parked.answer.set_exception(self._closed())

    async def _next(self) -> list[Item]:
        """All that has come in; with a Tick at the end if one is due. Waits until there is something."""
        while True:
            now = self._ports.clock.now()
            self._check_clock(now)
            if self._stands_at is not None and now >= self._probe_after:
                # Alone, so that nothing which can never be written is in its way.
                return self._begin([Prove()], now)
            gap_first = bool(self._items) and _is_gap(self._items[0])
            deadline = self.group.next_deadline()
            if self._stands_at is not None:
                deadline = self._probe_after
            elif deadline is not None:
                # What timed out and could not be stored is due again at once; the store is given time.
                deadline = max(deadline, self._tick_after)
            due = deadline is not None and now >= deadline and not gap_first
            if self._items or due:
                batch = list(self._items)
                self._items.clear()
                if due:
                    batch.append(Tell(Tick(), insist=False))
                return self._begin(batch, now)
            self._filled.clear()
            # A timer of our own, which wakes us as an item does: cheaper than to be cancelled by a timeout.
            timer = None if deadline is None else asyncio.get_running_loop().call_later(deadline - now, self._filled.set)
            try:
                await self._filled.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _begin(self, batch: list[Item], now: float) -> list[Item]:
        """This batch at the group's time. While that stands, it stands for whatever passed since the last one, too."""
        if self._stands_at is None:
            self._turn_at = now - self._stood
            return batch
        self._stood = now - self._stands_at
        self._items = deque(item for item in self._items if not _is_gap(item))
        batch = [item for item in batch if not _is_gap(item)]
        gap = self._stood - self.group.gap
        return [Tell(ClockGap(gap)), *batch] if gap > 0 else batch

    async def _turn(self, batch: list[Item]) -> None:
        decided: list[_Decided] = []
        refused: list[tuple[Item, Exception]] = []
        for item in batch:
            with self._deciding:
                decision = self._decide(item, refused)
            if decision is not None:
                decided.append(_Decided(item, decision))
        if any(each.decision.persist or isinstance(each.item, Prove) for each in decided):
            growth = " and ".join(each.decision.grows for each in decided if each.decision.grows)
            try:
                await self._save(grows=bool(growth))
            except OwnershipTooLargeError as error:
                # Also what was refused: perhaps because of what is kept out now.
                again = {id(each.item) for each in decided if not each.decision.grows} | {id(item) for item, _ in refused}
                await self._keep_out(decided, [item for item in batch if id(item) in again], growth, error)
                return
            except OwnershipUnavailableError as error:
                await self._take_back(decided, refused, error)
                return
            if growth:
                self._admitted(growth, "")
            self._stands_at = None
        self.group.commit()
        for item, refusal in refused:
            _refuse(item, refusal)
        # In three rounds. Events and counts are told before anybody has an answer to act on. Parked requests are answered last:
        # the second round parks some, and whoever is woken by any decision of this turn is to get the reply of its end.
        for each in decided:
            self._tell(each.decision)
        for each in decided:
            self._finish(each.item, each.decision)
        for each in decided:
            self._answer_parked(each.decision.woken)

    async def _save(self, *, grows: bool) -> None:
        """Store what was decided. While that takes long nobody is told or answered anything: no deadline comes nearer."""
        begun, stood = self._ports.clock.now(), self._stood
        try:
            await self._storage.save(self.group.ownership, grows=grows)
        finally:
            now = self._ports.clock.now()
            # If this process did not run either, for a part of that time, this part counts once.
            self._check_clock(now)
            took = now - begun - (self._stood - stood)
            if took > SLOW:
                log.warning(
                    "group %s: a write took %.1f s; all deadlines of consumers are that much later", self._identity, took
                )
                self.gap(took)

    def _decide(self, item: Item, refused: list[tuple[Item, Exception]]) -> Decision | None:
        """What the core decides; None if it refuses. That may be due to what is not stored yet, so the caller is told later."""
        request: Request
        match item:
            case Ask(request=request) | Tell(request=request) | Outcome(request=request):
                pass
            case Waited() | Prove():
                return Decision()
        try:
            return self._decides(request, self._ports.clock.now())
        except ShardherdError as error:
            if not isinstance(item, Ask):
                log.warning("group %s refuses a %s: %s", self._identity, type(request).__name__, error)
            refused.append((item, error))
        except Exception as error:
            log.exception("group %s failed on a %s; nothing was changed", self._identity, type(request).__name__)
            _refuse(item, _failed(self._identity, error))
        return None

    async def _keep_out(self, decided: list[_Decided], rest: list[Item], growth: str, error: OwnershipTooLargeError) -> None:
        """What made the ownership outgrow its limit changes nothing; the rest of its turn goes on without it."""
        self._roll_back()
        for each in decided:
            if each.decision.grows:
                self._decline(each.item, error)
        self._admitted(growth, str(error))
        await self._turn(rest)

    async def _take_back(self, decided: list[_Decided], refused: list[tuple[Item, Exception]], error: Exception) -> None:
        """Nothing of this turn was decided. If nothing else can be written either, the group's time stands until it can.

        For who does in time what was asked is refused meanwhile, and would be timed out for it. Who was heard was not silent.
        """
        log.warning("group %s: %s; nothing of %d requests was changed", self._identity, error, len(decided))
        self._roll_back()
        with self._deciding:
            for each in decided:
                if isinstance(each.item, Ask) and isinstance(each.item.request, Heartbeat):
                    self.group.note_life(each.item.request, self._turn_at)
        if self._stands_at is None and not await self._writes_go_through():
            self._stands_at = self._turn_at
        after = self._ports.clock.now() + INSIST_AFTER
        if self._stands_at is not None:
            self._probe_after = after
            decided = [each for each in decided if not _is_gap(each.item)]
        elif any(_is_gap(each.item) or _is_tick(each.item) for each in decided):
            self._tick_after = after
        for each in decided:
            self._decline(each.item, error)
        for item, _ in refused:
            # Perhaps because of what was taken back.
            _refuse(item, self._not_stored(error))

    async def _writes_go_through(self) -> bool:
        """Whether the ownership can be written as it is: then it was what changed that was refused."""
        try:
            await self._save(grows=False)
        except OwnershipUnavailableError:
            return False
        return True

    def _roll_back(self) -> None:
        with self._deciding:
            self.group.roll_back()

    def _decline(self, item: Item, error: Exception) -> None:
        """What could not be stored is told again after a while, or whoever asked is told to."""
        if isinstance(item, Outcome) or (isinstance(item, Tell) and item.insist):
            self._insist(item)
        else:
            _refuse(item, self._not_stored(error))

    def _not_stored(self, error: Exception) -> CoordinatorUnavailableError:
        return CoordinatorUnavailableError(f"group {self._identity}: {error}; ask again", group=str(self._identity))

    def _insist(self, item: Item) -> None:
        def again() -> None:
            self._insisting.discard(timer)
            if not isinstance(item, Tell) or self._newest.get(type(item.request), item) is item:
                self.put(item)

        timer = asyncio.get_running_loop().call_later(INSIST_AFTER, again)
        self._insisting.add(timer)

    def _finish(self, item: Item, decision: Decision) -> None:
        """Answer, park, or begin the commit that the answer waits for."""
        match item:
            case Ask(request=Heartbeat() as heartbeat, answer=answer, wait=wait):
                self._answer_parked((heartbeat.consumer,))
                if wait > 0 and not answer.done() and self.group.may_park(heartbeat):
                    self._parking.park(heartbeat, answer, wait)
                else:
                    self._answer(heartbeat, answer)
            case Ask(answer=answer) if decision.positions:
                self._committing(Committing(decision.positions, decision.reply, answer))
            case Ask(answer=answer):
                _resolve(answer, decision.reply)
            case Tell() if decision.positions:
                self._committing(Committing(decision.positions))
            case Outcome(durable=durable, settles=settles):
                for waiting in settles:
                    if waiting.answer is not None:
                        _settle(waiting, waiting.answer, durable)
                if decision.positions:
                    self._committing(Committing(decision.positions))
            case Waited(parked=parked) if self._parking.holds(parked):
                self._answer_parked((parked.heartbeat.consumer,))
            case Prove(answer=proven) if proven is not None:
                _resolve(proven, None)
            case Tell() | Waited() | Prove():
                pass

    def _answer_parked(self, consumers: Iterable[ConsumerId]) -> None:
        for parked in list(self._parking.take(consumers)):
            self._answer(parked.heartbeat, parked.answer)

    def _answer(self, heartbeat: Heartbeat, answer: asyncio.Future[Any]) -> None:
        if answer.done():
            return
        try:
            answer.set_result(self.group.confirmed(heartbeat))
        except ShardherdError as error:
            answer.set_exception(error)
        except Exception as error:
            log.exception("group %s failed on the reply to a heartbeat of %s", self._identity, heartbeat.consumer)
            answer.set_exception(_failed(self._identity, error))

    def _tell(self, decision: Decision) -> None:
        for event in decision.events:
            log.info("group %s: %s: %s", self._identity, event.reason, event.message)
            self._ports.events.record(self._identity, event.reason, event.message, warning=event.warning)
            if event.reason == REBALANCED:
                self._ports.metrics.rebalance(self._identity, event.cause, event.moved)
            elif event.reason == SHARDS_FORGOTTEN:
                self._forgot(event.shards)

    def _closed(self) -> CoordinatorUnavailableError:
        return CoordinatorUnavailableError(
            f"the coordinator stops serving group {self._identity}; ask again", group=str(self._identity)
        )


def _is_gap(item: Item) -> bool:
    return isinstance(item, Tell) and isinstance(item.request, ClockGap)


def _is_tick(item: Item) -> bool:
    return isinstance(item, Tell) and isinstance(item.request, Tick)


def _resolve(answer: asyncio.Future[Any], value: object) -> None:
    if not answer.done():
        answer.set_result(value)


def _settle(waiting: Committing, answer: asyncio.Future[Any], durable: Mapping[ShardId, Offset]) -> None:
    try:
        _resolve(answer, waiting.settled(durable))
    except ShardherdError as error:
        if not answer.done():
            answer.set_exception(error)


def _failed(group: GroupIdentity, error: Exception) -> ShardherdError:
    """What is answered for a failure of ours."""
    return ShardherdError(f"the coordinator failed on this request: {error!r}", group=str(group))


def _refuse(item: Item, error: Exception) -> None:
    match item:
        case Ask(answer=answer) | Prove(answer=answer) if answer is not None:
            answers = [answer]
        case Outcome(settles=settles):
            answers = [waiting.answer for waiting in settles if waiting.answer is not None]
        case _:
            answers = []
    for each in answers:
        if not each.done():
            each.set_exception(error)
