"""Whatever topics an ordered group is edited to read, and whoever is cut off meanwhile, no two consumers may read one shard."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.group import absence
from shardherd.core.group.records import ShardRecord
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import ConsumerId, GroupSpec, ShardId, ShardInfo
from tests.builders import Play, shard, spec, topic, with_topics
from tests.harness.long import LONG
from tests.property.planted import Bug, noticed

EXAMPLES = 500 if LONG else 60

NAMES = tuple(ConsumerId(f"c-{number}") for number in range(3))
TOPICS = (("t",), ("u",), ("t", "u"), ("v",), ("v", "u"), ("t", "v"))

TIMEOUT = 45.0
STOPS_AFTER = TIMEOUT - 6.0
"""Seconds after which a consumer of an ordered group that is not heard has stopped by itself: the group is sure of it later."""

AT_REST = 120
"""Seconds after the last fault: more than a session timeout, and what it takes to deal the shards out again."""

Step = tuple[str, int, int]


def named(topics: tuple[str, ...], cells: int) -> GroupSpec:
    group = spec(3, ordered=True, session_timeout=TIMEOUT, rejoin_grace=0.0, initial_assignment_delay=0.0, cells=cells)
    return with_topics(group, *topics)


class Edited:
    """A group of three consumers, each of two topics at most, whose clock goes on by seconds."""

    def __init__(self, cells: int) -> None:
        self.topics: tuple[str, ...] = ("t", "u")
        self.cells = cells
        self.play = Play(named(self.topics, cells))
        self.play.discover(self.infos)
        self.cut_off: set[ConsumerId] = set()
        self.heard = dict.fromkeys(NAMES, self.play.now)

    @property
    def infos(self) -> tuple[ShardInfo, ...]:
        return tuple(info for name in self.topics for info in topic(2, name=name))

    def do(self, what: str, which: int) -> None:
        play, name = self.play, NAMES[which % len(NAMES)]
        if what == "edit":
            self.topics = TOPICS[which % len(TOPICS)]
            play.restart(named(self.topics, self.cells))
        elif what == "cut off":
            self.cut_off.add(name)
        elif what == "is back":
            self.cut_off.discard(name)
        elif what == "is busy":
            play.consumer(name).busy = {shard("u/0"), shard("1")}
        elif what == "is idle":
            play.consumer(name).busy = set()
        elif what == "starts anew" and name not in self.cut_off and name in play.consumers:
            play.run(name, start=play.consumers[name].incarnation.start + 1)
            self.heard[name] = play.now

    def second(self, *, looks: bool) -> None:
        play = self.play
        play.wait(1.0)
        for name in NAMES:
            if name in self.cut_off:
                continue
            self._stop_if_too_silent(name)
            try:
                play.beat(name)
            except CoordinatorUnavailableError:
                continue
            self.heard[name] = play.now
        if looks:
            play.discover(self.infos)
        reads: dict[ShardId, ConsumerId] = {}
        for name in NAMES:
            self._stop_if_too_silent(name)
            for each in play.consumer(name).held:
                assert each not in reads, f"{name} and {reads[each]} may read {each}"
                reads[each] = name

    def _stop_if_too_silent(self, name: ConsumerId) -> None:
        if self.play.now - self.heard[name] >= STOPS_AFTER:
            self.play.consumer(name).held = {}


@settings(max_examples=EXAMPLES, database=None, deadline=None)
@given(
    cells=st.sampled_from((0, 0, 2)),
    steps=st.lists(
        st.tuples(
            st.sampled_from(("edit", "edit", "cut off", "cut off", "is back", "is busy", "is idle", "starts anew", "no look")),
            st.integers(0, 5),
            st.integers(1, 15),
        ),
        min_size=3,
        max_size=14,
    ),
)
def test_no_shard_has_two_readers_and_in_the_end_each_that_is_named_has_one(cells: int, steps: list[Step]) -> None:
    edited = Edited(cells)
    for _ in range(3):
        edited.second(looks=True)
    for what, which, seconds in steps:
        edited.do(what, which)
        for _ in range(seconds):
            edited.second(looks=what != "no look")
    edited.cut_off.clear()
    for name in NAMES:
        edited.play.consumer(name).busy = set()
    for _ in range(AT_REST):
        edited.second(looks=True)
    held = sorted(each for name in NAMES for each in edited.play.consumer(name).held)
    assert held == sorted(info.shard for info in edited.infos)
    assert {name.partition("/")[0] for name in edited.play.group.ownership.shards} == {*edited.topics}
    assert {"PartitionGrowth", "ShardsWait"}.isdisjoint(edited.play.reasons())


def _had_a_holder(_right: Any, _state: Any, row: ShardRecord, _now: float) -> bool:
    return row.holder is not None


BUGS = (
    Bug("what is not named any more is dropped at once", absence, "may_be_read_still", lambda *_: frozenset()),
    Bug("what may be read still is dropped with the next look", absence, "_is_read_no_more", _had_a_holder),
    Bug("what nobody can read any more is kept for good", absence, "_drop_unnamed", lambda *_: None),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_no_shard_has_two_readers_and_in_the_end_each_that_is_named_has_one)
