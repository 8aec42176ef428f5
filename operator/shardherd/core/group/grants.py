"""How one shard changes hands: each function is one edge of the state table, with its epochs.

The parts of `core.group` decide when; these functions do it and nothing else. No ownership changes while a commit of the shard
is under way: callers ask `movable` first.
"""

from __future__ import annotations

from shardherd.core.group import cells, lineage
from shardherd.core.group.fsm import Cause, step
from shardherd.core.group.records import ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model import growths
from shardherd.core.model.event_reasons import CONSUMER_JOINED, SHARD_OVER
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ConsumerId, Growth, Offset, ResetState, ShardId, ShardInfo, ShardState

HELD = (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)

_HIDDEN = ("", CONSUMER_JOINED)
"""What the next reason of a rebalance takes the place of."""


def movable(state: State, shard: ShardId) -> bool:
    """Whether the ownership of this shard may change now: no commit of it is under way."""
    return shard not in state.in_flight


def another(record: ShardRecord, info: ShardInfo) -> bool:
    """Whether the source shows another shard under this name than the one whose position is known."""
    return bool(record.source_id and info.source_id) and record.source_id != info.source_id


def is_away(state: State, shard: ShardId) -> bool:
    """Whether the source, as it was looked at last, does not have this shard, or does not name it any more.

    Before the first look none is away that it names.
    """
    infos = state.infos
    if shard in infos:
        return False
    return (bool(infos) and shard not in state.clocks.unlooked) or shard in state.clocks.unnamed


def checkpoint_lost(state: State, record: ShardRecord) -> bool:
    """Whether this shard once had a durable position and has none now, or one that cannot be right.

    That is one behind which records are gone, or one below a copy of it: only a forced checkpoint goes back, and it takes the
    copy along.
    """
    position = state.positions.get(record.shard)
    if position is None:
        return record.started
    return _cannot_be_right(state, record.shard, position, state.infos.get(record.shard))


def may_be_read(state: State, shard: ShardId, position: Offset) -> bool:
    """Whether the source has this shard, and its durable position is not lost. Asked for every shard of every heartbeat."""
    info = state.infos.get(shard)
    if info is None and is_away(state, shard):
        return False
    return not _cannot_be_right(state, shard, position, info)


def _cannot_be_right(state: State, shard: ShardId, position: Offset, info: ShardInfo | None) -> bool:
    return (info is not None and info.has_lost(position)) or position < state.clocks.copies.get(shard, 0)


def lost_checkpoints(state: State) -> list[ShardId]:
    """All shards of which `checkpoint_lost` holds, in order. Nothing is looked up twice: it is asked for every picture."""
    shards, positions, infos, copies = state.shards, state.positions, state.infos, state.clocks.copies
    lost = []
    for shard in state.order:
        position = positions.get(shard)
        if position is None:
            if shards[shard].started:
                lost.append(shard)
            continue
        info = infos.get(shard)
        if (info is not None and info.has_lost(position)) or (copies and position < copies.get(shard, 0)):
            lost.append(shard)
    return lost


def grantable(state: State, record: ShardRecord) -> bool:
    """Whether this shard may be given to somebody.

    Its start is durable, neither its checkpoint nor its cell's state is lost, the source has it, and in an ordered group nobody
    reads it still. With its position is a note of this group: else nobody would know, if the ownership were lost, that it was
    given away.
    """
    shard = record.shard
    return (
        shard in state.positions
        and shard not in state.clocks.unnoted
        and shard in state.infos
        and movable(state, shard)
        and not checkpoint_lost(state, record)
        and not cells.is_lost(state, shard)
        and not (state.spec.settings.ordered and any(shard in session.named for session in state.sessions.values()))
    )


def still_read(state: State) -> frozenset[ShardId]:
    """All that somebody in an ordered group names, if anything is free: what is free and named was lost, and may be written.

    It was granted by an ownership that nobody has any more, and was not there while consumers could claim what they held.
    """
    if not state.spec.settings.ordered or not state.by_state[ShardState.NOT_ALLOC]:
        return frozenset()
    return frozenset().union(*(session.named for session in state.sessions.values()))


def blocked(state: State) -> bool:
    """Whether something withholds all grants of the group."""
    clocks = state.clocks
    unknown = state.spec.settings.assignor not in state.assignors
    reset = state.record.reset
    withheld = bool(clocks.withheld) or bool(clocks.recreated) or state.record.rebuilding
    withheld = withheld or (reset is not None and reset.state is ResetState.APPLYING)
    return state.spec.settings.paused or withheld or unknown


def want_rebalance(state: State, reason: str) -> None:
    """Ask for a rebalance. A join never hides another reason, which would not be gathered."""
    if state.clocks.due in _HIDDEN:
        state.put_clocks(due=reason)


def appear(state: State, record: ShardRecord, behind: bool) -> None:
    """Row 1: a new shard, waiting if the data of an ancestor is not consumed."""
    after = step(None, Cause.APPEARED_BEHIND if behind else Cause.APPEARED)
    state.put_shard(record if record.state is after else record._replace(state=after))


def wake(state: State, record: ShardRecord, now: float) -> None:
    """Row 2: it may be read now."""
    state.put_shard(record._replace(state=step(record.state, Cause.ANCESTORS_DONE), since=now))


def grant(state: State, record: ShardRecord, consumer: ConsumerId, now: float) -> None:
    """Row 3: given to a consumer, under a new epoch."""
    _give(state, record, Cause.GRANTED, consumer, now)


def restore(state: State, record: ShardRecord, consumer: ConsumerId, epoch: int, now: float) -> None:
    """Row 3, for a grant that was lost and that its holder still names: the same epoch as then."""
    _give(state, record, Cause.GRANTED, consumer, now, epoch)


def reclaim(state: State, record: ShardRecord, now: float) -> None:
    """Rows 4 and 9: its holder is gone."""
    after = _free(record)._replace(state=step(record.state, Cause.HOLDER_GONE), since=now)
    state.put_shard(after)


def revoke(state: State, record: ShardRecord, next_consumer: ConsumerId, now: float) -> None:
    """Row 5: to be released for the next consumer. The holder may still checkpoint."""
    after = step(record.state, Cause.REVOKED)
    state.put_shard(record._replace(state=after, next_consumer=next_consumer, revision=state.grow_revision(), since=now))


def redirect(state: State, record: ShardRecord, next_consumer: ConsumerId) -> None:
    """Another next consumer; no transition, and the holder need not hear of it."""
    state.put_shard(record._replace(next_consumer=next_consumer))


def release(state: State, record: ShardRecord, now: float) -> None:
    """Row 6: released by its holder, given to the next consumer under a new epoch."""
    if record.next_consumer is None:
        raise ValueError(f"shard {record.shard} is in TRANSFER without a next consumer")
    _give(state, record, Cause.RELEASED, record.next_consumer, now)


def keep(state: State, record: ShardRecord, now: float) -> None:
    """Row 6, the other way: nobody to give it to, the holder keeps it. It is the same grant, so the epoch stays."""
    after = step(record.state, Cause.KEPT)
    state.put_shard(record._replace(state=after, next_consumer=None, revision=state.grow_revision(), since=now))
    finish_if_done(state, record.shard, now)


def regrant(state: State, record: ShardRecord, now: float) -> None:
    """The same name holds the shard under a new epoch, without a gap: a newer incarnation took it over, or let go of it."""
    consumer = state.consumers[record.holder] if record.holder is not None else None
    if consumer is None:
        raise ValueError(f"shard {record.shard} has no holder that could take it over")
    epoch = record.owner_epoch + 1
    state.put_shard(
        record._replace(incarnation=consumer.incarnation, owner_epoch=epoch, revision=state.grow_revision(), since=now)
    )


def begin_state(state: State, shard: ShardId) -> None:
    """In a group with cells: the state of this shard's keys begins where its position is now."""
    position = state.positions.get(shard)
    if state.spec.settings.cells and position is not None:
        state.put_shard(state.shards[shard]._replace(start=position))


def believe_forced(state: State, shard: ShardId) -> None:
    """A forced position is where to read on, whatever a copy says."""
    copies = state.clocks.copies
    if shard in copies:
        state.put_clocks(copies={each: copy for each, copy in copies.items() if each != shard})


def fence_holder(state: State, record: ShardRecord) -> None:
    """After a forced checkpoint: the holder reads on from there under a new epoch, and nothing of before is its own."""
    epoch = record.owner_epoch + 1
    state.put_shard(record._replace(owner_epoch=epoch, held_since_epoch=epoch, revision=state.grow_revision()))


def rewind_if_before_end(state: State, shard: ShardId, now: float) -> bool:
    """Row 7: the position of a finished shard lies before its end, to which only a forced checkpoint can have set it."""
    record = state.shards[shard]
    info = state.infos.get(shard)
    position = state.positions.get(shard)
    if record.state is not ShardState.OVER or info is None or position is None or not movable(state, shard):
        return False
    if another(record, info):
        return False
    if position >= info.end:
        return False
    state.put_shard(record._replace(state=step(record.state, Cause.REWOUND), since=now))
    return True


def finish_if_done(state: State, shard: ShardId, now: float) -> bool:
    """Row 8: a closed shard that is held and whose checkpoint is at its end is over. Wakes those that waited for it."""
    record = state.shards[shard]
    info = state.infos.get(shard)
    position = state.positions.get(shard)
    if record.state not in HELD or info is None or info.open or position is None or not movable(state, shard):
        return False
    if position < info.end or another(record, info):
        return False
    state.put_shard(_free(record)._replace(state=step(record.state, Cause.FINISHED), since=now))
    state.emit(GroupEvent(SHARD_OVER, f"shard {shard} is closed and consumed up to its end {info.end}", shards=(shard,)))
    wake_descendants(state, shard, now)
    want_rebalance(state, SHARD_OVER)
    return True


def wake_descendants(state: State, shard: ShardId, now: float) -> None:
    """Row 2 for every descendant of this shard that nothing keeps waiting any more.

    Not for its children alone: those may be over before it, if the group was not ordered then, or if it was revived.
    """
    for descendant in sorted(lineage.descendants(shard, lambda parent: state.children.get(parent, ())), key=shard_key):
        record = state.shards[descendant]
        if record.state is ShardState.WAIT and not behind(state, descendant):
            wake(state, record, now)


def behind(state: State, shard: ShardId) -> bool:
    """Whether the data of an ancestor is not consumed. An ancestor that the source no longer has holds nothing to consume.

    Of a shard that the source does not show either nothing is known: both may be away for a while.
    """
    shown = shard in state.infos
    return before_cutover(state, shard) or not lineage.may_be_read(
        shard, lambda child: _parents(state, child), lambda ancestor: consumed(state, ancestor, may_be_gone=shown)
    )


def before_cutover(state: State, shard: ShardId) -> bool:
    """Whether its topic grew, and what its keys had in other shards before is not read."""
    grown = state.record.growths
    return bool(grown) and not all(read_to_cutover(state, growth, parent) for growth, parent in growths.parents(grown, shard))


def read_to_cutover(state: State, growth: Growth, parent: ShardId) -> bool:
    """Whether all that is to be read of this shard before its children of this growth is read, or is not there any more.

    One that is away for a while is not: a topic has all of its partitions, or none.
    """
    end = growths.cutover(growth, parent)
    if end is None:
        return False
    position, info = state.positions.get(parent), state.infos.get(parent)
    return (position is not None and position >= end) or (info is not None and info.begin >= end)


def consumed(state: State, ancestor: ShardId, *, may_be_gone: bool = True) -> bool:
    """Whether nothing of this ancestor is left to be read: it is over, or, if that counts, the source no longer has it.

    One that the group does not know holds nothing either, unless it is there, and nobody could look at it yet or it had to stay
    out of the group.
    """
    record = state.shards.get(ancestor)
    if record is None:
        return ancestor not in state.clocks.unlooked and ancestor not in state.clocks.kept_out
    return record.state is ShardState.OVER or (may_be_gone and is_away(state, ancestor))


def _parents(state: State, shard: ShardId) -> tuple[ShardId, ...]:
    record = state.shards.get(shard)
    return record.parents if record is not None else ()


def _give(state: State, record: ShardRecord, cause: Cause, consumer: ConsumerId, now: float, epoch: int | None = None) -> None:
    epoch = record.owner_epoch + 1 if epoch is None else epoch
    after = record._replace(
        state=step(record.state, cause),
        holder=consumer,
        incarnation=state.consumers[consumer].incarnation,
        next_consumer=None,
        last_holder=consumer,
        owner_epoch=epoch,
        held_since_epoch=epoch,
        revision=state.grow_revision(),
        since=now,
    )
    state.put_shard(after)
    finish_if_done(state, record.shard, now)


def _free(record: ShardRecord) -> ShardRecord:
    return record._replace(holder=None, incarnation=None, next_consumer=None)
