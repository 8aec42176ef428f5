"""Restart from any prefix of a history gives the same answers; so does one without what was stored, from what is claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.group.decisions import Decision
from shardherd.core.group.group import Group
from shardherd.core.group.notes import of_group
from shardherd.core.group.ownership import dumps, loads
from shardherd.core.model.errors import ShardherdError, StaleIncarnationError
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    ConsumerId,
    Heartbeat,
    HeldShard,
    Incarnation,
    ShardCheckpoint,
    ShardId,
    ShardState,
)
from shardherd.core.model.requests import ForceCheckpoint, Request, ShardsDiscovered
from tests.builders import IDENTITY, Play, incarnation, info, restore, shard, spec

NAMES = [f"g-{number}" for number in range(3)]
SHARDS = 6
HELD = (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)


class Stored(Play):
    """A group of which only that is stored that it asks to be made durable, before it answers."""

    def __init__(self, ordered: bool) -> None:
        self.stored = b""
        self.closed: set[int] = set()
        super().__init__(spec(2, ordered=ordered))
        self.stored = dumps(self.group.ownership)
        self.look()
        self.settle("g-0", "g-1")

    def ask(self, request: Request) -> Decision:
        decision = super().ask(request)
        if decision.persist:
            self.stored = dumps(self.group.ownership)
        return decision

    def infos(self) -> list[Any]:
        return [
            info(
                str(number), end=100, open=number not in self.closed, parents=[str(number - 3)] if number >= 3 else []
            )._replace(zone=f"zone-{number % 2}")
            for number in range(SHARDS)
        ]

    def look(self) -> None:
        self.discover(self.infos())

    def restarted(self) -> Group:
        """The group of a coordinator that has just taken over, and looked at the source."""
        group = restore(loads(self.stored), dict(self.log), self.group.spec, self.now)
        group.decide(ShardsDiscovered(tuple(self.infos())), self.now)
        group.commit()
        return group

    def answers(self, group: Group) -> dict[str, Any]:
        """What this group answers to whatever may be asked: by every run so far, under every epoch near the right one."""
        found: dict[str, Any] = {"revision": group._state.record.revision, "checkpoints": dict(group._state.positions)}
        for row in group.view(self.now).shards:
            found[row.shard] = (row.state, row.holder, row.next_consumer, row.owner_epoch, row.checkpoint)
        for consumer in group.ownership.consumers.values():
            found[f"{consumer.consumer} runs"] = (consumer.zone, consumer.capacity)
        for name in NAMES:
            for pod, start in ((1, 1), (1, 2), (2, 1), (2, 2)):
                run = incarnation(name, start, pod)
                found[f"{name} {run}"] = self._of_run(group, ConsumerId(name), run)
        return found

    def _of_run(self, group: Group, name: ConsumerId, run: Incarnation) -> object:
        if name not in group.ownership.consumers:
            return None
        epochs = {row.shard: row.owner_epoch for row in group.view(self.now).shards}
        held = tuple(HeldShard(each, epoch) for each, epoch in epochs.items())
        asked = [ShardCheckpoint(each, epoch + off, 77) for each, epoch in epochs.items() for off in (-1, 0, 1)]
        try:
            reply = group.confirmed(Heartbeat(name, run, 10_000, 0, held))
            outcomes = group.decide(CheckpointRequest(name, run, tuple(asked)), self.now).reply
            group.roll_back()
        except ShardherdError as error:
            return error.code, error.message
        return reply.confirmed, reply.fenced, outcomes


Step = tuple[str, str, int]
KINDS = ["beat"] * 3 + ["checkpoint", "force", "close", "die", "restart", "replace", "leave", "drain", "wait", "place"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(NAMES),
        st.integers(0, SHARDS - 1),
    ),
    max_size=25,
)


def take(play: Stored, step: Step) -> None:
    """One step of a history. A consumer that is refused ends."""
    what, name, number = step
    consumer = play.consumer(name)
    run = consumer.incarnation
    pod = int(run.pod_uid.rsplit("-", 1)[1])
    actions: dict[str, Callable[[], object]] = {
        "beat": lambda: play.beat(name),
        "checkpoint": lambda: play.checkpoint(name, str(number), 100),
        "force": lambda: play.ask(ForceCheckpoint(shard(str(number)), 50)),
        "close": lambda: play.closed.add(number % 3),
        "die": lambda: play.die(name),
        "restart": lambda: play.run(name, run.start + 1, pod),
        "replace": lambda: play.run(name, 1, pod + 1),
        "leave": lambda: play.leave(name),
        "drain": lambda: setattr(consumer, "draining", True),
        "place": lambda: consumer.__dict__.update(zone=f"zone-{number % 3}", capacity=1 + number),
        "wait": lambda: play.wait([2.0, 20.0, 50.0][number % 3]),
    }
    try:
        actions[what]()
    except StaleIncarnationError:
        play.run(name, 1, pod + 1)
    play.look()


@given(ordered=st.booleans(), steps=STEPS)
@settings(max_examples=60)
def test_restart_from_any_prefix_of_history_gives_the_same_answers(ordered: bool, steps: list[Step]) -> None:
    play = Stored(ordered)
    for step in steps:
        take(play, step)
        assert play.answers(play.restarted()) == play.answers(play.group), step


@given(ordered=st.booleans(), steps=STEPS, last=st.tuples(st.sampled_from(NAMES), st.integers(0, SHARDS - 1)))
@settings(max_examples=60)
def test_a_crash_between_a_commit_and_the_next_write_loses_neither(
    ordered: bool, steps: list[Step], last: tuple[str, int]
) -> None:
    play = Stored(ordered)
    for step in steps:
        take(play, step)
    name, number = last
    holders = play.holders()
    play.hold_commits = True
    try:
        play.checkpoint(name, str(number), 100)
    except StaleIncarnationError:
        return
    # Durable at the source, and the coordinator ends before it hears of it.
    play.log |= play.uncommitted
    group = play.restarted()
    for row in group.view(play.now).shards:
        number_of = row.shard.removeprefix("t/")
        assert row.checkpoint == play.log[row.shard]
        assert row.holder == (None if row.state is ShardState.OVER else holders[number_of])


@given(ordered=st.booleans(), steps=STEPS, silent=st.sets(st.sampled_from(NAMES)))
@settings(max_examples=60)
def test_an_ownership_rebuilt_from_claims_has_the_holders_that_it_had(
    ordered: bool, steps: list[Step], silent: set[str]
) -> None:
    play = Stored(ordered)
    for step in steps:
        take(play, step)
    before = {row.shard: row for row in play.group.ownership.shards.values()}
    claimed: dict[ShardId, tuple[str, int]] = {}
    for row in before.values():
        if row.holder is None or row.holder in silent:
            continue
        if play.consumers[row.holder].incarnation == row.incarnation:
            claimed[row.shard] = (row.holder, row.owner_epoch)
    play.lose()
    play.look()
    for name in sorted({holder for holder, _ in claimed.values()}):
        # It has heard of all its grants when the ownership is lost.
        play.consumers[name].held = {each: epoch for each, (holder, epoch) in claimed.items() if holder == name}
        play.beat(name)
    rows = play.group.ownership.shards
    held = {each: (row.holder, row.owner_epoch) for each, row in rows.items() if row.state in HELD}
    over = {each for each, row in rows.items() if row.state is ShardState.OVER}
    assert held == {each: claim for each, claim in claimed.items() if each not in over}
    play.wait(60.0, sorted({holder for holder, _ in claimed.values()}))
    notes = of_group(IDENTITY.uid, play.noted)
    for each, row in play.group.ownership.shards.items():
        if row.state in HELD:
            assert row.owner_epoch >= max(notes[each].owner_epoch, claimed.get(each, ("", 0))[1])
            assert row.holder not in silent, "nobody who has not spoken is given anything"


def test_the_answers_of_a_checkpoint_tell_right_epochs_from_wrong_ones() -> None:
    play = Stored(False)
    play.settle("g-0", "g-1")
    answers = play.answers(play.group)
    run = incarnation("g-0")
    reply = answers[f"g-0 {run}"][2]
    assert isinstance(reply, CheckpointReply)
    assert {outcome.result for outcome in reply.outcomes} == {"ok", "fenced"}
