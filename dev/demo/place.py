"""What the demo's story needs of the place where it happens: one on a real cluster, one on this machine without Kubernetes.

`story` tells the story and knows nothing else of its place; `on_cluster` and `on_machine` are the two. A place does what it is
told, says which command that is, and shows what is to be seen there; what must then hold is the story's affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.demo.figures import Sample
from dev.demo.report import DemoError, Reporter

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE = "demo"
GROUP = "clickstream"
TOPIC = "clickstream"
CLAIM = "clickstream-data"
MANIFEST = REPOSITORY / "spark_apps" / "clickstream" / "consumergroup.yaml"

Run = tuple[str, int]
"""One run of a consumer: what names its container, and how often that was started again."""


@dataclass(frozen=True)
class Position:
    """Where a Kafka group stands in one shard: the committed offset, the end, and the lag; -1 where Kafka knows none."""

    committed: int
    end: int
    lag: int


class Place(ABC):
    """Where a story happens. Call `start` first, then `clear`, `prepare` and `apply`."""

    reporter: Reporter
    name: str
    backlog: int
    """Records that are in the topic before anybody reads."""
    rate: int
    """Records a second after that."""
    opening: str
    """What `start` does, for people."""
    preparing: str
    """What `prepare` does, for people."""
    metric: str
    """Where the operator's metrics are read, for people."""

    @property
    @abstractmethod
    def state(self) -> Path:
        """Folder of what the demo keeps here."""

    @property
    @abstractmethod
    def rows(self) -> Path:
        """Folder to which the application writes its rows."""

    @property
    @abstractmethod
    def kafka_bootstrap(self) -> str:
        """The broker's address for a process of this machine."""

    # ---- what is done

    @abstractmethod
    def start(self) -> None:
        """Whatever must run before anything else, a broker with it."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what an earlier run left: its group and consumers, topic, offsets and rows. The producer has ended."""

    @abstractmethod
    def create_topic(self, partitions: int) -> None: ...

    @abstractmethod
    def grow_topic(self, partitions: int) -> None: ...

    @abstractmethod
    def prepare(self) -> None:
        """Whatever the group needs before it is applied; the producer writes meanwhile."""

    @abstractmethod
    def apply(self, within: float) -> None:
        """Declare the group, and wait until it is Ready. Raises DemoError."""

    @abstractmethod
    def limit(self, consumers: int) -> None:
        """Change the group's maxReplicas."""

    @abstractmethod
    def kill(self, consumer: str, shards: int) -> tuple[float, float]:
        """`kill -9` of a driver that holds so many shards; when the signal was sent at the earliest, and at the latest."""

    @abstractmethod
    def kill_operator(self) -> None:
        """`kill -9` of the operator. Returns when one leads again."""

    # ---- observations

    @abstractmethod
    def calm(self) -> bool:
        """Whether the group is Ready and Balanced."""

    @abstractmethod
    def consumers(self) -> Sequence[str]:
        """The consumers that there are, running or not."""

    @abstractmethod
    def runs(self) -> Mapping[str, Run]:
        """Of each running driver which run it is."""

    @abstractmethod
    def operator_run(self) -> str:
        """Which run of the operator leads. Raises DemoError while none does."""

    @abstractmethod
    def metrics(self) -> list[Sample]:
        """What the operator's metrics say now. Raises DemoError while none leads."""

    @abstractmethod
    def lag(self) -> int | None:
        """The group's lag in records by the operator's metric; None: there is no such series."""

    @abstractmethod
    def committed(self) -> Mapping[str, int]:
        """The committed offset of each shard that has one, as Kafka itself says."""

    @abstractmethod
    def described(self) -> Mapping[str, Position]:
        """What `kafka-consumer-groups --describe` says of each shard."""

    @abstractmethod
    def show_group(self) -> None:
        """Show the group as a user looks at it."""

    @abstractmethod
    def explain(self) -> str:
        """What to show when a step failed."""

    @abstractmethod
    def next_steps(self) -> str:
        """What a newcomer may look at after the end, everything still running."""


def positions(said: str, group: str) -> dict[str, Position]:
    """What `kafka-consumer-groups --describe` printed, by shard. Raises DemoError if it knows nothing of the group."""
    found: dict[str, Position] = {}
    for line in said.splitlines():
        words = line.split()
        if len(words) >= 6 and words[0] == group and words[2].isdigit():
            found[f"{words[1]}/{words[2]}"] = Position(*(int(word) if word.isdigit() else -1 for word in words[3:6]))
    if not found:
        raise DemoError(f"kafka-consumer-groups knows nothing of group {group}: {said.strip()}")
    return found
