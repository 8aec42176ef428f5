"""Groups, shards, lag, positions as tables: the answers of `status`, `shards`, `lag`, `offsets get`. Pure; judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardherd.core.model.nouns import GroupView, ShardId, ShardState, ShardView
from shardherd.core.model.reasons import ConditionType
from shardherd.core.model.times import rfc3339
from shardherd.core.model.verdicts import Verdict
from shardherd.core.planning.listing import GROUP_HEADS, condition, group_row, identity_of
from shardherd.inspect.answers import Answer, Section, keyed, notes
from shardherd.inspect.observed import InspectError, Observed

EVENTS = 5
"""The last of them are shown with a group."""

MOST = 10
"""Shards that `lag` shows."""

_GROUPS = ("namespace", "name", "ready", "reason", "message", "mode", "consumers", "desired", "shards", "lag", "epoch")
_SHARDS = ("shard", "state", "holder", "next", "epoch", "position", "end", "lag", "verdict", "since", "zone")
_NO_ENDS = (
    "Ends, lags, verdicts and times are the coordinator's to tell: name it by --api. "
    "Positions are copies, up to 10 minutes old."
)


def groups(resources: Sequence[Mapping[str, Any]]) -> Answer:
    """`status` of all groups."""
    heads = (*GROUP_HEADS[:-1], "LAG-S", "MODE", "EPOCH", "REASON", GROUP_HEADS[-1])
    rows = []
    for resource in resources:
        *shown, why = group_row(resource)
        ready, status = condition(resource, ConditionType.READY), resource.get("status", {})
        extra = (
            status.get("lag", {}).get("seconds"),
            resource["spec"].get("scaling", {}).get("mode", "Shards"),
            status.get("groupEpoch"),
            ready.get("reason"),
        )
        rows.append((*shown, *extra, why))
    section = Section(heads=heads, rows=tuple(rows), wide=frozenset({"LAG-S", "MODE", "EPOCH", "REASON"}), none="No groups.")
    return Answer([_group(resource) for resource in resources], (section,))


def group(observed: Observed) -> Answer:
    """`status` of one group: its row, conditions, consumers, and what happened last."""
    listed = groups([observed.resource])
    picture = observed.picture()
    conditions = tuple(
        (each["type"], each["status"], each["reason"], each["lastTransitionTime"], each["message"])
        for each in observed.status.get("conditions", ())
    )
    consumers = tuple(_consumer(observed, picture))
    events = tuple((each.last, each.count, each.reason, each.message) for each in observed.events[-EVENTS:])
    heads = ("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE")
    heads_of_consumers = ("CONSUMER", "READY", "SHARDS", "STATE", "TROUBLE")
    sections = (
        listed.sections[0],
        Section(heads=heads, rows=conditions, none="The operator has said nothing of this group yet: is it running?"),
        Section(heads=heads_of_consumers, rows=consumers, none="No consumers."),
        Section(heads=("LAST SEEN", "COUNT", "EVENT", "MESSAGE"), rows=events, none="No events."),
        notes(observed.unseen),
    )
    data = {
        **_group(observed.resource),
        "conditions": list(observed.status.get("conditions", ())),
        "consumers": keyed(("consumer", "ready", "shards", "state", "trouble"), consumers),
        "stuckShards": list(observed.status.get("stuckShards", ())),
        "events": keyed(("last", "count", "reason", "message"), events),
        "notRead": list(observed.unseen),
    }
    return Answer(data, sections)


def shards(observed: Observed, only: str | None = None) -> Answer:
    """`shards`: every shard, or those of one state or consumer."""
    picture = observed.picture()
    chosen = [shard for shard in picture.shards if only is None or only in (shard.state, shard.holder, shard.next_consumer)]
    states = [state.value for state in ShardState]
    if only is not None and not chosen and only not in {*known_names(picture), *states}:
        raise InspectError(
            f"--only {only!r} is no consumer of {observed.identity} and no state of a shard: the states are"
            f" {', '.join(states)}",
            4,
        )
    verdicts = _verdicts(observed)
    rows = tuple(_shard(observed, shard, verdicts.get(shard.shard)) for shard in chosen)
    section = Section(
        heads=("SHARD", "STATE", "HOLDER", "NEXT", "EPOCH", "POSITION", "END", "LAG", "VERDICT", "SINCE", "ZONE"),
        rows=rows,
        wide=frozenset({"ZONE"}),
        none=_no_shards(observed) if only is None else f"No shard is in state {only}, or held by it.",
    )
    said = Section(lines=() if observed.view is not None or not rows else (_NO_ENDS,))
    data = {
        "group": str(observed.identity),
        "live": observed.view is not None,
        "shards": keyed(_SHARDS, rows),
        "notRead": list(observed.unseen),
    }
    return Answer(data, (section, said, notes(observed.unseen)))


def lag(observed: Observed) -> Answer:
    """`lag`: of the group by its status, of the consumers and shards as far as the coordinator was asked."""
    reported = observed.status.get("lag", {})
    picture = observed.picture()
    rate = {name: reported.get(f"{name}PerSecond") for name in ("produced", "consumed", "consumer")}
    row = (
        str(observed.identity),
        reported.get("records"),
        reported.get("seconds"),
        rate["produced"],
        rate["consumed"],
        rate["consumer"],
        _caught_up(reported.get("records"), rate["produced"], rate["consumed"]),
        picture.verdict.value if observed.view is not None else None,
    )
    heads = ("GROUP", "LAG", "LAG-S", "PRODUCED/S", "CONSUMED/S", "CONSUMER/S", "READ IN", "VERDICT")
    by_consumer: dict[str, list[int]] = {}
    for shard in picture.shards:
        if shard.lag_records is not None and shard.present:
            by_consumer.setdefault(shard.holder or "nobody", []).append(shard.lag_records)
    consumers = tuple((name, len(lags), sum(lags), max(lags)) for name, lags in sorted(by_consumer.items()))
    rows = tuple(_worst(observed, picture))
    counts = Counter(_verdicts(observed).values())
    verdicts = tuple((verdict.value, counts[verdict]) for verdict in Verdict if counts[verdict])
    shard_heads = ("SHARD", "HOLDER", "POSITION", "END", "LAG", "VERDICT", "SINCE")
    sections = (
        Section(heads=heads, rows=(row,)),
        Section(heads=("VERDICT", "SHARDS"), rows=verdicts) if len(verdicts) > 1 else Section(),
        Section(heads=("CONSUMER", "SHARDS", "LAG", "MOST OF A SHARD"), rows=consumers) if consumers else Section(),
        Section(heads=shard_heads, rows=rows) if rows else Section(),
        Section(lines=() if observed.view is not None else (_NO_ENDS,)),
        notes(observed.unseen),
    )
    names = ("group", "records", "seconds", "producedPerSecond", "consumedPerSecond", "consumerPerSecond", "readIn", "verdict")
    data = {
        **dict(zip(names, row, strict=True)),
        "live": observed.view is not None,
        "verdicts": dict(verdicts),
        "consumers": keyed(("consumer", "shards", "lag", "mostOfAShard"), consumers),
        "shards": keyed(("shard", "holder", "position", "end", "lag", "verdict", "since"), rows),
        "notRead": list(observed.unseen),
    }
    return Answer(data, sections)


def positions(observed: Observed) -> Answer:
    """`offsets get`: the next record to read of every shard."""
    picture = observed.picture()
    rows = tuple((shard.shard, shard.checkpoint, shard.begin, shard.end) for shard in picture.shards)
    live = observed.view is not None
    section = Section(heads=("SHARD", "POSITION", "BEGIN", "END"), rows=rows, none=_no_shards(observed))
    data = {
        "group": str(observed.identity),
        "live": live,
        "offsets": {str(row[0]): row[1] for row in rows if row[1] is not None},
        "shards": keyed(("shard", "position", "begin", "end"), rows),
        "notRead": list(observed.unseen),
    }
    return Answer(data, (section, Section(lines=() if live or not rows else (_NO_ENDS,)), notes(observed.unseen)))


def _worst(observed: Observed, picture: GroupView) -> list[tuple[object, ...]]:
    """The shards with something to read: first those of the worst verdict, then those of the largest lag."""
    verdicts, since = _verdicts(observed), {each.shard: each.since for each in picture.verdicts}
    lagging = [shard for shard in picture.shards if shard.lag_records and shard.present]
    order = {verdict: at for at, verdict in enumerate(Verdict)}
    lagging.sort(key=lambda shard: (order[verdicts.get(shard.shard, Verdict.OK)], -(shard.lag_records or 0)))
    rows: list[tuple[object, ...]] = []
    for shard in lagging[:MOST]:
        verdict, at = verdicts.get(shard.shard), since.get(shard.shard)
        said = (None if verdict is None else verdict.value, None if at is None else rfc3339(at))
        rows.append((shard.shard, shard.holder, shard.checkpoint, shard.end, shard.lag_records, *said))
    return rows


def known_names(picture: GroupView) -> set[str]:
    """The consumers that a picture knows, also as holders."""
    named = {name for shard in picture.shards for name in (shard.holder, shard.next_consumer) if name is not None}
    return named | {consumer.consumer for consumer in picture.consumers}


def _group(resource: Mapping[str, Any]) -> dict[str, object]:
    identity, status, ready = identity_of(resource), resource.get("status", {}), condition(resource, ConditionType.READY)
    values = (
        identity.namespace,
        identity.name,
        ready.get("status", "Unknown"),
        ready.get("reason"),
        ready.get("message"),
        resource["spec"].get("scaling", {}).get("mode", "Shards"),
        status.get("readyReplicas", 0),
        status.get("desiredReplicas"),
        status.get("shards"),
        status.get("lag"),
        status.get("groupEpoch"),
    )
    return dict(zip(_GROUPS, values, strict=True))


def _consumer(observed: Observed, picture: GroupView) -> list[tuple[object, ...]]:
    """The pods, and consumers of which there is no pod to be seen."""
    known = {consumer.consumer: consumer for consumer in picture.consumers}
    held = Counter(shard.holder for shard in picture.shards)
    rows: list[tuple[object, ...]] = []
    for pod in observed.drivers():
        view = known.pop(pod.name, None)
        draining = view is not None and view.draining
        state = "ending" if pod.deleting else "cordoned" if pod.cordoned else "draining" if draining else ""
        phase = view.phase.value if view is not None and view.phase is not None else "running" if pod.running else "starting"
        trouble = f"{pod.trouble.reason}: {pod.trouble.message}" if pod.trouble is not None else None
        rows.append((pod.name, pod.ready, held[pod.name], state or phase, trouble))
    rows += [(name, view.ready, view.shards, "no pod seen", None) for name, view in known.items()]
    return rows


def _verdicts(observed: Observed) -> dict[ShardId, Verdict]:
    """How each shard that is still read is read, as the coordinator says; nobody stores it."""
    if observed.view is None:
        return {}
    read = (each.shard for each in observed.view.shards if each.present and each.state is not ShardState.OVER)
    return observed.view.verdicts_of(read)


def _shard(observed: Observed, shard: ShardView, verdict: Verdict | None) -> tuple[object, ...]:
    live = observed.view is not None
    return (
        shard.shard,
        shard.state.value if shard.present else f"{shard.state.value} (gone)",
        shard.holder,
        shard.next_consumer,
        shard.owner_epoch,
        shard.checkpoint,
        shard.end,
        shard.lag_records,
        verdict.value if verdict is not None else None,
        rfc3339(observed.wall - shard.state_age) if live else None,
        shard.zone or None,
    )


def _no_shards(observed: Observed) -> str:
    ready = condition(observed.resource, ConditionType.READY)
    return f"No shards are known yet. Ready: {ready.get('message', 'the operator has said nothing of this group yet')}"


def _caught_up(records: int | None, produced: int | None, consumed: int | None) -> str | None:
    """In how long all is read at the present rates; None where the rates are not known."""
    if records is None or produced is None or consumed is None:
        return None
    if not records:
        return "0s"
    return f"{-(-records // (consumed - produced))}s" if consumed > produced else "never, at these rates"
