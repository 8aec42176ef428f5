"""A group of Spark applications on the real node with its producer and its sink. Holds no assertion but what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dev.demo.lab import Lab
from dev.demo.place import CLAIM
from dev.demo.sink import Sink, count
from dev.demo.traffic import Traffic
from tests.e2e.groups import Deployed


@dataclass(frozen=True)
class Running(Deployed):
    """One running group with its producer and its sink."""

    traffic: Traffic
    sink: Sink

    def finish(self) -> Mapping[str, int]:
        """Stop the producer and wait until all that it wrote is in the sink; what it wrote, by shard."""
        produced = self.traffic.stop()
        self.until("has read everything", lambda: count(self.sink.rows(), produced).missing == 0, 90)
        return produced


def start(
    lab: Lab, namespace: str, name: str, partitions: int, backlog: int, rate: int, apply: Callable[[], object]
) -> Running:
    """A topic, a producer and the group of this name that `apply` makes. Its rows go to the folder of its name."""
    lab.create_topic(name, partitions)
    traffic = Traffic(lab, name)
    traffic.start(backlog=backlog, rate=rate)
    apply()
    return Running(lab, namespace, name, traffic, Sink(lab.shared / namespace / CLAIM / name / "rows"))
