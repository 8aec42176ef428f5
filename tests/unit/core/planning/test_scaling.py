"""How many consumers there should be, and how a group gets there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardherd.core.model.nouns import ConsumerId, GroupSettings, Incarnation, ShardState
from shardherd.core.model.reasons import PAUSED, WAITING_FOR_SHARDS
from shardherd.core.planning.observed import Memory, OwnedSet, Scaling, ScalingMode
from shardherd.core.planning.scaling import SETTLE, Scale, remember, scale
from tests.unit.core.planning.builders import NOW, consumers, declared, observation, pods, shards, view

C1, C2 = ConsumerId("clicks-1"), ConsumerId("clicks-2")


def steps(found: Scale) -> tuple[int, int, set[ConsumerId]]:
    """The goal, what the StatefulSet says on the way there, and who has to go."""
    return found.desired, found.replicas, set(found.leaving)


@pytest.mark.parametrize(
    ("count", "limits", "desired"),
    [
        (1, (1, 10), 1),
        (4, (1, 10), 1),
        (5, (1, 10), 2),
        (8, (1, 10), 2),
        (12, (1, 10), 3),
        (12, (1, 2), 2),
        (3, (2, 10), 2),
        (0, (1, 10), 1),
        (0, (0, 10), 0),
    ],
)
def test_consumers_follow_shards_within_the_limits(count: int, limits: tuple[int, int], desired: int) -> None:
    seen = observation(
        declared=declared(scaling=Scaling(min_replicas=limits[0], max_replicas=limits[1], shards_per_consumer=4)),
        view=view(shards(count)),
        stateful_set=None,
        consumers=(),
    )
    assert steps(scale(seen)) == (desired, desired, set())


def test_shards_that_wait_or_are_over_need_nobody() -> None:
    held = (*shards(4), *shards(4, ShardState.WAIT), *shards(4, ShardState.OVER))
    assert scale(observation(view=view(held), stateful_set=None)).desired == 1


def test_shards_that_move_or_have_no_holder_count() -> None:
    held = (*shards(4, ShardState.TRANSFER), *shards(4, ShardState.NOT_ALLOC))
    assert scale(observation(view=view(held), stateful_set=None)).desired == 2


@pytest.mark.parametrize("mode", [ScalingMode.FIXED, ScalingMode.EXTERNAL])
def test_other_modes_do_as_replicas_says_whatever_the_shards(mode: ScalingMode) -> None:
    seen = observation(declared=declared(scaling=Scaling(mode=mode, max_replicas=2), replicas=5))
    assert steps(scale(seen)) == (5, 5, set())


def test_nothing_is_started_before_the_shards_are_known() -> None:
    unloaded = scale(observation(view=None, stateful_set=None, consumers=()))
    unread = scale(observation(view=view(discovered=False), stateful_set=None, consumers=()))
    for found in (unloaded, unread):
        assert (steps(found), found.held) == ((0, 0, set()), WAITING_FOR_SHARDS)


def test_what_runs_is_left_alone_while_the_shards_are_not_known() -> None:
    found = scale(observation(view=None))
    assert (steps(found), found.held) == ((2, 2, set()), WAITING_FOR_SHARDS)


def test_a_paused_group_is_not_scaled() -> None:
    seen = observation(declared=declared(settings=GroupSettings(paused=True)), view=view(shards(40)))
    assert (steps(scale(seen)), scale(seen).held) == ((2, 2, set()), PAUSED)


class TestScalingIn:
    """From three consumers to one: the highest ordinals go, and only empty-handed."""

    seen = observation(
        stateful_set=OwnedSet(replicas=3),
        view=view((*shards(2), *shards(1, holder=C1), *shards(1, holder=C2)), consumers=consumers(2, 1, 1)),
    )

    def after(self, seconds: float, **fields: object) -> Scale:
        first = replace(self.seen, memory=Memory())
        memory = remember(first, scale(first))
        return scale(replace(self.seen, now=NOW + seconds, memory=memory, **fields))  # type: ignore[arg-type]

    def test_they_are_told_first(self) -> None:
        assert steps(scale(self.seen)) == (1, 3, {C1, C2})

    def test_they_stay_while_they_hold_shards(self) -> None:
        assert steps(self.after(30)) == (1, 3, {C1, C2})

    def test_the_highest_goes_once_it_holds_nothing(self) -> None:
        held = (*shards(3), *shards(1, holder=C1))
        assert steps(self.after(30, view=view(held))) == (1, 2, {C1, C2})

    def test_a_lower_one_cannot_go_before_a_higher_one(self) -> None:
        held = (*shards(3), *shards(1, holder=C2))
        assert steps(self.after(30, view=view(held))) == (1, 3, {C1, C2})

    def test_one_that_is_about_to_get_a_shard_holds_it(self) -> None:
        held = shards(4, ShardState.TRANSFER, next_consumer=C2)
        assert self.after(30, view=view(held)).replicas == 3

    def test_all_go_once_all_hold_nothing(self) -> None:
        assert steps(self.after(30, view=view(shards(4)))) == (1, 1, {C1, C2})

    def test_a_picture_from_before_they_were_told_is_not_believed(self) -> None:
        assert self.after(SETTLE / 2, view=view(shards(4))).replicas == 3

    def test_a_picture_from_long_enough_after_they_were_told_is_believed(self) -> None:
        assert self.after(SETTLE, view=view(shards(4))).replicas == 1

    def test_they_have_the_whole_drain_timeout(self) -> None:
        found = self.after(59.9)
        assert (found.replicas, found.overdue) == (3, ())
        assert self.after(60, view=view((*shards(3), *shards(1, holder=C1)))).overdue == (C1,)

    def test_they_are_told_also_while_the_group_is_paused_and_stay(self) -> None:
        stopped = replace(self.seen, declared=declared(settings=GroupSettings(paused=True)), stateful_set=OwnedSet(replicas=1))
        gone = scale(replace(stopped, consumers=pods(0, 1)))
        assert (steps(gone), gone.overdue) == ((1, 1, {C1}), ())

    def test_they_go_with_their_shards_when_the_drain_timeout_has_passed(self) -> None:
        found = self.after(60)
        assert (found.replicas, found.overdue) == (1, (C1, C2))

    def test_a_coordinator_that_shows_nothing_does_not_count_as_holding_nothing(self) -> None:
        fixed = declared(scaling=Scaling(mode=ScalingMode.FIXED), replicas=1)
        assert self.after(30, view=None, declared=fixed).replicas == 3

    def test_they_are_leaving_until_their_pods_are_gone(self) -> None:
        shrunk = replace(
            self.seen, stateful_set=OwnedSet(replicas=1), view=view(shards(4)), consumers=pods(0, 1, 2, deleting=True)
        )
        assert steps(scale(shrunk)) == (1, 1, {C1, C2})
        assert steps(scale(replace(shrunk, consumers=pods(0)))) == (1, 1, set())

    def test_a_restarted_operator_gives_those_above_the_limit_nothing_while_it_does_not_know_the_shards(self) -> None:
        limited = declared(scaling=Scaling(max_replicas=2))
        assert steps(scale(replace(self.seen, declared=limited, view=None))) == (3, 3, {C2})

    def test_growing_again_calls_it_off(self) -> None:
        assert steps(self.after(30, view=view(shards(12)))) == (3, 3, set())


def test_the_start_of_a_drain_is_remembered_until_it_ends() -> None:
    first = observation(stateful_set=OwnedSet(replicas=3))
    memory = remember(first, scale(first))
    assert (memory.draining_since, memory.sizing) == ({C2: NOW}, scale(first).decision.sizing)
    later = replace(first, now=NOW + 20, memory=memory)
    assert remember(later, scale(later)).draining_since == {C2: NOW}
    ended = replace(later, stateful_set=OwnedSet(replicas=2))
    assert remember(ended, scale(ended)).draining_since == {}


def test_an_expired_incarnation_is_remembered_since_it_was_seen_first_until_it_is_dead() -> None:
    first, second = Incarnation("uid-0", 1), Incarnation("uid-1", 1)
    both = view(shards(8), expired=((ConsumerId("clicks-0"), first), (C1, second)))
    seen = observation(view=both)
    memory = remember(seen, scale(seen))
    assert memory.expired_since == {first: NOW, second: NOW}
    later = replace(seen, now=NOW + 9, memory=replace(memory, expired_since={first: NOW}), dead=(Incarnation("uid-1", 2),))
    assert remember(later, scale(later)).expired_since == {first: NOW}
    unseen = replace(later, view=None)
    assert remember(unseen, scale(unseen)).expired_since == {}


def test_who_is_being_replaced_is_remembered_since_it_was_first() -> None:
    seen = observation(memory=Memory(rolling=(C1, NOW - 5)))
    assert remember(seen, scale(seen)).rolling is None
    assert remember(seen, scale(seen), C1).rolling == (C1, NOW - 5)
    assert remember(seen, scale(seen), C2).rolling == (C2, NOW)
    assert remember(replace(seen, memory=Memory()), scale(seen), C1).rolling == (C1, NOW)
