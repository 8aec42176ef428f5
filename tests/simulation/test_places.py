"""The places to which simulated workers send: the judge sees what was promised of them and is not kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardId
from shardherd.worker.guarantees import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from shardherd.worker.output import ShardGrant
from tests.simulation.history_entries import BrokenError, Run, Shard
from tests.simulation.places import FAILS, HANGS, Place, Places, Sent
from tests.simulation.plan import plan, with_workers
from tests.simulation.world import World

T0 = ShardId("t/0")
RUN = Run(ConsumerId("g-0"), Incarnation("uid-1", 1))


def places(guarantee: str, *, durable: int | None = 10) -> Places:
    """Two places of a world that has not begun, and a shard of which so much is durable."""
    world = World(with_workers(plan(0), outputs=True))
    world.history.shards[T0] = Shard(T0, end=20, durable=durable, highest=durable)
    found = world.places
    found.guarantee, found.all = guarantee, (Place("one", ()), Place("two", ()))
    return found


def record(offset: int, group: str = "") -> Sent:
    return (group or plan(0).spec.identity.uid, T0, "id-1", offset)


def test_a_world_always_has_the_same_places_and_they_are_well_once_it_has_healed() -> None:
    world = World(plan(7))
    again = World(plan(7))
    assert [each.troubles for each in world.places.all] == [each.troubles for each in again.places.all]
    place = Place("one", ((5.0, 9.0, FAILS), (8.0, 12.0, HANGS)))
    assert [place.trouble(now) for now in (4.9, 5.0, 8.5, 9.0, 12.0)] == ["", FAILS, FAILS, HANGS, ""]
    world.timeline.now = place.troubles[0][0]
    assert world.places.trouble(place) == FAILS
    world.healed = True
    assert world.places.trouble(place) == ""


def test_it_sees_what_is_sent_twice_or_before_it_is_durable_where_it_is_sent_at_most_once() -> None:
    found = places(AT_MOST_ONCE)
    one, two = found.all
    found.sends(one, record(9), RUN)
    found.sends(two, record(9), RUN)
    with pytest.raises(BrokenError, match="sends 9 to one, to which it was sent before"):
        found.sends(one, record(9), RUN)
    with pytest.raises(BrokenError, match="sends 10 to one, and durable is 10"):
        found.sends(one, record(10), RUN)


def test_what_a_user_has_read_again_or_another_group_reads_may_be_sent_again() -> None:
    found = places(AT_MOST_ONCE)
    found.sends(found.all[0], record(9), RUN)
    found.sends(found.all[0], record(9, group="another"), RUN)
    found._world.history.shards[T0].rewound = True
    found.sends(found.all[0], record(9), RUN)
    often = places(AT_LEAST_ONCE, durable=None)
    for _ in range(2):
        often.sends(often.all[0], record(9), RUN)


def test_it_sees_what_is_written_once_more_and_a_position_that_is_not_after_the_last_record() -> None:
    found = places(EXACTLY_ONCE)
    one, grant = found.all[0], ShardGrant("uid", T0, 1, 0, "id-1")
    found.writes_once(one, grant, [record(3), record(4)], 5, RUN)
    assert (one.stands, one.has) == ({("uid", T0, "id-1"): 5}, {record(3), record(4)})
    with pytest.raises(BrokenError, match="writes 4 to one once more, which stands at 5"):
        found.writes_once(one, grant, [record(4)], 5, RUN)
    with pytest.raises(BrokenError, match="moves one to 8 with 6 as the last record"):
        found.writes_once(one, grant, [record(6)], 8, RUN)


def test_it_sees_who_has_done_a_record_that_is_nowhere_unless_something_happened_to_him_or_to_the_place() -> None:
    found = places(AT_MOST_ONCE)
    one, two = found.all
    found.committed[record(7)] = RUN
    assert (found.lacks(record(7)), found.unsent(record(7))) == (["one", "two"], ["one", "two"])
    one.has.add(record(7))
    assert found.unfinished() == f"t/0: 7 was done by {RUN}, and never sent to ['two']"
    found.committed[record(7)] = replace(RUN, violent="killed")
    assert found.unfinished() == ""
    found.committed[record(7)] = RUN
    two.failed.add(record(7))
    assert (found.lacks(record(7)), found.unfinished()) == (["two"], "")
    found.gone.add(record(7))
    assert (found.lacks(record(7)), found.unsent(record(7))) == ([], [])
