"""What operators tell their users and their metrics: each reason is a documented one, and warns when it should.

Called by an operator of a world in the place of a recorder of events and of metrics. Raises BrokenError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardherd.core.model.event_reasons import EVENTS
from shardherd.core.model.nouns import GroupIdentity
from shardherd.core.model.reasons import REASONS
from tests.simulation.history_entries import BrokenError

PLAIN = frozenset(
    {
        "AboveLow",
        "BelowLow",
        "ConsumerJoined",
        "ConsumerLeft",
        "CutoverTaken",
        "OwnershipRebuilt",
        "Rebalanced",
        "ResetPlanned",
        "ShardClosed",
        "ShardOver",
        "ShardsAppeared",
        "ShardsForgotten",
        "ShardsWait",
        "SourceReachable",
    }
)
"""What is told as it goes well."""

EITHER = frozenset({"ShardRevived"})
"""Warns only if the order of keys can break by it."""

CAUSES = frozenset(
    {
        "CapacityChanged",
        "CheckpointForced",
        "CheckpointFound",
        "ShardsGone",
        "ShardsReturned",
        "ConditionsCleared",
        "ConsumerDied",
        "ConsumerDraining",
        "ConsumerJoined",
        "ConsumerLeft",
        "ConsumerNotReady",
        "CutoverReached",
        "OwnershipRebuilt",
        "ProgressTimeout",
        "ReleaseTimeout",
        "ResetDone",
        "SinkTimeout",
        "Restored",
        "SessionTimeout",
        "SettingsChanged",
        "ShardOver",
        "ShardsAppeared",
        "ShardsFreed",
        "TransferEnded",
        "WatermarkCrossed",
        "WeightsChanged",
    }
)
"""Why shards move, as `status.lastRebalance.reason` and the metric have it."""

OPERATIONS = frozenset(
    {
        "commit_offsets",
        "describe_group",
        "discover",
        "forget_offsets",
        "log_ends",
        "positions_at",
        "read_offsets",
        "take_over",
        "written_at",
    }
)
"""Requests to a source, as the metrics name them."""


DOCUMENTED = EVENTS.keys() | {reason.value for reason in REASONS}
"""Reasons of Events, and those of conditions that are told as Events: docs/reasons.md has a row of each."""


def event(reason: str, message: str, *, warning: bool) -> None:
    """A user is told of something."""
    if reason not in DOCUMENTED or not isinstance(message, str) or not message:
        raise BrokenError(f"an event has a reason that no page of the documentation has: {reason!r}: {message!r}")
    if warning is not (reason not in PLAIN) and reason not in EITHER:
        raise BrokenError(f"an event of reason {reason} is told as a {'warning' if warning else 'matter of course'}: {message}")


class Metrics:
    """CoordinatorMetrics that looks at what it is given. `rebalanced` is told of every rebalance that is counted."""

    def __init__(self, group: Callable[[], GroupIdentity], rebalanced: Callable[[str, int], None]) -> None:
        self._group = group
        self._rebalanced = rebalanced

    def rebalance(self, group: GroupIdentity, reason: str, moved: int) -> None:
        """Shards were given to consumers."""
        self._of(group)
        if reason not in CAUSES or moved < 0:
            raise BrokenError(f"a rebalance is counted as {moved} moves because of {reason!r}")
        self._rebalanced(reason, moved)

    def source_request(self, operation: str, seconds: float) -> None:
        """A request to the source was answered."""
        if operation not in OPERATIONS or seconds < 0.0:
            raise BrokenError(f"a request to the source is counted as {operation!r} of {seconds} s")

    def source_error(self, group: GroupIdentity, operation: str) -> None:
        """A request to the source was not answered."""
        self._of(group)
        if operation not in OPERATIONS:
            raise BrokenError(f"an error of the source is counted as one of {operation!r}")

    def _of(self, group: GroupIdentity) -> None:
        if group != self._group():
            raise BrokenError(f"something is counted for {group}, and the group is {self._group()}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_named: None
