"""Why there are so many consumers, why this assignment, and why a shard stays where it is: the answer of `explain`.

Pure. It judges nothing by itself: a reason is one that the operator wrote into the status, or that `core.planning.diagnosis`
gives for a shard, with what `core.model.reasons` says it means; so the condition, the metric and this answer say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardherd.core.model.nouns import ConsumerView, GroupView, ShardState, ShardView
from shardherd.core.model.reasons import CONSUMER_SILENT, DRAINING, STUCK_SHARDS, ConditionType
from shardherd.core.model.wording import count
from shardherd.core.planning.diagnosis import STOPPED_FOR_ALL, why_not_read
from shardherd.core.planning.explaining import (
    STATES,
    Why,
    asked_of_assignment,
    of_assignment,
    of_condition,
    of_conditions,
    of_number,
    of_stuck,
    of_stuck_shards,
    said_of,
)
from shardherd.core.planning.listing import condition
from shardherd.core.planning.observed import ConsumerPod
from shardherd.inspect import rebalancing
from shardherd.inspect.answers import Answer, Section, notes
from shardherd.inspect.listing import known_names
from shardherd.inspect.observed import InspectError, Observed


def explain(observed: Observed, about: str | None = None) -> Answer:
    """The answer about the group, one consumer, or one shard."""
    picture = observed.picture()
    if about is None:
        resource = observed.resource
        now = _asked_now(observed, picture)
        status = (*of_number(resource), *of_assignment(resource), *now, *of_stuck_shards(resource), *of_conditions(resource))
        return _answer(observed, list(status))
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


def _asked_now(observed: Observed, picture: GroupView) -> Iterable[Why]:
    if picture.shards:
        question = asked_of_assignment(observed.resource)
        yield Why(question, "the assignor, asked now", "", rebalancing.in_short(observed))


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
        yield of_stuck(question, stuck)
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
    elif (reachable := condition(observed.resource, ConditionType.SOURCE_REACHABLE)).get("status") == "False":
        # What there is of it nobody knows now; nor may the status count it yet among those that stand still.
        yield of_condition(f"Does {shard.shard} move on?", reachable)
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
    elif not pod.ready and _is_silent(observed, name):
        yield of_condition(about, condition(observed.resource, ConditionType.CONSUMERS_READY))
    else:
        yield Why(about, "pod status", "", "It is ready." if pod.ready else "It is starting, or its probe fails: see its log.")
    if view is not None and view.phase is not None:
        yield Why(about, "its heartbeats", "", f"It is {view.phase.value}, for {view.phase_age:.0f} s by now.")
    for row in observed.status.get("stuckShards", ()):
        if row["shard"] in held:
            yield of_stuck(f"Why does {row['shard']} not move on?", row)


def _is_silent(observed: Observed, name: str) -> bool:
    """Whether the operator names it as one of which it hears nothing more: its pod alone looks as if it were starting."""
    found = condition(observed.resource, ConditionType.CONSUMERS_READY)
    return found.get("reason") == CONSUMER_SILENT and name in found["message"].replace(",", " ").split()


def _parents(observed: Observed, shard: ShardView) -> str:
    """Which shards a waiting one waits for."""
    if shard.state is not ShardState.WAIT or observed.stored is None or shard.shard not in observed.stored.shards:
        return ""
    rows = observed.stored.shards
    before = [name for name in rows[shard.shard].parents if name in rows and rows[name].state is not ShardState.OVER]
    return f": {', '.join(before[:10])}" if before else ""
