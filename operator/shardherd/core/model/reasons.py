"""Every reason that a group's status gives, with its meaning: of conditions, of the number of consumers, of stuck shards.

Given by `core.group`, `core.planning`, the coordinator and the controller; the tables of docs/reasons.md are made from them.
A reason is a plain string, a `Reason` is what is said of it. Users see the values, so none ever changes. Decides nothing.
It is one table, and long because each row is what a user reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


class ConditionType:
    """The types of a group's conditions."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SOURCE_REACHABLE = "SourceReachable"
    CONSUMERS_READY = "ConsumersReady"
    BALANCED = "Balanced"
    SCALING_ACTIVE = "ScalingActive"
    SCALING_LIMITED = "ScalingLimited"
    CHECKPOINT_LOST = "CheckpointLost"
    ORDER_PRESERVED = "OrderPreserved"
    STATE_LOST = "StateLost"
    CELLS_FIT = "CellsFit"
    ROOM = "ConsumersHaveRoom"
    CELLS_FAILING = "CellsFailing"


CONDITIONS = MappingProxyType(
    {
        ConditionType.READY: "the declared consumers are ready, the source answers, and every shard that can be read is read. "
        "If False, its reason and message are those of the first cause",
        ConditionType.RECONCILING: "something is on its way: consumers start, drain or roll",
        ConditionType.STALLED: "it will not get better by waiting",
        ConditionType.SOURCE_REACHABLE: "the brokers answered the last look, and there are shards",
        ConditionType.CONSUMERS_READY: "as many consumers are ready as should be",
        ConditionType.BALANCED: "no shard is moving or unheld, and the consumers' loads differ by at most one shard",
        ConditionType.SCALING_ACTIVE: "the operator chooses the number of consumers (modes Shards and Lag)",
        ConditionType.SCALING_LIMITED: "a limit, a pause or what was learnt keeps the number from being as recommended",
        ConditionType.CHECKPOINT_LOST: "a shard had a durable position and has lost it; it stays where it is",
        ConditionType.ORDER_PRESERVED: "in ordered groups only: order is kept",
        ConditionType.STATE_LOST: "in groups with `spec.state` only: the state of a cell is gone, or older than its positions; "
        "nobody is granted the cell",
        ConditionType.CELLS_FIT: "in groups with `spec.state` only: `state.cells` divides the number of partitions of every "
        "topic, so that a key is in the same cell in all of them, and stays there when a topic grows by a multiple",
        ConditionType.ROOM: "in groups with `spec.watermarks` only: every consumer is below its low watermarks",
        ConditionType.CELLS_FAILING: "in groups with `spec.state` only: the query of a cell has failed, and has neither "
        "finished a micro-batch since nor found nothing to read; it is started again, and the other cells are read",
    }
)
"""What it means that a condition is True, for the documentation."""

SCALING = "status.scaling"
STUCK_SHARDS = "status.stuckShards"


@dataclass(frozen=True, slots=True)
class Reason:
    """What docs/reasons.md says about one reason, in Markdown.

    `places` are the types of the conditions that it may stand in, and the fields of the status: SCALING, STUCK_SHARDS.
    """

    value: str
    places: tuple[str, ...]
    meaning: str
    remedy: str = ""


_REASONS: list[Reason] = []


def _reason(value: str, places: tuple[str, ...], *, meaning: str, remedy: str = "") -> str:
    _REASONS.append(Reason(value, places, meaning, remedy))
    return value


_READY, _RECONCILING, _STALLED = ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED
_SOURCE, _CONSUMERS = ConditionType.SOURCE_REACHABLE, ConditionType.CONSUMERS_READY
_ACTIVE, _LIMITED = ConditionType.SCALING_ACTIVE, ConditionType.SCALING_LIMITED

CONSUMING = _reason("Consuming", (_READY,), meaning="all is well")

# The source.
DISCOVERING = _reason(
    "Discovering",
    (_SOURCE, ConditionType.BALANCED, ConditionType.CELLS_FIT, ConditionType.ROOM, _READY),
    meaning="the source, or the coordinator, has not answered yet",
    remedy="wait; if it stays, see the operator's log",
)
DISCOVERED = _reason("Discovered", (_SOURCE,), meaning="the shards are known")
SOURCE_UNAVAILABLE = _reason(
    "SourceUnavailable",
    (_SOURCE, _READY),
    meaning="the brokers do not answer, refuse us, or have no such topic, or none that matches `topicPattern`, or "
    "`topicPattern` is no regular expression of RE2, or a Secret with credentials cannot be used; the message names them and "
    "the error",
    remedy="check `bootstrapServers` and the way to them; create the topic, or correct `topics` or `topicPattern`; see "
    "[security-kafka.md](security-kafka.md) and [kafka-faults.md](kafka-faults.md)",
)

# The consumers and their pods.
WAITING_FOR_SHARDS = _reason(
    "WaitingForShards",
    (_CONSUMERS, _RECONCILING, _ACTIVE, SCALING),
    meaning="consumers start when the shards are known",
)
STARTING = _reason(
    "Starting",
    (_CONSUMERS, _RECONCILING, _READY),
    meaning="pods are starting; a driver takes half a minute or so. One that has no executor yet is named: Spark makes them, "
    "and an admission rule or a quota may refuse them",
    remedy="wait; if it stays, read the driver's log",
)
ALL_READY = _reason("AllReady", (_CONSUMERS,), meaning="as many consumers are ready as should be")
IMAGE_UNAVAILABLE = _reason(
    "ImageUnavailable",
    (_CONSUMERS, _STALLED, _READY),
    meaning="the kubelet cannot get the image",
    remedy="correct `application.image`, or `imagePullSecrets`",
)
CONSUMER_ENDED = _reason(
    "ConsumerEnded",
    (_CONSUMERS, _READY),
    meaning="the application ended once and is being started again; the message has its exit code and last words",
    remedy="nothing, unless it goes on",
)
CONSUMER_SILENT = _reason(
    "ConsumerSilent",
    (_CONSUMERS, _READY),
    meaning="a consumer's process runs, but is not ready, and the operator hears nothing more of it; others read its shards",
    remedy="none: its pod is replaced if it stays so for `progressTimeout`. If it comes again, look at what the process hangs "
    "in",
)
SINK_BLOCKED = _reason(
    "SinkBlocked",
    (_READY,),
    meaning="a consumer has read its micro-batch and waits for its sink for longer than `progressTimeout`; the message says "
    "which, and since when. It keeps its shards",
    remedy="bring the sink back, or see the driver's log; after `sinkTimeout` the pod is replaced",
)
CRASH_LOOPING = _reason(
    "CrashLooping",
    (_CONSUMERS, _STALLED, _READY),
    meaning="the application ends; the message has its exit code and last words",
    remedy="read the driver's log (`--previous`)",
)
CONTAINER_CONFIG_INVALID = _reason(
    "ContainerConfigInvalid",
    (_CONSUMERS, _STALLED, _READY),
    meaning="a Secret, ConfigMap or user of the pod's template is wrong",
    remedy="correct the template",
)
PODS_REJECTED = _reason(
    "PodsRejected",
    (_CONSUMERS, _STALLED, _READY),
    meaning="an admission rule refused the pod",
    remedy="the message has the rule's words",
)
QUOTA_EXCEEDED = _reason(
    "QuotaExceeded",
    (_CONSUMERS, _STALLED, _READY),
    meaning="the namespace's quota is used up; the message has the API server's words",
    remedy="raise it, or declare fewer consumers (`maxReplicas`, or `replicas` in mode Fixed). Kubernetes tries a missing pod "
    "again at growing intervals, up to a quarter of an hour",
)
UNSCHEDULABLE = _reason(
    "Unschedulable",
    (_CONSUMERS, _READY),
    meaning="no node has room, or those that have are cordoned",
    remedy="the message has the scheduler's words; the pod is started as soon as a node can take it",
)

# The shards.
SHARDS_UNASSIGNED = _reason(
    "ShardsUnassigned", (_READY,), meaning="shards that nobody holds", remedy="wait for a ready consumer"
)
TRANSFER_OVERDUE = _reason(
    "TransferOverdue",
    (_READY,),
    meaning="a consumer has not given a shard up within `releaseTimeout`",
    remedy="it is replaced if it does nothing; if it works, its micro-batch is long",
)
REBALANCING = _reason("Rebalancing", (ConditionType.BALANCED,), meaning="shards are moving, or held by nobody")
UNEVEN = _reason(
    "Uneven",
    (ConditionType.BALANCED,),
    meaning="nothing is moving, and one consumer holds two shards more than another, or more",
)
BALANCED = _reason("Balanced", (ConditionType.BALANCED,), meaning="the shards are spread as they should be")

# How full the consumers are.
ROOM_LEFT = _reason("RoomLeft", (ConditionType.ROOM,), meaning="every consumer is below its low watermarks")
ABOVE_LOW = _reason(
    "AboveLow",
    (ConditionType.ROOM,),
    meaning="a consumer is above a low [watermark](concepts.md#watermarks): it keeps its shards, and others are given new ones",
    remedy="more room for what the message names, or more consumers",
)
ABOVE_HIGH = _reason(
    "AboveHigh",
    (ConditionType.ROOM,),
    meaning="a consumer is above a high [watermark](concepts.md#watermarks): it is given no shards, and gives a tenth of them "
    "away every 30 s",
    remedy="more room for what the message names, or more consumers",
)
ABOVE_FLOOD = _reason(
    "AboveFlood",
    (ConditionType.ROOM, _READY),
    meaning="a consumer is above a flood [watermark](concepts.md#watermarks): it is paused until it is below high, and gives "
    "its shards away as one above high does",
    remedy="make room for what the message names: it reads on by itself",
)
NO_ROOM = _reason(
    "NoRoom",
    (ConditionType.ROOM, _READY),
    meaning="no consumer is below its low [watermarks](concepts.md#watermarks): nothing is given away. Shards that nobody "
    "holds go to consumers below high; where there is none they wait",
    remedy="more consumers, or more room for what the message names",
)

# What the controller does.
SCALING_OUT = _reason("ScalingOut", (_RECONCILING,), meaning="the controller adds consumers")
DRAINING = _reason("Draining", (_RECONCILING,), meaning="consumers that must go give up their shards first")
ROLLING_OUT = _reason("RollingOut", (_RECONCILING,), meaning="the controller replaces pods that run what was declared before")
SETTLED = _reason(
    "Settled", (_RECONCILING,), meaning="the controller has nothing to do: there are as many consumers as declared"
)
DRAIN_TIMED_OUT = _reason(
    "DrainTimedOut",
    (_RECONCILING,),
    meaning="a consumer that was to go did not give up its shards within `drainTimeout`: it is ended, and what it still does "
    "is fenced",
    remedy="if it was in the middle of a long micro-batch, raise `drainTimeout`; else read the driver's log",
)
NOT_STALLED = _reason("NotStalled", (_STALLED,), meaning="nothing is in the way")
ROLLED_BACK = _reason(
    "RolledBack",
    (_STALLED, _READY),
    meaning="what is declared did not run within `rollout.progressDeadline`: all pods run what ran before; the message has "
    "what went wrong",
    remedy="change `spec.application`",
)
NAME_TAKEN = _reason(
    "NameTaken",
    (_STALLED, _READY),
    meaning="a StatefulSet, Service or PodDisruptionBudget of that name belongs to something else",
    remedy="delete it, or rename the group",
)
INVALID_SPEC = _reason(
    "InvalidSpec",
    (_STALLED, _READY),
    meaning="the resource cannot be read: an older definition let it in; the message names the field. The group goes on as it "
    "was declared before",
    remedy="correct it",
)
APPLY_REFUSED = _reason(
    "ApplyRefused",
    (_STALLED, _READY),
    meaning="the API server refused an object of ours; the message has its words",
    remedy="correct the template",
)

# Who chooses the number of consumers, and what keeps it from being as recommended.
FOLLOWING_SHARDS = _reason(
    "FollowingShards", (_ACTIVE, SCALING), meaning="the operator chooses the number of consumers by the shards (mode Shards)"
)
FOLLOWING_LAG = _reason(
    "FollowingLag", (_ACTIVE,), meaning="the operator chooses the number of consumers by the lag (mode Lag)"
)
FIXED = _reason("Fixed", (_ACTIVE, SCALING), meaning="`spec.replicas` says how many consumers there are (mode Fixed)")
EXTERNAL = _reason(
    "External", (_ACTIVE, SCALING), meaning="an autoscaler sets `spec.replicas` through the scale subresource (mode External)"
)
PAUSED = _reason(
    "Paused",
    (_ACTIVE, _READY, SCALING),
    meaning="`spec.paused` is true: nothing is granted or moved, and the number of consumers stays",
)
RECOMMEND_ONLY = _reason(
    "RecommendOnly", (_ACTIVE, SCALING), meaning="`scaling.recommendOnly`: the number is published and not acted upon"
)
RECONCILE_PAUSED = _reason(
    "ReconcilePaused",
    (_RECONCILING, _ACTIVE, SCALING),
    meaning="the annotation `shardherd.dev/pause-reconcile`",
    remedy="remove it",
)
SOURCE_AWAY = _reason(
    "SourceAway",
    (_ACTIVE, SCALING),
    meaning="nothing can be measured in mode Lag, so the number stays",
    remedy="as `SourceReachable` says",
)
WITHIN_LIMITS = _reason("WithinLimits", (_LIMITED,), meaning="no limit is in the way")
MAX_REPLICAS = _reason(
    "MaxReplicas",
    (_LIMITED, SCALING),
    meaning="more consumers are asked for than `scaling.maxReplicas` allows",
    remedy="raise it",
)
MIN_REPLICAS = _reason(
    "MinReplicas",
    (_LIMITED, SCALING),
    meaning="fewer consumers are asked for than `scaling.minReplicas` keeps",
    remedy="lower it",
)
TOO_FEW_SHARDS = _reason(
    "TooFewShards",
    (_LIMITED, SCALING),
    meaning="the lag asks for more consumers than there are shards",
    remedy="more partitions, or a faster application",
)
NO_GAIN = _reason(
    "NoGain",
    (_LIMITED, SCALING),
    meaning="more consumers were tried and did not read more; they are tried again at the time in `status.scaling.ceiling`",
    remedy="look at what the application writes to",
)
SCALE_IN_PAUSED = _reason(
    "ScaleInPaused", (_LIMITED, SCALING), meaning="an annotation keeps the number from falling", remedy="remove it"
)
SCALE_OUT_PAUSED = _reason(
    "ScaleOutPaused", (_LIMITED, SCALING), meaning="an annotation keeps the number from growing", remedy="remove it"
)

# The positions and their order.
CHECKPOINTS_KEPT = _reason("CheckpointsKept", (ConditionType.CHECKPOINT_LOST,), meaning="no durable position is missing")
CHECKPOINT_LOST = _reason(
    "CheckpointLost",
    (ConditionType.CHECKPOINT_LOST, _READY),
    meaning="durable positions are missing, lie before the first record, or went back while no operator ran; the message names "
    "the shards, which stay where they are",
    remedy="[reset them](day-two.md#reset), or [restore them](day-two.md#restore)",
)
STATE_KEPT = _reason("StateKept", (ConditionType.STATE_LOST,), meaning="no cell is known to have lost its state")
STATE_LOST = _reason(
    "StateLost",
    (ConditionType.STATE_LOST, _READY),
    meaning="a consumer found no state of a cell where it should be, or state that is older than the positions; the message "
    "names the cells, which nobody is granted",
    remedy="[reset](state.md#lost-state-and-resets) the positions, and discard the state of all cells with it",
)
CELLS_DIVIDE = _reason(
    "CellsDivide", (ConditionType.CELLS_FIT,), meaning="`state.cells` divides the number of partitions of every topic"
)
CELLS_DO_NOT_DIVIDE = _reason(
    "CellsDoNotDivide",
    (ConditionType.CELLS_FIT,),
    meaning="`state.cells` does not divide the number of partitions of the topics in the message: a key is in another cell "
    "there than in other topics, and changes its cell when the topic grows",
    remedy="[grow the topic](state.md#growth) to a multiple before there is state, or make another group with a number of "
    "cells that divides it",
)
QUERIES_RUN = _reason("QueriesRun", (ConditionType.CELLS_FAILING,), meaning="no cell's query is known to fail")
QUERY_FAILS = _reason(
    "QueryFails",
    (ConditionType.CELLS_FAILING, _READY),
    meaning="the query of a cell has failed and is started again, after a minute at most; the message names the cell, its "
    "holder and the error. The other cells are read",
    remedy="read the driver's log; it goes on by itself once the cause is gone",
)
ORDER_KEPT = _reason("OrderKept", (ConditionType.ORDER_PRESERVED,), meaning="records of one key are read in order")
PARTITION_GROWTH = _reason(
    "PartitionGrowth",
    (ConditionType.ORDER_PRESERVED,),
    meaning="a topic grew to a number of partitions that is no multiple of what it had, and keys moved between all of them: "
    "until the offsets in the message are read, records of a key may be read out of order",
    remedy="grow topics of ordered groups by [a multiple](order.md); for another number stop producing first, and go on when "
    "the condition is True",
)

# What the coordinator does not grant or commit, or what of the source is not in order.
UNKNOWN_ASSIGNOR = _reason(
    "UnknownAssignor",
    (_READY,),
    meaning="`spec.assignor` names none that this operator has; nothing is granted or moved",
    remedy="set one of those that the message lists, or install the plug-in in the operator's image "
    "([assignors](assignors.md))",
)
ASSIGNOR_FAILED = _reason(
    "AssignorFailed",
    (_READY,),
    meaning="the group's assignor is a plug-in that raised, could not be imported, or gave no proper answer: what is held "
    "stays, free shards go to who has fewest",
    remedy="mend the plug-in, or set another `spec.assignor`",
)
SOURCE_RECREATED = _reason(
    "SourceRecreated",
    (_READY,),
    meaning="the topic was deleted and made again: the checkpoints are those of the old one, and nothing is granted",
    remedy="[reset](day-two.md#reset) the positions of all of its shards",
)
RESETTING = _reason(
    "Resetting",
    (_READY,),
    meaning="a declared reset is being made; nothing is granted or moved until it is done",
    remedy="wait; if it stays, see `SourceReachable`",
)
GROUP_HAS_LIVE_MEMBERS = _reason(
    "GroupHasLiveMembers",
    (_READY,),
    meaning="the Kafka group has members of its own; nothing is granted or committed",
    remedy="stop them, or set another `groupId`",
)
GROUP_ID_IN_USE = _reason(
    "GroupIdInUse",
    (_READY,),
    meaning="another operator keeps taking the group's transactional id",
    remedy="find it, or set another `groupId`",
)
TOO_MANY_GROUPS = _reason(
    "TooManyGroups",
    (_STALLED, _READY),
    meaning="more groups read one topic than the operator allows; the newest are granted nothing",
    remedy="delete one, or raise `api.maxGroupsPerSource` of the chart",
)
GROUP_ID_TAKEN = _reason(
    "GroupIdTaken",
    (_STALLED, _READY),
    meaning="an older ConsumerGroup keeps its positions in the same Kafka group",
    remedy="set another `groupId`",
)
OWNERSHIP_UNREADABLE = _reason(
    "OwnershipUnreadable",
    (_STALLED, _READY),
    meaning="a later version of the operator wrote who holds which shard; the message has both versions. Nothing is changed, "
    "consumers of unordered groups read on for `coordinatorLossLimit`",
    remedy="run that version, or a later one",
)
OWNERSHIP_REBUILDING = _reason(
    "OwnershipRebuilding",
    (_READY,),
    meaning="who holds which shard was lost: the ConfigMap was deleted while no operator ran, damaged, or put back from an "
    "older copy",
    remedy="wait one `sessionTimeout`: consumers keep what they claim, then the rest is given out, above all epochs that were "
    "found. What is claimed and has no committed position any more is `CheckpointLost`: [reset](day-two.md#reset) it",
)
SNAPSHOT_TOO_LARGE = _reason(
    "SnapshotTooLarge",
    (_STALLED, _READY),
    meaning="with what is new the group's stored state would be over 7,200 KiB; the message has the size, and what stays out: "
    "new shards, or a reset. What the group has is served as before",
    remedy="split the group, or reset fewer shards at once; it is tried again every minute, and at once when the group is "
    "declared anew",
)
TOPIC_MISSING = _reason(
    "TopicMissing",
    (_READY,),
    meaning="a topic of `spec.source.kafka.topics` does not exist, or the operator's user may not see it; the others are read "
    "as before",
    remedy="create it, allow it, or take it off the list. See [topics that go](day-two.md#topics-that-go)",
)
SHARDS_UNAVAILABLE = _reason(
    "ShardsUnavailable",
    (_READY,),
    meaning="partitions have had no leader since before this operator looked at them first: how far they reach is not known. "
    "They stay with who holds them, and the others are served",
    remedy="start their broker",
)
DELETING = _reason("Deleting", (_READY,), meaning="the group is being deleted")

# Only in `status.scaling`.
FIRST_CONSUMERS = _reason(
    "FirstConsumers",
    (SCALING,),
    meaning="the first consumers start: how many are needed is known once they have read for a while",
)
MEASURING = _reason("Measuring", (SCALING,), meaning="how many are needed is known once consumers have read for a while")
KEEPING_UP = _reason("KeepingUp", (SCALING,), meaning="so many are needed for what is written")
CATCHING_UP = _reason("CatchingUp", (SCALING,), meaning="more are needed to read the backlog within `lag.targetCatchupSeconds`")
LOAD_FELL = _reason("LoadFell", (SCALING,), meaning="fewer were enough for a whole `stabilizationWindow`")
PACE_UNKNOWN = _reason("PaceUnknown", (SCALING,), meaning="nobody ever had more to read than they could, so one fewer is tried")
SCALE_OUT_UNDONE = _reason(
    "ScaleOutUndone", (SCALING,), meaning="more consumers did not read more, so there are as many as before"
)
IDLE = _reason(
    "Idle", (SCALING,), meaning="`minReplicas` is 0, and all was read for a whole window, or in a group without consumers now"
)
RECORDS_ARRIVED = _reason("RecordsArrived", (SCALING,), meaning="`minReplicas` is 0, nobody ran, and then records came")

# In `status.stuckShards`.
NO_PROGRESS = _reason(
    "NoProgress",
    (STUCK_SHARDS,),
    meaning="its holder has checkpointed nothing for a minute; if the group is paused, the source away, the holder without "
    "executors or the like, the message says so",
    remedy="else read that driver's log; after `progressTimeout` it is replaced",
)
_reason(
    ABOVE_FLOOD,
    (STUCK_SHARDS,),
    meaning="its holder is above its flood watermark, and paused",
    remedy="make room for what `ConsumersHaveRoom` names: it reads on by itself",
)
_reason(
    SINK_BLOCKED,
    (STUCK_SHARDS,),
    meaning="its holder waits for its sink",
    remedy="bring the sink back; after `sinkTimeout` the holder is replaced",
)
NOT_GIVEN_UP = _reason(
    "NotGivenUp",
    (STUCK_SHARDS,),
    meaning="it is to go to another consumer, and its holder reads on",
    remedy="a long micro-batch; after `releaseTimeout` without progress the holder is replaced, one that waits for its sink "
    "after `sinkTimeout`",
)
NO_HOLDER = _reason(
    "NoHolder", (STUCK_SHARDS,), meaning="nobody is given it; the message says why", remedy="as the message says"
)
WAITS_FOR_PARENTS = _reason(
    "WaitsForParents",
    (STUCK_SHARDS,),
    meaning="the group is ordered, and the shards before it are not read to their ends, or, where its topic grew, "
    "to their cutover offsets",
    remedy="none: look at what keeps those",
)

REASONS = tuple(_REASONS)
"""All that is said of reasons, in the documentation's order. One that means something else in another place is twice in it."""

LIMITS = frozenset({SNAPSHOT_TOO_LARGE, TOPIC_MISSING, SHARDS_UNAVAILABLE})
"""The reasons of conditions that tell of what is not served, and withhold nothing of all the rest of the group."""
