"""How each shard of a group is read, and the group: stalled, stopped, lagging, rewound, OK, or unknown.

Called by the coordinator with every view in which it looks at the lag, every few seconds and never for a heartbeat. Judged by
the history of positions and ends, without thresholds of records: what a consumer reads in one of its own steps is the measure
of its lag, and how long its steps take that of its silence. Instead of a row of samples there is kept of each shard what the
rules ask of it, such as when its position last moved and what the lag was a while ago: `BYTES` a shard. Pure: `now` is
monotonic seconds, `wall` seconds since 1970. Withholds nothing, and moves nothing.

The rules, the first that holds:

1. The position or the end is not known, or the source does not answer: UNKNOWN. Such a time counts for no other rule. So it is
   where the position is above the end for longer than a look at the source may be old: they are not of the same shard.
2. Something is to be read and the position has stood for `STANDS`, or for twice as long as its last step took: STALLED if
   its holder should get on, STOPPED if there is none or nobody of the group may. Until a whole step was seen, it is UNKNOWN
   for as long as the settings give the phase of its holder.
3. It moves, and over `STANDS` and at least `STEPS` steps the lag was never below what it was at their begin, and is more
   than two steps: LAGGING. Of micro-batches one after the other each reads what there was when it began, and so leaves between
   one step and two.
4. It was set back and is not where it was before: REWOUND.
5. Something is to be read and nothing has been seen to move yet: UNKNOWN. Else OK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ConsumerId, GroupSettings, GroupView, Phase, ShardId, ShardState, ShardVerdict, ShardView
from shardherd.core.model.reasons import CHECKPOINT_LOST, SOURCE_RECREATED
from shardherd.core.model.verdicts import Verdict
from shardherd.core.planning import room
from shardherd.core.planning.diagnosis import STOPPED_FOR_ALL

STANDS = 60.0
"""Seconds for which a position may stand although there is something to read: several micro-batches."""

LONGEST_STEP = 600.0
"""Seconds that a step counts for at most: one that took longer, as its sink was away, says nothing of the next."""

STEPS = 4
"""Steps that are compared at least before a lag is said not to fall: with fewer it may not have fallen by chance."""

UNSEEN = 90.0
"""Seconds between two looks after which the time between them counts for nothing: this process stood.

More than there are between looks while those at records fail."""

ABOVE = 30.0
"""Seconds for which a position that stands may be above the end: the look that found the end is older than the position."""

UNKNOWN = -1
"""A position, or a lag, that there is none of."""

ORDER = tuple(Verdict)
_CODES = {verdict: code for code, verdict in enumerate(ORDER)}
_UNKNOWN, _OK = _CODES[Verdict.UNKNOWN], _CODES[Verdict.OK]

_DEFAULTS = GroupSettings()

Integers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Columns:
    """A row of these for each shard.

    `position` is the last that was known. `moved_at`: when it changed, or did not have to; `level_at`: when nothing was left to
    read. `took` and `step`: how long the last step took, and how many records it was. `reached` is the position that it had
    before it was set back, UNKNOWN once it is there again. `mark` is the lag at the begin of what is compared, at `mark_at`,
    `low` the lowest since, after so many `steps`; `lagging` is what came of the comparison before. `seen`: it was seen to move,
    or to have nothing left. `verdict` and `since` are what was said, and since when (seconds since 1970).
    """

    position: Integers
    reached: Integers
    step: Integers
    mark: Integers
    low: Integers
    moved_at: Times
    level_at: Times
    took: Times
    mark_at: Times
    since: Times
    steps: Codes
    lagging: Flags
    seen: Flags
    verdict: Codes


BYTES = 5 * 8 + 5 * 8 + 4
"""Of a row of `Columns`; the tuple of the shards' names has another 8 a shard."""


@dataclass(frozen=True, slots=True)
class History:
    """What is known after the look at `at`. `away`: that look saw nothing, as the source did not answer.

    `held_up`: nobody of the group was to get on, nor were those that are `paused`. `said` are the shards that are not OK, with
    their verdicts: made anew only when one changes.
    """

    at: float
    shards: tuple[ShardId, ...]
    columns: Columns
    away: bool = False
    held_up: bool = False
    said: tuple[ShardVerdict, ...] = field(default=(), repr=False)
    paused: frozenset[ConsumerId] = frozenset()

    @property
    def verdict(self) -> Verdict:
        """That of the group: of its worst shard. Of a group without shards nothing is known."""
        codes = self.columns.verdict
        return ORDER[int(codes.min())] if len(codes) else Verdict.UNKNOWN


def looked(before: History | None, view: GroupView, now: float, wall: float, settings: GroupSettings = _DEFAULTS) -> History:
    """The history with this view."""
    counted = [shard for shard in view.shards if shard.present and shard.state is not ShardState.OVER]
    shards = tuple(shard.shard for shard in counted)
    history = _aligned(before, shards, now, wall)
    if not view.source_reachable or not view.discovered:
        return _said(replace(history, away=True, columns=_turned(history.columns, _unknown(len(shards)), wall, None)))
    unseen = now - history.at
    columns = _later(history.columns, unseen) if history.away or unseen > UNSEEN else history.columns
    held_up = any(cause.reason in STOPPED_FOR_ALL for cause in view.withheld)
    if history.held_up and not held_up:
        # Its consumers have only now begun to get on.
        columns = replace(columns, moved_at=np.full(len(shards), now))
    paused = room.paused(view)
    if gone_on := history.paused - paused:
        reads_on = np.fromiter((shard.holder in gone_on for shard in counted), dtype=np.bool_, count=len(counted))
        columns = replace(columns, moved_at=np.where(reads_on, now, columns.moved_at))
    patience = _patience(view, counted, settings)
    judged = _judged(columns, view, counted, patience, now, wall, held_up=held_up)
    return _said(History(now, history.shards, judged, held_up=held_up, said=history.said, paused=paused))


def _judged(
    before: Columns,
    view: GroupView,
    counted: Sequence[ShardView],
    patience: Times,
    now: float,
    wall: float,
    *,
    held_up: bool,
) -> Columns:
    positions, ends, lags = _seen(counted)
    known, met = positions != UNKNOWN, before.position != UNKNOWN
    excused, kept = _excused(view, counted, held_up=held_up), _kept(view, counted)
    unread = _unread(view, counted, held_up=held_up) | kept
    beyond = positions > ends
    level = known & (lags == 0) & ~beyond
    ahead = known & met & (positions > before.position)
    back = known & met & (positions < before.position)
    first = known & ~met

    busy_since = np.maximum(before.moved_at, before.level_at)
    # The time for which nobody was meant to read it says nothing of how long its reader takes.
    # Nor does the first step that is seen to end, unless it was seen to begin.
    stepped = ahead & before.seen & (before.verdict != _CODES[Verdict.STOPPED])
    took = np.where(stepped, np.minimum(now - busy_since, LONGEST_STEP), before.took)
    step = np.where(ahead, positions - before.position, before.step)
    moved_at = np.where(ahead | back | first | excused, now, before.moved_at)
    level_at = np.where(level, now, before.level_at)
    unfit = beyond & (now - np.maximum(moved_at, level_at) >= ABOVE)
    moved_at = np.where(unfit, now - ABOVE, moved_at)

    reached = np.where(back, np.maximum(before.reached, before.position), before.reached)
    # Nobody comes to where the position was in a topic that was made again.
    reached = np.where(known, np.minimum(reached, ends), reached)
    reached = np.where(level | (known & (positions >= reached)), UNKNOWN, reached)

    # What is compared begins anew with whatever is no step forward.
    anew = level | back | first
    steps = np.where(anew, 0, np.where(ahead, np.minimum(before.steps.astype(np.int64) + 1, 255), before.steps))
    low = np.where(ahead, np.minimum(before.low, lags), before.low)
    due = ahead & ~anew & (steps >= STEPS) & (now - before.mark_at >= STANDS)
    lagging = np.where(due, (low >= before.mark) & (before.mark > 2 * step), before.lagging & ~anew)
    anew |= due
    mark, low, mark_at = np.where(anew, lags, before.mark), np.where(anew, lags, low), np.where(anew, now, before.mark_at)
    steps = np.where(anew, 0, steps)

    stands_for = now - np.maximum(moved_at, level_at)
    too_long = np.maximum(STANDS, np.where((took > 0.0) | unread, 2.0 * took, patience))
    stands = known & (lags > 0) & (stands_for > too_long)
    unsure = known & (lags > 0) & ~stands & (took == 0.0) & (stands_for > STANDS)
    seen = before.seen | level | ahead | back | stands | (known & excused)

    verdict = np.full(len(counted), _OK, dtype=np.uint8)
    verdict[(known & ~seen) | unsure] = _UNKNOWN
    verdict[reached != UNKNOWN] = _CODES[Verdict.REWOUND]
    verdict[lagging & (np.minimum(mark, low) > 2 * step)] = _CODES[Verdict.LAGGING]
    verdict[stands] = _CODES[Verdict.STALLED]
    verdict[stands & unread] = _CODES[Verdict.STOPPED]
    verdict[~known | unfit] = _UNKNOWN
    verdict[unfit & kept] = _CODES[Verdict.STOPPED]
    after = Columns(
        position=np.where(known, positions, before.position),
        reached=reached,
        step=step,
        mark=mark,
        low=low,
        moved_at=moved_at,
        level_at=level_at,
        took=took,
        mark_at=mark_at,
        since=before.since,
        steps=steps.astype(np.uint8),
        lagging=lagging,
        seen=seen,
        verdict=before.verdict,
    )
    return _turned(after, verdict, wall, np.where(stands, stands_for, 0.0))


def _seen(counted: Sequence[ShardView]) -> tuple[Integers, Integers, Integers]:
    """Positions and ends, UNKNOWN both where one is, and how many records there are to read.

    What lay before the first record is gone: nobody waits for it, and nobody gets on because of it.
    """
    positions, ends, lags = [], [], []
    for shard in counted:
        end, lag = shard.end, shard.lag_records
        if end is None or lag is None:
            positions.append(UNKNOWN)
            ends.append(UNKNOWN)
            lags.append(0)
            continue
        begin, checkpoint = shard.begin, shard.checkpoint
        positions.append(end - lag if checkpoint is None else checkpoint)
        ends.append(end)
        lags.append(end - begin if begin is not None and end - lag < begin else lag)
    return np.array(positions, dtype=np.int64), np.array(ends, dtype=np.int64), np.array(lags, dtype=np.int64)


def _excused(view: GroupView, counted: Sequence[ShardView], *, held_up: bool) -> Flags:
    """The shards that stand still as they should. While the whole group is `held_up` no holder waits for its trigger."""
    waiting = {each.consumer for each in view.consumers if each.phase is Phase.WAITING and not held_up}
    found = (shard.state is ShardState.WAIT or shard.holder in waiting for shard in counted)
    return np.fromiter(found, dtype=np.bool_, count=len(counted))


def _patience(view: GroupView, counted: Sequence[ShardView], settings: GroupSettings) -> Times:
    """For how long the holder of each shard may get on with nothing, by its phase: then it would be taken for hanging."""
    limits = {Phase.READING: settings.progress_timeout, Phase.WRITING: settings.sink_timeout}
    holders = {each.consumer: limits[each.phase] for each in view.consumers if each.phase in limits}
    found = (STANDS if shard.holder is None else holders.get(shard.holder, STANDS) for shard in counted)
    return np.fromiter(found, dtype=np.float64, count=len(counted))


def _unread(view: GroupView, counted: Sequence[ShardView], *, held_up: bool) -> Flags:
    """The shards that nobody has to get on with: nobody holds them, or has for long enough, or their holder is not to read.

    That is so for nobody of the group, or for one that is paused because it is too full.
    """
    held, paused = ShardState.ALREADY_ALLOC, room.paused(view)
    found = (
        held_up or shard.holder is None or shard.holder in paused or (shard.state is held and shard.state_age < STANDS)
        for shard in counted
    )
    return np.fromiter(found, dtype=np.bool_, count=len(counted))


def _kept(view: GroupView, counted: Sequence[ShardView]) -> Flags:
    """The shards that a condition keeps where they are, whoever holds them.

    A topic that was made again stops all of its group: which shards are of it, the view does not say.
    """
    reasons = {cause.reason for cause in view.withheld}
    if SOURCE_RECREATED in reasons or CHECKPOINT_LOST not in reasons:
        return np.full(len(counted), SOURCE_RECREATED in reasons, dtype=np.bool_)
    found = (each.checkpoint is not None and each.begin is not None and each.checkpoint < each.begin for each in counted)
    return np.fromiter(found, dtype=np.bool_, count=len(counted))


def _turned(columns: Columns, verdict: Codes, wall: float, stood: Times | None) -> Columns:
    """With these verdicts; those that are others than before hold from now on, or for as long as the shard has stood."""
    since = wall if stood is None else wall - stood
    return replace(columns, verdict=verdict, since=np.where(verdict != columns.verdict, since, columns.since))


def _later(columns: Columns, seconds: float) -> Columns:
    """As if the last seconds had not been."""
    moved = {name: getattr(columns, name) + seconds for name in ("moved_at", "level_at", "mark_at")}
    return replace(columns, **moved)


def _said(history: History) -> History:
    """With the shards that are not OK. Most looks change none, and then nothing is made."""
    codes, since = history.columns.verdict, history.columns.since
    rows = np.flatnonzero(codes != _OK).tolist()
    said = history.said
    same = len(said) == len(rows) and all(
        each.shard == history.shards[row] and each.verdict is ORDER[codes[row]] and each.since == since[row]
        for each, row in zip(said, rows, strict=True)
    )
    if same:
        return history
    times: dict[float, Seconds] = {}
    made = []
    for row in rows:
        at = float(since[row])
        made.append(ShardVerdict(history.shards[row], ORDER[codes[row]], times.setdefault(at, Seconds(at))))
    return replace(history, said=tuple(made))


def _aligned(before: History | None, shards: tuple[ShardId, ...], now: float, wall: float) -> History:
    """The history for these shards: those that went are dropped, of those that came nothing is known."""
    if before is not None and before.shards == shards:
        return before
    fresh = _fresh(len(shards), now, wall)
    if before is None:
        return History(now, shards, fresh)
    index: Mapping[ShardId, int] = {shard: row for row, shard in enumerate(before.shards)}
    kept = [(row, index[shard]) for row, shard in enumerate(shards) if shard in index]
    to, of = [row for row, _ in kept], [row for _, row in kept]
    for name in Columns.__slots__:
        getattr(fresh, name)[to] = getattr(before.columns, name)[of]
    return replace(before, shards=shards, columns=fresh)


def _fresh(count: int, now: float, wall: float) -> Columns:
    unknown, zero = np.full(count, UNKNOWN, dtype=np.int64), np.zeros(count, dtype=np.int64)
    times, flags = np.full(count, now, dtype=np.float64), np.zeros(count, dtype=np.bool_)
    return Columns(
        position=unknown,
        reached=unknown.copy(),
        step=zero,
        mark=zero.copy(),
        low=zero.copy(),
        moved_at=times,
        level_at=np.full(count, -np.inf),
        took=np.zeros(count),
        mark_at=times.copy(),
        since=np.full(count, wall),
        steps=np.zeros(count, dtype=np.uint8),
        lagging=flags,
        seen=flags.copy(),
        verdict=_unknown(count),
    )


def _unknown(count: int) -> Codes:
    return np.full(count, _UNKNOWN, dtype=np.uint8)
