"""What holds for every group whatever happens to it, searched for by hypothesis."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from msgspec import structs

from shardherd.core.group import heartbeats
from shardherd.core.group.cells import is_lost
from shardherd.core.group.decisions import Decision
from shardherd.core.group.fsm import TRANSITIONS, Cause, step
from shardherd.core.group.grants import blocked
from shardherd.core.group.group import Group
from shardherd.core.group.ownership import decode, encode
from shardherd.core.group.records import Ownership, ShardRecord
from shardherd.core.group.state import Put
from shardherd.core.model.errors import IllegalTransitionError, ShardherdError, StaleIncarnationError
from shardherd.core.model.nouns import HeartbeatReply, Reset, ResetState, ResetTo, ShardState
from shardherd.core.model.requests import ConditionsChanged, ForceCheckpoint, Request
from tests.builders import Play, copy_of, info, restore, shard, spec, with_settings


@given(before=st.sampled_from([None, *ShardState]), cause=st.sampled_from(list(Cause)))
def test_a_pair_outside_the_table_is_refused(before: ShardState | None, cause: Cause) -> None:
    if (before, cause) in TRANSITIONS:
        assert step(before, cause) is TRANSITIONS[before, cause].to
    else:
        with pytest.raises(IllegalTransitionError):
            step(before, cause)


def timeless(ownership: Ownership) -> Ownership:
    return replace(ownership, shards={name: record._replace(since=0.0) for name, record in ownership.shards.items()})


ASSIGNORS = ["Sticky", "Sticky", "Sticky", "Range", "RoundRobin", "Weighted", "example.Unknown"]
NAMES = st.sampled_from(["g-0", "g-1", "g-2", "g-3"])
SHARDS = st.sampled_from([str(number) for number in range(6)])


def resetting(play: Play) -> bool:
    report = play.group.ownership.group.reset
    return report is not None and report.state is ResetState.APPLYING


class Watched(Play):
    """A group whose every step is watched."""

    def __init__(self, ordered: bool, cells: int = 0) -> None:
        super().__init__(spec(2, ordered=ordered, cells=cells))
        self.grants: dict[tuple[str, int], object] = {}
        self.edges: set[int] = set()

    def ask(self, request: Request) -> Decision:
        before = self.group.ownership, self.view
        withheld = self.group.spec.settings.paused or blocked(self.group._state)
        twin = copy_of(self.group)
        try:
            decision = twin.decide(request, self.now)
        except ShardherdError:
            assert (twin.ownership, twin.view(self.now)) == before, "a refused request changed something"
            raise
        assert (self.group.ownership, self.view) == before, "deciding changed another group"
        withheld = withheld and (twin.spec.settings.paused or blocked(twin._state))
        for event in decision.entries:
            if isinstance(event, Put) and isinstance(event.after, ShardRecord):
                self._watch(event.before, event.after)
                if withheld and event.before is not None:
                    new = {event.after.holder, event.after.next_consumer} - {
                        event.before.holder,
                        event.before.next_consumer,
                        None,
                    }
                    assert not new, "something was granted or moved while that was withheld"
        twin.roll_back()
        assert (twin.ownership, twin.view(self.now)) == before, "something was not rolled back"
        decided = super().ask(request)
        if self.group.spec.settings.cells:
            self._watch_cells()
        return decided

    def _watch_cells(self) -> None:
        """At no time two consumers hold shards of one cell, nobody is to get a part of one, none is read without its state."""
        state = self.group._state
        for number, names in state.cells.items():
            rows = [state.shards[name] for name in names]
            holders = {row.holder for row in rows} - {None}
            assert len(holders) <= 1, f"cell {number} is held by {holders}"
            assert len({row.next_consumer for row in rows} - {None}) <= 1, f"cell {number} is split"
        for consumer in state.sessions:
            read = heartbeats.confirmed(state, consumer)
            assert not any(is_lost(state, each.shard) for each in read), "a cell is read without its state"
            assert not (read and resetting(self)), "a cell is read while its state is discarded"

    def _watch(self, before: ShardRecord | None, after: ShardRecord) -> None:
        known = {edge.to for (state, _), edge in TRANSITIONS.items() if state == (before.state if before else None)}
        assert (before is not None and before.state is after.state) or after.state in known
        if before is not None:
            self.edges |= {
                edge.number
                for (state, _), edge in TRANSITIONS.items()
                if state is before.state and edge.to is after.state and before.state is not after.state
            }
            assert after.owner_epoch >= before.owner_epoch
            grant = (after.holder, after.incarnation)
            if after.holder is not None and grant != (before.holder, before.incarnation):
                lost = before.holder != after.holder and is_lost(self.group._state, after.shard)
                assert not lost, "a cell was granted whose state is lost"
                assert after.owner_epoch > before.owner_epoch, "a grant without a new epoch"
        assert after.held_since_epoch <= after.owner_epoch
        assert (after.holder is None) == (after.state not in (ShardState.ALREADY_ALLOC, ShardState.TRANSFER))
        assert (after.next_consumer is None) == (after.state is not ShardState.TRANSFER)
        if after.holder is not None:
            owner = self.grants.setdefault((after.shard, after.owner_epoch), (after.holder, after.incarnation))
            assert owner == (after.holder, after.incarnation), "one epoch, two owners"


class Machine(RuleBasedStateMachine):
    """Everything that can happen to a group, in any order."""

    cells = 0

    @initialize(ordered=st.booleans(), running=st.sampled_from([3, 2, 0]))
    def begin(self, ordered: bool, running: int) -> None:
        self.play = Watched(ordered, self.cells)
        self.closed: set[int] = set()
        self.count = 4
        self.look()
        # Most begin at rest: what matters happens to shards that somebody holds.
        self.play.settle(*[f"g-{number}" for number in range(running)])

    def look(self) -> None:
        infos = []
        for number in range(self.count):
            parents = [str(number - 4)] if number >= 4 else []
            infos.append(info(str(number), end=100, open=number not in self.closed, parents=parents))
        self.play.discover(infos)

    @rule()
    def discover(self) -> None:
        self.look()

    @rule(number=st.integers(0, 1))
    def split(self, number: int) -> None:
        self.closed.add(number)
        self.count = 6
        self.look()

    @rule(names=st.lists(NAMES, min_size=1, max_size=4))
    def beat(self, names: list[str]) -> None:
        for name in names:
            try:
                self.play.beat(name)
            except StaleIncarnationError:
                run = self.play.consumer(name).incarnation
                self.play.run(name, run.start + 1, int(run.pod_uid.rsplit("-", 1)[1]))

    @rule(name=NAMES, number=SHARDS)
    def get_busy(self, name: str, number: str) -> None:
        self.play.consumer(name).busy ^= {shard(number)}

    @rule(name=NAMES, number=SHARDS, offset=st.sampled_from([10, 50, 100]))
    def checkpoint(self, name: str, number: str, offset: int) -> None:
        before = self.play.group._state.positions.get(shard(number), 0)
        try:
            self.play.checkpoint(name, number, offset)
        except StaleIncarnationError:
            return
        assert self.play.group._state.positions.get(shard(number), 0) >= before

    @rule(number=SHARDS, offset=st.sampled_from([0, 50, 100]))
    def force(self, number: str, offset: int) -> None:
        known = shard(number) in self.play.group.ownership.shards
        if known and shard(number) not in self.play.uncommitted and not self.resetting():
            self.play.ask(ForceCheckpoint(shard(number), offset))

    @rule(
        id=st.sampled_from(["a", "b", "c"]),
        to=st.sampled_from([ResetTo.EARLIEST, ResetTo.LATEST, ResetTo.OFFSETS]),
        numbers=st.sets(SHARDS, max_size=2),
        dry_run=st.booleans(),
    )
    def declare_a_reset(self, id: str, to: ResetTo, numbers: set[str], dry_run: bool) -> None:
        names = tuple(shard(number) for number in sorted(numbers))
        offsets = tuple((name, 30) for name in names) if to is ResetTo.OFFSETS else ()
        self.play.change(replace(self.play.group.spec, reset=Reset(id, to, None, offsets, names, dry_run)))

    @rule()
    def go_on_with_a_reset(self) -> None:
        due, spec, before = self.play.group.reset_due, self.play.group.spec, self.play.group.ownership.group
        if due is None:
            return
        self.play.ask(replace(due, wall=1.0))
        after, report = self.play.group.ownership.group, self.play.group.reset_report
        assert len(set(after.reset_ids)) == len(after.reset_ids), "a reset was made twice"
        begun = before.reset is None or before.reset.state is not ResetState.APPLYING
        if begun and after != before:
            assert report is not None
            assert report.state in (ResetState.PLANNED, ResetState.REFUSED) or spec.settings.paused, "it began unpaused"
        if after.reset is not None and after.reset.state is ResetState.DONE and after != before:
            for row in after.reset.rows:
                assert self.play.group._state.positions[row.shard] == self.play.log[row.shard] == row.after

    def resetting(self) -> bool:
        return resetting(self.play)

    @rule(hold=st.booleans())
    def commits(self, hold: bool) -> None:
        self.play.hold_commits = hold
        if not hold:
            self.play.commit()

    @precondition(lambda self: self.play.uncommitted)
    @rule()
    def fail(self) -> None:
        self.play.fail_commits()

    @rule(name=NAMES)
    def die(self, name: str) -> None:
        self.play.consumer(name)
        self.play.die(name)

    @rule(name=NAMES, start=st.booleans())
    def replace(self, name: str, start: bool) -> None:
        run = self.play.consumer(name).incarnation
        pod = int(run.pod_uid.rsplit("-", 1)[1])
        self.play.run(name, run.start + 1, pod) if start else self.play.run(name, 1, pod + 1)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.play.consumer(name)
        try:
            self.play.leave(name)
        except StaleIncarnationError:
            return

    @rule(name=NAMES, draining=st.booleans(), ready=st.booleans())
    def change_consumer(self, name: str, draining: bool, ready: bool) -> None:
        consumer = self.play.consumer(name)
        consumer.draining, consumer.ready = draining, ready

    @rule(paused=st.sampled_from([False, False, True]), ordered=st.booleans(), assignor=st.sampled_from(ASSIGNORS))
    def change_settings(self, paused: bool, ordered: bool, assignor: str) -> None:
        self.play.change(with_settings(self.play.group.spec, paused=paused, ordered=ordered, assignor=assignor))

    @rule(reachable=st.booleans(), commits=st.booleans())
    def change_conditions(self, reachable: bool, commits: bool) -> None:
        self.play.ask(ConditionsChanged(source_reachable=reachable, commits=commits))

    @rule(seconds=st.sampled_from([0.5, 5.0, 30.0, 70.0, 350.0]), names=st.sets(NAMES))
    def wait(self, seconds: float, names: set[str]) -> None:
        alive = {view.consumer for view in self.play.view.consumers}
        try:
            self.play.wait(seconds, sorted(names & alive))
        except StaleIncarnationError:
            return

    @rule()
    def restart(self) -> None:
        if not self.play.uncommitted:
            confirmed = {view.consumer: self.reply(view.consumer) for view in self.play.view.consumers}
            self.play.restart()
            assert {name: self.reply(name) for name in confirmed} == confirmed
            self.look()

    def reply(self, name: str) -> object:
        """What this consumer would be told now."""
        consumer = self.play.consumers[name]
        request = structs.replace(consumer.heartbeat(), revision=0)
        try:
            reply = self.play.group.confirmed(request)
        except StaleIncarnationError:
            return None
        assert isinstance(reply, HeartbeatReply)
        return reply

    @invariant()
    def what_is_stored_is_read_back(self) -> None:
        if hasattr(self, "play"):
            ownership = self.play.group.ownership
            assert timeless(decode(json.loads(json.dumps(encode(ownership))))) == timeless(ownership)

    @invariant()
    def the_indexes_are_those_of_the_rows(self) -> None:
        if hasattr(self, "play"):
            group = self.play.group
            again = restore(group.ownership, group._state.positions, group.spec, self.play.now)
            assert index(again) == index(group)


class MachineInCells(Machine):
    """The same to a group whose shards move in two cells, and whose state may be lost and discarded."""

    cells = 2

    force = None  # type: ignore[assignment]
    """No position is set by itself."""

    @rule(name=NAMES, lost=st.sets(st.integers(0, 1)))
    def lose_state(self, name: str, lost: set[int]) -> None:
        self.play.consumer(name).state_lost = tuple(lost)

    @rule(id=st.sampled_from(["d", "e"]))
    def discard(self, id: str) -> None:
        reset = Reset(id, ResetTo.EARLIEST, discard_state=True)
        self.play.change(replace(with_settings(self.play.group.spec, paused=True), reset=reset))

    @rule()
    def come_to_rest(self) -> None:
        """Whatever was before: with two new consumers that are well, each cell is whole again."""
        play = self.play
        play.hold_commits = False
        play.commit()
        play.ask(ConditionsChanged())
        play.change(replace(with_settings(play.group.spec, paused=False, assignor="Sticky"), reset=None))
        self.look()
        play.wait(100.0)
        pods = [int(each.incarnation.pod_uid.rsplit("-", 1)[1]) for each in play.consumers.values()]
        for name in ("g-0", "g-1"):
            play.run(name, 1, max(pods, default=0) + 1)
        play.settle("g-0", "g-1")
        self.look()
        play.settle("g-0", "g-1")
        state = play.group._state
        for number, names in state.cells.items():
            rows = [state.shards[name] for name in names if state.shards[name].state not in (ShardState.OVER, ShardState.WAIT)]
            if number in state.record.state_lost:
                assert {row.holder for row in rows} <= {None}
            elif not resetting(play) and rows:
                holders = {row.holder for row in rows}
                assert (len(holders), None in holders) == (1, False), f"cell {number} is {holders}'s"


def index(group: Group) -> object:
    state = group._state
    filled = [
        {name: set(names) for name, names in table.items() if names} for table in (state.held, state.moving, state.incoming)
    ]
    children = {parent: set(kids) for parent, kids in state.children.items() if kids}
    return filled, {key: set(names) for key, names in state.under.items()}, children, state.order


def test_whatever_happens_to_a_group_its_promises_hold() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=40, stateful_step_count=30))


def test_whatever_happens_to_a_group_its_cells_are_never_split() -> None:
    run_state_machine_as_test(MachineInCells, settings=settings(max_examples=30, stateful_step_count=30))
