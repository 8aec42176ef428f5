"""The nouns of the protocol: shards, consumers, grants, and every request and reply of a group.

Decides nothing. `core.group.group` takes the requests and gives the replies, `protocol` writes both as JSON, and the client,
the coordinator and the agent share them. Everything is frozen; a change is a new value. What goes over the wire is a
`Message`: its fields say what they are called in JSON, and their types within which limits. What else there are tens of
thousands of is a named tuple, as it is made, compared and changed several times faster than a frozen dataclass.

Longer than other modules: it only names things, and a reader looks for all of them in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, NewType, TypeAlias

from msgspec import UNSET, UnsetType, field

from shardherd.core.model.gauges import NO_WATERMARKS, Gauge, Stage, Watermarks
from shardherd.core.model.messages import Message, Name, Natural, Seconds
from shardherd.core.model.positions import MAX_OFFSET, MAX_POSITION, Position
from shardherd.core.model.reasons import LIMITS
from shardherd.core.model.security import NO_SECURITY, KafkaSecurity
from shardherd.core.model.verdicts import Verdict

ShardId = NewType("ShardId", Name)
"""Name of a shard within its group; for Kafka `topic/partition`."""

ConsumerId = NewType("ConsumerId", Name)
"""Name of a consumer within its group: the name of its pod."""

Offset = Position
"""A position in a shard: always the next record to read. An integer of any size: see `positions`."""

Place: TypeAlias = tuple[Offset, int]
"""An offset, and which of its records: Kinesis has several under one, which are numbered from 0 on; else it is 0."""


class ShardState(StrEnum):
    """The five states of a shard, spelled as in the specification."""

    WAIT = "WAIT"
    NOT_ALLOC = "NOT_ALLOC"
    ALREADY_ALLOC = "ALREADY_ALLOC"
    TRANSFER = "TRANSFER"
    OVER = "OVER"


class Incarnation(Message, frozen=True, forbid_unknown_fields=True):
    """One run of a consumer: the UID of its pod and the number of the start of its container (1 is the first).

    Two incarnations of one pod are ordered by `start`. Of two pods, the one that was seen later is the newer.
    """

    pod_uid: str
    start: Natural

    def supersedes(self, other: Incarnation) -> bool:
        """Whether this is a later start of the same pod."""
        return self.pod_uid == other.pod_uid and self.start > other.start


class ShardInfo(NamedTuple):
    """One shard as the source reports it.

    `begin` and `end` are the first readable and the next-to-be-written offsets. `open` is False when nothing can be written
    to it any more. `parents` are the shards whose data comes before it; `source_id` changes when a shard of the same name is
    another one (Kafka's topic id). `zone` is where it is read from (the rack of its leader), empty where unknown. `size` is how
    many bytes it has between `begin` and `end`, None where that was not asked or is not known. `oldest` is for a source
    that does not tell where a shard begins now, as Kinesis: the first record that is left, if it is known that others before it
    are gone, or else 0. `begin` itself is a good position all the same: from there what is left is read.
    """

    shard: ShardId
    begin: Offset
    end: Offset
    open: bool = True
    parents: tuple[ShardId, ...] = ()
    source_id: str = ""
    zone: str = ""
    size: int | None = None
    oldest: Offset = 0

    def has_lost(self, position: Offset) -> bool:
        """Whether records that follow this position are gone."""
        return position < self.begin or self.begin < position < self.oldest


class Zones(StrEnum):
    """Whether shards are given to consumers of their own zone, as far as balance and few moves allow."""

    PREFER = "Prefer"
    IGNORE = "Ignore"


class Weights(StrEnum):
    """What a shard's weight is: the records, or the bytes, that are written to it in a second."""

    RECORDS = "Records"
    BYTES = "Bytes"


class GrowthCutover(StrEnum):
    """When the shards of a topic that grew by a multiple have all records that a key had before it moved to a new one.

    AFTER_SETTLE: `growth_settle` after the growth is seen, as producers may not have noticed it before. NOW: at once, as the
    producers are stopped. NEVER: nobody asks, as they do not choose by a hash of the key; new shards do not wait.
    """

    AFTER_SETTLE = "AfterSettle"
    NOW = "Now"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of one group that the protocol needs. Durations are in seconds. `zones` and `weights` are the assignor's.

    A consumer that hears nothing stops after `session_timeout` in an ordered group, in others after `coordinator_loss_limit`.
    What the source has not had for `forget_after` is forgotten. `growth_cutover` and `growth_settle` are for ordered groups.
    `cells`: into so many cells the shards are dealt, each of which moves as one, with the state of its keys; 0 if every shard
    moves by itself. `watermarks`: how full a consumer may be until it is given less; none are looked at by default.
    """

    ordered: bool = False
    assignor: str = "Sticky"
    zones: Zones = Zones.PREFER
    weights: Weights = Weights.RECORDS
    heartbeat_interval: float = 3.0
    session_timeout: float = 45.0
    coordinator_loss_limit: float = 300.0
    rejoin_grace: float = 0.0
    release_timeout: float = 60.0
    progress_timeout: float = 300.0
    sink_timeout: float = 1800.0
    initial_assignment_delay: float = 10.0
    forget_after: float = 3600.0
    paused: bool = False
    growth_cutover: GrowthCutover = GrowthCutover.AFTER_SETTLE
    growth_settle: float = 420.0
    cells: int = 0
    watermarks: Watermarks = NO_WATERMARKS

    @property
    def goes_on(self) -> float:
        """For how long at most a consumer that has heard of these settings goes on by itself when it hears nothing more."""
        return self.session_timeout if self.ordered else max(self.session_timeout, self.coordinator_loss_limit)


class Phase(StrEnum):
    """What a consumer is about. How long it may get on with nothing depends on it: see `core.group.timers`.

    WARMING starts what it needs, IDLE has nothing to read, WAITING has something and means not to read it yet (its trigger, or
    too few records), READING reads, WRITING waits for its sink.
    """

    WARMING = "warming"
    IDLE = "idle"
    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"


LONGEST_PHASE = 10 * 365 * 86_400.0
"""Seconds for which a phase may last: ten years. What is shown of it has to fit into an answer."""

LONGEST_WAIT = 86_400.0
"""Seconds for which a consumer may say that it waits: a trigger once a day is the longest that makes sense."""


class HeldShard(Message, frozen=True, forbid_unknown_fields=True):
    """One shard that a consumer says it holds, under the epoch at which it was granted."""

    shard: ShardId
    owner_epoch: Natural


class FailingCell(Message, frozen=True, forbid_unknown_fields=True):
    """A cell whose query has failed and is started again, and the beginning of the error's first line."""

    cell: Natural
    error: Name


class Heartbeat(Message, frozen=True, forbid_unknown_fields=True):
    """A consumer reports what it holds. `held` may name one shard under several epochs.

    `seq` grows with every heartbeat of an incarnation. `revision` is that of the last reply that the consumer has applied
    (0 before the first). `ready` is True once it is warm and may be granted shards. `draining` asks for the release of all
    that it holds, or, where a `rejoinGrace` waits for its return, tells that it restarts. `progress` grows whenever the
    consumer gets on (a checkpoint, a micro-batch begun or ended, a task done).

    `group_uid` is the UID of the group that the consumer was started for; empty only where no API is between. `zone` is
    where it runs, empty if it does not know; `capacity` how much work it can do, relative to the others.

    `phase` is what it is about, for `phase_age` seconds by now, None if it does not tell. A WAITING consumer means to go on in
    `goes_on_in` seconds, if that is not 0.

    `state_lost` are the cells that it holds and whose state, in the present generation, is not there or older than the durable
    positions: it reads nothing of them. `cells_failing` are those that it holds and whose queries fail.

    `gauges` say how full it is, as far as it measures that: see `core.group.watermarks`.
    """

    consumer: ConsumerId
    incarnation: Incarnation
    seq: Natural
    revision: Natural
    held: tuple[HeldShard, ...] = ()
    ready: bool = True
    draining: bool = False
    progress: Natural = 0
    group_uid: str = ""
    zone: str = ""
    capacity: Natural = 1
    phase: Phase | None = None
    phase_age: Seconds = field(default_factory=Seconds, name="phaseAgeMs")
    goes_on_in: Seconds = field(default_factory=Seconds, name="goesOnInMs")
    state_lost: tuple[Natural, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    cells_failing: tuple[FailingCell, ...] | UnsetType = UNSET


class ConfirmedShard(Message, frozen=True):
    """One shard of a heartbeat's reply: its grant, and the durable position to start from.

    `held_since_epoch` is the first epoch since which this consumer's name has held the shard without a gap, a forced
    checkpoint or a reset; a range logged under an epoch in [held_since_epoch, owner_epoch] is still the consumer's own.

    `start` is told in groups with cells only: the position at which the state of the present generation begins. A shard whose
    position is above it has state.

    `source_id` is of which shard of the source the position is, as in `ShardInfo`; absent where the source does not say.

    `end` is told in groups that read up to a time only: the records at and after it are not the group's to read, although the
    source has them. It may grow from one reply to the next, until the source was looked at; it never shrinks.
    """

    shard: ShardId
    owner_epoch: Natural
    held_since_epoch: Natural
    position: Offset
    start: Offset | UnsetType = UNSET
    source_id: str | UnsetType = UNSET
    end: Offset | UnsetType = UNSET


class HeartbeatReply(Message, frozen=True):
    """What the consumer may read: exactly its ALREADY_ALLOC shards. All others it must stop, checkpoint, and leave out.

    While it is `paused`, as its group is or as it is above its flood watermark, it begins nothing more.
    `fenced` are the (shard, epoch) pairs of the request that are not a current grant. `cells` as in `GroupSettings`;
    `state_generation` grows by one with every reset that discards the state of their keys.
    """

    revision: Natural
    confirmed: tuple[ConfirmedShard, ...]
    fenced: tuple[HeldShard, ...] = ()
    paused: bool = False
    ordered: bool = False
    heartbeat_interval: Seconds = field(default_factory=lambda: Seconds(3.0), name="heartbeatIntervalMs")
    session_timeout: Seconds = field(default_factory=lambda: Seconds(45.0), name="sessionTimeoutMs")
    cells: Natural = 0
    state_generation: Natural = 0


class ShardCheckpoint(Message, frozen=True, forbid_unknown_fields=True):
    """A consumer's position in one shard, sent under the epoch that the range was handed out with."""

    shard: ShardId
    owner_epoch: Natural
    offset: Offset


class CheckpointRequest(Message, frozen=True, forbid_unknown_fields=True):
    """Positions that a consumer asks to make durable. `group_uid` as in a heartbeat."""

    consumer: ConsumerId
    incarnation: Incarnation
    checkpoints: tuple[ShardCheckpoint, ...]
    group_uid: str = ""


class CheckpointResult(StrEnum):
    """What became of one checkpoint.

    OK is durable. UNCHANGED was not above the durable position. FENCED must drop the shard. WITHHELD may be sent again later.
    """

    OK = "ok"
    UNCHANGED = "unchanged"
    FENCED = "fenced"
    WITHHELD = "withheld"


class CheckpointOutcome(Message, frozen=True):
    """The answer for one shard of a checkpoint request.

    `actual_epoch` and `holder` say who holds it instead (0 and None: nobody).
    """

    shard: ShardId
    result: CheckpointResult
    offset: Offset
    expected_epoch: Natural
    actual_epoch: Natural = 0
    holder: ConsumerId | None = None


class CheckpointReply(Message, frozen=True):
    """One outcome for each checkpoint of the request, in its order."""

    outcomes: tuple[CheckpointOutcome, ...]


class Leave(Message, frozen=True, forbid_unknown_fields=True):
    """A consumer says that it goes. `group_uid` as in a heartbeat.

    `stopped`: nothing that this run has begun goes on, neither here nor in executors: it will not read or write any more. Only
    then, or if its last heartbeat named nothing, an ordered group moves what it held at once.
    """

    consumer: ConsumerId
    incarnation: Incarnation
    group_uid: str = ""
    stopped: bool = False


class ShardView(Message, frozen=True):
    """One shard as others may see it.

    `next_consumer` is set in TRANSFER only. `lag_records` is None while the position or the end is not known. A shard is not
    `present` once the source has it no more (its topic was deleted).
    """

    shard: ShardId
    state: ShardState
    holder: ConsumerId | None = None
    next_consumer: ConsumerId | None = None
    owner_epoch: Natural = 0
    checkpoint: Offset | None = None
    begin: Offset | None = None
    end: Offset | None = None
    lag_records: Natural | None = None
    open: bool = True
    present: bool = True
    state_age: Seconds = field(default_factory=Seconds, name="stateAgeMs")
    zone: str = ""


class ConsumerView(Message, frozen=True):
    """One consumer as others may see it; `heartbeat_age` in seconds, as is `phase_age`: for how long it is in this phase.

    `phase` is None until it has reported one. `stage` says how full it is, by its `gauges`. `cells_failing` are those of its
    cells whose queries fail.
    """

    consumer: ConsumerId
    incarnation: Incarnation
    ready: bool
    draining: bool
    shards: Natural
    heartbeat_age: Seconds = field(name="heartbeatAgeMs")
    cordoned: bool = False
    zone: str = ""
    capacity: Natural = 1
    phase: Phase | None = None
    phase_age: Seconds = field(default_factory=Seconds, name="phaseAgeMs")
    stage: Stage = Stage.BELOW
    gauges: tuple[Gauge, ...] = ()
    cells_failing: tuple[FailingCell, ...] | UnsetType = UNSET


class Condition(Message, frozen=True):
    """Something that withholds grants or commits in a group: a reason of `reasons` and a sentence for the user."""

    reason: str
    message: str


class Growth(Message, frozen=True):
    """A topic of an ordered group that got more shards: keys moved, so records below `ends` may be read after younger ones.

    Where it `keeps` order, its new shards wait: then `ends` are the cutover offsets of those that were there, as far as they
    are taken by now, in their order.
    """

    topic: str
    before: Natural
    after: Natural
    ends: tuple[tuple[ShardId, Offset], ...]
    keeps: bool = False


class LastRebalance(Message, frozen=True):
    """The last step that moved shards: wall-clock seconds since 1970, why, and how many shards changed hands in it."""

    time: Seconds = field(name="timeMs")
    reason: str
    moved: Natural


class ResetTo(StrEnum):
    """Where a reset sets positions to."""

    EARLIEST = "Earliest"
    LATEST = "Latest"
    TIMESTAMP = "Timestamp"
    OFFSETS = "Offsets"


@dataclass(frozen=True, slots=True)
class Reset:
    """A declared change of durable positions, made once for its `id`.

    `timestamp` is in seconds since 1970 (Timestamp only): positions are those of the first records at or after it. `offsets`
    are the positions of the shards that are named (Offsets only). `shards` are those that are set, all if there are none. With
    `dry_run` it is only planned. `manager` is the field manager that wrote the declaration: a tool, not a person. In a group
    with cells it must `discard_state` of all of them.
    """

    id: str
    to: ResetTo
    timestamp: float | None = None
    offsets: tuple[tuple[ShardId, Offset], ...] = ()
    shards: tuple[ShardId, ...] = ()
    dry_run: bool = False
    manager: str = ""
    discard_state: bool = False


class ResetState(StrEnum):
    """How far a declared reset is. PauseFirst and Waiting have changed nothing, Planned and Refused never will."""

    PAUSE_FIRST = "PauseFirst"
    WAITING = "Waiting"
    PLANNED = "Planned"
    REFUSED = "Refused"
    APPLYING = "Applying"
    DONE = "Done"


class ResetRow(Message, frozen=True):
    """One shard of a reset: its durable position before, None if it had none, and after it."""

    shard: ShardId
    before: Offset | None
    after: Offset


class ResetReport(Message, frozen=True):
    """What a reset does, or did.

    `time` is when it was decided, in seconds since 1970, 0 if it was not. `shards` are so many; `rows` are theirs, or the first
    of them. `repeated` counts the records that are read once more, `skipped` those that are not read. `manager` as in `Reset`.
    """

    id: str
    to: ResetTo
    state: ResetState
    message: str
    time: Seconds = field(default_factory=Seconds, name="timeMs")
    shards: Natural = 0
    repeated: Natural = 0
    skipped: Natural = 0
    rows: tuple[ResetRow, ...] = ()
    manager: str = ""


class ShardVerdict(Message, frozen=True):
    """How a shard is read, if it is not OK, and since when (seconds since 1970)."""

    shard: ShardId
    verdict: Verdict
    since: Seconds = field(name="sinceMs")


class GroupView(Message, frozen=True):
    """A group as the controller, the API and the metrics see it: one consistent picture.

    `source_reachable` and `source_error` tell of the last look at the source; `withheld` lists what keeps shards from being
    granted (for example GroupHasLiveMembers). `moves` and `rebalances` count since this coordinator took over. `expired` are
    the incarnations that were expired and are neither superseded nor proven dead: their pods should be replaced. `growths` are
    those of an ordered group that are not read past yet. `source` is the kind of the source (`kafka`). `reset` is the declared
    reset, `last_reset` the last that was made, each with its first rows. `superseded` are the UIDs of pods that are refused for
    ever, the newest few of each name: one that runs all the same should be replaced. `silent` are the incarnations that were
    expired for their silence and have not ended, as far as is known: they may come back. `lag_seconds` is the age of the oldest
    record that is not checkpointed, by its timestamp; None while it is not known of every shard. `verdict` says how the group
    is read: as the worst of its shards, of which `verdicts` names those that are not OK. Unless the source `counts_records`
    no lag is in records, and no end of an open shard is known.
    """

    group_epoch: Natural
    revision: Natural
    shards: tuple[ShardView, ...]
    consumers: tuple[ConsumerView, ...]
    source_reachable: bool
    source_error: str = ""
    withheld: tuple[Condition, ...] = ()
    last_rebalance: LastRebalance | None = None
    moves: Natural = 0
    rebalances: Natural = 0
    discovered: bool = False
    growths: tuple[Growth, ...] = ()
    expired: tuple[tuple[ConsumerId, Incarnation], ...] = ()
    source: str = ""
    reset: ResetReport | None = None
    last_reset: ResetReport | None = None
    superseded: tuple[tuple[ConsumerId, str], ...] = ()
    silent: tuple[tuple[ConsumerId, Incarnation], ...] = ()
    lag_seconds: Natural | None = None
    verdict: Verdict = Verdict.UNKNOWN
    verdicts: tuple[ShardVerdict, ...] = ()
    counts_records: bool = True

    @property
    def stopped(self) -> tuple[Condition, ...]:
        """What keeps shards of the group from being granted: not what only keeps others out of it."""
        return tuple(cause for cause in self.withheld if cause.reason not in LIMITS)

    @property
    def lag_records(self) -> int:
        """So many records of the shards that the source has are not checkpointed, as far as that is known."""
        return sum(max(0, shard.lag_records or 0) for shard in self.shards if shard.present)

    def verdicts_of(self, shards: Iterable[ShardId]) -> dict[ShardId, Verdict]:
        """How each of these shards is read. Before anybody has judged the group that is unknown of all."""
        said = {each.shard: each.verdict for each in self.verdicts}
        others = Verdict.OK if said or self.verdict is Verdict.OK else Verdict.UNKNOWN
        return {shard: said.get(shard, others) for shard in shards}

    @property
    def all_over(self) -> bool:
        """Whether every shard that the source has is closed and read to its end, and there is one."""
        return 0 < self.shards_in(ShardState.OVER) == self.shards_in(*ShardState)

    def shards_in(self, *states: ShardState) -> int:
        """How many of the shards that the source has are in one of these states."""
        return sum(1 for shard in self.shards if shard.state in states and shard.present)


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """Which group: namespace, name and UID of the custom resource."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Where a group's shards are in Kafka.

    `starting_position` is Earliest or Latest, and holds for the shards of the first successful discovery only. With
    `read_committed` a shard ends where its first open transaction begins: that is as far as the group may read. With
    `delete_offsets` the durable positions of what the group has forgotten are deleted. `ending_timestamp`, in seconds since
    1970: each shard is read up to its first record at or after it, and is closed there; None if it has no end.
    """

    kind: ClassVar[str] = "kafka"
    counts_records: ClassVar[bool] = True
    last_position: ClassVar[Offset] = MAX_OFFSET

    bootstrap_servers: str
    topics: tuple[str, ...]
    topic_pattern: str
    group_id: str
    starting_position: str = "Earliest"
    read_committed: bool = False
    delete_offsets: bool = False
    security: KafkaSecurity = NO_SECURITY
    ending_timestamp: float | None = None


@dataclass(frozen=True, slots=True)
class KinesisSource:
    """Where a group's shards are in Kinesis.

    `stream` is its name, or its ARN. `secret` names what has an access key, empty if the pods have an identity of their own.
    `starting_position` as of a Kafka source. What positions the group keeps of shards that it has forgotten are deleted.
    """

    kind: ClassVar[str] = "kinesis"
    counts_records: ClassVar[bool] = False
    last_position: ClassVar[Offset] = MAX_POSITION
    delete_offsets: ClassVar[bool] = True
    ending_timestamp: ClassVar[float | None] = None

    stream: str
    region: str
    endpoint: str = ""
    secret: str = ""
    starting_position: str = "Earliest"

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.rpartition("/")[2]


Source = KafkaSource | KinesisSource
"""Where a group's shards are.

Where a source `counts_records` the difference of two positions is a number of records, and a shard's end is known. Where it
does not, the end of an open shard is only what it surely reaches: if it is above a position, something is there to read.
Positions are `last_position` at most.
"""


def as_kafka(source: Source) -> KafkaSource:
    """This source, if it is one in Kafka. Raises TypeError for another one."""
    if not isinstance(source, KafkaSource):
        raise TypeError(f"the source is {source.kind}, not kafka")
    return source


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What the controller tells the coordinator of a group: identity, source, protocol settings, and who should be there.

    `wanted` is the number of consumers that the controller runs; consumers named in `leaving` are to be drained before they
    are removed, those in `cordoned` hold nothing and stay. `service_account` is the account whose tokens may speak for the
    group's consumers. `created` is when the group was, in RFC 3339: of groups that exclude each other the older one is served.
    With `rebalance_paused` nothing that somebody holds is moved for the sake of balance. `reset` is a declared change of
    positions. `executors`: consumers have pods of executors, which may write on after their driver's container has ended.
    """

    identity: GroupIdentity
    source: Source
    settings: GroupSettings
    wanted: int
    leaving: frozenset[ConsumerId] = frozenset()
    service_account: str = "default"
    created: str = ""
    cordoned: frozenset[ConsumerId] = frozenset()
    rebalance_paused: bool = False
    reset: Reset | None = None
    executors: bool = False

    @property
    def kafka(self) -> KafkaSource:
        """The source of a group of Kafka. Raises TypeError for another one."""
        return as_kafka(self.source)
