"""What a refusal means to a consumer: which errors end its run, which are tried again, and after how long.

The session asks for every error that the coordinator raises. One table has them all; what is not a refusal, an exception that
nobody expected, is a defect and is not decided here. docs/design/0021-one-consumer-session.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from shardherd.core.model import errors
from shardherd.core.model.errors import ShardherdError

FIRST_RETRY, LAST_RETRY = 0.1, 1.0
"""Seconds before a failed request is made again; doubled each time up to the second."""


class Refusal(Enum):
    """How long a refusal holds."""

    PASSES = "passes"
    """The same request may succeed later by itself: never a reason to end."""
    STANDS = "stands"
    """It is refused until somebody changes the group, the rights, the operator's version or the program."""
    OVER = "over"
    """This run will never be served again."""


MEANINGS: Mapping[type[ShardherdError], Refusal] = {
    errors.CoordinatorUnavailableError: Refusal.PASSES,
    errors.NotLeadingError: Refusal.PASSES,
    errors.TooManyRequestsError: Refusal.PASSES,
    errors.UnknownGroupError: Refusal.STANDS,
    errors.UnknownShardError: Refusal.STANDS,
    errors.UnauthenticatedError: Refusal.STANDS,
    errors.ForbiddenError: Refusal.STANDS,
    errors.InvalidRequestError: Refusal.STANDS,
    errors.ProtocolVersionError: Refusal.STANDS,
    errors.StaleIncarnationError: Refusal.OVER,
    errors.GroupReplacedError: Refusal.OVER,
}
"""Every error that the coordinator answers a consumer with."""


def meaning_of(error: ShardherdError) -> Refusal:
    """How long it holds; an error that is not in the table as long as it says itself."""
    return MEANINGS.get(type(error), Refusal.PASSES if error.retryable else Refusal.STANDS)


def ends_run(error: ShardherdError, *, joined: bool) -> bool:
    """Whether a consumer that is answered with this error must end.

    One that has `joined`, so that everything about it was right once, goes on asking while a refusal stands: who refuses may be
    wrong for a while, and its own silence limit ends it in time. One that has not is set up wrongly, and waiting would only
    hide that.
    """
    meaning = meaning_of(error)
    return meaning is Refusal.OVER or (meaning is Refusal.STANDS and not joined)


def may_pass(error: ShardherdError) -> bool:
    """Whether it is worth asking again soon, although there is little time left."""
    return meaning_of(error) is Refusal.PASSES


class Retries:
    """The pauses between the attempts of one request: doubled with each that fails."""

    def __init__(self) -> None:
        self._next = FIRST_RETRY

    @property
    def begun(self) -> bool:
        """Whether an attempt has failed since the last success."""
        return self._next > FIRST_RETRY

    def pause(self) -> float:
        """Seconds before the next attempt, now that one has failed."""
        now, self._next = self._next, min(LAST_RETRY, self._next * 2)
        return now

    def succeeded(self) -> None:
        """Begin anew."""
        self._next = FIRST_RETRY
