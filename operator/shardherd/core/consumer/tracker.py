"""The ledger of an agent: what it was granted, has handed out and finished, what is durable, and what it may release.

The agent calls it for every heartbeat reply, every question of the stream reader and every checkpoint answer. It decides
which ranges may be read, which positions may be checkpointed under which epoch, and when a revoked shard is free to go. It
knows nothing of Spark, sockets or time: all of it is a function of the calls made so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shardherd.core.consumer.ledger import Ledger, later_end
from shardherd.core.model.nouns import ConfirmedShard, HeldShard, Offset, ShardId


class ReadRange(msgspec.Struct, frozen=True):
    """The records with start <= offset < stop, handed out under `epoch`; empty when start == stop.

    Every micro-batch makes one for each shard, and a class of msgspec is made at a fraction of a dataclass's cost.
    """

    start: Offset
    stop: Offset
    epoch: int


class _Taken(msgspec.Struct, frozen=True):
    """A range in flight: as the micro-batch names it, and the epoch under which its end may be checkpointed."""

    named: ReadRange
    epoch: int


@dataclass(slots=True)
class _Grant:
    """One shard that we hold. `position` is the next offset to hand out, `done` the end of what was finished, and from `end`
    on records are not the group's to read, if it is not None.
    """

    epoch: int
    held_since: int
    position: Offset
    done: Offset
    durable: Offset
    revoked: bool = False
    end: Offset | None = None


def split_by_backlog(available: Mapping[ShardId, int], budget: int | None) -> dict[ShardId, int]:
    """How many of its available records each shard gives, about `budget` together (None: all).

    In proportion to what it has, as Spark's own source does it: shards that are equally far behind stay so, and with them the
    times of their records. However many shards there are, each one with records gives at least one: or the quiet ones would
    wait for as long as others are busy. So `budget` is exceeded only if there are more such shards than that. The result is
    the same for the same arguments.
    """
    wanted = {shard: count for shard, count in available.items() if count > 0}
    if budget is None or sum(wanted.values()) <= budget:
        return wanted
    left, rest = budget - len(wanted), sum(wanted.values()) - len(wanted)
    if left <= 0:
        return dict.fromkeys(wanted, 1)
    given = {shard: 1 + left * (count - 1) // rest for shard, count in wanted.items()}
    # What rounding has left over goes to those that lost most by it.
    over = left + len(wanted) - sum(given.values())
    for shard in sorted(wanted, key=lambda shard: (-(left * (wanted[shard] - 1) % rest), shard))[:over]:
        given[shard] += 1
    return given


class Tracker(Ledger[_Grant]):
    """The account of one run of a consumer that reads micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self._in_flight: dict[ShardId, _Taken] = {}
        # Epochs of what was abandoned: tasks of it may go on for a moment.
        self._adrift: dict[ShardId, int] = {}
        self.abandoned = 0

    def held(self) -> tuple[HeldShard, ...]:
        """What a heartbeat must name: every grant, and every range still being read under whatever epoch."""
        pairs = {(shard, grant.epoch) for shard, grant in self._grants.items()}
        pairs |= {(shard, taken.epoch) for shard, taken in self._in_flight.items()}
        pairs |= set(self.adrift.items())
        return tuple(HeldShard(shard, epoch) for shard, epoch in sorted(pairs))

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The shards that we hold, revoked ones too, in order."""
        return tuple(sorted(self._grants))

    @property
    def holds_any(self) -> bool:
        """Whether a heartbeat names anything."""
        return bool(self._grants or self._in_flight or self.adrift)

    @property
    def busy(self) -> bool:
        """Whether anything handed out is not finished yet."""
        return bool(self._in_flight)

    @property
    def adrift(self) -> Mapping[ShardId, int]:
        """What was abandoned in an ordered group and may still be written, with its epoch: it is not given up meanwhile.

        `abandoned` counts how often that began.
        """
        return self._adrift if self.ordered else {}

    def settled(self) -> None:
        """Nothing of what was abandoned goes on."""
        self._adrift = {}

    @property
    def in_flight(self) -> Mapping[ShardId, ReadRange]:
        """What is being read."""
        return {shard: taken.named for shard, taken in self._in_flight.items()}

    def positions(self) -> dict[ShardId, Offset]:
        """The next offset to hand out of every shard that we may still read."""
        return {shard: grant.position for shard, grant in sorted(self._grants.items()) if not grant.revoked}

    def ends(self) -> dict[ShardId, Offset]:
        """Where the shards end that are read up to there only, although the source has more."""
        return {shard: grant.end for shard, grant in self._grants.items() if grant.end is not None}

    def hand_out(self, stops: Mapping[ShardId, Offset]) -> dict[ShardId, ReadRange]:
        """The next ranges to read, up to these offsets; a shard that has nothing up to there gets an empty range.

        If none has anything, the answer is empty and nothing changes. What was in flight was finished or abandoned before.
        """
        if self.paused:
            return {}
        handed = {
            shard: ReadRange(grant.position, max(grant.position, stops.get(shard, 0)), grant.epoch)
            for shard, grant in sorted(self._grants.items())
            if not grant.revoked
        }
        taken = {shard: each for shard, each in handed.items() if each.start < each.stop}
        if not taken:
            return {}
        for shard, each in taken.items():
            self._grants[shard].position = each.stop
        self._in_flight = {shard: _Taken(each, each.epoch) for shard, each in taken.items()}
        self.progress += 1
        return handed

    def standing(self) -> dict[ShardId, ReadRange]:
        """Every shard that we may read, as an empty range at its position."""
        return {
            shard: ReadRange(grant.position, grant.position, grant.epoch)
            for shard, grant in sorted(self._grants.items())
            if not grant.revoked
        }

    def finish(self, named: Mapping[ShardId, ReadRange]) -> None:
        """Ranges that a finished micro-batch names. Only those that this run handed out or replayed count.

        What was abandoned was so before this micro-batch began, and has ended by now.
        """
        for shard, taken in list(self._in_flight.items()):
            if named.get(shard) != taken.named:
                continue
            del self._in_flight[shard]
            self.settled()
            self.progress += 1
            grant = self._grants.get(shard)
            if grant is not None and grant.epoch == taken.epoch:
                grant.done = max(grant.done, taken.named.stop)

    def abandon(self) -> None:
        """What is in flight will not be finished: it is read again from where it began."""
        for shard, taken in self._in_flight.items():
            grant = self._grants.get(shard)
            if grant is not None and grant.epoch == taken.epoch:
                grant.position = grant.done
            self._adrift[shard] = taken.epoch
        self.abandoned += bool(self._in_flight)
        self._in_flight = {}

    def replay(self, named: Mapping[ShardId, ReadRange]) -> dict[ShardId, ReadRange]:
        """Which ranges of an unfinished micro-batch of an earlier run are still ours, as they were logged.

        They are in flight from now on, under the epoch of the present grant. The others are dropped: whoever holds such a
        shard now goes on at its durable position.
        """
        self.abandon()
        ours: dict[ShardId, ReadRange] = {}
        for shard, logged in sorted(named.items()):
            grant = self._grants.get(shard)
            if grant is None or logged.start >= logged.stop:
                continue
            if grant.held_since <= logged.epoch <= grant.epoch and logged.stop > grant.durable:
                ours[shard] = logged
                grant.position = logged.stop
                self._in_flight[shard] = _Taken(logged, grant.epoch)
        self.progress += 1
        return ours

    def _granted(self, each: ConfirmedShard, before: _Grant | None) -> _Grant:  # noqa: ARG002
        position = each.position
        return _Grant(each.owner_epoch, each.held_since_epoch, position, position, position, end=later_end(None, each))

    def _confirmed_again(self, grant: _Grant, each: ConfirmedShard) -> None:
        grant.held_since = each.held_since_epoch
        grant.end = later_end(grant.end, each)

    def _being_read(self, shard: ShardId, grant: _Grant) -> bool:  # noqa: ARG002
        return shard in self._in_flight or shard in self.adrift
