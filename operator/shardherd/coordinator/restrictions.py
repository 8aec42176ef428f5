"""What keeps a group from being granted shards, from committing, or from something new: what the runtime knows of it.

Called by a group's runner, which passes it to the core as conditions. Each has a reason of `core.model.reasons` and a sentence
with the remedy. Finds nothing out by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardherd.core.model.event_reasons import SOURCE_REACHABLE
from shardherd.core.model.nouns import Condition, KafkaSource, KinesisSource, ShardId, Source
from shardherd.core.model.reasons import (
    GROUP_HAS_LIVE_MEMBERS,
    GROUP_ID_IN_USE,
    SHARDS_UNAVAILABLE,
    SNAPSHOT_TOO_LARGE,
    SOURCE_UNAVAILABLE,
    TOPIC_MISSING,
)
from shardherd.core.model.requests import ConditionsChanged
from shardherd.core.model.wording import some, verb
from shardherd.ports import Discovered, SourceUnavailableError


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Those of one group. `prepared` is True once its offsets were taken over; an empty text restricts nothing."""

    source: Source
    prepared: bool = False
    source_error: str = ""
    commit_error: str = ""
    members: tuple[str, ...] = ()
    id_in_use: bool = False
    too_large: str = ""
    missing: str = ""
    unlooked: tuple[ShardId, ...] = ()
    not_admitted: Condition | None = None

    @property
    def error(self) -> str:
        """Why the source cannot be read or committed to; empty if it can."""
        return self.source_error or self.commit_error

    @property
    def commits(self) -> bool:
        """Whether positions may be committed."""
        return self.prepared and not self.members and not self.id_in_use and self.not_admitted is None

    def looked(self, found: Discovered) -> Restrictions:
        """Those after a look at the source that succeeded. Every group is looked at every second: mostly they are these."""
        if not self.source_error and (self.missing, self.unlooked) == (found.missing, found.unlooked):
            return self
        return replace(self, source_error="", missing=found.missing, unlooked=found.unlooked)

    def withheld(self) -> tuple[Condition, ...]:
        """The conditions that withhold grants."""
        conditions = []
        if self.members and isinstance(self.source, KafkaSource):
            named = ", ".join(self.members[:5]) + (" and more" if len(self.members) > 5 else "")
            conditions.append(
                Condition(
                    GROUP_HAS_LIVE_MEMBERS,
                    f"the Kafka group {self.source.group_id!r} has live members ({named}); stop them, or give the ConsumerGroup"
                    " a spec.source.kafka.groupId of its own",
                )
            )
        if self.id_in_use and isinstance(self.source, KinesisSource):
            conditions.append(
                Condition(
                    GROUP_ID_IN_USE,
                    "somebody keeps taking over, or deleting, the ConfigMap with the group's positions; find out who, by its"
                    " managedFields and the API server's audit log",
                )
            )
        elif self.id_in_use and isinstance(self.source, KafkaSource):
            conditions.append(
                Condition(
                    GROUP_ID_IN_USE,
                    f"another producer keeps taking over the transactional id 'shardherd.{self.source.group_id}'; find it, or"
                    " give the ConsumerGroup a spec.source.kafka.groupId of its own",
                )
            )
        if self.not_admitted is not None:
            conditions.append(self.not_admitted)
        return tuple(conditions)

    def limits(self) -> tuple[Condition, ...]:
        """The conditions that tell of what is not served, and withhold nothing of the rest."""
        conditions = []
        if self.too_large:
            conditions.append(Condition(SNAPSHOT_TOO_LARGE, self.too_large))
        if self.missing:
            conditions.append(Condition(TOPIC_MISSING, f"{self.missing}; what there is of the others is read"))
        if self.unlooked:
            has = verb(len(self.unlooked), "has", "have")
            conditions.append(
                Condition(
                    SHARDS_UNAVAILABLE,
                    f"{some(self.unlooked, 5)} {has} no leader, so nobody knows how far there is something to read; start the"
                    " broker; the other shards are served",
                )
            )
        return tuple(conditions)

    def events(self, before: Restrictions) -> Iterator[tuple[str, str, bool]]:
        """What changed since `before`, for users: reason, message, and whether it is a warning."""
        if self.error != before.error:
            if self.error:
                yield SOURCE_UNAVAILABLE, self.error, True
            else:
                yield SOURCE_REACHABLE, "the source can be read and committed to", False
        known = {condition.reason for condition in (*before.withheld(), *before.limits())}
        for condition in (*self.withheld(), *self.limits()):
            if condition.reason not in known:
                yield condition.reason, condition.message, True

    def request(self) -> ConditionsChanged:
        """The request that passes them to the core."""
        return ConditionsChanged(
            withheld=self.withheld(),
            limits=self.limits(),
            commits=self.commits,
            source_reachable=not self.error,
            source_error=self.error,
        )


def check_whole(looked: Discovered) -> None:
    """Raises SourceUnavailableError if anything lacks in a look that says where a group begins: nobody could say it later."""
    if looked.missing or looked.unlooked:
        lacking = looked.missing or f"{some(looked.unlooked, 5)} cannot be looked at: start the broker"
        raise SourceUnavailableError(f"{lacking}; startingPosition Latest begins at the ends of all shards at once")
