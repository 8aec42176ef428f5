"""A group that reads a topic up to a time, on a real node: shards end, new ones wait, and a reset has them read once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from dev.demo.lab import Lab
from shardherd.core.model.nouns import ShardState
from tests.e2e.groups import FAULTS as NAMESPACE
from tests.e2e.groups import RESOURCE, Deployed, group
from tests.e2e.plain import CLAIM, reads_in
from tests.e2e.test_worker import application, place
from tests.harness.backfill import ENDS_AT, grow, write

__all__ = ["place"]

pytestmark = pytest.mark.timeout(400)

NAME = "backfill"
BEFORE, AFTER = 40, 20
"""Records of each partition of before the time, and of those that follow."""

WITHIN = 120.0
"""Seconds for anything that is waited for: pods start, and others may have the machine."""


class Backfill(Deployed):
    """The group, with what its consumers have noted."""

    def waits(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until this holds."""
        self.until(what, holds, WITHIN, every=0.3)

    def states(self) -> Counter[ShardState]:
        """How many shards are in each state, as it is stored."""
        return Counter(record.state for record in self.ownership().shards.values())

    def records(self) -> Counter[tuple[str, int]]:
        """How often each record was processed."""
        return Counter(
            (each.shard, offset)
            for each in reads_in(self.lab.shared / NAMESPACE / CLAIM / self.name)
            for offset in range(each.begin, each.end)
        )


@pytest.fixture
def backfill(place: Lab) -> Iterator[Backfill]:
    """Two partitions with a consumer each, while there is something to read."""
    place.create_topic(NAME, 2)
    for partition in range(2):
        write(place.kafka_bootstrap, NAME, partition, BEFORE, AFTER)
    kafka = {
        "bootstrapServers": "kafka:9092",
        "topics": [NAME],
        "endingTimestamp": datetime.fromtimestamp(ENDS_AT, UTC).isoformat(),
        "growth": {"settle": "15s"},
    }
    scaling = {"mode": "Shards", "minReplicas": 0, "maxReplicas": 2, "shardsPerConsumer": 1, "stabilizationWindow": "5s"}
    place.kube.apply(
        group(
            NAME,
            NAMESPACE,
            source__kafka=kafka,
            ordered=True,
            heartbeatInterval="1s",
            sessionTimeout="15s",
            scaling=scaling,
            replicas=None,
            application=application(),
        )
    )
    yield Backfill(place, NAMESPACE, NAME)
    place.kube.run("delete", RESOURCE, NAME, "-n", NAMESPACE, "--wait=false")


def test_a_topic_is_read_up_to_a_time_and_once_more_after_a_reset(backfill: Backfill) -> None:
    """Transitions 8, 2 and 7."""
    whole = {(f"{NAME}/{partition}", offset) for partition in range(2) for offset in range(BEFORE)}
    backfill.await_ready(WITHIN)
    backfill.waits("is read up to the time", lambda: backfill.states() == {ShardState.OVER: 2})
    assert backfill.records() == Counter(whole)
    backfill.waits("has no consumer any more", lambda: backfill.pods("consumer") == [])
    assert backfill.condition("Ready")[2] == "All shards are closed, and read to their ends."

    grow(backfill.lab.kafka_bootstrap, NAME, 4, backfill.waits)
    backfill.waits("has new shards that wait", lambda: backfill.states() == {ShardState.OVER: 2, ShardState.WAIT: 2})
    backfill.waits("has ended them, too", lambda: backfill.states() == {ShardState.OVER: 4})

    backfill.change({"paused": True, "reset": {"id": "again", "to": "Earliest"}})
    backfill.waits("has its first shards back", lambda: backfill.states()[ShardState.OVER] == 2)
    assert backfill.records() == Counter(whole)
    backfill.change({"paused": False})
    backfill.waits("is read once more", lambda: backfill.states() == {ShardState.OVER: 4})
    assert backfill.records() == Counter(dict.fromkeys(whole, 2))
