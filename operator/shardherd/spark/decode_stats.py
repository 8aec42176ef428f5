"""How many typed values a consumer's workers have decoded, how many of them the slow way, and how the driver learns of it.

`typed` counts in Spark's Python workers. At the end of a task `source` adds what is new to an accumulator of Spark's, where
`register` has made one. In a ConsumerGroup it tells the agent by HTTP: the agent's class goes to Spark before there is an
accumulator. What is reported is the worker's whole count, so that a message that was lost does no harm. Nothing but metrics
depends on it: a driver that cannot be reached is logged, and the task goes on.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import Accumulator

log = logging.getLogger(__name__)

T = TypeVar("T")

PATH = "/values"

TIMEOUT = 1.0
"""Seconds to wait for the driver's answer; a task waits for it."""

MOST_WORKERS = 1000
"""Workers whose counts the agent remembers; Spark ends one that was idle for a minute."""


@dataclass(slots=True)
class Counts:
    """Values that were decoded: all of them, those that took the slow path, and those that were malformed."""

    values: int = 0
    slow: int = 0
    malformed: int = 0

    def add(self, values: int, slow: int, malformed: int) -> None:
        """So many more were decoded."""
        self.values += values
        self.slow += slow
        self.malformed += malformed

    def since(self, before: Counts) -> Counts:
        """What is new; nothing where there is less than before."""
        return Counts(
            max(0, self.values - before.values), max(0, self.slow - before.slow), max(0, self.malformed - before.malformed)
        )


class CountsParam(AccumulatorParam[Counts]):
    """How Spark adds Counts up."""

    def zero(self, _value: Counts) -> Counts:
        return Counts()

    def addInPlace(self, total: Counts, more: Counts) -> Counts:  # noqa: N802
        return Counts(total.values + more.values, total.slow + more.slow, total.malformed + more.malformed)


@dataclass(frozen=True, slots=True)
class CountsAddress:
    """Where the agent takes counts, and what shows that it is one of its own workers who tells them."""

    host: str
    port: int
    token: str

    def as_dict(self) -> dict[str, Any]:
        """For the agent's socket; `CountsAddress(**...)` is the way back."""
        return asdict(self)


def new_address(host: str, port: int) -> CountsAddress:
    """One of this agent, with a token that nobody else knows."""
    return CountsAddress(host, port, secrets.token_urlsafe(16))


# --- in a worker --------------------------------------------------------------------------------------------------------------

_counted: dict[int, tuple[str, Counts]] = {}


def mine() -> Counts:
    """What this process has counted so far. A forked process begins anew."""
    return _own()[1]


def _own() -> tuple[str, Counts]:
    return _counted.setdefault(os.getpid(), (secrets.token_hex(8), Counts()))


def added(batches: Iterator[T], total: Accumulator[Counts]) -> Iterator[T]:
    """The same batches; after the last one what this task has counted is added to `total`. A task that fails adds nothing."""
    before = replace(mine())
    yield from batches
    total.add(mine().since(before))


def reported(batches: Iterator[T], address: CountsAddress) -> Iterator[T]:
    """The same batches; after the last one what this process has counted is reported to the agent."""
    # The planner's processes import this module as well, and must start fast.
    from http.client import NO_CONTENT, HTTPConnection, HTTPException

    yield from batches
    name, counts = _own()
    body = json.dumps({"worker": name, **asdict(counts)})
    line = HTTPConnection(address.host, address.port, timeout=TIMEOUT)
    try:
        line.request("POST", PATH, body, {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"})
        answer = line.getresponse()
        if answer.status != NO_CONTENT:
            log.warning("the agent does not take the count of typed values: %d %s", answer.status, answer.read(200))
    except (OSError, HTTPException) as error:
        log.warning("cannot tell the agent at %s:%d how many typed values there were: %s", address.host, address.port, error)
    finally:
        line.close()


# --- in the agent -------------------------------------------------------------------------------------------------------------


class ReceivedCounts:
    """What each worker reported last."""

    def __init__(self, address: CountsAddress) -> None:
        self._address = address
        self._last: dict[str, Counts] = {}

    def admits(self, authorization: str) -> bool:
        """Whether this header is that of a worker of ours."""
        return secrets.compare_digest(authorization.encode(), f"Bearer {self._address.token}".encode())

    def take(self, message: Mapping[str, Any]) -> Counts:
        """What is new in a worker's message. Raises ValueError for one that is none."""
        try:
            worker = str(message["worker"])[:64]
            now = Counts(*(int(message[name]) for name in ("values", "slow", "malformed")))
        except (KeyError, TypeError) as error:
            raise ValueError(f"a worker's message has worker, values, slow and malformed, not {error}") from error
        before = self._last.pop(worker, Counts())
        self._last[worker] = now
        if len(self._last) > MOST_WORKERS:
            del self._last[next(iter(self._last))]
        return now.since(before)
