"""How many consumers the lag asks for: enough to keep up, and to read a backlog within `targetCatchupSeconds`.

Called by `sizing` in mode Lag, with rates that `traffic` measured. More consumers come as soon as they are needed, a bounded
step at a time, and each step is on trial: if it does not raise what is read it is taken back and not repeated for a while.
Fewer come only once fewer were enough for a whole stabilisation window. Never more than there are shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardherd.core.model.nouns import GroupView, ShardState
from shardherd.core.model.reasons import (
    CATCHING_UP,
    FIRST_CONSUMERS,
    KEEPING_UP,
    LOAD_FELL,
    MAX_REPLICAS,
    MEASURING,
    MIN_REPLICAS,
    NO_GAIN,
    PACE_UNKNOWN,
    RECORDS_ARRIVED,
    SCALE_OUT_UNDONE,
    SOURCE_AWAY,
    TOO_FEW_SHARDS,
)
from shardherd.core.model.wording import count, verb
from shardherd.core.planning.observed import Ceiling, Observation, Sizing, Trial
from shardherd.core.planning.traffic import INTERVAL, SPAN, WINDOW, Traffic

UTILISATION = 0.8
"""The part of what consumers can read that is planned for: the rest takes up what varies."""

GAIN = 1.1
"""A scale-out has to raise what is read by this factor while there is a backlog."""

CALM = 0.1
"""The part of `targetCatchupSeconds` below which an age shows that fewer consumers may do, where records are not counted."""

EVALUATE = WINDOW + SPAN
"""Seconds that a scale-out is given, once all its consumers read, before it is judged."""

NO_GAIN_FOR = 1800.0
"""Seconds for which a scale-out that did not help is not tried again."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a mode asks for, as in `sizing.Decision`, and what of `Sizing` it wants remembered."""

    replicas: int
    reason: str
    message: str
    recommended: int | None = None
    limit: tuple[str, str] | None = None
    trial: Trial | None = None
    ceiling: Ceiling | None = None
    wishes: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Case:
    """One decision's inputs: the observation, what is remembered, and the limits of the answer."""

    observation: Observation
    sizing: Sizing
    goal: int
    low: int
    high: int
    limit: tuple[str, str]

    def answer(
        self,
        replicas: int,
        reason: str,
        message: str,
        recommended: int | None = None,
        *,
        trial: Trial | None = None,
        ceiling: Ceiling | None = None,
        wishes: tuple[tuple[float, int], ...] | None = None,
    ) -> Wish:
        """A wish within the limits. What is not given stays as it was, but a trial ends.

        While the same number is only recommended again and again, what was said of it stands, however rates vary. But it is
        told that fewer were enough for a whole window.
        """
        within = min(max(replicas, self.low), self.high)
        asked = recommended if recommended is not None else replicas
        if self._recommends and reason in (self.sizing.said[0], KEEPING_UP, CATCHING_UP) and self._stands(asked):
            reason, message = self.sizing.said
        return Wish(
            within,
            reason,
            message,
            min(max(asked, self.low), self.high),
            self.limit if asked > self.high else None,
            trial,
            ceiling if ceiling is not None else self.sizing.ceiling,
            self.sizing.wishes if wishes is None else wishes,
        )

    def stay(self, recommended: int | None = None, wishes: tuple[tuple[float, int], ...] | None = None, why: str = "") -> Wish:
        """As before, for the reason that it was decided for: no Event repeats what did not change.

        `why` is what it follows from where that was no decision, or one of something else; empty while nothing is measured.
        """
        reason, message = self.said(recommended, why)
        return self.answer(self.goal, reason, message, recommended, trial=self.sizing.trial, wishes=wishes)

    def said(self, asked: int | None, why: str) -> tuple[str, str]:
        """The reason and the message of a number that stays, where so many are asked for.

        That the first consumers are measured next is true until it is measured that they are enough.
        """
        answered = self.sizing.said[0] == FIRST_CONSUMERS and why and asked is not None and asked <= self.goal
        if not answered and self._stands(self.goal if asked is None else asked):
            return self.sizing.said
        if not why:
            return MEASURING, "How fast records are written and read is being measured."
        if asked is not None and asked > self.goal >= self.high:
            return self.limit
        if asked is not None and asked < self.goal <= self.low:
            return self.least
        return KEEPING_UP, why

    def followed(self, wishes: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
        """What is left of the wishes with a decision: none if it is followed, all if it is only recommended."""
        return wishes if self._recommends else ()

    @property
    def _recommends(self) -> bool:
        return self.observation.declared.scaling.recommend_only

    def _stands(self, asked: int) -> bool:
        """Whether what was said last is about this number, or about the one that stays where no number is only recommended."""
        about = self.goal if self.sizing.recommended is None else self.sizing.recommended
        number = min(max(asked, self.low), self.high) if self._recommends else self.goal
        return self.sizing.said[0] in _REASONS and about == number

    @property
    def least(self) -> tuple[str, str]:
        """Why there are no fewer."""
        declared = self.observation.declared
        asked, unit = declared.scaling.min_replicas, "cell" if declared.settings.cells else "shard"
        there = f", and there {verb(self.low, 'is', 'are')} {count(self.low, unit)} to read" if self.low < asked else ""
        return MIN_REPLICAS, f"spec.scaling.minReplicas asks for {asked}{there}."


def lag_of(view: GroupView) -> int | None:
    """Records that are not checkpointed yet; None while that is not known of every shard."""
    lags = [shard.lag_records for shard in view.shards if shard.present and shard.state is not ShardState.OVER]
    return None if None in lags else sum(lag or 0 for lag in lags)


def all_read(view: GroupView) -> bool:
    """Whether nothing is left to read, as far as is known. Where records are not counted, their age says so: a shard without a
    record at its checkpoint has none."""
    return lag_of(view) == 0 if view.counts_records else view.all_over or view.lag_seconds == 0


def wish(observation: Observation, view: GroupView, sizing: Sizing, shards: int) -> Wish:
    """What mode Lag asks for, with so many shards to read."""
    case = _case(observation, sizing, shards)
    if not view.source_reachable or view.stopped:
        why = view.source_error or " ".join(cause.message for cause in view.stopped)
        return case.answer(case.goal, SOURCE_AWAY, f"Nothing can be measured: {why}", trial=sizing.trial, wishes=())
    if case.goal == 0:
        return _first(case, view)
    if case.goal > case.high:
        return case.answer(case.high, *case.limit, case.goal, wishes=())
    if case.goal < case.low:
        return case.answer(case.low, *case.least, wishes=())
    if not view.counts_records:
        return _by_age(case, view)
    traffic = sizing.traffic
    if traffic is None or not traffic.measured:
        return case.stay()
    if sizing.trial is not None and _judged(case, traffic):
        return _verdict(case, traffic, sizing.trial)
    wanted = needed(traffic, observation.declared.scaling.lag.target_catchup, case.goal)
    wishes, whole = _remembered(case, wanted)
    if wanted > case.goal:
        return _out(case, traffic, wanted, wishes)
    return _in(case, traffic, whole, wishes)


def needed(traffic: Traffic, target_catchup: float, goal: int) -> int:
    """Consumers that are needed, before any limit."""
    consumer_rate, lag = traffic.consumer_rate.per_second, traffic.lag_records or 0
    if consumer_rate is None:
        # Nobody ever had more to read than they could. One fewer is tried, unless they fall behind just now.
        return goal + 1 if lag > traffic.consumed * target_catchup and traffic.behind else max(1, goal - 1)
    steady = traffic.produced / (UTILISATION * consumer_rate)
    catching_up = (traffic.produced + lag / target_catchup) / consumer_rate
    return max(1, math.ceil(max(steady, catching_up) - 1e-9))


def _case(observation: Observation, sizing: Sizing, shards: int) -> _Case:
    scaling, ceiling = observation.declared.scaling, sizing.ceiling
    high, limit = scaling.max_replicas, (MAX_REPLICAS, "The lag asks for more consumers than spec.scaling.maxReplicas allows.")
    if shards < high:
        units = "cells" if observation.declared.settings.cells else "shards"
        high, limit = shards, (TOO_FEW_SHARDS, f"The lag asks for more consumers than there are {units} to read.")
    if ceiling is not None and observation.wall < ceiling.until and max(ceiling.replicas, scaling.min_replicas) < high:
        # As many as the user asks for are had also where they did not help.
        high, tried = max(ceiling.replicas, scaling.min_replicas), f"more than {ceiling.replicas} did not read more"
        limit = (NO_GAIN, f"The lag asks for more consumers, but {tried} when it was tried.")
    goal = observation.replicas if scaling.recommend_only or sizing.goal is None else sizing.goal
    return _Case(observation, sizing, goal, min(scaling.min_replicas, high), high, limit)


def _first(case: _Case, view: GroupView) -> Wish:
    """No consumer runs: with the first record one has to."""
    lag, traffic = lag_of(view), case.sizing.traffic
    start = 1
    if traffic is not None and traffic.consumer_rate.per_second is not None and lag:
        start = math.ceil(lag / case.observation.declared.scaling.lag.target_catchup / traffic.consumer_rate.per_second)
    if case.observation.stateful_set is not None and lag:
        return case.answer(start, RECORDS_ARRIVED, f"{count(lag, 'record')} to read, and no consumer.")
    if case.observation.stateful_set is not None and not view.counts_records and view.lag_seconds:
        return case.answer(start, RECORDS_ARRIVED, f"The oldest record is {view.lag_seconds} s old, and no consumer reads it.")
    return case.answer(start, FIRST_CONSUMERS, "How many are needed is measured once consumers read.")


def _judged(case: _Case, traffic: Traffic) -> bool:
    """Whether a scale-out can be judged: all have read for long enough, or nothing is left to show it by."""
    steady = case.sizing.steady_since
    return not traffic.behind or (steady is not None and case.observation.now - steady >= EVALUATE)


def _verdict(case: _Case, traffic: Traffic, trial: Trial) -> Wish:
    if not traffic.behind or traffic.consumed >= GAIN * trial.per_second or trial.replicas >= case.goal:
        reason, message = case.said(None, _inputs(case, traffic, case.goal))
        return case.answer(case.goal, reason, message)
    message = (
        f"{count(case.goal, 'consumer')} read {_rate(traffic.consumed)}, {trial.replicas} read {_rate(trial.per_second)}: "
        f"more did not help, so it is not tried again for {NO_GAIN_FOR / 60:g} min. Look at what they write to."
    )
    until = case.observation.wall + NO_GAIN_FOR
    return case.answer(trial.replicas, SCALE_OUT_UNDONE, message, ceiling=Ceiling(trial.replicas, until), wishes=())


def _out(case: _Case, traffic: Traffic, wanted: int, wishes: tuple[tuple[float, int], ...]) -> Wish:
    scaling = case.observation.declared.scaling
    settled = _settled(case) and case.sizing.trial is None
    if case.goal >= case.high or not (settled or scaling.recommend_only):
        return case.stay(wanted, wishes, _inputs(case, traffic, wanted))
    step = min(wanted, case.goal + scaling.lag.max_step)
    reason = CATCHING_UP if traffic.behind else KEEPING_UP
    trial = Trial(case.goal, traffic.consumed) if traffic.behind else None
    return case.answer(step, reason, _inputs(case, traffic, wanted), wanted, trial=trial, wishes=wishes)


def _in(case: _Case, traffic: Traffic, whole: bool, wishes: tuple[tuple[float, int], ...]) -> Wish:
    most = max(number for _, number in wishes)
    if most >= case.goal or not whole or case.goal <= case.low or not _settled(case):
        return case.stay(most, wishes, _inputs(case, traffic, most))
    if traffic.consumer_rate.per_second is None:
        # One fewer. Whether one fewer still is enough, only measurements from now on can show.
        return case.answer(most, PACE_UNKNOWN, _inputs(case, traffic, most), wishes=case.followed(wishes))
    step = max(most, case.goal - case.observation.declared.scaling.lag.max_step)
    return case.answer(step, LOAD_FELL, _inputs(case, traffic, most), most, wishes=wishes)


def _by_age(case: _Case, view: GroupView) -> Wish:
    """Where nobody counts records: more while the oldest unread one is too old, one fewer once all have long been young.

    No rate is known, so nothing says how many are enough: each step is watched for as long as a scale-out is elsewhere.
    """
    scaling, age = case.observation.declared.scaling, view.lag_seconds
    if age is None:
        return case.stay()
    target = scaling.lag.target_catchup
    late = age > target
    step = min(scaling.lag.max_step, math.ceil(case.goal * min(1.0, age / target - 1.0))) if late else 0
    wanted = case.goal + step if late else max(1, case.goal - (age <= CALM * target))
    wishes, whole = _remembered(case, wanted)
    if late:
        said = _of_age(case, age, wanted)
        if case.goal >= case.high or not (_settled(case, EVALUATE) or scaling.recommend_only):
            return case.stay(wanted, wishes, said)
        return case.answer(wanted, CATCHING_UP, said, wishes=wishes)
    most = max(number for _, number in wishes)
    said = _of_age(case, age, most)
    if most >= case.goal or not whole or case.goal <= case.low or not _settled(case):
        return case.stay(most, wishes, said)
    return case.answer(most, LOAD_FELL, said, wishes=case.followed(wishes))


def _of_age(case: _Case, age: int, wanted: int) -> str:
    target = case.observation.declared.scaling.lag.target_catchup
    number = f"{count(wanted, 'consumer')} " + (f"in place of {case.goal}" if wanted != case.goal else "as before")
    return (
        f"The oldest record that is not checkpointed is {age} s old, and spec.scaling.lag.targetCatchupSeconds is {target:g}:"
        f" {number}. Records are not counted in this kind of source."
    )


def _remembered(case: _Case, wanted: int) -> tuple[tuple[tuple[float, int], ...], bool]:
    """The wishes of the window with this one, and whether those before it cover a whole window."""
    now, window, before = case.observation.now, case.observation.declared.scaling.stabilization_window, case.sizing.wishes
    recent = tuple((at, number) for at, number in before if now - at <= window)
    # One for each look is enough: what is asked for changes with a look.
    same = recent and recent[-1][1] == wanted and now - recent[-1][0] < INTERVAL
    return recent if same else (*recent, (now, wanted)), _whole(before, now, window)


def _settled(case: _Case, span: float = SPAN) -> bool:
    """Whether all that were asked for read by now, for so long that what is measured is about them."""
    steady = case.sizing.steady_since
    return steady is not None and case.observation.now - steady >= span


def _whole(wishes: tuple[tuple[float, int], ...], now: float, window: float) -> bool:
    """Whether the wishes cover a whole window."""
    return bool(wishes) and now - wishes[0][0] >= window - INTERVAL


def _inputs(case: _Case, traffic: Traffic, wanted: int) -> str:
    rate = traffic.consumer_rate.per_second
    one = f"one consumer reads {_rate(rate)}" if rate is not None else "what one consumer can read was never measured"
    target = case.observation.declared.scaling.lag.target_catchup
    return (
        f"{_rate(traffic.produced)} are written, {_rate(traffic.consumed)} read, {count(traffic.lag_records or 0, 'record')} "
        f"behind, {one}: {count(wanted, 'consumer')} to keep up and to catch up within {target:g} s."
    )


def _rate(per_second: float) -> str:
    return f"{per_second:.0f} records/s" if per_second >= 10 else f"{per_second:.1f} records/s"


_REASONS = frozenset({KEEPING_UP, CATCHING_UP, LOAD_FELL, PACE_UNKNOWN, FIRST_CONSUMERS, SCALE_OUT_UNDONE, RECORDS_ARRIVED})
"""Reasons that stand until another number is decided."""
