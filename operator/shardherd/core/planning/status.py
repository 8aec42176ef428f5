"""The status of a group's custom resource, from one observation.

Called by `plan`. Small on purpose: rows of single shards are in the coordinator's API and in the metrics. `write_due` tells
when it is worth a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardherd.core.model.nouns import GroupView, ResetReport, ShardState
from shardherd.core.model.positions import to_json
from shardherd.core.model.reasons import ConditionType
from shardherd.core.model.times import rfc3339
from shardherd.core.planning.conditions import Finding, dated, ready_consumers
from shardherd.core.planning.conditions import unreadable as conditions_of_unreadable
from shardherd.core.planning.course import Course
from shardherd.core.planning.diagnosis import stuck_shards
from shardherd.core.planning.observed import Observation
from shardherd.core.planning.rollout import Rolling
from shardherd.core.planning.sizing import Decision
from shardherd.core.planning.traffic import Traffic

SELECTOR_LABEL = "shardherd.dev/consumergroup"
ROLE_LABEL = "shardherd.dev/role"

STATUS_INTERVAL = 1.0
"""Seconds between two writes of one group's status."""

LAG_INTERVAL = 5.0
"""The same if only the lag differs, as it always does while records are produced."""

STATUS_SHARE = 0.005
"""The same for each group that there is. An API server spends 10 ms of a core on one, and a thousand may be due at once."""

LOADING, SOON = 30.0, 15.0
"""Seconds for which a restarted operator leaves a status as it was until its coordinator has looked at the source, and for how
long a new group has none: there is little to say before."""


def status(observation: Observation, course: Course, found: Iterable[Finding]) -> dict[str, object]:
    """The whole status, as JSON has it. `found` are its conditions, without their times."""
    declared, scale = observation.declared, course.scale
    before = observation.previous.get("conditions")
    conditions = dated(
        found,
        before if isinstance(before, list) else [],
        declared.generation,
        observation.wall,
    )
    result: dict[str, object] = {
        "observedGeneration": declared.generation,
        "replicas": len(observation.consumers),
        "readyReplicas": ready_consumers(observation),
        "desiredReplicas": scale.desired,
        "selector": f"{SELECTOR_LABEL}={declared.identity.name},{ROLE_LABEL}=driver",
        "scaling": _of_decision(scale.decision, observation.previous.get("scaling"), observation.wall),
        "rollout": _of_rollout(course.rolling),
        "conditions": conditions,
    }
    if scale.decision.recommended is not None:
        result["recommendedReplicas"] = scale.decision.recommended
    if observation.view is not None:
        result |= _of_view(observation.view, scale.decision.sizing.traffic)
    stuck, count = stuck_shards(observation, scale.decision.sizing.traffic)
    if stuck:
        result |= {"stuckShards": stuck, "stuckShardsTotal": count}
    # What only the coordinator knows stays as it was while the coordinator has not loaded the group.
    for name in ("groupEpoch", "shards", "lag", "lastRebalance", "lastReset"):
        if name not in result and name in observation.previous:
            result[name] = observation.previous[name]
    if observation.view is None and declared.reset is not None and "reset" in observation.previous:
        result["reset"] = observation.previous["reset"]
    return result


def unreadable(previous: Mapping[str, object], generation: int, message: str, wall: float) -> dict[str, object]:
    """The status of a group whose resource cannot be read: as it was, but for the conditions that say so."""
    before = previous.get("conditions")
    conditions = before if isinstance(before, list) else []
    said = dated(conditions_of_unreadable(message), conditions, generation, wall)
    kept = [each for each in conditions if each.get("type") not in {condition["type"] for condition in said}]
    return {**previous, "observedGeneration": generation, "conditions": [*said, *kept]}


def _of_decision(decision: Decision, before: object, wall: float) -> dict[str, object]:
    """Why there are so many consumers, since when, and what a restarted operator has to know of it."""
    known: Mapping[str, object] = before if isinstance(before, Mapping) else {}
    same = (known.get("desired"), known.get("reason")) == (decision.desired, decision.reason)
    result: dict[str, object] = {
        "desired": decision.desired,
        "reason": decision.reason,
        "message": decision.message[:1024],
        "time": known["time"] if same and "time" in known else rfc3339(wall),
    }
    sizing = decision.sizing
    if sizing.trial is not None:
        result["trial"] = {"replicas": sizing.trial.replicas, "perSecond": round(sizing.trial.per_second)}
    if sizing.ceiling is not None and wall < sizing.ceiling.until:
        result["ceiling"] = {"replicas": sizing.ceiling.replicas, "until": rfc3339(sizing.ceiling.until)}
    return result


def _of_rollout(roll: Rolling) -> dict[str, object]:
    """How far a rollout is, and what a restarted operator has to know of it."""
    result: dict[str, object] = {
        "state": roll.state,
        "updated": roll.updated,
        "total": roll.total,
        "target": roll.target,
    }
    if roll.progressed is not None:
        result["progressTime"] = rfc3339(roll.progressed)
    if roll.proven:
        result["proven"] = roll.proven
    if roll.why:
        result["message"] = roll.why[:1024]
    return result


def _of_traffic(traffic: Traffic) -> dict[str, object]:
    """The rates, as far as they are known."""
    result: dict[str, object] = {}
    if traffic.measured:
        result |= {"producedPerSecond": round(traffic.produced), "consumedPerSecond": round(traffic.consumed)}
    if (consumer_rate := traffic.consumer_rate.per_second) is not None:
        result["consumerPerSecond"] = round(consumer_rate)
    return result


def _coarse(seconds: int) -> int:
    """Two digits of a duration: what stands still must not have its status written for ever."""
    unit = int("1".ljust(len(str(seconds)) - 1, "0"))
    return round(seconds / unit) * unit


def _of_view(view: GroupView, traffic: Traffic | None) -> dict[str, object]:
    result: dict[str, object] = {"groupEpoch": view.group_epoch}
    if view.discovered:
        result["shards"] = {
            "total": view.shards_in(*ShardState),
            "wait": view.shards_in(ShardState.WAIT),
            "notAlloc": view.shards_in(ShardState.NOT_ALLOC),
            "alreadyAlloc": view.shards_in(ShardState.ALREADY_ALLOC),
            "transfer": view.shards_in(ShardState.TRANSFER),
            "over": view.shards_in(ShardState.OVER),
        }
        lag: dict[str, object] = {"records": view.lag_records} if view.counts_records else {}
        if view.lag_seconds is not None:
            lag["seconds"] = _coarse(view.lag_seconds)
        result["lag"] = lag | _of_traffic(traffic) if traffic is not None and view.counts_records else lag
    if view.reset is not None:
        result["reset"] = {**_of_reset(view.reset), "state": view.reset.state.value, "message": view.reset.message}
    if view.last_reset is not None:
        result["lastReset"] = _of_reset(view.last_reset)
    if view.last_rebalance is not None:
        last = view.last_rebalance
        result["lastRebalance"] = {"time": rfc3339(last.time), "reason": last.reason, "moved": last.moved}
    return result


def _of_reset(report: ResetReport) -> dict[str, object]:
    result: dict[str, object] = {"id": report.id, "to": report.to.value}
    if report.time:
        result |= {
            "time": rfc3339(report.time),
            "shards": report.shards,
            "recordsRepeated": report.repeated,
            "recordsSkipped": report.skipped,
            "rows": [
                {"shard": row.shard, "after": to_json(row.after)}
                | ({} if row.before is None else {"before": to_json(row.before)})
                for row in report.rows
            ],
        }
    if report.manager:
        result["fieldManager"] = report.manager
    return result


def write_due(
    before: Mapping[str, object], after: Mapping[str, object], *, loaded: bool, known: float, written: float, groups: int
) -> bool:
    """Whether this status should be written now.

    `loaded`: the coordinator has looked at the source. `known`: seconds since this process first read the group. `written`:
    seconds since its last write. `groups`: how many there are beside it, with it.
    """
    if before == after:
        return False
    if not loaded and "conditions" in before and known < LOADING:
        # The operator was restarted: what was written last is likelier true than that nothing is known.
        return False
    if not loaded and known < SOON and not _stalled(after):
        return False
    interval = STATUS_INTERVAL if _without_lag(before) != _without_lag(after) else LAG_INTERVAL
    return written >= max(interval, STATUS_SHARE * groups)


def _stalled(value: Mapping[str, object]) -> bool:
    """Whether waiting does not help: that is written at once."""
    conditions = value.get("conditions")
    return isinstance(conditions, list) and any(
        condition["type"] == ConditionType.STALLED and condition["status"] == "True" for condition in conditions
    )


def _without_lag(value: Mapping[str, object]) -> dict[str, object]:
    return {name: part for name, part in value.items() if name != "lag"}
