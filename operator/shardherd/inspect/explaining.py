"""Why there are so many consumers, why this assignment, and why a shard stays where it is: the answer of `explain`.

Pure. It judges nothing by itself: a reason is one that the operator wrote into the status, or that `core.planning.diagnosis`
gives for a shard, with what `core.model.reasons` says it means; so the condition, the metric and this answer say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.core.model.event_reasons import REBALANCES
from shardherd.core.model.nouns import ConsumerView, GroupView, ShardState, ShardView
from shardherd.core.model.reasons import DRAINING, REASONS, SCALING, STUCK_SHARDS, ConditionType
from shardherd.core.model.wording import count, verb
from shardherd.core.planning.diagnosis import STOPPED_FOR_ALL, why_not_read
from shardherd.core.planning.listing import condition
from shardherd.core.planning.observed import ConsumerPod
from shardherd.inspect import rebalancing
from shardherd.inspect.answers import Answer, Section, notes
from shardherd.inspect.listing import known_names
from shardherd.inspect.observed import InspectError, Observed

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
}
"""What a condition is when there is nothing to explain."""

STATES: Mapping[ShardState, str] = {
    ShardState.WAIT: "it may not be read yet",
    ShardState.NOT_ALLOC: "nobody holds it",
    ShardState.ALREADY_ALLOC: "one consumer holds it and reads it",
    ShardState.TRANSFER: "its holder is to give it up, and the next one to read it",
    ShardState.OVER: "it is closed and read to its end: nobody reads it any more",
}

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


def explain(observed: Observed, about: str | None = None) -> Answer:
    """The answer about the group, one consumer, or one shard."""
    picture = observed.picture()
    if about is None:
        return _answer(observed, [*_number(observed), *_assignment(observed, picture), *_stuck(observed), *_wrong(observed)])
    if (shard := observed.shard(about)) is not None:
        return _answer(observed, list(_of_shard(observed, picture, shard)))
    drivers = {pod.name: pod for pod in observed.drivers()}
    names = known_names(picture) | set(drivers)
    if about in names:
        view = next((each for each in picture.consumers if each.consumer == about), None)
        return _answer(observed, list(_of_consumer(observed, picture, about, view, drivers)))
    raise InspectError(
        f"{about!r} is neither a consumer nor a shard of group {observed.identity}: consumers are"
        f" {', '.join(sorted(names)) or 'none yet'}; shards are named topic/partition, see `shardherd shards"
        f" {observed.identity.name}`",
        4,
    )


def said_of(reason: str, place: str) -> tuple[str, str]:
    """What a reason means in this place, and its remedy, as text; empty if it means nothing there."""
    found = next((each for each in REASONS if each.value == reason and place in each.places), None)
    return (_plain(found.meaning), _plain(found.remedy)) if found is not None else ("", "")


def _plain(markdown: str) -> str:
    return _LINK.sub(r"\1", markdown).replace("`", "")


def _answer(observed: Observed, found: list[Why]) -> Answer:
    sections: list[Section] = []
    for question in dict.fromkeys(why.question for why in found):
        lines = [line for why in found if why.question == question for line in why.lines()]
        sections.append(Section(title=question, lines=tuple(lines)))
    data = {
        "group": str(observed.identity),
        "live": observed.view is not None,
        "answers": [why.json() for why in found],
        "notRead": list(observed.unseen),
    }
    return Answer(data, (*sections, notes(observed.unseen)))


def _number(observed: Observed) -> Iterable[Why]:
    status, scaling = observed.status, observed.status.get("scaling")
    if scaling is None:
        yield Why("Why this many consumers?", "status", "", "The operator has not decided yet: see `shardherd doctor`.")
        return
    ready, desired = status.get("readyReplicas", 0), status.get("desiredReplicas", 0)
    question = f"Why {count(desired, 'consumer')} ({ready} ready)?"
    yield Why(question, SCALING, scaling["reason"], scaling["message"], *said_of(scaling["reason"], SCALING))
    limited = condition(observed.resource, ConditionType.SCALING_LIMITED)
    if limited.get("status") == "True":
        yield _of_condition(question, limited)


def _assignment(observed: Observed, picture: GroupView) -> Iterable[Why]:
    name = observed.spec.get("assignor", "Sticky")
    question = f"Why this assignment (assignor {name})?"
    balanced = condition(observed.resource, ConditionType.BALANCED)
    if balanced:
        yield _of_condition(question, balanced)
    last = observed.status.get("lastRebalance")
    if last is not None:
        moved = f"moved {count(last['moved'], 'shard')} at {last['time']}"
        yield Why(question, "status.lastRebalance", last["reason"], moved, _plain(REBALANCES.get(last["reason"], "")))
    if picture.shards:
        yield Why(question, "the assignor, asked now", "", rebalancing.in_short(observed))


def _stuck(observed: Observed) -> Iterable[Why]:
    rows, total = observed.status.get("stuckShards", ()), observed.status.get("stuckShardsTotal", 0)
    question = f"Why {verb(total, 'does this shard', 'do these shards')} not move on ({total})?"
    for row in rows:
        yield _of_stuck(question, row)
    if total > len(rows):
        yield Why(question, STUCK_SHARDS, "", f"... and {total - len(rows)} more: `shardherd explain GROUP SHARD` has each.")


def _wrong(observed: Observed) -> Iterable[Why]:
    """The conditions that are not as they are when all is well, the first cause first."""
    for kind, good in GOOD.items():
        found = condition(observed.resource, kind)
        if found and found["status"] != good and kind not in (ConditionType.BALANCED, ConditionType.SCALING_LIMITED):
            yield _of_condition(f"Why is {kind} {found['status']}?", found)


def _of_shard(observed: Observed, picture: GroupView, shard: ShardView) -> Iterable[Why]:
    holder = f", held by {shard.holder} under epoch {shard.owner_epoch}" if shard.holder else ""
    where = f", to go to {shard.next_consumer}" if shard.next_consumer else ""
    position = f"; the next record to read is {shard.checkpoint}" if shard.checkpoint is not None else ""
    lag = f", of {shard.end} there are, {shard.lag_records} to go" if shard.lag_records is not None else ""
    source = "the coordinator" if observed.view is not None else "the stored ownership"
    yield Why(f"Where is {shard.shard}?", source, shard.state.value, f"{STATES[shard.state]}{holder}{where}{position}{lag}")
    question = f"Why does {shard.shard} not move on?"
    stuck = next((row for row in observed.status.get("stuckShards", ()) if row["shard"] == shard.shard), None)
    if stuck is not None:
        yield _of_stuck(question, stuck)
        return
    if not shard.present:
        yield Why(question, source, "", "The source does not have it any more (its topic was deleted, or is out of sight).")
    elif shard.state is ShardState.OVER:
        return
    elif found := why_not_read(picture, shard):
        parents = _parents(observed, shard)
        yield Why(question, source, found[0], f"{found[1]}{parents}", *said_of(found[0], STUCK_SHARDS))
    elif stopped := [cause for cause in picture.withheld if cause.reason in STOPPED_FOR_ALL]:
        origin = source if observed.view is not None else "condition Ready"
        for cause in stopped:
            yield Why(question, origin, cause.reason, cause.message, *said_of(cause.reason, ConditionType.READY))
    elif shard.lag_records == 0:
        yield Why(f"Does {shard.shard} move on?", source, "", "All that there is of it is read.")
    elif shard.state is ShardState.ALREADY_ALLOC:
        hidden = observed.status.get("stuckShardsTotal", 0) > len(observed.status.get("stuckShards", ()))
        more = "; the status names only the first of those that stand still" if hidden else ""
        said = f"It moves on, or has nothing to read: the operator does not count it among those that stand still{more}."
        yield Why(f"Does {shard.shard} move on?", STUCK_SHARDS, "", said)
    if shard.state is ShardState.ALREADY_ALLOC and picture.shards:
        yield Why(f"Why does {shard.holder} hold it?", "the assignor, asked now", "", rebalancing.of_shard(observed, shard))


def _of_consumer(
    observed: Observed, picture: GroupView, name: str, view: ConsumerView | None, drivers: Mapping[Any, ConsumerPod]
) -> Iterable[Why]:
    pod = drivers.get(name)
    held = [shard.shard for shard in picture.shards if shard.holder == name]
    coming = [shard.shard for shard in picture.shards if shard.next_consumer == name]
    going = [shard.shard for shard in picture.shards if shard.holder == name and shard.state is ShardState.TRANSFER]
    question = f"Why does {name} hold {count(len(held), 'shard')}?"
    parts = [f"It holds {', '.join(held[:10]) or 'nothing'}{' and more' if len(held) > 10 else ''}"]
    parts += [f"it is to give up {', '.join(going[:10])}"] if going else []
    parts += [f"it is to get {', '.join(coming[:10])}"] if coming else []
    source = "the coordinator" if observed.view is not None else "the stored ownership"
    yield Why(question, source, "", "; ".join(parts) + ".")
    if pod is not None and pod.cordoned:
        said = "Its label asks that it holds nothing: `shardherd drain GROUP CONSUMER --undo` takes the label off."
        yield Why(question, "pod label shardherd.dev/cordoned", "Cordoned", said)
    if view is not None and view.draining:
        yield Why(question, source, DRAINING, "It gives up all that it holds: it is to go.")
    if picture.shards:
        yield Why(question, "the assignor, asked now", "", rebalancing.of_consumer(observed, name))
    about = f"How is {name}?"
    if pod is None:
        yield Why(about, "pods", "", "No pod of this name is to be seen.")
    elif pod.trouble is not None:
        said_there = said_of(pod.trouble.reason, ConditionType.CONSUMERS_READY)
        yield Why(about, "pod status", pod.trouble.reason, pod.trouble.message, *said_there)
    else:
        yield Why(about, "pod status", "", "It is ready." if pod.ready else "It is starting, or its probe fails: see its log.")
    if view is not None and view.phase is not None:
        yield Why(about, "its heartbeats", "", f"It is {view.phase.value}, for {view.phase_age:.0f} s by now.")
    for row in observed.status.get("stuckShards", ()):
        if row["shard"] in held:
            yield _of_stuck(f"Why does {row['shard']} not move on?", row)


def _parents(observed: Observed, shard: ShardView) -> str:
    """Which shards a waiting one waits for."""
    if shard.state is not ShardState.WAIT or observed.stored is None or shard.shard not in observed.stored.shards:
        return ""
    rows = observed.stored.shards
    before = [name for name in rows[shard.shard].parents if name in rows and rows[name].state is not ShardState.OVER]
    return f": {', '.join(before[:10])}" if before else ""


def _of_condition(question: str, found: Mapping[str, Any]) -> Why:
    source = f"condition {found['type']}, since {found.get('lastTransitionTime', 'unknown')}"
    return Why(question, source, found["reason"], found["message"], *said_of(found["reason"], found["type"]))


def _of_stuck(question: str, row: Mapping[str, Any]) -> Why:
    source = f"{STUCK_SHARDS}, since {row['since']}"
    message = f"{row['shard']}: {row['message']}"
    return Why(question, source, row["reason"], message, *said_of(row["reason"], STUCK_SHARDS))
