"""The observation of one group that planning starts from: what is declared, what runs, and the coordinator's view.

`controller.observe` builds an `Observation`, and `plan`, `conditions` and `status` are functions of it. Everything is frozen.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shardherd.core.model.nouns import (
    ConsumerId,
    GroupIdentity,
    GroupSettings,
    GroupView,
    Incarnation,
    KafkaSource,
    Reset,
    ShardState,
    Source,
    as_kafka,
)
from shardherd.core.planning.traffic import Traffic


class ScalingMode(StrEnum):
    """Who chooses the number of consumers."""

    SHARDS = "Shards"
    LAG = "Lag"
    FIXED = "Fixed"
    EXTERNAL = "External"


@dataclass(frozen=True, slots=True)
class LagScaling:
    """Settings of mode Lag: a backlog is to be read within `target_catchup` seconds, and one decision changes the number by at
    most `max_step`.
    """

    target_catchup: float = 300.0
    max_step: int = 4


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the number of consumers is chosen. The limits bind in the modes Shards and Lag.

    `stabilization_window` is how many seconds less work has to last before there are fewer consumers. With `recommend_only`
    the number is published and not acted upon.
    """

    mode: ScalingMode = ScalingMode.SHARDS
    min_replicas: int = 1
    max_replicas: int = 10
    shards_per_consumer: int = 4
    stabilization_window: float = 300.0
    lag: LagScaling = LagScaling()
    recommend_only: bool = False


@dataclass(frozen=True, slots=True)
class Pauses:
    """What the group's annotations ask to leave alone for now."""

    reconcile: bool = False
    rebalance: bool = False
    scale_in: bool = False
    scale_out: bool = False


class RolloutStrategy(StrEnum):
    """How a consumer is replaced that runs what was declared before."""

    DRAIN = "Drain"
    IN_PLACE = "InPlace"


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How pods are replaced, and for how many seconds a new one may not become ready before all go back."""

    strategy: RolloutStrategy = RolloutStrategy.DRAIN
    progress_deadline: float = 600.0


@dataclass(frozen=True, slots=True)
class Declared:
    """The spec of a group's custom resource, as far as planning needs it.

    `drain_timeout` in seconds. `executors` is the most executor pods of one consumer; with `executors_vary` Spark adds them and
    gives them back as it runs. `template_hash` changes when, and only when, the user changes what pods are made from.
    `rejected` is why what the user declares now did not run; all the rest of this is what ran before then. Empty if it was not
    given up. `reset` is a declared change of positions.
    """

    identity: GroupIdentity
    generation: int
    source: Source
    settings: GroupSettings
    scaling: Scaling
    replicas: int
    drain_timeout: float
    executors: int
    service_account: str
    template_hash: str
    deleting: bool = False
    created: str = ""
    pauses: Pauses = Pauses()
    rollout: RolloutSettings = RolloutSettings()
    rejected: str = ""
    reset: Reset | None = None
    executors_vary: bool = False

    @property
    def kafka(self) -> KafkaSource:
        """The source of a group of Kafka. Raises TypeError for another one."""
        return as_kafka(self.source)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a consumer is not ready: a reason of `model.reasons` and a sentence that names the cause."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ConsumerPod:
    """A driver's pod. `current` tells whether it was made from what is declared now, `cordoned` whether its label asks that it
    holds no shards, `running` whether the driver's container runs, `answers` whether its last probe by the kubelet did well:
    of a node that is silent the control plane says that its pods are not ready. `foreign`: it calls an operator that served the
    group before, and cannot be told of this one.
    """

    name: ConsumerId
    uid: str
    ordinal: int
    ready: bool = False
    deleting: bool = False
    current: bool = True
    trouble: Trouble | None = None
    cordoned: bool = False
    running: bool = False
    answers: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorPod:
    """An executor's pod and the incarnation of the driver that it works for. `ended`: all its containers have terminated."""

    name: str
    uid: str
    incarnation: Incarnation
    deleting: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """One of the group's objects. `ours`: nobody else owns the object of that name. `current`: it is as wanted."""

    ours: bool = True
    current: bool = True


@dataclass(frozen=True, slots=True)
class OwnedSet(Owned):
    """The StatefulSet, and its declared number of replicas.

    `fallback` is the hash of the last declaration but this that ran, empty if there is none to go back to.
    """

    replicas: int = 0
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A scale-out whose use is not proven yet: from how many consumers, and what these read, in records a second."""

    replicas: int
    per_second: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """More consumers than this did not read more; it is believed until then, in seconds since 1970."""

    replicas: int
    until: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """What choosing the number of consumers remembers; times are monotonic seconds.

    `goal` is what was chosen last, None after a start, and `said` the reason and the message of it; goal, trial, ceiling and
    the rate of one consumer come back from the status then. With `recommendOnly` what is said is about the number that was
    `recommended`. `wishes` are the numbers of the last stabilisation window that the lag asked for, with their times.
    `steady_since`: since when as many consumers as chosen are ready and no shard moves. `idle_since`: since when all is read.
    `checkpoints`: all of them together where records are not counted, where alone they tell that some were read.
    """

    goal: int | None = None
    said: tuple[str, str] = ("", "")
    recommended: int | None = None
    trial: Trial | None = None
    ceiling: Ceiling | None = None
    wishes: tuple[tuple[float, int], ...] = ()
    steady_since: float | None = None
    idle_since: float | None = None
    checkpoints: int | None = None
    traffic: Traffic | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What planning has to remember from one observation to the next; monotonic seconds.

    `draining_since`: since when a consumer that has to go drains. `expired_since`: since when an incarnation is known to be
    expired and still there. `hanging_since`: since when the pod of this UID hangs. `rolling`: the consumer that is being
    replaced, and since when it is to give up its shards.
    """

    draining_since: Mapping[ConsumerId, float] = field(default_factory=dict)
    expired_since: Mapping[Incarnation, float] = field(default_factory=dict)
    hanging_since: Mapping[str, float] = field(default_factory=dict)
    sizing: Sizing = Sizing()
    rolling: tuple[ConsumerId, float] | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One consistent observation of a group. None for an object means that there is none.

    `trust_current`: the group's namespace has the authorities by which consumers believe the coordinator.
    `deaths` are proofs of death that the coordinator has to hear. `dead` are the incarnations whose driver has terminated, be
    their executors still there or not.
    `warnings` are (reason, message) of recent events about the StatefulSet while pods are missing. `rejections` are the API
    server's words on what it refused to apply last time. `previous` is the status as it was written last. `now` is monotonic,
    `wall` is seconds since 1970.
    """

    declared: Declared
    now: float
    wall: float
    stateful_set: OwnedSet | None = None
    service: Owned | None = None
    budget: Owned | None = None
    trust_current: bool = True
    consumers: tuple[ConsumerPod, ...] = ()
    executors: tuple[ExecutorPod, ...] = ()
    deaths: tuple[tuple[ConsumerId, Incarnation], ...] = ()
    dead: tuple[Incarnation, ...] = ()
    view: GroupView | None = None
    warnings: tuple[tuple[str, str], ...] = ()
    rejections: tuple[str, ...] = ()
    previous: Mapping[str, object] = field(default_factory=dict)
    memory: Memory = Memory()

    def name_of(self, ordinal: int) -> ConsumerId:
        """Name of the consumer with this ordinal."""
        return ConsumerId(f"{self.declared.identity.name}-{ordinal}")

    @property
    def replicas(self) -> int:
        """The declared number of consumers; 0 before the StatefulSet exists."""
        return self.stateful_set.replicas if self.stateful_set is not None else 0

    @property
    def taken(self) -> tuple[str, ...]:
        """Kinds of our objects whose name somebody else has taken."""
        objects = {"StatefulSet": self.stateful_set, "Service": self.service, "PodDisruptionBudget": self.budget}
        return tuple(kind for kind, owned in objects.items() if owned is not None and not owned.ours)

    def holds(self, consumer: ConsumerId) -> bool:
        """Whether the coordinator's view has this consumer hold, or about to get, any shard. True while there is none.

        What the source does not have is nobody's to read or to hand over.
        """
        if self.view is None:
            return True
        held = (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
        shards = (shard for shard in self.view.shards if shard.present and shard.state in held)
        return any(consumer in (shard.holder, shard.next_consumer) for shard in shards)

    def without_executors(self) -> tuple[ConsumerId, ...]:
        """The consumers whose drivers run and have no executor, where they are to have some."""
        if not self.declared.executors:
            return ()
        served = {executor.incarnation.pod_uid for executor in self.executors if not executor.ended}
        return tuple(pod.name for pod in self.consumers if pod.running and not pod.deleting and pod.uid not in served)

    def hanging(self) -> tuple[ConsumerPod, ...]:
        """The consumers that run, but are not ready, and of which the coordinator hears nothing more.

        One that is only cut off from us is ready for the kubelet; one that starts was never heard.
        """
        silent = {} if self.view is None else {incarnation.pod_uid: incarnation for _, incarnation in self.view.silent}
        return tuple(
            pod
            for pod in self.consumers
            if pod.uid in silent
            and pod.running
            and not (pod.ready or pod.answers or pod.deleting)
            and not self.is_dead(silent[pod.uid])
        )

    def is_dead(self, incarnation: Incarnation) -> bool:
        """Whether the driver of this incarnation has terminated; the end of a later start of its pod proves that too."""
        return any(dead == incarnation or dead.supersedes(incarnation) for dead in self.dead)
