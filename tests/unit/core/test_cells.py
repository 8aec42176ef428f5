"""Cells: what their shards have in common is one holder, and what is lost with one of them is lost for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET, structs

from shardherd import protocol
from shardherd.core.assignors import ASSIGNORS, NOBODY, Problem, target
from shardherd.core.group import cells, grants
from shardherd.core.group.notes import Note, parse
from shardherd.core.group.ownership import encode
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.naming import cell, shard_key
from shardherd.core.model.nouns import ConsumerId, FailingCell, GroupSpec, Reset, ResetState, ResetTo, ShardId, ShardInfo
from shardherd.core.model.reasons import CHECKPOINT_LOST, STATE_LOST
from shardherd.core.model.requests import ConsumerDied, ForceCheckpoint
from tests.builders import Play, incarnation, info, shard, shards, spec, started, topic, with_settings, with_topics
from tests.unit.core.test_resets import declare, go_on, report


def in_cells(play: Play, number: int) -> dict[int, set[str | None]]:
    """Who holds the shards of each cell."""
    found: dict[int, set[str | None]] = {}
    for row in play.view.shards:
        found.setdefault(cell(row.shard, number), set()).add(row.holder)
    return found


def of_two_topics(counts: tuple[int, int], consumers: int, number: int) -> tuple[Play, tuple[ShardInfo, ...]]:
    """A group that reads topics t and u, in so many cells."""
    play = Play(with_topics(spec(consumers, cells=number), "t", "u"))
    infos = tuple(sorted(topic(counts[0]) + topic(counts[1], name="u"), key=lambda each: shard_key(each.shard)))
    play.discover(infos)
    play.settle(*[f"g-{each}" for each in range(consumers)])
    return play, infos


def lost(play: Play) -> tuple[int, ...]:
    return play.group.ownership.group.state_lost


def discarding(
    to: str = "Earliest", id: str = "r1", offsets: Iterable[tuple[str, int]] = (), *, dry_run: bool = False
) -> Reset:
    given = tuple((shard(name), offset) for name, offset in offsets)
    return Reset(id, ResetTo(to), offsets=given, dry_run=dry_run, discard_state=True)


def test_the_shards_of_a_cell_are_those_of_one_remainder_over_all_topics() -> None:
    play, _ = of_two_topics((4, 6), 1, 2)
    assert play.group._state.cells == {
        0: (ShardId("t/0"), ShardId("t/2"), ShardId("u/0"), ShardId("u/2"), ShardId("u/4")),
        1: (ShardId("t/1"), ShardId("t/3"), ShardId("u/1"), ShardId("u/3"), ShardId("u/5")),
    }


def test_every_cell_is_one_consumers_and_the_cells_are_shared_evenly() -> None:
    play, _ = of_two_topics((6, 12), 3, 6)
    holders = in_cells(play, 6)
    assert all(len(each) == 1 for each in holders.values())
    assert sorted(holder for (holder,) in holders.values() if holder is not None) == ["g-0", "g-0", "g-1", "g-1", "g-2", "g-2"]


@pytest.mark.parametrize("assignor", ["Sticky", "Range", "RoundRobin"])
def test_one_more_consumer_is_given_whole_cells_and_as_few_as_it_takes(assignor: str) -> None:
    play, _ = of_two_topics((8, 8), 1, 4)
    play.change(with_settings(spec(2, cells=4), assignor=assignor))
    before = play.holders()
    play.settle("g-0", "g-1")
    assert all(len(each) == 1 for each in in_cells(play, 4).values())
    assert len(play.held_by("g-1")) == 8, "two cells of two shards of each topic"
    assert len(before) == 16


def test_a_cell_is_granted_only_once_its_holder_has_let_go_of_every_shard_of_it() -> None:
    play = started(4, 1, cells=2)
    play.consumer("g-0").busy = {shard("3")}
    play.settle("g-0", "g-1")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "TRANSFER", "2": "ALREADY_ALLOC", "3": "TRANSFER"}
    assert play.consumer("g-0").held.keys() == set(shards("0", "2", "3")), "1 is given up already, and yet nobody's"
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}


def test_a_shard_whose_checkpoint_is_being_committed_keeps_its_whole_cell() -> None:
    play = started(4, 1, cells=2)
    play.hold_commits = True
    play.checkpoint("g-0", "3", 40)
    play.die("g-0")
    play.settle("g-1")
    assert play.holders() == {"0": "g-1", "1": None, "2": "g-1", "3": "g-0"}
    play.hold_commits = False
    play.commit()
    play.settle("g-1")
    assert set(play.holders().values()) == {"g-1"}


def test_a_new_shard_of_a_cell_is_given_to_who_has_the_cell() -> None:
    play = started(4, 2, cells=4)
    before = play.holders()
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert play.holders() == before | {str(number + 4): before[str(number)] for number in range(4)}


def test_a_new_shard_of_a_cell_that_moves_waits_until_the_cell_has_arrived() -> None:
    play = started(2, 1, cells=2)
    play.consumer("g-0").busy = {shard("1")}
    play.settle("g-0", "g-1")
    play.discover(topic(4))
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-0", "2": "g-0", "3": None}
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}


def test_a_new_shard_whose_cell_comes_back_to_its_holder_is_given_to_that_too() -> None:
    play = started(2, 1, cells=2)
    play.consumer("g-0").busy = {shard("1")}
    play.settle("g-0", "g-1")
    play.discover(topic(4))
    play.leave("g-1")
    play.settle("g-0")
    assert play.holders() == {"0": "g-0", "1": "g-0", "2": "g-0", "3": "g-0"}


def with_an_unsaved_shard_away() -> Play:
    """Of 4 shards in two cells, shared by two consumers, shard 3 is away, and g-1 has read of it what it can save nowhere."""
    play = started(4, 2, cells=2)
    play.consumer("g-1").busy = {shard("3")}
    play.discover(topic(3))
    play.settle("g-0", "g-1")
    return play


def test_a_new_shard_is_given_to_who_has_its_cell_though_the_cell_cannot_move_because_one_of_it_is_away() -> None:
    play = with_an_unsaved_shard_away()
    play.discover(tuple(each for each in topic(6) if each.shard != shard("3")))
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1", "4": "g-0", "5": "g-1"}


@pytest.mark.parametrize(
    "asked",
    [
        spec(2, cells=2, cordoned=["g-1"]),
        spec(2, cells=2, leaving=["g-1"]),
        spec(2, cells=2, cordoned=["g-0", "g-1"]),
    ],
    ids=["cordoned", "leaving", "cordoned as all are"],
)
def test_a_new_shard_of_a_cell_that_cannot_move_is_read_by_who_has_the_cell_though_that_is_to_be_emptied(
    asked: GroupSpec,
) -> None:
    play = with_an_unsaved_shard_away()
    play.change(asked)
    play.settle("g-0", "g-1")
    play.discover(tuple(each for each in topic(6) if each.shard != shard("3")))
    play.settle("g-0", "g-1")
    holders = {name: play.holders()[name] for name in ("1", "3", "5")}
    assert (holders, shard("5") in play.consumer("g-1").held) == (dict.fromkeys(("1", "3", "5"), "g-1"), True)

    play.consumer("g-1").busy = set()
    play.discover(topic(6))
    play.settle("g-0", "g-1")
    goes = "g-1" if "g-0" in asked.cordoned else "g-0"
    assert {play.holders()[name] for name in ("1", "3", "5")} == {goes}, "the whole cell moves once it can"


def test_a_new_shard_of_a_cell_one_of_which_is_away_waits_while_its_holder_drains() -> None:
    play = with_an_unsaved_shard_away()
    play.consumer("g-1").draining = True
    play.beat("g-1")
    play.discover(tuple(each for each in topic(6) if each.shard != shard("3")))
    play.settle("g-0", "g-1")
    assert play.holders()["5"] is None


def test_a_cell_on_its_way_stays_with_its_holder_when_something_of_it_goes_away_that_cannot_be_saved() -> None:
    play = started(4, 1, cells=2)
    play.consumer("g-0").busy = {shard("3")}
    play.settle("g-0", "g-1")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "TRANSFER", "2": "ALREADY_ALLOC", "3": "TRANSFER"}

    play.discover(topic(3))
    play.settle("g-0", "g-1")
    assert (play.holders(), set(play.states().values())) == (dict.fromkeys("0123", "g-0"), {"ALREADY_ALLOC"})
    assert play.confirmed("g-0").keys() == set("012"), "what it had given up already is read on"

    play.consumer("g-0").busy = set()
    play.discover(topic(4))
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}


def test_while_something_is_away_what_moves_elsewhere_is_not_looked_at_by_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = started(40, 1, cells=4)
    play.consumer("g-0").busy = set(shards(*map(str, range(40))))
    play.settle("g-0", "g-1")
    away = next(name for name, state in play.states().items() if state == "ALREADY_ALLOC")
    play.discover(tuple(each for each in topic(40) if each.shard != shard(away)))
    play.settle("g-0", "g-1")
    assert list(play.states().values()).count("TRANSFER") == 20

    looked_at, right = list[ShardId](), grants.is_away

    def is_away(state: State, shard: ShardId) -> bool:
        looked_at.append(shard)
        return right(state, shard)

    monkeypatch.setattr(grants, "is_away", is_away)
    play.beat("g-1")
    assert looked_at == []


def test_a_cell_on_its_way_stays_with_its_holder_when_a_checkpoint_of_it_is_lost_until_that_is_set() -> None:
    play = started(4, 1, cells=2)
    play.checkpoint("g-0", "3", 10)
    play.consumer("g-0").busy = {shard("3")}
    play.settle("g-0", "g-1")
    play.consumer("g-0").busy = set()

    infos = (*topic(3), info("3", begin=50))
    play.discover(infos)
    play.settle("g-0", "g-1")
    assert (play.holders(), set(play.states().values())) == (dict.fromkeys("0123", "g-0"), {"ALREADY_ALLOC"})
    assert play.confirmed("g-0").keys() == set("012")

    play.ask(ForceCheckpoint(shard("3"), 50))
    play.commit()
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}


@pytest.mark.parametrize(
    "asked",
    [spec(2, cells=2, cordoned=["g-1"]), spec(2, cells=2, leaving=["g-1"])],
    ids=["cordoned", "leaving"],
)
@pytest.mark.parametrize("lost", [False, True], ids=["away and unsaved", "its checkpoint lost"])
def test_a_cell_that_cannot_move_is_read_on_by_its_holder_though_that_is_to_be_emptied(asked: GroupSpec, lost: bool) -> None:
    play = started(4, 2, cells=2)
    play.checkpoint("g-1", "3", 10)
    play.consumer("g-1").busy = {shard("3")}
    play.change(asked)
    play.settle("g-0", "g-1")
    assert play.consumer("g-1").held.keys() == {shard("3")}, "1 is given up already"
    if lost:
        play.consumer("g-1").busy = set()

    infos = (*topic(3), info("3", begin=50)) if lost else topic(3)
    play.discover(infos)
    play.settle("g-0", "g-1")
    revision = play.group.ownership.group.revision
    for _ in range(3):
        play.discover(infos)
        play.settle("g-0", "g-1")

    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}
    assert shard("1") in play.consumer("g-1").held
    assert play.group.ownership.group.revision == revision, "nothing changes any more"


def test_a_cell_on_its_way_goes_on_when_something_of_it_goes_away_that_its_holder_lets_go_of() -> None:
    play = started(4, 1, cells=2)
    play.consumer("g-0").busy = {shard("1")}
    play.settle("g-0", "g-1")
    play.discover(topic(3))
    play.settle("g-0", "g-1")
    assert play.states()["1"] == "TRANSFER"
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": None}


def test_a_new_shard_of_a_cell_waits_until_its_consumer_is_warm() -> None:
    play = started(1, 1, cells=1)
    play.consumer("g-0").ready = False
    play.beat("g-0")
    play.discover(topic(2))
    play.settle("g-0")
    assert play.holders() == {"0": "g-0", "1": None}
    play.consumer("g-0").ready = True
    play.settle("g-0")
    assert play.holders() == {"0": "g-0", "1": "g-0"}


def test_what_the_source_has_no_more_keeps_no_cell_from_moving() -> None:
    play, infos = of_two_topics((2, 2), 1, 2)
    play.discover([each for each in infos if each.shard.startswith("t/")])
    play.settle("g-0")
    assert play.held_by("g-0") == {"0", "1"}
    play.consumer("g-0").draining = True
    play.settle("g-0", "g-1")
    assert play.held_by("g-1") == {"0", "1"}
    play.discover(infos)
    play.settle("g-1")
    assert set(play.holders().values()) == {"g-1"}, "what comes back goes where the rest of its cell is"


def test_a_cell_of_which_a_checkpoint_is_lost_stays_where_it_is() -> None:
    play = started(6, 1, cells=3)
    play.checkpoint("g-0", "5", 40)
    play.discover([*topic(5), info("5", begin=60)])
    play.settle("g-0", "g-1")
    assert {name: play.holders()[name] for name in ("2", "5")} == {"2": "g-0", "5": "g-0"}
    assert sorted(str(play.holders()[name]) for name in ("0", "1")) == ["g-0", "g-1"]


def test_in_an_ordered_group_a_shard_joins_its_cell_when_its_parents_are_read() -> None:
    play = Play(spec(2, ordered=True, cells=2))
    play.discover([info("0"), info("1"), info("2", parents=["0"])])
    play.settle("g-0", "g-1")
    holder = play.holders()["0"]
    assert holder is not None
    assert play.states()["2"] == "WAIT"
    play.discover([info("0", open=False), info("1"), info("2", parents=["0"])])
    play.checkpoint(holder, "0", 100)
    play.settle("g-0", "g-1")
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC", "2": "ALREADY_ALLOC"}


def test_in_an_ordered_group_a_shard_joins_its_cell_only_once_an_earlier_run_has_let_go_of_the_rest() -> None:
    play = Play(spec(2, ordered=True, cells=2))
    play.discover([info("0"), info("1"), info("3")])
    play.settle("g-0", "g-1")
    other, holder = str(play.holders()["0"]), str(play.holders()["1"])
    play.run(holder, pod=2)
    play.beat(holder)
    play.discover([info("0", open=False), info("1"), info("3"), info("5", parents=["0"])])
    play.checkpoint(other, "0", 100)
    play.settle(other, holder)
    assert (play.holders(), play.confirmed(holder)) == ({"0": None, "1": holder, "3": holder, "5": None}, {})
    play.ask(ConsumerDied(ConsumerId(holder), incarnation(holder)))
    play.settle(other, holder)
    assert len({play.holders()[name] for name in ("1", "3", "5")} - {None}) == 1


# State.


def test_a_reply_tells_the_cells_the_generation_and_where_the_state_of_a_shard_begins() -> None:
    play = Play(spec(1, starting="Latest", cells=3))
    play.discover(topic(1))
    play.settle("g-0")
    play.checkpoint("g-0", "0", 130)
    play.beat("g-0")
    reply = play.consumer("g-0").reply
    assert reply is not None
    assert (reply.cells, reply.state_generation) == (3, 0)
    assert [(each.start, each.position) for each in reply.confirmed] == [(100, 130)]


def test_state_begins_where_the_first_position_became_durable_and_not_before() -> None:
    """The records between what was chosen and what could be committed were deleted meanwhile."""
    play = Play(spec(1, cells=1))
    play.hold_commits = True
    play.discover([info("0", begin=0)])
    play.fail_commits()
    play.discover([info("0", begin=20)])
    play.hold_commits = False
    play.commit()
    play.settle("g-0")
    assert [(each.start, each.position) for each in play.confirmed("g-0").values()] == [(20, 20)]


def test_a_cell_whose_state_is_lost_is_taken_back_and_given_to_nobody() -> None:
    play = started(4, 2, cells=2)
    holder = play.holders()["1"]
    assert holder is not None
    play.events.clear()
    play.consumer(holder).state_lost = (1,)
    play.beat(holder)
    assert play.consumer(holder).held == {}, "what it is told next has nothing of the cell"
    told = f"{holder} finds that the state of cell 1 is lost: nothing of it is granted"
    assert [event for event in play.events if event.reason == STATE_LOST] == [
        GroupEvent(STATE_LOST, told, consumer=ConsumerId(holder), shards=shards("1", "3"), warning=True)
    ]
    play.consumer(holder).state_lost = ()
    play.settle("g-0", "g-1")
    play.restart()
    play.discover(topic(4))
    play.settle("g-0", "g-1")
    assert play.holders() | {"0": "", "2": ""} == {"0": "", "1": None, "2": "", "3": None}
    assert [cause.reason for cause in play.view.withheld] == [STATE_LOST]
    assert "the state of cell 1 is gone" in play.view.withheld[0].message


def test_a_shard_that_joins_a_cell_whose_state_is_lost_is_not_given_out() -> None:
    play = started(1, 1, cells=1)
    play.consumer("g-0").state_lost = (0,)
    play.settle("g-0")
    play.discover(topic(2))
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": None, "1": None}


def test_a_cell_that_is_lost_while_it_moves_goes_to_nobody() -> None:
    play = started(2, 1, cells=2)
    play.consumer("g-0").busy = {shard("1")}
    play.settle("g-0", "g-1")
    play.consumer("g-0").state_lost = (1,)
    play.beat("g-0")
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert play.holders()["1"] is None


def test_only_the_holder_under_its_present_grant_is_believed_that_a_cell_is_lost() -> None:
    play = started(2, 2, cells=2)
    holder = play.holders()["0"]
    assert holder is not None
    other = "g-1" if holder == "g-0" else "g-0"
    play.ask(structs.replace(play.consumer(other).heartbeat(), state_lost=(0,)))
    play.ask(structs.replace(play.consumer(holder).heartbeat(), state_lost=(0,), revision=0))
    assert lost(play) == ()
    play.ask(structs.replace(play.consumer(holder).heartbeat(), state_lost=(0, 1)))
    assert lost(play) == (0,)


@pytest.mark.parametrize(
    ("number", "said"), [(0, "the group has no cells: see spec.state"), (2, "the group's cells are 0 to 1")]
)
def test_a_cell_that_there_is_not_is_refused(number: int, said: str) -> None:
    play = started(2, 1, cells=number)
    play.consumer("g-0").state_lost = (7,)
    with pytest.raises(InvalidRequestError, match=f"names in stateLost the cells 7; {said}"):
        play.beat("g-0")


def test_the_failing_cells_of_a_consumer_are_shown_as_long_as_it_holds_them_and_says_so() -> None:
    def shown() -> list[object]:
        return [each.cells_failing for each in play.view.consumers]

    play = started(2, 1, cells=2)
    said = FailingCell(1, "out of luck")
    play.ask(structs.replace(play.consumer("g-0").heartbeat(), cells_failing=(said,)))
    assert shown() == [(said,)]
    play.ask(play.consumer("g-0").heartbeat())
    assert shown() == [UNSET]
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1"}
    play.ask(structs.replace(play.consumer("g-0").heartbeat(), cells_failing=(said,)))
    assert shown() == [UNSET, UNSET], "it is another consumer's now"


def test_a_failing_cell_that_there_is_not_is_refused() -> None:
    play = started(2, 1, cells=2)
    with pytest.raises(InvalidRequestError, match="names in cellsFailing the cells 2; the group's cells are 0 to 1"):
        play.ask(structs.replace(play.consumer("g-0").heartbeat(), cells_failing=(FailingCell(2, "out of luck"),)))


def test_a_reset_begins_the_state_of_all_cells_anew() -> None:
    play = started(4, 2, cells=2)
    losing, kept = play.holders()["1"], play.holders()["0"]
    assert losing is not None
    assert kept is not None
    play.checkpoint(kept, "2", 50)
    play.consumer(losing).state_lost = (1,)
    play.settle("g-0", "g-1")
    play.consumer(losing).state_lost = ()
    declare(play, discarding("Offsets", offsets=[("0", 10), ("1", 20), ("2", 30), ("3", 40)]))
    go_on(play)
    assert (report(play).state, play.view.withheld[-1].reason) == (ResetState.DONE, "Paused")
    assert report(play).message.endswith(" The state of all cells was discarded.")
    declare(play, None, paused=False)
    play.settle("g-0", "g-1")
    assert play.view.withheld == ()
    confirmed = play.confirmed("g-0") | play.confirmed("g-1")
    assert {name: (each.start, each.position) for name, each in confirmed.items()} == {
        "0": (10, 10),
        "1": (20, 20),
        "2": (30, 30),
        "3": (40, 40),
    }
    reply = play.consumer("g-0").reply
    assert reply is not None
    assert reply.state_generation == 1


def test_while_the_state_is_discarded_nobody_reads_and_the_new_generation_is_told() -> None:
    play = started(2, 1, cells=2)
    play.hold_commits = True
    declare(play, discarding())
    go_on(play)
    play.beat("g-0")
    reply = play.consumer("g-0").reply
    assert reply is not None
    assert (reply.confirmed, reply.state_generation) == ((), 1)
    epochs = [row.owner_epoch for row in play.view.shards]
    play.settle("g-0")
    assert [row.owner_epoch for row in play.view.shards] == epochs, "what it left out is not granted anew before it is set"
    play.hold_commits = False
    play.commit()
    play.beat("g-0")
    assert play.confirmed("g-0").keys() == {"0", "1"}


def test_what_is_said_of_the_state_that_was_discarded_does_not_count() -> None:
    play = started(2, 1, cells=2)
    behind = play.consumer("g-0").revision
    declare(play, discarding())
    go_on(play)
    play.ask(structs.replace(play.consumer("g-0").heartbeat(), state_lost=(0,), revision=behind))
    assert play.group.ownership.group.state_lost == ()


def test_nothing_is_lost_while_all_state_is_discarded() -> None:
    play = started(2, 1, cells=2)
    play.hold_commits = True
    declare(play, discarding())
    go_on(play)
    play.consumer("g-0").state_lost = (0,)
    play.beat("g-0", "g-0")
    assert lost(play) == (), "it was found before this was heard of, and says nothing of the new state"


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (Reset("r1", ResetTo.EARLIEST), "spec.reset.discardState is not true"),
        (Reset("r1", ResetTo.EARLIEST, dry_run=True), "spec.reset.discardState is not true"),
        (
            Reset("r1", ResetTo.EARLIEST, shards=shards("1"), discard_state=True),
            "it does not set t/0, whose state is discarded with all other: set all shards",
        ),
        (discarding("Offsets", offsets=[("0", 10)]), "it does not set t/1, whose state is discarded with all other"),
    ],
)
def test_a_reset_that_would_keep_state_beside_other_positions_is_refused(declared: Reset, said: str) -> None:
    play = started(2, 1, cells=2)
    play.checkpoint("g-0", "1", 40)
    declare(play, declared)
    go_on(play)
    assert report(play).state is ResetState.REFUSED
    assert said in report(play).message
    assert (play.shard("1").checkpoint, play.group.ownership.group.state_generation) == (40, 0)


def test_a_group_without_cells_has_no_state_to_discard() -> None:
    play = started(1, 1)
    declare(play, discarding())
    go_on(play)
    assert report(play).message.startswith(
        "Nothing was changed: spec.reset.discardState is true, and the group has no spec.state"
    )


def test_a_dry_run_says_that_the_state_would_be_discarded_and_keeps_it() -> None:
    play = started(1, 1, cells=1)
    declare(play, discarding(dry_run=True))
    go_on(play)
    assert report(play).message.endswith(" The state of all cells would be discarded.")
    assert play.group.ownership.group.state_generation == 0


def test_no_position_of_a_cell_is_set_by_itself() -> None:
    play = started(1, 1, cells=1)
    with pytest.raises(InvalidRequestError, match="position of shard t/0 belongs to the state of its cell"):
        play.ask(ForceCheckpoint(shard("0"), 0))


def test_a_position_of_a_cell_that_is_lost_is_put_back_and_the_state_begins_where_it_did() -> None:
    play = started(1, 1, cells=1)
    play.discover([info("0", begin=30)])
    assert [cause.reason for cause in play.view.withheld] == [CHECKPOINT_LOST]
    play.ask(ForceCheckpoint(shard("0"), 30))
    play.settle("g-0")
    assert [(each.start, each.position) for each in play.confirmed("g-0").values()] == [(0, 30)]


def test_the_state_in_use_survives_the_loss_of_the_ownership() -> None:
    play = started(2, 1, cells=2)
    declare(play, discarding())
    go_on(play)
    declare(play, None, paused=False)
    play.settle("g-0")
    play.checkpoint("g-0", "0", 40)
    play.lose()
    play.discover(topic(2))
    play.wait(50.0, ["g-0"])
    play.settle("g-0")
    reply = play.consumer("g-0").reply
    assert reply is not None
    assert reply.state_generation == 1
    assert {name: (each.start, each.position) for name, each in play.confirmed("g-0").items()} == {"0": (0, 40), "1": (0, 0)}


@pytest.mark.parametrize("first", ["g-0", "g-1"])
def test_a_cell_of_which_two_consumers_claim_parts_is_nobodys_until_it_is_one_consumers(first: str) -> None:
    play = started(4, 1, cells=2)
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}
    claims = {"g-0": {shard("0"): 1, shard("2"): 1, shard("3"): 1}, "g-1": {shard("1"): 2}}
    play.lose()
    play.discover(topic(4))
    for name in (first, *(claims.keys() - {first}), "g-0", "g-1"):
        play.consumer(name).held = claims[name]
        play.beat(name)
    assert play.holders() == {"0": "g-0", "1": None, "2": "g-0", "3": None}
    play.wait(46.0, ["g-0", "g-1"])
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}
    assert min(play.shard(name).owner_epoch for name in ("1", "3")) > 2


@pytest.mark.parametrize("first", ["g-0", "g-1"])
def test_a_whole_cell_is_his_who_claims_all_of_it_under_the_later_epochs(first: str) -> None:
    play = started(4, 1, cells=2)
    play.settle("g-0", "g-1")
    claims = {"g-0": dict.fromkeys(shards("0", "1", "2", "3"), 1), "g-1": dict(play.consumer("g-1").held)}
    play.lose()
    play.discover(topic(4))
    for name in (first, *(claims.keys() - {first})):
        play.consumer(name).held = claims[name]
        play.beat(name)
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}


def test_a_note_names_the_generation_of_the_state_unless_that_is_the_first() -> None:
    written = Note("u", 2, 3, "s", forced=True, generation=4)
    assert [str(written), str(Note("u", 2, 3, "s", generation=4)), str(Note("u", 2, 3, "s"))] == [
        "1 u 2 3 s forced generation=4",
        "1 u 2 3 s generation=4",
        "1 u 2 3 s",
    ]
    assert [parse(str(written)), parse("1 u 2 3  generation=4"), parse("1 u 2 3 s generation=x")] == [
        written,
        Note("u", 2, 3, "", generation=4),
        None,
    ]


# What the assignor is asked.


def asked(held: dict[str, str], consumers: int = 2, **rest: object) -> Problem:
    """A problem of eight shards of t, of which some are held."""
    names_of = [ConsumerId(f"g-{each}") for each in range(consumers)]
    current = {shard(name): ConsumerId(holder) for name, holder in held.items()}
    return Problem.of([each.shard for each in topic(8)], names_of, current, **rest)  # type: ignore[arg-type]


def test_a_cell_is_its_holders_and_weighs_as_much_as_its_shards() -> None:
    whole, cell_of = cells.together(asked({"0": "g-1", "4": "g-1", "1": "g-0"}), 3)
    assert whole.shards.tolist() == ["cell/0", "cell/1", "cell/2"]
    assert cell_of.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert whole.current.tolist() == [1, 0, NOBODY]
    assert whole.weights is not None
    assert whole.weights.tolist() == [3.0, 3.0, 2.0]
    assert (whole.pending.tolist(), whole.topics.tolist()) == ([False] * 3, [0] * 3)


def test_known_weights_are_added_up_and_a_zone_is_that_of_all_its_shards() -> None:
    names_of = [each.shard for each in topic(6)]
    weights = {shard("0"): 2.0, shard("3"): 3.0, shard("1"): 5.0}
    zones = dict(zip([str(name) for name in names_of], "aabaa", strict=False)) | {"g-0": "a"}
    whole, _ = cells.together(Problem.of(names_of, [ConsumerId("g-0")], weights=weights, zones=zones), 3)
    assert whole.weights is not None
    assert whole.shard_zones is not None
    assert np.array_equal(whole.weights, [5.0, 5.0, np.nan], equal_nan=True)
    assert whole.shard_zones.tolist() == [0, 0, NOBODY]


def test_a_cell_is_on_its_way_only_while_its_next_consumer_has_nothing_of_it() -> None:
    problem = asked({str(number): "g-0" for number in range(8)})
    problem = replace(problem, pending=np.array([True, True, True, False, True, True, False, True]))
    whole, _ = cells.together(problem, 3)
    assert whole.pending.tolist() == [False, True, True]


@pytest.mark.parametrize("name", [name for name in ASSIGNORS if name != "CooperativeSticky"])
def test_what_is_answered_of_cells_is_said_of_their_shards(name: str) -> None:
    whole, cell_of = cells.together(asked({}), 4)
    answer = cells.apart(target(name, whole), cell_of)
    assert answer.tolist() == answer[:4].tolist() * 2
    assert sorted(answer[:4].tolist()) == [0, 0, 1, 1]


def test_a_group_without_cells_is_decided_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what is asked of whole cells is asked, and neither what is stored nor what is noted says anything of them."""
    for name in ("together", "apart", "may_take", "without", "cell"):
        monkeypatch.setattr(cells, name, None)
    play = started(5, 1)
    play.settle("g-0", "g-1")
    play.checkpoint("g-0", "0", 40)
    play.die("g-1")
    play.discover(topic(7))
    play.settle("g-0")
    declare(play, Reset("r1", ResetTo.EARLIEST, shards=shards("1")))
    go_on(play)
    assert set(play.holders().values()) == {"g-0"}
    assert "state" not in encode(play.group.ownership)["group"]
    assert [note for note in play.noted.values() if "generation" in note] == []
    assert report(play).message.endswith("t/1 0 -> 0.")
    assert protocol.encode(play.group.confirmed(play.consumer("g-0").heartbeat()))["confirmed"][0].keys() == {
        "shard",
        "ownerEpoch",
        "heldSinceEpoch",
        "position",
    }
