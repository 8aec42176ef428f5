"""Which replica each shard is read from: its leader, or the near one that the leader has named (KIP-392).

`brokers` asks before every Fetch and tells what came of it. A leader names a replica to whoever says its rack, if the brokers
have a selector for that. A replica that is behind, refuses or cannot be reached costs one Fetch: then the leader is read.
No I/O: it keeps what brokers have answered, and time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardherd.core.model.nouns import ShardId

NAMED_FOR = 300.0
"""Seconds after which the leader is asked again which replica is near: as long as metadata is valid."""

AWAY_FOR = 30.0
"""Seconds for which the leader is read after a near replica failed: the others learn in this time that it is gone."""

BEHIND_FOR = 5.0
"""Seconds for which the leader is read after a near replica had nothing that it should have."""


@dataclass(frozen=True, slots=True)
class Route:
    """Which shards to ask each broker for, and which brokers must answer by themselves: their requests do not name our rack."""

    shards: Mapping[int, Sequence[ShardId]]
    themselves: frozenset[int]


class Replicas:
    """What is known of the replicas near to `rack`; without one the leaders are read."""

    def __init__(self, rack: str = "") -> None:
        self.rack = rack
        self._near: dict[ShardId, tuple[int, float]] = {}
        self._not_before: dict[ShardId, float] = {}

    def route(self, leaders: Mapping[ShardId, int], has: Callable[[ShardId, int], bool], now: float) -> Route:
        """`leaders` are the shards to read; `has` says whether a broker is there and has a replica of a shard."""
        shards: dict[int, list[ShardId]] = {}
        themselves: set[int] = set()
        for shard, leader in leaders.items():
            node, until = self._near.get(shard, (leader, 0.0))
            if not self.rack or until <= now:
                node = leader
                if self._not_before.get(shard, 0.0) > now:
                    themselves.add(leader)
            elif not has(shard, node):
                node = leader
                themselves.add(leader)
            shards.setdefault(node, []).append(shard)
        return Route(shards, frozenset(themselves))

    def rack_for(self, node: int, route: Route) -> str:
        """What to tell a broker of where we are."""
        return "" if node in route.themselves else self.rack

    def named(self, shard: ShardId, node: int, now: float) -> None:
        """The leader named this replica."""
        self._near[shard] = node, now + NAMED_FOR

    def failed(self, shard: ShardId, now: float, seconds: float = AWAY_FOR) -> None:
        """The near replica is of no use for a while."""
        self._near.pop(shard, None)
        self._not_before[shard] = now + seconds
