"""A group's state as tables with indexes, and the journal of what a request changes in it.

The parts of `core.group` read the tables and indexes and write only through the `put_*` methods, each of which notes the value
before and after. `Group` undoes the journal of a request that fails halfway, or that was decided and could not be stored: it
leaves nothing behind. Must not decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from shardherd.core.assignors import ASSIGNORS, Assignors, Interned
from shardherd.core.group.journal import (
    CONSUMERS,
    GROUP,
    IN_FLIGHT,
    POSITIONS,
    SESSIONS,
    SHARDS,
    TOUCHED,
    Entry,
    GroupEvent,
    Put,
    Table,
)
from shardherd.core.group.rates import Rates
from shardherd.core.group.records import Clocks, ConsumerRecord, GroupRecord, InFlight, Ownership, Session, ShardRecord
from shardherd.core.model.gauges import Stage
from shardherd.core.model.naming import cell, shard_key
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Incarnation, Offset, ShardId, ShardInfo, ShardState

__all__ = [
    "CONSUMERS",
    "GROUP",
    "IN_FLIGHT",
    "POSITIONS",
    "SESSIONS",
    "SHARDS",
    "TOUCHED",
    "Entry",
    "GroupEvent",
    "Put",
    "State",
    "Table",
]


class State:
    """The tables. Rows are frozen values; the derived indexes follow every put."""

    def __init__(self, spec: GroupSpec, record: GroupRecord, clocks: Clocks, assignors: Assignors = ASSIGNORS) -> None:
        self.assignors = assignors
        self.shards: dict[ShardId, ShardRecord] = {}
        self.consumers: dict[ConsumerId, ConsumerRecord] = {}
        self.sessions: dict[ConsumerId, Session] = {}
        self.heard: dict[tuple[ConsumerId, Incarnation], float] = {}
        """When each incarnation that is no longer the current one was last heard."""
        self.superseded: dict[tuple[ConsumerId, str], float] = {}
        """When each pod, by its UID, was superseded."""
        self.lagging: dict[ConsumerId, float] = {}
        """Since when a consumer has had something to read."""
        self.positions: dict[ShardId, Offset] = {}
        self.in_flight: dict[ShardId, InFlight] = {}
        self.touched: dict[ConsumerId, int] = {}
        """The revision that last changed what a consumer may read."""
        self.group: dict[str, Any] = {
            "spec": spec,
            "record": record,
            "clocks": clocks,
            "infos": {},
            "touched_all": 0,
        }
        self.by_state: dict[ShardState, dict[ShardId, None]] = {state: {} for state in ShardState}
        self.held: dict[ConsumerId, dict[ShardId, None]] = {}
        self.under: dict[tuple[ConsumerId, Incarnation], dict[ShardId, None]] = {}
        """Held shards by the incarnation that they were granted to; no empty entries."""
        self.moving: dict[ConsumerId, dict[ShardId, None]] = {}
        self.incoming: dict[ConsumerId, dict[ShardId, None]] = {}
        self.children: dict[ShardId, tuple[ShardId, ...]] = {}
        self.below_low: dict[ConsumerId, None] = {}
        """Whose session is available and below low. Every heartbeat asks whether there is such a consumer."""
        self.unsettled = True
        """Whether shards may be held by a run that is not the current one: nothing of it has changed since there were none."""
        self.restored_at: float = 0.0
        self.journal: list[Entry] = []
        self.moved = 0
        """How many shards changed hands in this request."""
        self._grown = False
        self._order: list[ShardId] | None = None
        self._interned: Interned | None = None
        self._cells: dict[int, tuple[ShardId, ...]] | None = None
        self._tables = self._by_table()

    # What is read most, by name.

    @property
    def spec(self) -> GroupSpec:
        """The group's spec."""
        spec: GroupSpec = self.group["spec"]
        return spec

    @property
    def record(self) -> GroupRecord:
        """The group's stored scalars."""
        record: GroupRecord = self.group["record"]
        return record

    @property
    def clocks(self) -> Clocks:
        """The group's remembered scalars."""
        clocks: Clocks = self.group["clocks"]
        return clocks

    @property
    def infos(self) -> Mapping[ShardId, ShardInfo]:
        """What the source said last."""
        infos: Mapping[ShardId, ShardInfo] = self.group["infos"]
        return infos

    @property
    def rates(self) -> Rates | None:
        """How fast the shards grow; None where nobody asks."""
        rates: Rates | None = self.group.get("rates")
        return rates

    @property
    def touched_all(self) -> int:
        """The revision that last changed something for every consumer."""
        revision: int = self.group["touched_all"]
        return revision

    # Writing.

    def put_shard(self, after: ShardRecord) -> None:
        """Change or add a shard. The revision grows with the first such change of a request."""
        shard = after.shard
        before = self.shards.get(shard)
        if before == after:
            return
        revision = self.grow_revision()
        # As in the two methods of positions below: a rebalance changes a hundred thousand.
        self.shards[shard] = after
        self._index(before, after)
        self.journal.append(Put(SHARDS, shard, before, after))
        if before is None:
            return
        if before.last_holder is not None and before.last_holder != after.last_holder:
            self.moved += 1
        if _shown_to_holder(before) == _shown_to_holder(after):
            return
        for consumer in (before.holder, after.holder):
            if consumer is not None and self.touched.get(consumer) != revision:
                self._put(Table.TOUCHED, consumer, self.touched.get(consumer), revision)

    def drop_shard(self, shard: ShardId) -> None:
        """Forget a shard, and its position. Whoever held it is told."""
        before = self.shards[shard]
        if before.holder is not None:
            self.touch((before.holder,))
        self.grow_revision()
        self._put(SHARDS, shard, before, None)
        self.put_position(shard, None)

    def put_consumer(self, after: ConsumerRecord) -> None:
        """Change or add what is stored of a consumer."""
        before = self.consumers.get(after.consumer)
        if before != after:
            self._put(Table.CONSUMERS, after.consumer, before, after)

    def put_session(self, consumer: ConsumerId, after: Session | None) -> None:
        """Change, add or drop a consumer's session."""
        self._put(SESSIONS, consumer, self.sessions.get(consumer), after)

    def put_heard(self, consumer: ConsumerId, incarnation: Incarnation, after: float | None) -> None:
        """Note when an incarnation was last heard, or forget it."""
        self._put(Table.HEARD, (consumer, incarnation), self.heard.get((consumer, incarnation)), after)

    def put_superseded(self, consumer: ConsumerId, pod_uid: str, after: float | None) -> None:
        """Note when a pod of this name was superseded, or forget it."""
        self._put(Table.SUPERSEDED, (consumer, pod_uid), self.superseded.get((consumer, pod_uid)), after)

    def put_lagging(self, consumer: ConsumerId, after: float | None) -> None:
        """Note since when a consumer has had something to read."""
        if self.lagging.get(consumer) != after:
            self._put(Table.LAGGING, consumer, self.lagging.get(consumer), after)

    def put_position(self, shard: ShardId, after: Offset | None) -> None:
        """A position is durable; None: nobody knows it any more."""
        # This and the next are what a batch of checkpoints is made of, so they write by themselves what `set` would.
        before = self.positions.get(shard)
        if before == after:
            return
        if after is None:
            del self.positions[shard]
        else:
            self.positions[shard] = after
        self.journal.append(Put(POSITIONS, shard, before, after))

    def put_in_flight(self, shard: ShardId, after: InFlight | None) -> None:
        """A commit begins, or its outcome is known."""
        before = self.in_flight.get(shard)
        if before == after:
            return
        if after is None:
            del self.in_flight[shard]
        else:
            self.in_flight[shard] = after
        self.journal.append(Put(IN_FLIGHT, shard, before, after))

    def put_record(self, **changes: Any) -> None:
        """Change stored scalars of the group."""
        self._put_group("record", replace(self.record, **changes))

    def put_clocks(self, **changes: Any) -> None:
        """Change remembered scalars of the group."""
        clocks = self.clocks
        # Every look at the source says what is known already; to make another value of it costs more than to compare.
        if any(getattr(clocks, name) != value for name, value in changes.items()):
            self._put(Table.GROUP, "clocks", clocks, structs.replace(clocks, **changes))

    def put_spec(self, spec: GroupSpec) -> None:
        """Change the spec."""
        self._put_group("spec", spec)

    def put_infos(self, infos: Mapping[ShardId, ShardInfo]) -> None:
        """Take over what the source says now."""
        self._put(Table.GROUP, "infos", self.infos, infos)

    def put_rates(self, rates: Rates | None) -> None:
        """Take over how fast the shards grow."""
        self._put(Table.GROUP, "rates", self.rates, rates)

    def touch(self, consumers: Iterable[ConsumerId]) -> None:
        """These consumers have something new to be told."""
        for consumer in sorted(consumers):
            revision = self.grow_revision()
            if self.touched.get(consumer) != revision:
                self._put(Table.TOUCHED, consumer, self.touched.get(consumer), revision)

    def touch_all(self) -> None:
        """Every consumer has something new to be told."""
        self._put_group("touched_all", self.grow_revision())

    def emit(self, event: GroupEvent) -> None:
        """Add an event for users and metrics to the journal."""
        self.journal.append(event)

    def _put_group(self, key: str, after: Any) -> None:
        if self.group[key] != after:
            self._put(Table.GROUP, key, self.group[key], after)

    def grow_revision(self) -> int:
        """The revision of this request's changes: one more than before, whatever number of them."""
        if not self._grown:
            self._grown = True
            self.put_record(revision=self.record.revision + 1)
        return self.record.revision

    def _put(self, table: Table, key: Any, before: Any, after: Any) -> None:
        self.set(table, key, before, after)
        self.journal.append(Put(table, key, before, after))

    # The journal.

    def begin(self) -> None:
        """Start a new journal."""
        self.journal = []
        self.moved = 0
        self._grown = False

    def undo(self, entries: tuple[Entry, ...]) -> None:
        """Take these entries back, the last one first."""
        for entry in reversed(entries):
            if isinstance(entry, Put):
                self.set(entry.table, entry.key, entry.after, entry.before)

    def set(self, table: Table, key: Any, before: Any, after: Any) -> None:
        """Set one row and the indexes that depend on it."""
        rows = self._tables[table]
        if after is None:
            rows.pop(key, None)
        else:
            rows[key] = after
        if table is SHARDS:
            self._index(before, after)
        elif table is SESSIONS:
            self._index_session(key, after)
        elif table is CONSUMERS:
            self.unsettled = True
        elif key == "spec":
            self._cells = None

    def _index(self, before: ShardRecord | None, after: ShardRecord | None) -> None:
        if before is not None and after is not None and _indexed(before) == _indexed(after):
            return
        if before is not None:
            del self.by_state[before.state][before.shard]
            if before.holder is not None and before.incarnation is not None:
                del self.held[before.holder][before.shard]
                self.unsettled = True
                under = self.under[before.holder, before.incarnation]
                del under[before.shard]
                if not under:
                    del self.under[before.holder, before.incarnation]
                if before.state is ShardState.TRANSFER:
                    del self.moving[before.holder][before.shard]
            if before.next_consumer is not None:
                del self.incoming[before.next_consumer][before.shard]
        if after is not None:
            self.by_state[after.state][after.shard] = None
            if after.holder is not None and after.incarnation is not None:
                self.unsettled = True
                self.held.setdefault(after.holder, {})[after.shard] = None
                self.under.setdefault((after.holder, after.incarnation), {})[after.shard] = None
                if after.state is ShardState.TRANSFER:
                    self.moving.setdefault(after.holder, {})[after.shard] = None
            if after.next_consumer is not None:
                self.incoming.setdefault(after.next_consumer, {})[after.shard] = None
        if before is None or after is None:
            self._order = self._interned = self._cells = None
        if before is None or after is None or before.parents != after.parents:
            self._index_parents(before, after)

    def _index_session(self, consumer: ConsumerId, after: Session | None) -> None:
        if after is not None and after.available and after.stage is Stage.BELOW:
            self.below_low[consumer] = None
        else:
            self.below_low.pop(consumer, None)

    def _index_parents(self, before: ShardRecord | None, after: ShardRecord | None) -> None:
        if before is not None:
            for parent in before.parents:
                self.children[parent] = tuple(child for child in self.children[parent] if child != before.shard)
        if after is not None:
            for parent in after.parents:
                self.children[parent] = (*self.children.get(parent, ()), after.shard)

    @property
    def order(self) -> list[ShardId]:
        """All shards in their natural order. The list must not be changed."""
        if self._order is None:
            self._order = sorted(self.shards, key=shard_key)
        return self._order

    @property
    def interned(self) -> Interned:
        """All shards in their natural order, as arrays."""
        if self._interned is None:
            self._interned = Interned.of(self.order)
        return self._interned

    @property
    def cells(self) -> Mapping[int, tuple[ShardId, ...]]:
        """The shards of each cell that has any, in their order; nothing in a group without cells."""
        if self._cells is None:
            found: dict[int, list[ShardId]] = {}
            number = self.spec.settings.cells
            for shard in self.order if number else ():
                found.setdefault(cell(shard, number), []).append(shard)
            self._cells = {number: tuple(shards) for number, shards in found.items()}
        return self._cells

    def _by_table(self) -> dict[Table, dict[Any, Any]]:
        return {table: getattr(self, table.value) for table in Table}

    def ownership(self) -> Ownership:
        """What must survive the coordinator, as a value of its own."""
        return Ownership(self.record, dict(self.shards), dict(self.consumers))


def _indexed(record: ShardRecord) -> tuple[object, ...]:
    """What the indexes depend on."""
    return (record.state, record.holder, record.incarnation, record.next_consumer, record.parents)


def _shown_to_holder(record: ShardRecord) -> tuple[ShardState, ConsumerId | None, Incarnation | None, int]:
    """What a holder is told of a shard."""
    return (record.state, record.holder, record.incarnation, record.owner_epoch)
