"""What the group's assignor would move now: the answer of `rebalance --dry-run`, and sentences of it for `explain`.

Pure. It asks the assignor that the coordinator asks, of what was read. What only the coordinator knows is missing and is said:
how much work each shard is, and from which zone it is served unless the coordinator was asked. Moves nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from shardherd.core import assignors
from shardherd.core.assignors.problem import names_array, topic_numbers, zone_numbers
from shardherd.core.model.naming import consumer_key, shard_key
from shardherd.core.model.nouns import ConsumerId, ConsumerView, GroupView, ShardId, ShardState, ShardView
from shardherd.core.model.wording import count
from shardherd.inspect.answers import Answer, Section, keyed, notes
from shardherd.inspect.observed import InspectError, Observed

COUNTED = (ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
"""The states of the shards that balance counts."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the assignor says: who has each shard, or is about to, who is to have it, and what was not known."""

    now: dict[ShardId, ConsumerId | None]
    then: dict[ShardId, ConsumerId | None]
    consumers: tuple[ConsumerId, ...]
    unknown: tuple[str, ...] = ()

    @property
    def moves(self) -> list[tuple[ShardId, ConsumerId | None, ConsumerId]]:
        """Each shard that would move, from whom and to whom."""
        return [(shard, self.now[shard], taker) for shard, taker in self.then.items() if taker and taker != self.now[shard]]


def target(observed: Observed, known: assignors.Assignors = assignors.ASSIGNORS) -> Target:
    """Ask it. Raises InspectError if the group's assignor is not to be had here."""
    picture, name = observed.picture(), str(observed.spec.get("assignor", "Sticky"))
    if name not in known:
        raise InspectError(
            f'spec.assignor is "{name}", a plug-in that is not installed here: install it beside this program, or see'
            f" `shardherd explain {observed.identity.name}` for what the operator says",
        )
    consumers = sorted((each for each in picture.consumers if _counts(each)), key=lambda each: consumer_key(each.consumer))
    shards = sorted((each for each in picture.shards if _counted(each, observed)), key=lambda each: shard_key(each.shard))
    who = [each.consumer for each in consumers]
    takers = frozenset(who)
    now = {shard.shard: _taker(shard, takers) for shard in shards}
    asked, unknown = _problem(observed, name, shards, consumers, now)
    try:
        answer = assignors.target(name, asked, known)
    except assignors.AssignorFailedError as error:
        raise InspectError(f"{error}; mend the plug-in, or set another spec.assignor") from error
    then = {shard.shard: who[at] if at != assignors.NOBODY else None for shard, at in zip(shards, answer, strict=True)}
    return Target(now, then, tuple(who), unknown)


def rebalance(observed: Observed, known: assignors.Assignors = assignors.ASSIGNORS) -> Answer:
    """`rebalance --dry-run`."""
    found = target(observed, known)
    before, after = Counter(found.now.values()), Counter(found.then.values())
    moves = tuple((shard, giver, taker) for shard, giver, taker in found.moves)
    counts = tuple((name, before[name], after[name]) for name in found.consumers)
    name = observed.spec.get("assignor", "Sticky")
    said = f"The assignor {name} would move {count(len(moves), 'shard')} of {len(found.now)}."
    sections = (
        Section(lines=(said, *_stopped(observed.picture()), *found.unknown)),
        Section(heads=("SHARD", "FROM", "TO"), rows=moves) if moves else Section(),
        Section(heads=("CONSUMER", "SHARDS", "THEN"), rows=counts, none="No consumer may be given shards."),
        notes(observed.unseen),
    )
    data = {
        "group": str(observed.identity),
        "assignor": name,
        "live": observed.view is not None,
        "moves": keyed(("shard", "from", "to"), moves),
        "consumers": keyed(("consumer", "shards", "then"), counts),
        "unknown": list(found.unknown),
        "notRead": list(observed.unseen),
    }
    return Answer(data, sections)


def in_short(observed: Observed) -> str:
    """Of the whole group in one sentence."""
    try:
        found = target(observed)
    except InspectError as error:
        return f"It cannot be asked: {error}."
    if not found.consumers:
        return "Nobody may be given shards: no consumer is ready, undrained and uncordoned."
    if not found.moves:
        return f"It would leave all {count(len(found.now), 'shard')} where they are."
    shard, giver, taker = found.moves[0]
    return f"It would move {count(len(found.moves), 'shard')}, first {shard} from {giver or 'nobody'} to {taker}."


def of_shard(observed: Observed, shard: ShardView) -> str:
    """Of one shard."""
    try:
        found = target(observed)
    except InspectError as error:
        return f"It cannot be asked: {error}."
    taker = found.then.get(shard.shard)
    if taker == shard.holder:
        return f"It leaves it with {shard.holder}."
    return f"It would give it to {taker}." if taker else "It gives it to nobody."


def of_consumer(observed: Observed, name: str) -> str:
    """Of one consumer."""
    try:
        found = target(observed)
    except InspectError as error:
        return f"It cannot be asked: {error}."
    if name not in found.consumers:
        return "It gives nothing to it: it is not ready, drains, is cordoned, or is not known to the group."
    spread = Counter(found.then.values())
    before, after = Counter(found.now.values())[ConsumerId(name)], spread[ConsumerId(name)]
    others = [spread[each] for each in found.consumers if each != name]
    beside = f"; the others have {min(others)} to {max(others)}" if others else ""
    return f"It would have {count(after, 'shard')}; now it has, or is about to have, {before}{beside}."


def _counts(consumer: ConsumerView) -> bool:
    return (consumer.ready or consumer.shards > 0) and not consumer.draining and not consumer.cordoned


def _counted(shard: ShardView, observed: Observed) -> bool:
    """Whether balance counts this shard. That a position is missing only the coordinator can say for sure."""
    if not shard.present or shard.state not in COUNTED:
        return False
    return shard.state is not ShardState.NOT_ALLOC or observed.view is None or shard.checkpoint is not None


def _taker(shard: ShardView, consumers: frozenset[ConsumerId]) -> ConsumerId | None:
    who = shard.next_consumer or shard.holder
    return who if who in consumers else None


def _problem(
    observed: Observed,
    name: str,
    shards: list[ShardView],
    consumers: list[ConsumerView],
    now: dict[ShardId, ConsumerId | None],
) -> tuple[assignors.Problem, tuple[str, ...]]:
    index = {each.consumer: at for at, each in enumerate(consumers)}
    unknown = []
    if name not in assignors.WEIGHTLESS:
        unknown.append("How much work each shard is only the coordinator knows: all count as equal here.")
    options = observed.spec.get("assignorOptions", {})
    zoned = any(each.zone for each in consumers) and options.get("zones", "Prefer") == "Prefer"
    shard_zones = consumer_zones = None
    if zoned and any(shard.zone for shard in shards):
        shard_zones, consumer_zones = zone_numbers([shard.zone for shard in shards], [each.zone for each in consumers])
    elif zoned and observed.view is None:
        unknown.append("From which zone each shard is served only the coordinator tells (--api): no zone counts here.")
    capacities = np.array([each.capacity for each in consumers], dtype=np.float64)
    asked = assignors.Problem(
        names_array([shard.shard for shard in shards]),
        names_array([each.consumer for each in consumers]),
        topic_numbers([shard.shard for shard in shards])[0],
        np.array([assignors.NOBODY if who is None else index[who] for who in now.values()], dtype=np.int64),
        np.array([shard.next_consumer is not None for shard in shards], dtype=np.bool_),
        np.array([each.ready for each in consumers], dtype=np.bool_),
        capacities=capacities if len(set(capacities.tolist())) > 1 else None,
        shard_zones=shard_zones,
        consumer_zones=consumer_zones,
    )
    return asked, tuple(unknown)


def _stopped(picture: GroupView) -> tuple[str, ...]:
    return tuple(f"It is not done now: {cause.message}." for cause in picture.stopped)
