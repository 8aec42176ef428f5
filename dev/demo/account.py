"""The account of one run: what was promised, what the sink says. Pure; called by the story's end and by its tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dev.demo.sink import Count, Rows, batches_of, count, duplicates, first_read_after, longest_pauses, owners_of

READ_BY_OTHERS_WITHIN_S = 5.0


@dataclass(frozen=True)
class Timeline:
    """When things happened, in seconds since 1970, and who was killed with which shards.

    `killed` is when the signal was sent, `died` just after.
    """

    ready: float
    grown: float
    killed: float
    died: float
    scaled_in: float
    ended: float
    dead: str
    dead_shards: tuple[str, ...]

    @property
    def phases(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each phase, by name."""
        return {
            "growth": (self.grown, self.killed),
            "the kill": (self.killed, self.scaled_in),
            "scale-in": (self.scaled_in, self.ended),
        }


@dataclass(frozen=True)
class Pauses:
    """Longest pause in seconds of the shards that changed hands in a phase and of those that did not; None: no such shard."""

    moved: float | None
    unmoved: float | None
    moved_shards: int


@dataclass(frozen=True)
class Account:
    """All figures that the sink gives."""

    total: Count
    duplicates_before_kill: int
    duplicates_after_kill: int
    duplicates_unexplained: int
    duplicates_at_scale_in: int
    unfinished_batch: int
    batch_before_it: int
    read_by_others_after: Mapping[str, float | None]
    pauses: Mapping[str, Pauses]

    @property
    def slowest_takeover(self) -> float | None:
        """Seconds from the kill until the last of the dead consumer's shards was read by another; None: one never was."""
        return slowest(self.read_by_others_after)


def account(rows: Rows, produced: Mapping[str, int], timeline: Timeline) -> Account:
    """Count it all. `produced` is the number of records of each shard.

    A duplicate belongs to the phase in which the record was read again. After the kill a duplicate is explained if the dead
    consumer read it first, in one of its last two micro-batches.
    """
    repeated = duplicates(rows)
    last = batches_of(rows, timeline.dead, timeline.died)[-2:]
    unfinished, before_it = (last[-1][1] if last else 0), (last[-2][1] if len(last) > 1 else 0)
    suspect = {at for at, _ in last}
    after = [d for d in repeated if timeline.killed <= d.again_at < timeline.scaled_in]
    return Account(
        total=count(rows, produced),
        duplicates_before_kill=sum(1 for d in repeated if d.again_at < timeline.killed),
        duplicates_after_kill=len(after),
        duplicates_unexplained=sum(1 for d in after if d.first_owner != timeline.dead or d.first_at not in suspect),
        duplicates_at_scale_in=sum(1 for d in repeated if d.again_at >= timeline.scaled_in),
        unfinished_batch=unfinished,
        batch_before_it=before_it,
        read_by_others_after=read_by_others_after(rows, timeline),
        pauses={name: _pauses(rows, since, until) for name, (since, until) in timeline.phases.items()},
    )


def read_by_others_after(rows: Rows, timeline: Timeline) -> dict[str, float | None]:
    """Of each shard of the killed consumer: seconds from the kill until another consumer read it; None: none has yet."""

    def delay(shard: str) -> float | None:
        at = first_read_after(rows, shard, timeline.killed, not_by=timeline.dead)
        return None if at is None else at - timeline.killed

    return {shard: delay(shard) for shard in timeline.dead_shards}


def slowest(times: Mapping[str, float | None]) -> float | None:
    """The longest of these times; None if there is none, or one of them has not ended."""
    known = [time for time in times.values() if time is not None]
    return max(known) if known and len(known) == len(times) else None


def _pauses(rows: Rows, since: float, until: float) -> Pauses:
    within = longest_pauses(rows, since, until)
    moved = moved_shards(rows, since, until)
    return Pauses(
        moved=max((pause for shard, pause in within.items() if shard in moved), default=None),
        unmoved=max((pause for shard, pause in within.items() if shard not in moved), default=None),
        moved_shards=len(moved),
    )


def moved_shards(rows: Rows, since: float, until: float) -> frozenset[str]:
    """Shards that another consumer read in [since, until) than the last one before it, or that two read within it."""
    before = {shard: owners[-1] for shard, owners in owners_of(rows.between(-np.inf, since)).items()}
    within = owners_of(rows.between(since, until))
    return frozenset(shard for shard, owners in within.items() if len(owners) > 1 or before.get(shard, owners[0]) != owners[0])


@dataclass(frozen=True)
class Line:
    """One line of the table. `holds` is None where nothing is promised."""

    name: str
    value: str
    promise: str = ""
    holds: bool | None = None


def lines(account: Account) -> list[Line]:
    """The lines of the table that the sink answers for."""
    total = account.total
    allowed = account.unfinished_batch + account.batch_before_it
    slowest = account.slowest_takeover
    takeover = "never, for at least one" if slowest is None else f"{slowest:.1f} s"
    result = [
        Line("records produced", f"{total.produced:,}"),
        Line("distinct (shard, offset) processed", f"{total.distinct:,}"),
        Line("missing", f"{total.missing:,}", "0", total.missing == 0),
        Line("read but never produced", f"{total.foreign:,}", "0", total.foreign == 0),
        Line("duplicates before the kill", f"{account.duplicates_before_kill:,}", "0", account.duplicates_before_kill == 0),
        Line(
            "duplicates after the kill",
            f"{account.duplicates_after_kill:,}",
            f"at most {allowed:,}: the unfinished micro-batch {account.unfinished_batch:,} and the one before it "
            f"{account.batch_before_it:,}",
            account.duplicates_after_kill <= allowed and account.duplicates_unexplained == 0,
        ),
        Line("duplicates at scale-in", f"{account.duplicates_at_scale_in:,}", "0", account.duplicates_at_scale_in == 0),
        Line(
            f"the killed consumer's {len(account.read_by_others_after)} shards read by others after",
            takeover,
            f"at most {READ_BY_OTHERS_WITHIN_S:.0f} s",
            slowest is not None and slowest <= READ_BY_OTHERS_WITHIN_S,
        ),
    ]
    for name, pauses in account.pauses.items():
        result.append(Line(f"longest pause at {name}, {pauses.moved_shards} moved shards", _time(pauses.moved)))
        result.append(Line(f"longest pause at {name}, unmoved shards", _time(pauses.unmoved)))
    return result


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def render(table: Iterable[Line]) -> str:
    """The table as text: name, value, promise, and whether it held."""
    rows = [(line.name, line.value, {True: "held", False: "BROKEN", None: ""}[line.holds], line.promise) for line in table]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{wide[0]}}  {value:>{wide[1]}}  {held:<{wide[2]}}  {promise}".rstrip() for name, value, held, promise in rows
    )
