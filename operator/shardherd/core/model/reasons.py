"""The reasons that the ownership of a group gives for what it does not grant or commit, or for what is not in order.

Given by `core.group` and the coordinator, read by `core.planning`, which makes conditions of them and adds reasons of its own.
Users see them, and docs/operations.md explains each: a value never changes. Decides nothing.
"""

from __future__ import annotations

PAUSED = "Paused"
"""`spec.paused` is true: nothing is granted or moved."""

CHECKPOINT_LOST = "CheckpointLost"
"""A shard had a durable position and has lost it, or it lies before the first record: the shard stays where it is."""

SOURCE_RECREATED = "SourceRecreated"
"""The topic was deleted and made again: the positions are those of the old one."""

PARTITION_GROWTH = "PartitionGrowth"
"""A topic of an ordered group grew, and what was written before is not read yet."""

UNKNOWN_ASSIGNOR = "UnknownAssignor"
"""`spec.assignor` names none that this operator has: nothing is granted or moved."""

ASSIGNOR_FAILED = "AssignorFailed"
"""A plug-in raised or gave no proper answer: what is held stays, free shards go to who has least."""

TOO_MANY_GROUPS = "TooManyGroups"
"""More groups read one topic than the operator allows: the newest are granted nothing."""

GROUP_ID_TAKEN = "GroupIdTaken"
"""An older group keeps its positions in the same Kafka group."""

SNAPSHOT_TOO_LARGE = "SnapshotTooLarge"
"""With what is new the stored ownership would be too large: that stays out."""

TOPIC_MISSING = "TopicMissing"
"""A topic that the source names does not exist, or may not be seen."""

SHARDS_UNAVAILABLE = "ShardsUnavailable"
"""Shards are there, and nobody can say how far they reach: they have had no leader since they were first looked at."""

LIMITS = frozenset({SNAPSHOT_TOO_LARGE, TOPIC_MISSING, SHARDS_UNAVAILABLE})
"""The reasons of conditions that tell of what is not served, and withhold nothing of all the rest of the group."""
