"""Which topics a source names. Called when a group is loaded, and at every look at its source.

A pattern is matched as Kafka's own servers do it, by RE2: in a time that grows with the name alone. Whoever may make a group
writes the pattern, and one that makes a backtracking matcher try for hours would keep the operator from everybody else.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from shardherd.core.model.naming import split
from shardherd.core.model.nouns import GroupSpec, KinesisSource, ShardId


class PatternError(ValueError):
    """The pattern is no regular expression, or uses what RE2 does not have."""


def selects(topics: Collection[str], pattern: str, topic: str) -> bool:
    """Whether a source with these topics, or with this pattern for whole names, reads this topic. Raises PatternError."""
    return _compiled(pattern).fullmatch(topic) is not None if pattern else topic in topics


def names(spec: GroupSpec, shard: ShardId) -> bool:
    """Whether the source names this shard's topic. An invalid pattern names all: a look at the source refuses it."""
    topic, partition = split(shard)
    if isinstance(spec.source, KinesisSource):
        return topic == spec.source.name
    try:
        return partition < 0 or selects(spec.source.topics, spec.source.topic_pattern, topic)
    except PatternError:
        return True


def check(pattern: str) -> None:
    """Raises PatternError for what is none."""
    _compiled(pattern)


@functools.lru_cache(256)
def _compiled(pattern: str) -> Any:
    # Most operators see no pattern, and need not hold what matches one.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        raise PatternError(said.decode(errors="replace") if isinstance(said, bytes) else str(said)) from error
