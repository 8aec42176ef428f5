"""How full the consumers of a group are, in words for users: what `ConsumersHaveRoom` says, and who is paused.

Called by `conditions`, `diagnosis` and `verdicts`. Goes by the stages that the coordinator found; decides nothing. Messages
name the limit and not how full something is, as they must not change by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardherd.core.model import reasons
from shardherd.core.model.gauges import Stage, Watermarks, beyond, reached
from shardherd.core.model.nouns import ConsumerId, ConsumerView, GroupView, ShardState
from shardherd.core.model.wording import count, some, verb

NAMED = 3
"""Consumers that a message names; it tells that there are others."""

_SAYS = {
    Stage.LOW: (reasons.ABOVE_LOW, "above low", "keeps what it holds, and others are given shards before it"),
    Stage.HIGH: (reasons.ABOVE_HIGH, "above high", "is given no shards, and gives some away"),
    Stage.FLOOD: (reasons.ABOVE_FLOOD, "above flood", "is paused, and gives its shards away"),
}


def room(view: GroupView, marks: Watermarks) -> tuple[bool, str, str]:
    """Whether every consumer is below low, the reason, and the sentence for it."""
    full = [each for each in view.consumers if each.stage is not Stage.BELOW]
    if not full:
        return True, reasons.ROOM_LEFT, f"{count(len(view.consumers), 'consumer')} below low."
    worst = max((each.stage for each in full), key=lambda stage: stage.rank)
    reason, _, _ = _SAYS[worst]
    said = [_said(stage, [each for each in full if each.stage is stage], marks) for stage in reversed(Stage) if stage in _SAYS]
    message = " ".join(each for each in said if each)
    if _ready(view) and not takers(view):
        return False, reasons.NO_ROOM, f"Nobody is below low, so nothing is given away. {_waiting(view)}{message}"
    return False, reason, message


def nobody_takes(view: GroupView) -> bool:
    """Whether a shard that nobody holds waits because whoever could be given it is above high."""
    could = _ready(view)
    return bool(could) and all(each.stage in (Stage.HIGH, Stage.FLOOD) for each in could)


def paused(view: GroupView) -> frozenset[ConsumerId]:
    """The consumers that read nothing because they are above flood."""
    return frozenset(each.consumer for each in view.consumers if each.stage is Stage.FLOOD)


def keeps_from_reading(view: GroupView, marks: Watermarks) -> tuple[str, str] | None:
    """The reason and the sentence why shards are not read: their holders are paused, or nobody has room for them."""
    if holders := [each for each in view.consumers if each.stage is Stage.FLOOD and each.shards]:
        return reasons.ABOVE_FLOOD, _said(Stage.FLOOD, holders, marks)
    return (reasons.NO_ROOM, room(view, marks)[2]) if _waiting(view) else None


def takers(view: GroupView) -> list[ConsumerView]:
    """The consumers that are to have as many shards as the others: who is too full is given less on purpose."""
    return [each for each in _ready(view) if each.stage is Stage.BELOW]


def _ready(view: GroupView) -> list[ConsumerView]:
    return [each for each in view.consumers if each.ready and not each.draining and not each.cordoned]


def _waiting(view: GroupView) -> str:
    free = sum(1 for shard in view.shards if shard.state is ShardState.NOT_ALLOC and shard.present)
    return f"{count(free, 'shard')} {verb(free, 'waits', 'wait')} for that. " if free and nobody_takes(view) else ""


def _said(stage: Stage, consumers: Iterable[ConsumerView], marks: Watermarks) -> str:
    names = [f"{each.consumer}{_why(each, marks)}" for each in consumers]
    if not names:
        return ""
    _, where, follows = _SAYS[stage]
    return f"{some(names, NAMED)} {verb(len(names), 'is', 'are')} {where}: {verb(len(names), 'it', 'each')} {follows}."


def _why(consumer: ConsumerView, marks: Watermarks) -> str:
    _, gauge = reached(marks, consumer.gauges)
    return f" ({beyond(marks, gauge)})" if gauge is not None else ""
