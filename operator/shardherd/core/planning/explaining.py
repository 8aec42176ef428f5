"""What the status of a group explains: why so many consumers, why this assignment, which shards stand still, what is not well.

Called by the command line and by the page, so that both say the same as the condition and the metric. Judges nothing by itself:
a reason is one that the operator wrote into the status, with what `core.model.reasons` says it means. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.core.model.event_reasons import REBALANCES
from shardherd.core.model.nouns import ShardState
from shardherd.core.model.reasons import (
    CHECKPOINT_LOST,
    CONSUMER_SILENT,
    CRASH_LOOPING,
    REASONS,
    SCALING,
    SOURCE_RECREATED,
    STATE_LOST,
    STUCK_SHARDS,
    ConditionType,
)
from shardherd.core.model.wording import count, verb
from shardherd.core.planning.listing import condition

GOOD = {
    ConditionType.READY: "True",
    ConditionType.RECONCILING: "False",
    ConditionType.STALLED: "False",
    ConditionType.SOURCE_REACHABLE: "True",
    ConditionType.CONSUMERS_READY: "True",
    ConditionType.BALANCED: "True",
    ConditionType.SCALING_LIMITED: "False",
    ConditionType.CHECKPOINT_LOST: "False",
    ConditionType.ORDER_PRESERVED: "True",
    ConditionType.STATE_LOST: "False",
    ConditionType.CELLS_FIT: "True",
    ConditionType.ROOM: "True",
    ConditionType.CELLS_FAILING: "False",
}
"""What a condition is when there is nothing to explain."""

STATES: Mapping[ShardState, str] = {
    ShardState.WAIT: "it may not be read yet",
    ShardState.NOT_ALLOC: "nobody holds it",
    ShardState.ALREADY_ALLOC: "one consumer holds it and reads it",
    ShardState.TRANSFER: "its holder is to give it up, and the next one to read it",
    ShardState.OVER: "it is closed and read to its end: nobody reads it any more",
}

_LOCALLY = "on one machine with --local"
_RESET = f"shardherd pause GROUP, shardherd offsets reset GROUP --to Earliest --execute, shardherd resume GROUP ({_LOCALLY})"
BY_COMMAND: Mapping[str, str] = {
    CONSUMER_SILENT: "to have it started anew at once: kubectl delete pod CONSUMER, "
    "on one machine shardherd local kill CONSUMER",
    CRASH_LOOPING: "on one machine: shardherd local logs CONSUMER --previous",
    SOURCE_RECREATED: f"to read the new topic from its begin: {_RESET}",
    CHECKPOINT_LOST: f"to read from the first record that there is: {_RESET}",
    STATE_LOST: f"the same, with the option --discard-state of reset: {_RESET}",
}
"""The commands of a remedy, where a user who reads no documentation needs to be told them."""

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


@dataclass(frozen=True, slots=True)
class Why:
    """One question and what answers it: where that stands, the reason, the message, and what the reason means and asks for."""

    question: str
    source: str
    reason: str
    message: str
    means: str = ""
    remedy: str = ""

    def lines(self) -> tuple[str, ...]:
        """As text."""
        found = [f"{self.reason}: {self.message}" if self.reason else self.message]
        found += [f"  means   {self.means}"] if self.means else []
        found += [f"  remedy  {self.remedy}"] if self.remedy else []
        return (*found, f"  from    {self.source}")

    def json(self) -> dict[str, str]:
        """As values."""
        names = ("question", "reason", "message", "means", "remedy", "source")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


def explained(resource: Mapping[str, Any]) -> Iterator[Why]:
    """All of it, in the order in which a user asks."""
    yield from of_number(resource)
    yield from of_assignment(resource)
    yield from of_stuck_shards(resource)
    yield from of_conditions(resource)


def of_number(resource: Mapping[str, Any]) -> Iterator[Why]:
    """Why there are so many consumers."""
    status = _status(resource)
    scaling = status.get("scaling")
    if scaling is None:
        yield Why("Why this many consumers?", "status", "", "The operator has not decided yet: see `shardherd doctor`.")
        return
    ready, desired = status.get("readyReplicas", 0), status.get("desiredReplicas", 0)
    question = f"Why {count(desired, 'consumer')} ({ready} ready)?"
    yield Why(question, SCALING, scaling["reason"], scaling["message"], *said_of(scaling["reason"], SCALING))
    limited = condition(resource, ConditionType.SCALING_LIMITED)
    if limited.get("status") == "True":
        yield of_condition(question, limited)


def of_assignment(resource: Mapping[str, Any]) -> Iterator[Why]:
    """Why the shards are where they are, as far as the status says it."""
    question = asked_of_assignment(resource)
    balanced = condition(resource, ConditionType.BALANCED)
    if balanced:
        yield of_condition(question, balanced)
    last = _status(resource).get("lastRebalance")
    if last is not None:
        moved = f"moved {count(last['moved'], 'shard')} at {last['time']}"
        yield Why(question, "status.lastRebalance", last["reason"], moved, meaning_of_rebalance(last["reason"]))


def asked_of_assignment(resource: Mapping[str, Any]) -> str:
    """The question about the assignment."""
    return f"Why this assignment (assignor {resource.get('spec', {}).get('assignor', 'Sticky')})?"


def of_stuck_shards(resource: Mapping[str, Any]) -> Iterator[Why]:
    """Why shards stand still: the first of them, and how many there are."""
    status = _status(resource)
    rows, total = status.get("stuckShards", ()), status.get("stuckShardsTotal", 0)
    question = f"Why {verb(total, 'does this shard', 'do these shards')} not move on ({total})?"
    for row in rows:
        yield of_stuck(question, row)
    if total > len(rows):
        yield Why(question, STUCK_SHARDS, "", f"... and {total - len(rows)} more: `shardherd explain GROUP SHARD` has each.")


def of_conditions(resource: Mapping[str, Any]) -> Iterator[Why]:
    """The conditions that are not as they are when all is well, the first cause first."""
    for kind, good in GOOD.items():
        found = condition(resource, kind)
        if found and found["status"] != good and kind not in (ConditionType.BALANCED, ConditionType.SCALING_LIMITED):
            yield of_condition(f"Why is {kind} {found['status']}?", found)


def of_condition(question: str, found: Mapping[str, Any]) -> Why:
    """What a condition answers."""
    source = f"condition {found['type']}, since {found.get('lastTransitionTime', 'unknown')}"
    return Why(question, source, found["reason"], found["message"], *said_of(found["reason"], found["type"]))


def of_stuck(question: str, row: Mapping[str, Any]) -> Why:
    """What a row of status.stuckShards answers."""
    source = f"{STUCK_SHARDS}, since {row['since']}"
    message = f"{row['shard']}: {row['message']}"
    return Why(question, source, row["reason"], message, *said_of(row["reason"], STUCK_SHARDS))


def said_of(reason: str, place: str) -> tuple[str, str]:
    """What a reason means in this place, and its remedy, as text; empty if it means nothing there."""
    found = next((each for each in REASONS if each.value == reason and place in each.places), None)
    if found is None:
        return "", ""
    return _plain(found.meaning), "; ".join(each for each in (_plain(found.remedy), BY_COMMAND.get(reason, "")) if each)


def meaning_of_rebalance(reason: str) -> str:
    """What a reason why shards were moved means, as text; empty if it is not known."""
    return _plain(REBALANCES.get(reason, ""))


def _status(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = resource.get("status", {})
    return found


def _plain(markdown: str) -> str:
    return _LINK.sub(r"\1", markdown).replace("`", "")
