"""A declared reset of durable positions: what it would set, whether it may, and how far it is.

Called by `group` and by `checkpoints`. A reset is decided once for its id, all of it or nothing; the decision is stored
before the first position is written, so another coordinator goes on with the same positions. They go the way of forced
checkpoints, which fence whoever holds a shard. What was decided for a shard is never set in another one that was made under
its name since. Never begins one of a group that is not paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from msgspec.structs import replace

from shardherd.core.group import grants
from shardherd.core.group.records import InFlight
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.event_reasons import RESET_DONE, RESET_PLANNED, RESET_REFUSED, RESET_WAITS
from shardherd.core.model.messages import Seconds
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import Offset, Reset, ResetReport, ResetRow, ResetState, ResetTo, ShardId, ShardInfo
from shardherd.core.model.requests import ResetDue
from shardherd.core.model.wording import count, some, verb

SHOWN = 20
"""Rows of a report that are kept once it is made, and that the status has."""

REMEMBERED = 100
"""Ids that are never made again, though somebody declares them once more: the last ones."""

NAMED = 3
"""What is wrong that a refusal names; it tells how many more there are."""


def applying(state: State) -> ResetReport | None:
    """The reset that was decided and is not made yet. Nothing is granted meanwhile."""
    report = state.record.reset
    return report if report is not None and report.state is ResetState.APPLYING else None


def discards(state: State) -> bool:
    """Whether the state of all cells is being discarded: nobody reads, until every position is set."""
    return state.spec.settings.cells > 0 and applying(state) is not None


def sets(state: State, shard: ShardId) -> bool:
    """Whether a reset that was decided is still to set this shard, as far as is known: no other position of it is taken.

    Its position may be durable already, written by a coordinator that ended before it could fence the holder.
    """
    if applying(state) is None:
        return False
    unset = state.clocks.unset
    return unset is None or shard in unset


def due(state: State) -> ResetDue | None:
    """What has to be looked up to go on with a reset; None if there is none to go on with now."""
    begun, declared = applying(state), state.spec.reset
    if begun is not None:
        ready = state.infos and state.clocks.commits and not state.clocks.unlooked
        return ResetDue(begun.id) if ready else None
    if declared is None or declared.id in state.record.reset_ids or _needs_pause(state, declared) or _obstacle(state, declared):
        return None
    if declared.dry_run and state.clocks.planned is not None and state.clocks.planned[0] == declared:
        return None
    return ResetDue(declared.id, declared.timestamp)


def to_ends(state: State) -> tuple[ShardId, ...]:
    """The open shards whose ends a reset to Latest needs that is to be decided, where the source does not show them."""
    declared = state.spec.reset
    if state.spec.source.counts_records or declared is None or declared.to is not ResetTo.LATEST or applying(state) is not None:
        return ()
    return tuple(shard for shard, info in state.infos.items() if info.open) if due(state) is not None else ()


def advance(state: State, request: ResetDue) -> None:
    """Decide the reset that is due, or write once more what could not be written. What is not due any more is left alone."""
    wanted, declared, begun = due(state), state.spec.reset, applying(state)
    if wanted is None or (wanted.id, wanted.timestamp) != (request.id, request.timestamp):
        return
    if begun is None and declared is not None:
        begun = _decide(state, declared, request)
    if begun is not None:
        _write(state, begun)


def declared_changed(state: State, before: Reset | None) -> None:
    """Tell of a reset that waits for its user."""
    declared = state.spec.reset
    if declared is None or declared == before or declared.id in state.record.reset_ids:
        return
    if applying(state) is None and _needs_pause(state, declared):
        state.emit(GroupEvent(RESET_WAITS, f"reset {declared.id}: {PAUSE_FIRST}", warning=True))


def took(state: State, shards: Iterable[ShardId]) -> None:
    """These forced positions are durable, and their holders fenced. With the last of it the reset is made."""
    begun, unset = applying(state), state.clocks.unset
    if begun is None or unset is None:
        return
    taken = unset.intersection(shards)
    _left(state, _without_others(state, begun, taken), unset - taken)


def report(state: State) -> ResetReport | None:
    """How far the declared reset is, or the one that is being made; None if there is none."""
    last, declared, planned = state.record.reset, state.spec.reset, state.clocks.planned
    if applying(state) is not None or declared is None:
        return applying(state)
    if last is not None and last.id == declared.id:
        return last
    if declared.id in state.record.reset_ids:
        message = f"A reset of id {declared.id} was decided before, and is not made again: give it another id."
        return _report(declared, ResetState.DONE, message)
    if declared.dry_run and planned is not None and planned[0] == declared:
        return planned[1]
    if _needs_pause(state, declared):
        return _report(declared, ResetState.PAUSE_FIRST, f"Nothing was changed: {PAUSE_FIRST}.")
    waits = _obstacle(state, declared) or "; ".join(limit.message for limit in state.clocks.limits) or "it begins"
    return _report(declared, ResetState.WAITING, f"Nothing was changed yet: {waits}.")


def shown(whole: ResetReport | None) -> ResetReport | None:
    """The same with its first rows."""
    return None if whole is None else replace(whole, rows=whole.rows[:SHOWN])


PAUSE_FIRST = "the group is not paused; set spec.paused to true, and back to false once it is done"


def _needs_pause(state: State, declared: Reset) -> bool:
    return not declared.dry_run and not state.spec.settings.paused


def _obstacle(state: State, declared: Reset) -> str:
    """What else it has to wait for; empty if nothing."""
    clocks = state.clocks
    if not clocks.source_reachable:
        return f"the source does not answer: {clocks.source_error}"
    if not state.record.discovered or not state.infos:
        return "the source has not been read"
    if clocks.unlooked:
        return f"{some(sorted(clocks.unlooked), NAMED)} cannot be looked at: start the broker"
    if state.record.rebuilding:
        return "who holds which shard is being found out"
    if not declared.dry_run and (clocks.withheld or not clocks.commits):
        return "; ".join(cause.message for cause in clocks.withheld) or "nothing can be committed"
    if not declared.dry_run and state.in_flight:
        # Else what becomes of them would be taken for what the reset sets. A group that is paused soon has none.
        forced = any(flight.forced for flight in state.in_flight.values())
        return "a position is being set by hand" if forced else "checkpoints are being committed"
    return ""


_LOOKED_UP = {ResetTo.LATEST: "ends", ResetTo.TIMESTAMP: "is at that time"}
"""What has to be looked up for it where the source does not show the ends of open shards."""


def _decide(state: State, declared: Reset, request: ResetDue) -> ResetReport | None:
    """Plan it. The report of one that is to be made now, None of any other."""
    names, wrong = _names(state, declared)
    wrong += _against_state(state, declared, names)
    given = dict(declared.offsets) if declared.to is ResetTo.OFFSETS else request.positions
    infos = {name: _reaching(state, state.infos[name]) for name in names}
    if declared.to is ResetTo.LATEST:
        given = {} if state.spec.source.counts_records else given
    if not state.spec.source.counts_records and declared.to in _LOOKED_UP:
        unseen = [name for name, info in infos.items() if info.open and name not in given]
        if unseen and given and not wrong:
            return None  # they have appeared since the others were looked up: all are, once more, at the next look
        wrong += [f"where {name} {_LOOKED_UP[declared.to]} could not be looked up" for name in unseen]
    targets = {name: _target(declared.to, info, given) for name, info in infos.items()}
    wrong += [
        f"spec.reset.offsets sets {name} to {offset}, and it has {infos[name].begin} to {infos[name].end}"
        for name, offset in targets.items()
        if not infos[name].begin <= offset <= infos[name].end
    ]
    if wrong:
        more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        remedy = "Correct it" if declared.dry_run else "Correct it, with another id"
        message = f"Nothing was changed: {'; '.join(wrong[:NAMED])}{more}. {remedy}."
        _conclude(state, declared, _report(declared, ResetState.REFUSED, message, time=request.wall))
        return None
    rows = tuple(ResetRow(name, state.positions.get(name), offset) for name, offset in targets.items())
    if declared.dry_run:
        message = f"A dry run, nothing was changed. {_figures(rows, 'would be', 'would be')}.{_with_state(state, 'would be')}"
        _conclude(state, declared, _report(declared, ResetState.PLANNED, message, rows, request.wall))
        return None
    message = f"{_figures(rows, 'is being', 'are being')}.{_with_state(state, 'is')}"
    begun = _report(declared, ResetState.APPLYING, message, rows, request.wall)
    sources = ((name, state.infos[name].source_id) for name in names if name in state.clocks.recreated)
    state.put_record(reset=begun, reset_sources=tuple(sources), reset_left_out=())
    state.put_clocks(unset=None)
    if state.spec.settings.cells:
        _begin_generation(state)
    return begun


def _with_state(state: State, verb: str) -> str:
    """What else becomes of a group with cells, as one more sentence."""
    return f" The state of all cells {verb} discarded." if state.spec.settings.cells else ""


def _begin_generation(state: State) -> None:
    """The state of all cells is as good as gone from here on, wherever the positions are; none of it is lost any more."""
    record = state.record
    state.put_record(state_generation=record.state_generation + 1, state_revision=state.grow_revision(), state_lost=())
    for shard in state.order:
        # Also of what is away, and not set: it is read on from where it was, if it comes back.
        grants.begin_state(state, shard)
    state.touch_all()  # who holds them must stop


def _against_state(state: State, declared: Reset, names: list[ShardId]) -> list[str]:
    """What is wrong with it where positions belong to the state of cells: it must discard all of it, and say so."""
    if not state.spec.settings.cells:
        return ["spec.reset.discardState is true, and the group has no spec.state: remove it"] if declared.discard_state else []
    wrong = []
    if not declared.discard_state:
        wrong.append(
            "spec.reset.discardState is not true, and in a group with spec.state positions belong to the state of its cells:"
            " set it, if all of that is to begin anew"
        )
    missing = [name for name in state.order if name in state.infos and name not in set(names)]
    if missing:
        wrong.append(f"it does not set {some(missing, NAMED)}, whose state is discarded with all other: set all shards")
    return wrong


def _names(state: State, declared: Reset) -> tuple[list[ShardId], list[str]]:
    """The shards that it is for, and what is wrong with the names."""
    infos = state.infos
    if declared.to is ResetTo.OFFSETS:
        field, asked = "spec.reset.offsets", [name for name, _ in declared.offsets]
    elif declared.shards:
        field, asked = "spec.reset.shards", list(declared.shards)
    else:
        return [name for name in state.order if name in infos], []
    wrong = [f"{field} names {name}, which the group does not have" for name in asked if name not in infos]
    return [name for name in asked if name in infos], wrong


def _reaching(state: State, info: ShardInfo) -> ShardInfo:
    """The shard as far as it may reach: where an open one ends is not known of every source."""
    source = state.spec.source
    return info if source.counts_records or not info.open else info._replace(end=source.last_position)


def _target(to: ResetTo, info: ShardInfo, given: Mapping[ShardId, Offset]) -> Offset:
    """`given` are the offsets that were declared, or were looked up: by time, or where shards end."""
    match to:
        case ResetTo.EARLIEST:
            return info.begin
        case ResetTo.LATEST:
            return given.get(info.shard, info.end)
        case ResetTo.OFFSETS:
            return given[info.shard]
        case _:  # Timestamp
            # As Kafka's own tool does it: where nothing is so young, what comes next.
            return min(max(given.get(info.shard, info.end), info.begin), info.end)


def _write(state: State, begun: ResetReport) -> None:
    """Begin the commit of every position that is not set yet. One whose shard is being checkpointed comes next time."""
    unset = state.clocks.unset
    if unset is None:
        unset = frozenset(row.shard for row in begun.rows)
    unset -= _set_before_they_went(state, [row for row in begun.rows if row.shard in unset and row.shard not in state.infos])
    # A shard that is away cannot be written, and with it nothing else could. It is, if it comes back before the others are.
    begun = _without_others(state, begun, unset - state.in_flight.keys())
    unset = unset.difference(state.record.reset_left_out)
    sources = dict(state.record.reset_sources)
    for row in begun.rows:
        if row.shard in unset and row.shard in state.infos and row.shard not in state.in_flight:
            info = _reaching(state, state.infos[row.shard])
            offset = min(max(row.after, info.begin), info.end)
            source_id = sources.get(row.shard, "")
            state.put_in_flight(row.shard, InFlight(offset, forced=True, source_id=source_id))
    _left(state, begun, unset)


def _without_others(state: State, begun: ResetReport, shards: Set[ShardId]) -> ResetReport:
    """The reset without those of these shards that are others than it was decided for: nobody said where to read on in them."""
    sources, infos = dict(state.record.reset_sources), state.infos
    others = {
        shard
        for shard in shards
        if shard in infos and infos[shard].source_id not in ("", sources.get(shard, state.shards[shard].source_id))
    }
    if not others:
        return begun
    left_out = (*state.record.reset_left_out, *(row.shard for row in begun.rows if row.shard in others))
    rows = tuple(row for row in begun.rows if row.shard not in others)
    begun = replace(_only(begun, rows), message=_summary(rows, left_out, "is being", "are being"))
    state.put_record(reset=begun, reset_left_out=left_out)
    return begun


def _only(begun: ResetReport, rows: tuple[ResetRow, ...]) -> ResetReport:
    """The reset of these of its shards."""
    repeated, skipped = _moved(rows)
    return replace(begun, rows=rows, shards=len(rows), repeated=repeated, skipped=skipped)


def _left(state: State, begun: ResetReport, unset: frozenset[ShardId]) -> None:
    """These are not set yet; when the source has none of them it is done."""
    state.put_clocks(unset=unset)
    if not (unset.isdisjoint(state.infos) and unset.isdisjoint(state.clocks.unlooked)):
        return
    gone = tuple(row.shard for row in begun.rows if row.shard in unset)
    if gone:
        begun = _only(begun, tuple(row for row in begun.rows if row.shard not in unset))
    message = _summary(begun.rows, state.record.reset_left_out, "was", "were", gone) + _with_state(state, "was")
    done = replace(begun, state=ResetState.DONE, message=message, rows=begun.rows[:SHOWN])
    state.put_record(reset=done, last_reset=done, reset_ids=_with_id(state, begun.id), reset_sources=(), reset_left_out=())
    state.put_clocks(unset=None)
    by = f" (declared by field manager {begun.manager})" if begun.manager else ""
    shards = tuple(row.shard for row in done.rows)
    if state.spec.settings.cells:
        state.touch_all()
    state.emit(GroupEvent(RESET_DONE, f"reset {begun.id} to {begun.to}{by}: {done.message}", shards=shards, warning=True))
    grants.want_rebalance(state, RESET_DONE)


def _is_set(state: State, row: ResetRow) -> bool:
    """Whether a shard that the source has no more was set before it went: nothing else moves a position meanwhile."""
    position = state.positions.get(row.shard)
    return position is not None and (position == row.after or position != row.before)


def _set_before_they_went(state: State, gone: Iterable[ResetRow]) -> frozenset[ShardId]:
    """Those that were set. A leader that ended before it knew fenced nobody: they may come back, and are read from there."""
    found = frozenset(row.shard for row in gone if _is_set(state, row))
    for shard in sorted(found):
        grants.begin_state(state, shard)
        grants.believe_forced(state, shard)
        if state.shards[shard].state in grants.HELD:
            grants.fence_holder(state, state.shards[shard])
    return found


def _conclude(state: State, declared: Reset, outcome: ResetReport) -> None:
    """This is all that comes of it."""
    if declared.dry_run:
        state.put_clocks(planned=(declared, outcome))
    else:
        state.put_record(reset=outcome, reset_ids=_with_id(state, declared.id))
    refused = outcome.state is ResetState.REFUSED
    reason = RESET_REFUSED if refused else RESET_PLANNED
    state.emit(GroupEvent(reason, f"reset {declared.id} to {declared.to}: {outcome.message}", warning=refused))


def _with_id(state: State, name: str) -> tuple[str, ...]:
    return (*state.record.reset_ids, name)[-REMEMBERED:]


def _report(
    declared: Reset, state: ResetState, message: str, rows: tuple[ResetRow, ...] = (), time: float = 0.0
) -> ResetReport:
    repeated, skipped = _moved(rows)
    return ResetReport(
        id=declared.id,
        to=declared.to,
        state=state,
        message=message,
        time=Seconds(time),
        shards=len(rows),
        repeated=repeated,
        skipped=skipped,
        rows=rows,
        manager=declared.manager,
    )


def _moved(rows: Iterable[ResetRow]) -> tuple[int, int]:
    """How many records are read again, and how many not at all, as far as positions tell."""
    moves = [row.before - row.after for row in rows if row.before is not None and not is_of_kinesis(row.shard)]
    return sum(max(0, move) for move in moves), sum(max(0, -move) for move in moves)


def _summary(
    rows: tuple[ResetRow, ...], left_out: tuple[ShardId, ...], one: str, many: str, gone: tuple[ShardId, ...] = ()
) -> str:
    """What it comes to, and what it does not set: shards that are others by now, or `gone`."""
    said = [f"{_figures(rows, one, many)}." if rows or not (left_out or gone) else "No position was set."]
    if left_out:
        number = len(left_out)
        left = f"{verb(number, 'was', 'were')} made anew since this was decided, and {verb(number, 'is', 'are')} left alone"
        said.append(f"{some(left_out, NAMED)} {left}: reset {verb(number, 'it', 'them')} under another id.")
    if gone:
        said.append(f"Not set, as the source has no such shard any more: {some(gone, NAMED)}.")
    return " ".join(said)


def _figures(rows: tuple[ResetRow, ...], one: str, many: str) -> str:
    """What it comes to, in a sentence; `one` and `many` are its verb."""
    repeated, skipped = _moved(rows)
    unknown = sum(1 for row in rows if row.before is None)
    lost = f", of {unknown} the position before is not known" if unknown else ""
    first = ", ".join(f"{row.shard} {'?' if row.before is None else row.before} -> {row.after}" for row in rows[:NAMED])
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    positions = (
        f"The {verb(len(rows), 'position', 'positions')} of {count(len(rows), 'shard')} {verb(len(rows), one, many)} set"
    )
    again = f", {count(repeated, 'record')} {verb(repeated, 'is', 'are')} read again and {skipped} not at all"
    counted = "" if any(is_of_kinesis(row.shard) for row in rows) else again
    return f"{positions}{counted}{lost}: {first}{more}"
