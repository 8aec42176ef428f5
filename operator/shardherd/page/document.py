"""The document that the page is drawn from: all groups in a row each, and one group in full. Pure.

Called by `serving` for a browser. What it says of a group is the status of its resource, the coordinator's view and the
history, with the explanations of `core.planning`: nothing is judged here. Of a resource's spec only the assignor and whether
it is paused are told, and nothing of pods: no arguments, environment, addresses or Secrets. `static/fields.js` has the same
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Any

from shardherd.core.model.gauges import NO_WATERMARKS, described
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import ConsumerView, GroupView, ShardState, ShardView
from shardherd.core.model.positions import exact
from shardherd.core.model.reasons import ConditionType
from shardherd.core.model.verdicts import Verdict
from shardherd.core.planning.diagnosis import why_not_read
from shardherd.core.planning.explaining import STATES, explained, meaning_of_rebalance
from shardherd.core.planning.listing import condition, identity_of
from shardherd.page.history import INTERVAL, History

Json = dict[str, Any]

FORMAT = 1
"""Changes when a field changes its meaning: a page of another format says so."""

GROUPS, SHARDS, CONSUMERS = 1000, 4000, 1000
"""So many are told of; how many there are besides is told, too."""

_COUNTS = {
    ShardState.ALREADY_ALLOC: "alreadyAlloc",
    ShardState.TRANSFER: "transfer",
    ShardState.NOT_ALLOC: "notAlloc",
    ShardState.WAIT: "wait",
    ShardState.OVER: "over",
}
"""Where the status counts the shards of each state."""


def document(
    resources: Iterable[Mapping[str, Any]], chosen: Json | None, wanted: tuple[str, str] | None, wall: float, version: str
) -> Json:
    """The whole document. `chosen` is `group` of the one that was asked for by namespace and name, None if it is not there."""
    found = sorted(resources, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))
    return {
        "format": FORMAT,
        "version": version,
        "time": wall,
        "groups": [_row(each) for each in found[:GROUPS]],
        "groupsOmitted": max(0, len(found) - GROUPS),
        "wanted": None if wanted is None else "/".join(wanted),
        "group": chosen,
    }


def group(resource: Mapping[str, Any], view: GroupView | None, history: History) -> Json:
    """One group in full. Without a view, which the coordinator has not made yet, only what the status says."""
    identity = identity_of(resource)
    rebalances, forgotten = history.rebalances(identity)
    present = [] if view is None else [shard for shard in view.shards if shard.present]
    shown = _foremost(present)
    verdicts = {} if view is None else view.verdicts_of(shard.shard for shard in shown)
    consumers = () if view is None else view.consumers
    spec, lag = resource.get("spec", {}), resource.get("status", {}).get("lag", {})
    row = _row(resource)
    if view is not None and view.discovered:
        # The status is written at intervals.
        row |= {"lagRecords": view.lag_records if view.counts_records else None, "lagSeconds": view.lag_seconds}
    return {
        **row,
        "loaded": view is not None,
        "paused": bool(spec.get("paused", False)),
        "assignor": str(spec.get("assignor", "Sticky")),
        "epoch": 0 if view is None else view.group_epoch,
        "produced": lag.get("producedPerSecond"),
        "consumed": lag.get("consumedPerSecond"),
        "conditions": [_condition(each) for each in resource.get("status", {}).get("conditions", ())],
        "withheld": [] if view is None else [{"reason": each.reason, "message": each.message} for each in view.withheld],
        "diagnosis": [
            {
                "question": why.question,
                "reason": why.reason,
                "message": why.message,
                "means": why.means,
                "remedy": why.remedy,
                "source": why.source,
            }
            for why in explained(resource)
        ],
        "states": [
            {"state": state.value, "means": STATES[state], "shards": _count(resource, view, state)} for state in _COUNTS
        ],
        "consumers": [_consumer(each) for each in consumers[:CONSUMERS]],
        "consumersOmitted": max(0, len(consumers) - CONSUMERS),
        "shards": [] if view is None else [_shard(view, each, verdicts[each.shard]) for each in shown],
        "shardsOmitted": len(present) - len(shown),
        "lag": {"interval": INTERVAL, "points": [list(point) for point in history.lag(identity)]},
        "rebalances": [
            {"time": each.time, "reason": each.reason, "moved": each.moved, "means": meaning_of_rebalance(each.reason)}
            for each in rebalances
        ],
        "rebalancesForgotten": forgotten,
        "since": history.since,
    }


def _row(resource: Mapping[str, Any]) -> Json:
    """A group in the list: what `kubectl get` and `shardherd status` say of it."""
    status, ready = resource.get("status", {}), condition(resource, ConditionType.READY)
    counts, lag = status.get("shards", {}), status.get("lag", {})
    return {
        "namespace": resource["metadata"]["namespace"],
        "name": resource["metadata"]["name"],
        "ready": ready.get("status", "Unknown"),
        "reason": ready.get("reason", ""),
        "message": ready.get("message", "nothing was looked at yet"),
        "shardsTotal": counts.get("total"),
        "shardsRead": counts.get("alreadyAlloc"),
        "consumersReady": status.get("readyReplicas", 0),
        "consumersWanted": status.get("desiredReplicas"),
        "lagRecords": lag.get("records"),
        "lagSeconds": lag.get("seconds"),
    }


def _condition(found: Mapping[str, Any]) -> Json:
    return {name: found.get(name, "") for name in ("type", "status", "reason", "message")} | {
        "since": found.get("lastTransitionTime", "")
    }


def _count(resource: Mapping[str, Any], view: GroupView | None, state: ShardState) -> int | None:
    if view is not None:
        return view.shards_in(state)
    counted: int | None = resource.get("status", {}).get("shards", {}).get(_COUNTS[state])
    return counted


def _consumer(view: ConsumerView) -> Json:
    return {
        "name": view.consumer,
        "ready": view.ready,
        "draining": view.draining,
        "cordoned": view.cordoned,
        "phase": None if view.phase is None else view.phase.value,
        "phaseSeconds": round(view.phase_age),
        "heartbeatSeconds": round(view.heartbeat_age),
        "shards": view.shards,
        "zone": view.zone,
        "stage": view.stage.value,
        "fullest": _fullest(view),
    }


def _fullest(view: ConsumerView) -> str | None:
    """That of the consumer's gauges which is used most, and how much of it is; None if it reports none."""
    if not view.gauges:
        return None
    return described(NO_WATERMARKS, max(view.gauges, key=lambda each: each.used / each.total))


def _foremost(shards: list[ShardView]) -> list[ShardView]:
    """All of them in their order; of too many those that are not simply read, and then those with the largest lag."""
    if len(shards) > SHARDS:
        shards = nlargest(SHARDS, shards, lambda each: (each.state is not ShardState.ALREADY_ALLOC, each.lag_records or 0))
    return sorted(shards, key=lambda each: shard_key(each.shard))


def _shard(view: GroupView, shard: ShardView, verdict: Verdict) -> list[object]:
    """A shard in the order of `fields.js`: without names, as there are thousands."""
    why = why_not_read(view, shard)
    return [
        shard.shard,
        shard.state.value,
        shard.holder,
        shard.next_consumer,
        shard.owner_epoch,
        exact(shard.checkpoint),
        exact(shard.end),
        shard.lag_records,
        verdict.value,
        round(shard.state_age),
        None if why is None else f"{why[0]}: {why[1]}",
    ]
