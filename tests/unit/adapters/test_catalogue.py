"""Which partitions the catalogue takes for new ones, that begin at 0 before their broker says so."""

from __future__ import annotations

from typing import cast

import pytest

from shardherd.adapters.kafka.catalogue import BORN_WITHIN, Catalogue, Extent, Interest, Look
from shardherd.adapters.kafka.connection import KafkaConnection

INTERESTS = frozenset({Interest(("t", "u"))})


def after(last: Look | None) -> Catalogue:
    """A catalogue whose last look was this one. It is asked nothing that needs a connection."""
    catalogue = Catalogue(cast("KafkaConnection", None))
    catalogue._last = last
    return catalogue


def look(*leaderless: tuple[str, int]) -> Look:
    """At second 100 there were t/0 and u/0, and those without a known extent."""
    extents = {("t", 0): Extent(7, 9), ("u", 0): Extent(0, 0)}
    return Look(100.0, INTERESTS, {"t": "id-t", "u": "id-u"}, extents, {}, frozenset(leaderless))


def test_partitions_of_a_topic_that_was_seen_whole_a_moment_ago_are_new() -> None:
    assert after(look())._grown({"t": "id-t", "u": "id-u"}, 101.0) == {"t", "u"}


@pytest.mark.parametrize(
    ("last", "now"),
    [(None, 101.0), (look(), 100.0 + BORN_WITHIN + 1.0)],
    ids=["the first look", "a look of long ago"],
)
def test_what_was_not_looked_at_just_now_may_be_old(last: Look | None, now: float) -> None:
    assert after(last)._grown({"t": "id-t", "u": "id-u"}, now) == frozenset()


def test_a_topic_that_was_not_seen_whole_may_have_old_partitions() -> None:
    assert after(look(("t", 1)))._grown({"t": "id-t", "u": "id-u"}, 101.0) == {"u"}


def test_a_topic_that_was_made_again_is_another_one() -> None:
    assert after(look())._grown({"t": "id-of-another", "u": "id-u"}, 101.0) == {"u"}


def test_a_topic_that_was_not_there_is_not_taken_for_grown() -> None:
    assert after(look())._grown({"new": "id-new", "t": "id-t", "u": "id-u"}, 101.0) == {"t", "u"}
