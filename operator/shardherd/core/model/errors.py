"""What can be refused, and with which stable code.

Each error has a `code` that never changes its meaning: the API sends it, the client raises the same type again, and users find
it in the documentation. Raised by the core, the coordinator and the client. Decides nothing.
"""

from __future__ import annotations

from typing import ClassVar

from shardherd.core.model.nouns import ConsumerId, ShardId


class ShardherdError(Exception):
    """A refusal. The message names the field, the value and the remedy; the attributes say the same for programs.

    Attributes that do not apply are None. `retryable` tells whether the same request may succeed later.
    """

    code: ClassVar[str] = "Internal"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        group: str | None = None,
        shard: ShardId | None = None,
        consumer: ConsumerId | None = None,
        expected_epoch: int | None = None,
        actual_epoch: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.group = group
        self.shard = shard
        self.consumer = consumer
        self.expected_epoch = expected_epoch
        self.actual_epoch = actual_epoch


class FencedEpochError(ShardherdError):
    """The caller acted under a grant that is not the current one. It must drop the shard at once."""

    code = "FencedEpoch"


class UnknownGroupError(ShardherdError):
    """There is no such group here."""

    code = "UnknownGroup"


class UnknownShardError(ShardherdError):
    """The group has no such shard."""

    code = "UnknownShard"


class UnauthenticatedError(ShardherdError):
    """The token is missing or not valid for us."""

    code = "Unauthenticated"


class ForbiddenError(ShardherdError):
    """The token is valid, but its owner may not do this."""

    code = "Forbidden"


class StaleIncarnationError(ShardherdError):
    """Another run of this consumer is the current one, or this run was expired, died or left. It must stop for good."""

    code = "StaleIncarnation"


class GroupReplacedError(ShardherdError):
    """The group that the caller belongs to was deleted, and another one has its name. The caller must stop for good."""

    code = "GroupReplaced"


class NotLeadingError(ShardherdError):
    """This coordinator does not lead (any more). Ask again: another one will."""

    code = "NotLeading"
    retryable = True


class InvalidRequestError(ShardherdError):
    """The request itself is wrong; sending it again cannot help."""

    code = "InvalidRequest"


class ProtocolVersionError(ShardherdError):
    """Client and coordinator speak different versions of the protocol."""

    code = "ProtocolVersion"


class CoordinatorUnavailableError(ShardherdError):
    """The coordinator cannot be reached or cannot answer now."""

    code = "CoordinatorUnavailable"
    retryable = True


class TooManyRequestsError(ShardherdError):
    """The caller calls more often than it may. It is to wait for as long as the answer's Retry-After says."""

    code = "TooManyRequests"
    retryable = True


class ConsumerStoppedError(ShardherdError):
    """This run of a consumer is over: it left, was replaced, or had to stop by itself. Raised by the client, never sent."""

    code = "ConsumerStopped"


class IllegalTransitionError(ShardherdError):
    """A state change that is not one of the nine transitions: a bug of ours, and nothing was changed."""

    code = "IllegalTransition"


class OwnershipFormatError(ShardherdError):
    """The stored ownership was written in a format that this version does not know. It is left alone."""

    code = "OwnershipFormat"


class OwnershipDamagedError(ShardherdError):
    """The stored ownership cannot be read by any version: who holds what must be found out anew."""

    code = "OwnershipDamaged"
