"""Decides what of a group's duplicates and of its disorder the faults excuse, and makes the lines of its table. Pure.

Called by `run` at the end. A consumer that was killed, or paused beyond its session, may have read what it did not checkpoint:
its unfinished micro-batch and the one before it, as in the demo; and where the broker or the leader was away shortly before, so
that nothing could become durable, all since then. So may one of an ordered group that stopped by itself, because it had heard
of no leader for so long. One that goes on after a long pause may still write what it had in hand. Nothing else excuses a record
that is read twice: no deletion, no edit, no growth, no restart of the broker and no change of the leader.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dev.demo.account import Line
from dev.demo.sink import Duplicate, Rows, batches_of, count, disorder, duplicates
from dev.soak.plan import ENDS_LEADER, Kind

RECOVERY_S = 15.0
"""Seconds after the end of an outage in which positions may still not become durable."""

BEFORE = 2
"""Micro-batches of a dead consumer that may be repeated."""

STOPPED = "stopped"
"""A consumer ended without a fault of its own."""

SILENCE_S = 30.0
"""Seconds, at most, from the end of an outage until a consumer has ended that stopped because of it."""

LEASE_S = 10.0
"""Seconds for which a leader goes on that cannot renew its lease: the chart's `lease.renewDeadline`."""

OUTAGES = frozenset({Kind.BROKER, Kind.LEADER_BLINK}) | ENDS_LEADER


@dataclass(frozen=True)
class Incident:
    """A fault that was done, or what came of one: to whom, and from when to when (seconds since 1970).

    `consumer` is the pod's name, or empty.
    """

    kind: str
    begun: float
    ended: float
    group: str = ""
    consumer: str = ""


def changes_of_leader(looks: Iterable[tuple[float, str]]) -> list[Incident]:
    """The changes of the leader between looks at which run leads, one after the other, whoever made them.

    On a busy machine a leader may lose its lease without a fault of ours: it could do nothing for a while before.
    """
    return [
        Incident(Kind.LEADER_KILL, before - LEASE_S, after)
        for (before, old), (after, new) in itertools.pairwise(sorted(looks))
        if old != new
    ]


def stops(looks: Iterable[tuple[float, str, str]], group: str, incidents: Sequence[Incident]) -> list[Incident]:
    """The ends of runs of an ordered group's consumers between two looks (when, at which consumer, at which run of it).

    Only those while no leader was there, or shortly after: it is then that such a consumer stops by itself.
    """
    outages = [each for each in incidents if each.kind in OUTAGES and each.kind != Kind.BROKER]
    found = []
    for (name, before, old), (after_name, after, new) in itertools.pairwise(sorted((name, at, run) for at, name, run in looks)):
        if name == after_name and old != new and any(o.begun <= after and o.ended + SILENCE_S >= before for o in outages):
            found.append(Incident(STOPPED, before, after, group, name))
    return found


Batch = tuple[str, float]
"""Who wrote it, and its `processed_at`."""


@dataclass(frozen=True)
class Excused:
    """Micro-batches of which something may be there twice: what was `read` in them first, and what was `written` again."""

    read: frozenset[Batch]
    written: frozenset[Batch]

    def excuses(self, one: Duplicate) -> bool:
        return (one.first_owner, one.first_at) in self.read or (one.again_by, one.again_at) in self.written


def excused(rows: Rows, group: str, incidents: Sequence[Incident]) -> Excused:
    """What the faults of this group excuse."""
    read: set[Batch] = set()
    written: set[Batch] = set()
    outages = [each for each in incidents if each.kind in OUTAGES]
    for incident in incidents:
        if incident.group != group or incident.kind not in (Kind.KILL, Kind.FREEZE, STOPPED):
            continue
        # It died some time between these two.
        died = (incident.begun, incident.begun if incident.kind == Kind.FREEZE else incident.ended)
        read |= {(incident.consumer, at) for at in _not_durable(rows, incident.consumer, *died, outages)}
        if incident.kind == Kind.FREEZE:
            in_hand = _next_batch(rows, incident.consumer, incident.begun)
            written |= in_hand
            read |= in_hand
    return Excused(frozenset(read), frozenset(written))


def _not_durable(rows: Rows, consumer: str, since: float, died: float, outages: Sequence[Incident]) -> list[float]:
    """The micro-batches of a consumer that may not have become durable when it died, between these two moments."""
    for outage in sorted(outages, key=lambda each: each.begun, reverse=True):
        if outage.begun <= died and outage.ended + RECOVERY_S >= since:
            since = min(since, outage.begun)
    batches = [at for at, _ in batches_of(rows, consumer, died)]
    during = sum(1 for at in batches if at >= since)
    return batches[-(during + BEFORE) :]


def _next_batch(rows: Rows, consumer: str, moment: float) -> set[Batch]:
    """The first micro-batch of a consumer from a moment on, if there is one."""
    if consumer not in rows.owners:
        return set()
    mine = (rows.owner == rows.owners.index(consumer)) & (rows.processed_at >= moment)
    return {(consumer, float(rows.processed_at[mine].min()))} if mine.any() else set()


def without(rows: Rows, batches: frozenset[Batch]) -> Rows:
    """The rows that are in none of these micro-batches."""
    keep = rows.processed_at == rows.processed_at
    for consumer, at in batches:
        if consumer in rows.owners:
            keep &= ~((rows.owner == rows.owners.index(consumer)) & (rows.processed_at == at))
    columns = ("shard", "offset", "owner", "processed_at", "event_time")
    return replace(rows, **{column: getattr(rows, column)[keep] for column in columns})


def beside(rows: Rows, group: str, incidents: Sequence[Incident]) -> list[Duplicate]:
    """The duplicates that nothing excuses."""
    excuse = excused(rows, group, incidents)
    return [one for one in duplicates(rows) if not excuse.excuses(one)]


def describe_duplicates(found: Sequence[Duplicate], since: float) -> list[str]:
    """Duplicates for people: by whom and when a range of a shard was read first and again, in seconds since a moment."""
    ranges: dict[tuple[str, str, float, str, float], list[int]] = {}
    for one in found:
        key = (one.shard, one.first_owner, one.first_at, one.again_by, one.again_at)
        ranges.setdefault(key, []).append(one.offset)
    return [
        f"{shard} {min(offsets)}-{max(offsets)} ({len(offsets):,}): read by {first} at {first_at - since:.1f} s,"
        f" again by {again} at {again_at - since:.1f} s"
        for (shard, first, first_at, again, again_at), offsets in ranges.items()
    ]


def table(
    rows: Rows,
    group: str,
    produced: Mapping[str, int],
    ends: Mapping[str, int],
    incidents: Sequence[Incident],
    *,
    ordered: bool,
) -> list[Line]:
    """What became of a group. `ends` are the end offsets that are committed, `produced` what was written, by shard."""
    held, excuse = count(rows, produced), excused(rows, group, incidents)
    unexcused = len(beside(rows, group, incidents))
    ended = Counter(str(each.kind) for each in incidents if each.group == group)
    written = {shard: number for shard, number in produced.items() if number}
    lines = [
        Line("records produced", f"{held.produced:,}"),
        Line("committed in the end", f"{sum(ends.values()):,}", "all that was produced", dict(ends) == written),
        Line("distinct (shard, offset) processed", f"{held.distinct:,}"),
        Line("missing", f"{held.missing:,}", "0", held.missing == 0),
        Line("read but never produced", f"{held.foreign:,}", "0", held.foreign == 0),
        Line(
            f"duplicates excused by {ended[Kind.KILL]} kills, {ended[Kind.FREEZE]} long pauses, {ended[STOPPED]} stops",
            f"{held.duplicates - unexcused:,}",
        ),
        Line("duplicates beside", f"{unexcused:,}", "0", unexcused == 0),
    ]
    if ordered:
        # A key is in one shard, until its topic grows; a consumer that was paused in mid-write beyond its session is excused.
        late = disorder(without(rows, excuse.written))
        lines.append(Line("records of a key read before an earlier one of it", f"{late:,}", "0", late == 0))
    return lines
