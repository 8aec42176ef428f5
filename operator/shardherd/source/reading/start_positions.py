"""The range that a query without a coordinator reads: its start and end as options give them, resolved to offsets.

`options` parses with it; `standalone` resolves with it, once, in the process that plans. It knows Kafka only as a function
that looks offsets up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardherd.core.model.messages import MAX_INTEGER
from shardherd.core.model.naming import shard_key
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kafka.partitions import EARLIEST, LATEST

MOST_PARTITIONS = 2**31
"""Kafka counts partitions in 32 bits."""


class RangeBoundError(ValueError):
    """A start or an end of a range that cannot be used. Names the option, the shard and the remedy."""


class Lookup(Protocol):
    """Looks offsets up at the brokers."""

    def offsets(self, times: Mapping[ShardId, int], timeout: float) -> Mapping[ShardId, Offset]:
        """The first offset at or after each time (milliseconds, EARLIEST or LATEST); -1 where there is none. All of them."""
        ...


@dataclass(frozen=True, slots=True)
class RangeBound:
    """Start or end of a range: one time for all shards (milliseconds, EARLIEST or LATEST), or an offset or a time for each.

    `unmatched_is_latest`: a time that no record has reached yet means the end, instead of being an error.
    """

    option: str
    everywhere: int | None = None
    offsets: Mapping[ShardId, int] = field(default_factory=dict)
    times: Mapping[ShardId, int] = field(default_factory=dict)
    unmatched_is_latest: bool = False

    def resolve(self, shards: Collection[ShardId], kafka: Lookup, timeout: float) -> dict[ShardId, Offset]:
        """The offset of every shard. Raises RangeBoundError."""
        if self.everywhere is None:
            self._check(shards)
        asked = self.times if self.times else {shard: at for shard, at in self.offsets.items() if at < 0}
        if self.everywhere is not None:
            asked = dict.fromkeys(shards, self.everywhere)
        found = dict(kafka.offsets(asked, timeout)) if asked else {}
        missed = sorted((shard for shard, offset in found.items() if offset < 0), key=shard_key)
        if missed and not self.unmatched_is_latest:
            raise RangeBoundError(
                f"option {self.option}: shard {missed[0]} has no record at or after {asked[missed[0]]} (milliseconds); "
                "give an earlier time, or the option startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        if missed:
            found |= kafka.offsets(dict.fromkeys(missed, LATEST), timeout)
        return {**self.offsets, **found}

    def _check(self, shards: Collection[ShardId]) -> None:
        named = self.offsets.keys() | self.times.keys()
        if missing := sorted(set(shards) - named, key=shard_key):
            raise RangeBoundError(
                f"option {self.option} says nothing of shard {missing[0]}: it must name every partition that is read"
                + ("" if self.times else f" ({EARLIEST} is its beginning, {LATEST} its end)")
            )
        if extra := sorted(named - set(shards), key=shard_key):
            raise RangeBoundError(
                f"option {self.option} names shard {extra[0]}, which is not among those that are read: remove it"
            )


def whole_number(text: str) -> int | None:
    """0 or more, within 64 bits; None for any other text."""
    digits = text.strip()
    # Python refuses to read thousands of digits, and there is no need to.
    if not digits.isdecimal() or len(digits) > len(str(MAX_INTEGER)) or int(digits) > MAX_INTEGER:
        return None
    return int(digits)


def by_offset(option: str, text: str, *, forbidden: int | None = None) -> RangeBound:
    """`earliest`, `latest` or `{"topic": {"0": 23, "1": -2}}`. `forbidden` is EARLIEST or LATEST if it makes no sense here."""
    names_of_bounds = {"earliest": EARLIEST, "latest": LATEST}
    word = names_of_bounds.get(text.strip().lower())
    names = {value: name for name, value in names_of_bounds.items()}
    if word is None and not text.lstrip().startswith("{"):
        allowed = " or ".join(name for name, value in names_of_bounds.items() if value != forbidden)
        raise RangeBoundError(
            f'option {option} must be {allowed} or JSON such as {{"clicks": {{"0": 23, "1": 42}}}}, not {text[:80]!r}'
        )
    found = {} if word is not None else _per_shard(option, text, lowest=EARLIEST)
    if forbidden is not None and (word == forbidden or forbidden in found.values()):
        raise RangeBoundError(f"option {option} must not be {names[forbidden]} ({forbidden}): nothing would be read")
    return RangeBound(option, word, found)


def by_time(option: str, text: str, *, everywhere: bool, unmatched_is_latest: bool) -> RangeBound:
    """Milliseconds since 1970, the same everywhere or `{"topic": {"0": 1700000000000}}`."""
    if everywhere:
        at = whole_number(text)
        if at is None:
            raise RangeBoundError(f"option {option} must be a time in milliseconds since 1970, not {text[:80]!r}")
        return RangeBound(option, at, unmatched_is_latest=unmatched_is_latest)
    return RangeBound(option, times=_per_shard(option, text, lowest=0), unmatched_is_latest=unmatched_is_latest)


def shards_of(option: str, text: str) -> tuple[ShardId, ...]:
    """`{"topic": [0, 1]}` as shards."""
    found = _json(option, text, '{"clicks": [0, 1]}')
    lists = all(isinstance(listed, list) and listed for listed in found.values())
    if not found or not lists or not all(_is_partition(each) for listed in found.values() for each in listed):
        raise RangeBoundError(f'option {option} must list partitions, as in {{"clicks": [0, 1]}}, not {text[:80]!r}')
    return tuple(sorted({ShardId(f"{topic}/{each}") for topic, listed in found.items() for each in listed}, key=shard_key))


def _is_partition(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_PARTITIONS


def _per_shard(option: str, text: str, *, lowest: int) -> dict[ShardId, int]:
    example = '{"clicks": {"0": 23, "1": 42}}' if lowest < 0 else '{"clicks": {"0": 1700000000000}}'
    found: dict[ShardId, int] = {}
    for topic, each in _json(option, text, example).items():
        if not isinstance(each, dict):
            raise RangeBoundError(f"option {option}, topic {topic!r}: give an object of partitions, as in {example}")
        for partition, value in each.items():
            number, known = whole_number(partition), type(value) is int and lowest <= value <= MAX_INTEGER
            if not _is_partition(number) or not known:
                raise RangeBoundError(
                    f"option {option}, topic {topic!r}: {partition[:80]!r}: {repr(value)[:80]} is wrong; write it as in"
                    f" {example}"
                )
            shard = ShardId(f"{topic}/{number}")
            if shard in found:  # "0" and "00" are one partition
                raise RangeBoundError(f"option {option} names shard {shard} twice: name it once")
            found[shard] = value
    if not found:
        raise RangeBoundError(f"option {option} names no partition; write it as in {example}")
    return found


def _json(option: str, text: str, example: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for name, value in pairs:
            if name in named:
                raise RangeBoundError(f"option {option} names {name[:80]!r} twice: name it once")
            named[name] = value
        return named

    try:
        found = json.loads(text, object_pairs_hook=once)
    except RangeBoundError:
        raise
    except RecursionError as error:
        raise RangeBoundError(f"option {option} must be JSON such as {example}: nested too deep") from error
    except ValueError as error:
        raise RangeBoundError(f"option {option} must be JSON such as {example}: {error}") from error
    if not isinstance(found, dict):
        raise RangeBoundError(f"option {option} must be a JSON object such as {example}, not {text[:80]!r}")
    return found
