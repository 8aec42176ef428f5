"""Bugs that are planted into the real code, one at a time, to show that the simulation finds them.

Each is a small change of one function. `planted(name)` makes it for as long as the context lasts. Each breaks the rule of the
protocol that its name says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from msgspec import structs

from shardherd.coordinator import commits, copies, items, mailbox, runner, runtime, storage
from shardherd.coordinator import refresh as refresh_times
from shardherd.core.consumer import tracker
from shardherd.core.consumer.holdings import Holdings
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.group import (
    absence,
    balance,
    checkpoints,
    decisions,
    discovery,
    eligible,
    grants,
    group,
    heartbeats,
    lineage,
    liveness,
    ownership,
    rebalance,
    records,
    resets,
    timers,
    watermarks,
)
from shardherd.core.model import requests
from shardherd.core.model.gauges import Stage
from shardherd.core.model.nouns import CheckpointReply, ConfirmedShard, HeldShard, ShardState
from tests.simulation import bugs_of_growth, bugs_of_kinesis, bugs_of_outputs, bugs_of_workers, network

Patch = tuple[Any, str, Any]


def _cells_are_split() -> list[Patch]:
    """Shards are shared out by themselves."""
    return [(balance, "target", balance._answer)]


def _cells_go_before_they_are_released() -> list[Patch]:
    """What is given up of a cell moves on, though its holder still has another shard of it."""
    return [(liveness, "moves_whole", lambda *_: True)]


def _flood_is_for_ever() -> list[Patch]:
    """Who was paused because it is too full is not told to go on."""
    real = watermarks.judged

    def judged(state: Any, session: Any, before: Any, now: float) -> Any:
        after = real(state, session, before, now)
        flooded = before is not None and before.stage is Stage.FLOOD
        return structs.replace(after, stage=Stage.FLOOD) if flooded else after

    return [(watermarks, "judged", judged)]


def _full_consumers_are_given_shards() -> list[Patch]:
    return [(eligible, "_has_room", lambda *_: True), (eligible, "_least_full", lambda _, consumers: consumers)]


def _all_is_given_away_at_once() -> list[Patch]:
    real = watermarks.given_away
    return [(watermarks, "given_away", lambda state, each, held, now: held if real(state, each, held, now) else 0)]


def _generation_not_begun() -> list[Patch]:
    """A reset sets positions and keeps the state that belongs to others."""
    return [(resets, "_begin_generation", lambda _: None)]


def _no_epoch_check() -> list[Patch]:
    real = checkpoints._validate_one

    def validate(state: Any, request: Any, checkpoint: Any, begun: Any) -> Any:
        record = state.shards.get(checkpoint.shard)
        if record is not None and record.holder is not None:
            request = structs.replace(request, consumer=record.holder, incarnation=record.incarnation)
            checkpoint = structs.replace(checkpoint, owner_epoch=record.owner_epoch)
        return real(state, request, checkpoint, begun)

    return [(checkpoints, "_validate_one", validate)]


def _wall_clock() -> list[Patch]:
    return [(network.Process, "now", network.Process.wall)]


def _reply_before_persist() -> list[Patch]:
    real = storage.GroupStorage.save

    async def save(self: Any, what: Any, *, grows: bool = False) -> None:
        asyncio.get_running_loop().create_task(real(self, what, grows=grows))

    return [(storage.GroupStorage, "save", save)]


def _checkpoint_before_completion() -> list[Patch]:
    real = tracker.Tracker.hand_out

    def hand_out(self: Any, stops: Any) -> Any:
        handed = real(self, stops)
        for shard, each in handed.items():
            self._grants[shard].done = each.stop
        return handed

    return [(tracker.Tracker, "hand_out", hand_out)]


def _epoch_not_persisted() -> list[Patch]:
    real = ownership.encode

    def encode(value: Any) -> Any:
        data = real(value)
        data["shards"]["epoch"] = [1 for _ in data["shards"]["epoch"]]
        return data

    return [(ownership, "encode", encode)]


def _child_before_parent() -> list[Patch]:
    return [(lineage, "may_be_read", lambda *_: True)]


def _transfer_in_reply() -> list[Patch]:
    real = heartbeats.confirmed

    def confirmed(state: Any, consumer: Any) -> Any:
        found = list(real(state, consumer))
        record = state.consumers.get(consumer)
        for shard in state.under.get((consumer, record.incarnation), ()) if record is not None else ():
            row, position = state.shards[shard], state.positions.get(shard)
            if row.state is ShardState.TRANSFER and position is not None:
                found.append(ConfirmedShard(shard, row.owner_epoch, row.held_since_epoch, position))
        return tuple(found)

    return [(heartbeats, "confirmed", confirmed)]


def _answers_before_leader_epoch() -> list[Patch]:
    async def take(self: Any, **options: Any) -> Any:
        stored = await self._store.load(self._group)
        if stored is None:
            return await real(self, **options)
        await options["copied"]()
        found = ownership.loads(stored.data)
        self._version, self._written = stored.version, stored.data
        self.leader_epoch = found.group.leader_epoch + 1
        return replace(found, group=replace(found.group, leader_epoch=self.leader_epoch))

    real = storage.GroupStorage.take
    return [(storage.GroupStorage, "take", take)]


def _offsets_before_init() -> list[Patch]:
    real_take, real_read = commits.Committer.take_over, commits.Committer.read

    async def take_over(self: Any) -> None:
        self.seen = dict(await self._offsets.read(tuple(self._positions_of_all())))
        await real_take(self)

    async def read(self: Any, shards: Any) -> Any:
        seen, self.seen = getattr(self, "seen", None), None
        return {shard: seen[shard] for shard in shards if shard in seen} if seen else await real_read(self, shards)

    def all_shards(self: Any) -> Any:
        return [f"t/{number}" for number in range(40)]

    return [
        (commits.Committer, "take_over", take_over),
        (commits.Committer, "read", read),
        (commits.Committer, "_positions_of_all", all_shards),
    ]


def _stale_release() -> list[Patch]:
    def released(state: Any, record: Any) -> bool:
        if record.holder is None or record.incarnation is None:
            return True
        session = state.sessions.get(record.holder)
        return session is not None and session.heard and record.shard not in session.named

    return [(heartbeats, "released", released)]


def _believes_earlier_range() -> list[Patch]:
    real = tracker.Tracker.finish

    def finish(self: Any, named: Any) -> None:
        real(self, named)
        for shard, each in named.items():
            grant = self._grants.get(shard)
            if grant is not None and shard not in self._in_flight:
                grant.done = max(grant.done, each.stop)

    return [(tracker.Tracker, "finish", finish)]


def _released_in_flight() -> list[Patch]:
    def release(self: Any) -> Any:
        free = [shard for shard, grant in sorted(self._grants.items()) if grant.revoked and grant.done <= grant.durable]
        for shard in free:
            self._in_flight.pop(shard, None)
            self._give_up(shard)
        return tuple(free)

    return [(tracker.Tracker, "release", release)]


def _init_without_proof() -> list[Patch]:
    async def retake(self: Any) -> None:
        await self.take_over()

    return [(commits.Committer, "_retake", retake)]


def _dropped_replay_counts() -> list[Patch]:
    real = tracker.Tracker.replay

    def replay(self: Any, named: Any) -> Any:
        ours = real(self, named)
        for shard, logged in named.items():
            grant = self._grants.get(shard)
            if shard not in ours and grant is not None and logged.start < logged.stop:
                self._in_flight[shard] = tracker._Taken(logged, grant.epoch)
        return ours

    return [(tracker.Tracker, "replay", replay)]


def _force_does_not_fence() -> list[Patch]:
    return [(grants, "fence_holder", lambda *_: None)]


def _closed_is_never_over() -> list[Patch]:
    return [(grants, "finish_if_done", lambda *_: False)]


def _grant_during_commit() -> list[Patch]:
    return [(grants, "movable", lambda *_: True), (eligible, "movable", lambda *_: True)]


def _takeover_without_proof() -> list[Patch]:
    return [(liveness, "gone_at", lambda *_: float("-inf"))]


def _acknowledged_before_durable() -> list[Patch]:
    real = mailbox.Mailbox._finish

    def finish(self: Any, item: Any, decision: Any) -> None:
        if isinstance(decision.reply, CheckpointReply) and decision.positions:
            mailbox._resolve(item.answer, decision.reply)
        real(self, item, decision)

    return [(mailbox.Mailbox, "_finish", finish)]


def _no_self_stop() -> list[Patch]:
    return [(SessionSettings, "silence_limit", property(lambda _: float("inf")))]


def _replays_what_others_hold() -> list[Patch]:
    def replay(self: Any, named: Any) -> Any:
        self.abandon()
        ours = {}
        for shard, logged in named.items():
            if logged.start < logged.stop:
                ours[shard] = logged
                grant = self._grants.get(shard)
                if grant is not None:
                    grant.position = max(grant.position, logged.stop)
                    self._in_flight[shard] = tracker._Taken(logged, grant.epoch)
        return ours

    return [(tracker.Tracker, "replay", replay)]


def _reset_is_made_again() -> list[Patch]:
    return [(resets, "_with_id", lambda state, _: state.record.reset_ids)]


def _lease_is_not_looked_at() -> list[Patch]:
    return [
        (runtime.Runtime, "leading", property(lambda self: self._leading_since is not None)),
        (storage.GroupStorage, "_check_lease", lambda _: None),
        (commits.Committer, "_check_lease", lambda _: None),
    ]


def _later_start_proves_executors_dead() -> list[Patch]:
    real = liveness._proven

    def proven(state: Any, record: Any, incarnation: Any) -> bool:
        return record.incarnation.supersedes(incarnation) or real(state, record, incarnation)

    return [(liveness, "_proven", proven)]


def _made_anew_is_read_on() -> list[Patch]:
    return [(discovery, "_note_recreated", lambda *_: None)]


def _older_ownership_is_believed() -> list[Patch]:
    """Whatever shows that it is older: who wrote it, the copies of positions, their notes."""
    read = storage.GroupStorage._read

    def believe(self: Any, stored: Any) -> Any:
        return read(self, stored if stored is None else replace(stored, foreign=False))

    return [
        (storage.GroupStorage, "_read", believe),
        (storage.GroupStorage, "_not_before", lambda _self, _copies, found: found),
        (runner, "outdated", lambda *_: False),
    ]


def _positions_are_not_committed_again() -> list[Patch]:
    async def refresh(self: Any) -> None:
        self.refresh.failed()

    return [(commits.Committer, "_refresh", refresh)]


def _force_keeps_held_since() -> list[Patch]:
    real = grants.fence_holder

    def fence_holder(state: Any, record: Any) -> None:
        real(state, record)
        state.put_shard(state.shards[record.shard]._replace(held_since_epoch=record.held_since_epoch))

    return [(grants, "fence_holder", fence_holder)]


def _woken_before_the_save() -> list[Patch]:
    real = mailbox.Mailbox._decide

    def decide(self: Any, item: Any, refused: Any) -> Any:
        decision = real(self, item, refused)
        if decision is not None and decision.woken:
            asyncio.get_running_loop().call_soon(self._answer_parked, decision.woken)
        return decision

    return [(mailbox.Mailbox, "_decide", decide)]


def _refresh_of_stale_positions() -> list[Patch]:
    async def refresh(self: Any) -> None:
        positions, self.stale = getattr(self, "stale", {}), dict(self._served.group.refreshable())
        self.refresh.begin(())
        self.refresh.made(())
        if positions:
            await self._commit(positions)

    return [(refresh_times, "REFRESH", 120.0), (commits.Committer, "_refresh", refresh)]


def _copies_do_not_make_way() -> list[Patch]:
    async def make_way(self: Any, offsets: Any) -> None:
        """Nothing."""

    return [(copies.Copies, "make_way", make_way)]


def _superseded_is_forgotten() -> list[Patch]:
    return [(liveness, "_remembered", lambda _state, _consumer, superseded, _now: superseded[:-1])]


def _regrant_of_the_same_epoch() -> list[Patch]:
    real = grants.regrant

    def regrant(state: Any, record: Any, now: float) -> None:
        real(state, record, now)
        state.put_shard(state.shards[record.shard]._replace(owner_epoch=record.owner_epoch))

    return [(grants, "regrant", regrant)]


def _transfer_is_called_off() -> list[Patch]:
    real = rebalance._step

    def step(state: Any, record: Any, consumer: Any, steps: Any, now: float) -> None:
        if record.state is ShardState.TRANSFER and consumer == record.holder:
            grants.keep(state, record, now)
        else:
            real(state, record, consumer, steps, now)

    return [(rebalance, "_step", step)]


def _leader_epoch_not_raised() -> list[Patch]:
    real = storage.GroupStorage.take

    async def take(self: Any, *, copied: Any, new: bool = False) -> Any:
        found = await real(self, copied=copied, new=new)
        before = replace(found, group=replace(found.group, leader_epoch=max(1, found.group.leader_epoch - 1)))
        await self.save(before)
        return before

    return [(storage.GroupStorage, "take", take)]


def _pause_is_not_heeded() -> list[Patch]:
    real = grants.blocked

    def blocked(state: Any) -> bool:
        settings = state.spec.settings
        if not settings.paused or state.record.rebuilding or state.clocks.withheld or state.clocks.recreated:
            return real(state)
        return resets.applying(state) is not None

    return [(grants, "blocked", blocked), (eligible, "blocked", blocked)]


def _cold_consumers_receive() -> list[Patch]:
    def receives(state: Any, consumer: Any) -> bool:
        session = state.sessions.get(consumer)
        return session is not None and session.heard and not eligible._takes_nothing(state, consumer)

    return [(eligible, "receives", receives)]


def _stale_pairs_are_not_named() -> list[Patch]:
    return [(heartbeats, "fenced", lambda *_: ())]


def _parked_through_the_news() -> list[Patch]:
    real = decisions.decision_of

    def decision(state: Any, events: Any, reply: Any) -> Any:
        return replace(real(state, events, reply), woken=frozenset())

    return [(group, "decision_of", decision)]


def _half_a_session_after_a_takeover() -> list[Patch]:
    def session(last_heard: float, **others: Any) -> Any:
        return records.Session(last_heard=last_heard - 45.0, **others)

    return [(group, "Session", session)]


def _release_clock_runs_in_progress() -> list[Patch]:
    return [(timers, "_from", lambda state, _, since: max(since, state.clocks.resumed_at))]


def _deadlines_are_not_doubled() -> list[Patch]:
    real = timers._end

    def end(state: Any, consumer: Any, reason: str) -> None:
        before = state.clocks.doublings
        real(state, consumer, reason)
        state.put_clocks(doublings=before)

    return [(timers, "_end", end)]


def _read_back_without_a_look() -> list[Patch]:
    real = storage.GroupStorage._find_out

    async def find_out(self: Any, data: bytes, ownership: Any) -> bool:
        await real(self, data, ownership)
        self._wrote(data, ownership)
        return True

    return [(storage.GroupStorage, "_find_out", find_out)]


def _force_is_always_acknowledged() -> list[Patch]:
    real = items.Committing.settled

    def settled(self: Any, durable: Any) -> Any:
        return self.reply if isinstance(self.reply, requests.ForceCheckpointReply) else real(self, durable)

    return [(items.Committing, "settled", settled)]


def _one_parent_is_enough() -> list[Patch]:
    def may_be_read(shard: Any, parents: Any, done: Any) -> bool:
        found = [all(done(each) for each in (parent, *lineage.ancestors(parent, parents))) for parent in parents(shard)]
        return any(found) or not found

    return [(lineage, "may_be_read", may_be_read)]


def _proof_of_an_earlier_start_ends_a_later_one() -> list[Patch]:
    def died(state: Any, request: Any) -> None:
        record = state.consumers.get(request.consumer)
        if record is not None and request.incarnation.pod_uid == record.incarnation.pod_uid and record.present:
            liveness.end(state, record, record.incarnation, records.EndReason.DIED, "ConsumerDied")

    return [(liveness, "died", died)]


def _left_shards_do_not_wait() -> list[Patch]:
    return [(liveness, "reclaimable_at", lambda *_: float("-inf"))]


def _plain_consumer_names_what_it_may_read_only() -> list[Patch]:
    def held(self: Any) -> Any:
        return tuple(HeldShard(shard, grant.epoch) for shard, grant in sorted(self._grants.items()) if not grant.revoked)

    return [(Holdings, "held", held)]


def _gone_is_forgotten_at_once() -> list[Patch]:
    real = absence._forget
    return [(absence, "_forget", lambda state, now: real(state, now + 1e9))]


def _gone_is_still_granted() -> list[Patch]:
    real = heartbeats.confirmed

    def confirmed(state: Any, consumer: Any) -> Any:
        found = {each.shard: each for each in real(state, consumer)}
        record = state.consumers.get(consumer)
        for shard in state.under.get((consumer, record.incarnation), ()) if record is not None else ():
            row, position = state.shards[shard], state.positions.get(shard)
            if row.state is ShardState.ALREADY_ALLOC and position is not None and shard in state.clocks.away:
                found[shard] = ConfirmedShard(shard, row.owner_epoch, row.held_since_epoch, position)
        return tuple(found[shard] for shard in sorted(found))

    return [(heartbeats, "confirmed", confirmed)]


def _forgotten_epochs_are_given_out_again() -> list[Patch]:
    real = absence._drop

    def drop(state: Any, forgotten: Any) -> None:
        floor = state.record.epoch_floor
        real(state, forgotten)
        state.put_record(epoch_floor=floor)

    return [(absence, "_drop", drop)]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    "no epoch check": _no_epoch_check,
    "wall clock instead of monotonic": _wall_clock,
    "reply before persist": _reply_before_persist,
    "checkpoint before completion": _checkpoint_before_completion,
    "epoch not persisted": _epoch_not_persisted,
    "child before parent": _child_before_parent,
    "TRANSFER in B": _transfer_in_reply,
    "leader answers before it wrote leader_epoch": _answers_before_leader_epoch,
    "offsets read before init_transactions": _offsets_before_init,
    "release by a stale heartbeat": _stale_release,
    "a range of an earlier process believed after a restart": _believes_earlier_range,
    "a shard released while its range is in flight": _released_in_flight,
    "a leader that re-inits before it proves that it leads": _init_without_proof,
    "a dropped replay range checkpointed": _dropped_replay_counts,
    "forced checkpoint that does not fence": _force_does_not_fence,
    "a closed shard at its end never OVER": _closed_is_never_over,
    "a grant during an in-flight commit": _grant_during_commit,
    "same-name takeover without proof": _takeover_without_proof,
    "acknowledged before durable": _acknowledged_before_durable,
    "no self-stop": _no_self_stop,
    "a replay of what others hold": _replays_what_others_hold,
    "the lease is not looked at": _lease_is_not_looked_at,
    "a reset made more than once": _reset_is_made_again,
    "a later start proves that executors have ended": _later_start_proves_executors_dead,
    "a shard that was made anew is read on": _made_anew_is_read_on,
    "an older ownership believed": _older_ownership_is_believed,
    "positions never committed again": _positions_are_not_committed_again,
    "a plain consumer that names only what it may read": _plain_consumer_names_what_it_may_read_only,
    "a forced checkpoint keeps what was held since": _force_keeps_held_since,
    "parked heartbeats woken before the save": _woken_before_the_save,
    "a refresh of stale positions": _refresh_of_stale_positions,
    "copies do not make way for a forced checkpoint": _copies_do_not_make_way,
    "a superseded pod forgotten": _superseded_is_forgotten,
    "a regrant under the same epoch": _regrant_of_the_same_epoch,
    "a transfer called off for a better target": _transfer_is_called_off,
    "leader epoch not raised": _leader_epoch_not_raised,
    "grants while paused": _pause_is_not_heeded,
    "grants to a cold consumer": _cold_consumers_receive,
    "stale pairs of a heartbeat not named": _stale_pairs_are_not_named,
    "a parked heartbeat sleeps through its news": _parked_through_the_news,
    "less than a session timeout after a takeover": _half_a_session_after_a_takeover,
    "the release clock runs while a micro-batch gets on": _release_clock_runs_in_progress,
    "deadlines not doubled after an expiry": _deadlines_are_not_doubled,
    "a write of unknown outcome believed": _read_back_without_a_look,
    "a forced checkpoint acknowledged that was not written": _force_is_always_acknowledged,
    "one parent of two is enough": _one_parent_is_enough,
    "the proof of an earlier start ends a later one": _proof_of_an_earlier_start_ends_a_later_one,
    "shards of who left do not wait for the grace": _left_shards_do_not_wait,
    "what is gone is forgotten at once": _gone_is_forgotten_at_once,
    "what is gone is still told to its holder": _gone_is_still_granted,
    "epochs of what was forgotten given out again": _forgotten_epochs_are_given_out_again,
    "cells split between consumers": _cells_are_split,
    "a cell granted before all of it is released": _cells_go_before_they_are_released,
    "positions of cells set without a new generation": _generation_not_begun,
    "flood without recovery": _flood_is_for_ever,
    "a consumer above low is given a shard": _full_consumers_are_given_shards,
    "above high gives all at once": _all_is_given_away_at_once,
    **bugs_of_workers.BUGS,
    **bugs_of_kinesis.BUGS,
    **bugs_of_growth.BUGS,
    **bugs_of_outputs.BUGS,
}


DIRECTED: dict[str, tuple[str, str]] = {
    "deadlines not doubled after an expiry": ("consumer hangs in a micro-batch", "Kafka refuses"),
}
"""The faults that must meet for a bug to show, where they do in few schedules: those that look for it are directed at them.

Two consumers in a row must be expired for want of progress, and no checkpoint succeed in between.
"""


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """With this bug in the real code."""
    patches = BUGS[name]()
    missing = object()
    before = [(target, attribute, target.__dict__.get(attribute, missing)) for target, attribute, _ in patches]
    for target, attribute, value in patches:
        setattr(target, attribute, value)
    try:
        yield
    finally:
        for target, attribute, value in before:
            if value is missing:
                delattr(target, attribute)
            else:
                setattr(target, attribute, value)
