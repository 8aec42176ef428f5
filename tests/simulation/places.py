"""The places to which the workers of one world send records by Outputs: when each is away, what it has, what is promised.

`Places` belongs to the world; `outputs` has the programs that send there, and tell it what they do. What it draws is from a
stream of its own. It goes by what has arrived alone, and by nothing that the code says of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.guarantees import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from shardherd.worker.output import ShardGrant
from shardherd.worker.records import Record
from tests.simulation.history_entries import BrokenError, Run

if TYPE_CHECKING:
    from tests.simulation.worker import WorkerRun
    from tests.simulation.world import World

FAILS, TAKES_AND_FAILS, REFUSES, HANGS = "fails", "takes and fails", "refuses", "hangs"

TROUBLES = {FAILS: (5.0, 240.0), TAKES_AND_FAILS: (5.0, 40.0), REFUSES: (10.0, 90.0), HANGS: (20.0, 200.0)}
"""What comes over a place, and for how many seconds. One that hangs takes its time for as long; one that refuses takes some."""

Sent = tuple[str, ShardId, str, Offset]
"""A record of a shard, by the group that read it, and by which shard bore the name."""


@dataclass
class Place:
    """One place. `sent` are the records that were on their way to it, at whatever time; `has` those that it has taken."""

    name: str
    troubles: tuple[tuple[float, float, str], ...]
    sent: set[Sent] = field(default_factory=set)
    has: set[Sent] = field(default_factory=set)
    failed: set[Sent] = field(default_factory=set)
    """What was on its way to it when it took nothing, or refused."""
    stands: dict[tuple[str, ShardId, str], Offset] = field(default_factory=dict)
    """The position that it keeps beside the records of a shard, where these are there exactly once."""

    def trouble(self, now: float) -> str:
        """What has come over it now; empty if it is well."""
        return next((kind for since, until, kind in self.troubles if since <= now < until), "")


class Places:
    """Those of one world, and what its groups are promised of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        draw = random.Random(f"{world.plan.seed} places")
        self.guarantee = draw.choice((AT_LEAST_ONCE, AT_LEAST_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE))
        self.all = tuple(Place(name, self._troubles(draw)) for name in draw.choice((("one",), ("one", "two"), ("one", "two"))))
        self.committed: dict[Sent, Run] = {}
        """What was done before it was sent, and by whom."""
        self.gone: set[Sent] = set()
        """What was filtered, or failed so often that it was buried."""
        self.buried: dict[Sent, tuple[Run, int]] = {}
        """What was buried last, and by whom, with the epoch of the grant."""

    def _troubles(self, draw: random.Random) -> tuple[tuple[float, float, str], ...]:
        found = []
        for _ in range(draw.randint(2, 7)):
            kind, since = draw.choice(tuple(TROUBLES)), draw.uniform(0.0, self._world.plan.chaos)
            found.append((since, since + draw.uniform(*TROUBLES[kind]), kind))
        return tuple(found)

    def trouble(self, place: Place) -> str:
        """What has come over a place now: nothing once the world has healed."""
        return "" if self._world.healed else place.trouble(self._world.time)

    def key(self, run: WorkerRun, shard: ShardId, record: Record) -> Sent:
        """A record, as a run has read it."""
        return (run.run.group, shard, "" if record.value is None else record.value.decode(), record.offset)

    def is_judged(self, each: Sent) -> bool:
        """Whether the shard still is this one, of this group, is known for it, and no user has had it read again."""
        (group, shard, source, _), history = each, self._world.history
        actual = history.shards[shard]
        if group != history.uid or source != actual.source_id or actual.rewound:
            return False
        return not history.sightings.another(history.stored, shard)

    def sends(self, place: Place, each: Sent, run: Run) -> None:
        """A record is on its way to a place. Raises BrokenError where that is one time too many, or too early."""
        if self.guarantee == AT_MOST_ONCE and self.is_judged(each):
            highest = self._world.history.shards[each[1]].highest
            if each in place.sent:
                raise BrokenError(f"{each[1]}: {run} sends {each[3]} to {place.name}, to which it was sent before")
            if highest is None or highest <= each[3]:
                raise BrokenError(f"{each[1]}: {run} sends {each[3]} to {place.name}, and durable is {highest}")
        place.sent.add(each)

    def writes_once(self, place: Place, grant: ShardGrant, records: list[Sent], position: Offset, run: Run) -> None:
        """A place takes records, and moves its position. Raises BrokenError for what it has, or for a wrong position."""
        key, first, last = (grant.group, grant.shard, grant.topic_id), records[0][3], records[-1][3]
        before = place.stands.get(key)
        if before is not None and first < before:
            raise BrokenError(f"{grant.shard}: {run} writes {first} to {place.name} once more, which stands at {before}")
        if position != last + 1:
            raise BrokenError(f"{grant.shard}: {run} moves {place.name} to {position} with {last} as the last record")
        if bad := [each[3] for each in records if self.buried.get(each) == (run, grant.epoch)]:
            raise BrokenError(f"{grant.shard}: {run} writes {bad} to {place.name}, which it has buried")
        place.stands[key] = position
        place.has.update(records)

    def buries(self, each: Sent, run: Run, epoch: int) -> None:
        """A record failed so often that its grant does without it."""
        self.gone.add(each)
        self.buried[each] = (run, epoch)

    def lacks(self, each: Sent) -> list[str]:
        """The places that do not have this record, and should have."""
        return [] if each in self.gone else [place.name for place in self.all if each not in place.has]

    def unsent(self, each: Sent) -> list[str]:
        """The places to which this record was never sent, and should have been."""
        if each in self.gone:
            return []
        return [place.name for place in self.all if each not in place.has and each not in place.failed]

    def unfinished(self) -> str:
        """What was committed and never sent, though nothing has happened to who had it; empty if there is nothing."""
        for each, run in self.committed.items():
            if not run.violent and self.is_judged(each) and (missing := self.unsent(each)):
                return f"{each[1]}: {each[3]} was done by {run}, and never sent to {missing}"
        return ""
