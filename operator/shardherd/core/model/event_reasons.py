"""Every reason of an Event on a group, and every reason why shards were moved, each with its meaning.

Given by `core.group`, `core.planning` and the coordinator; the tables of docs/reasons.md are made from them. Reasons of
conditions are recorded as Events too: those are in `reasons`. A reason is a plain string. Users see the values, so none ever
changes. Decides nothing.
"""

from __future__ import annotations

from types import MappingProxyType

_EVENTS: dict[str, str] = {}
_REBALANCES: dict[str, str] = {}


def _event(value: str, meaning: str) -> str:
    _EVENTS[value] = meaning
    return value


def _rebalance(value: str, meaning: str) -> str:
    _REBALANCES[value] = meaning
    return value


def _event_and_rebalance(value: str, meaning: str) -> str:
    return _rebalance(_event(value, meaning), meaning)


READY = _event("Ready", "the condition turned True: all is well")

# Consumers.
CONSUMER_JOINED = _event("ConsumerJoined", "a consumer came")
_rebalance(CONSUMER_JOINED, "a consumer came, or is ready now, and is given its share")
CONSUMER_LEFT = _event_and_rebalance("ConsumerLeft", "a consumer gave its shards back and went")
CONSUMER_DIED = _event_and_rebalance("ConsumerDied", "a consumer is proven dead")
SESSION_TIMEOUT = _event_and_rebalance("SessionTimeout", "a consumer was expired: it was silent for `sessionTimeout`")
RELEASE_TIMEOUT = _event_and_rebalance(
    "ReleaseTimeout", "a consumer was expired: it did not give a shard up within `releaseTimeout`"
)
PROGRESS_TIMEOUT = _event_and_rebalance(
    "ProgressTimeout", "a consumer was expired: it did nothing with a backlog for `progressTimeout`"
)
SINK_TIMEOUT = _event_and_rebalance(
    "SinkTimeout", "a consumer was expired: it waited for its sink for longer than `sinkTimeout`"
)
POD_SUPERSEDED = _event(
    "PodSuperseded",
    "a late request of an earlier pod of its name was heard after it, so the coordinator refuses it for ever: it is deleted, "
    "and the StatefulSet makes it anew",
)
CONSUMER_DRAINING = _rebalance("ConsumerDraining", "a consumer is to go, and gives its shards to others")
CONSUMER_NOT_READY = _rebalance("ConsumerNotReady", "a consumer is not ready any more, and gives its shards to others")
CAPACITY_CHANGED = _rebalance("CapacityChanged", "a consumer can read more, or less, than it could")
WATERMARK_CROSSED = _rebalance(
    "WatermarkCrossed", "a consumer is above one of its [watermarks](concepts.md#watermarks), or below it again"
)
BELOW_LOW = _event("BelowLow", "a consumer is below its low watermark again")

# Shards.
SHARDS_APPEARED = _event("ShardsAppeared", "the source has new shards")
_rebalance(SHARDS_APPEARED, "the source has new shards, or where they begin is durable now")
SHARD_CLOSED = _event("ShardClosed", "a shard is read-only")
SHARD_OVER = _event_and_rebalance("ShardOver", "a shard is read to its end")
SHARD_REVIVED = _event("ShardRevived", "a shard that was read to its end is read again after a position was set")
SHARDS_WAIT = _event(
    "ShardsWait",
    "a topic of an ordered group grew by a multiple, and its new shards [wait](order.md) for those that were there",
)
CUTOVER_TAKEN = _event("CutoverTaken", "how far those that were there must be read before the new shards of a topic that grew")
CUTOVER_REACHED = _rebalance("CutoverReached", "shards that waited since their topic grew may be read")
SHARDS_GONE = _event("ShardsGone", "the source has some shards no more, and nobody reads them until they come back")
_rebalance(SHARDS_GONE, "shards that somebody holds cannot be read any more")
SHARDS_FORGOTTEN = _event(
    "ShardsForgotten",
    "the source has had some shards no more for [an hour](day-two.md#topics-that-go), and the group forgets them",
)
OFFSETS_KEPT = _event("OffsetsKept", "offsets were to be deleted (`cleanup: Delete`) and could not be; it is not tried again")
SHARD_SIZES_UNKNOWN = _event("ShardSizesUnknown", "bytes are to be weighed and the brokers do not show them: records are")
SHARDS_RETURNED = _rebalance("ShardsReturned", "shards that could not be read can be read again")
SHARDS_FREED = _rebalance("ShardsFreed", "shards of a consumer that is over may move now")
WEIGHTS_CHANGED = _rebalance("WeightsChanged", "how much work the shards are is known now, or the loads have drifted apart")

# Rebalances.
REBALANCED = _event("Rebalanced", "shards were given out or called back, and why")
TRANSFER_ENDED = _rebalance("TransferEnded", "a shard has changed hands, and what had to wait for it goes on")
RESTORED = _rebalance("Restored", "the coordinator was restarted, or another one took over")
SETTINGS_CHANGED = _rebalance("SettingsChanged", "what is declared was changed")
CONDITIONS_CLEARED = _rebalance("ConditionsCleared", "what had withheld grants is gone")

# The number of consumers, and rollouts.
SCALED_UP = _event("ScaledUp", "more consumers run, with what their number was decided from")
SCALED_DOWN = _event("ScaledDown", "fewer consumers run, with what their number was decided from")
DRAINING = _event("Draining", "fewer consumers are to run once the last have drained, with what their number was decided from")
SCALE_RECOMMENDED = _event(
    "ScaleRecommended", "the number of consumers that `scaling.recommendOnly` does not act upon, with what it was decided from"
)
ROLLED_OUT = _event("RolledOut", "the end of a rollout: all consumers run what is declared")
ROLLED_BACK = _event("RolledBack", "the end of a rollout that failed: all pods go back to what ran before")

# Positions.
CHECKPOINT_FORCED = _event_and_rebalance("CheckpointForced", "somebody set one position")
CHECKPOINT_RESTORED = _event("CheckpointRestored", "somebody else changed Kafka's offsets, and they were put right")
CHECKPOINT_FOUND = _rebalance("CheckpointFound", "a position that was lost is there again")
RESET_WAITS = _event("ResetWaits", "`spec.reset` waits: the group is not paused")
RESET_PLANNED = _event("ResetPlanned", "a dry run of `spec.reset` says what would be set")
RESET_REFUSED = _event("ResetRefused", "`spec.reset` cannot be, and nothing was changed")
RESET_DONE = _event_and_rebalance("ResetDone", "`spec.reset` was made")
OWNERSHIP_LOST = _event("OwnershipLost", "who holds which shard was lost, and is found out")
OWNERSHIP_DAMAGED = _event("OwnershipDamaged", "who holds which shard was stored, and cannot be read any more: it is found out")
OWNERSHIP_REBUILT = _event_and_rebalance("OwnershipRebuilt", "who holds which shard is found out again")
SOURCE_REACHABLE = _event("SourceReachable", "the source can be read and committed to again")

EVENTS = MappingProxyType(_EVENTS)
"""What each Event means, in the Markdown and the order of the documentation."""

REBALANCES = MappingProxyType(_REBALANCES)
"""What each reason of a rebalance means, in the same way."""
