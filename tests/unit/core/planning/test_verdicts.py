"""How shards are read: scripted histories of positions and ends, looked at every five seconds as the coordinator does."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import Condition, ConsumerId, GroupSettings, GroupView, Phase, ShardId, ShardState, ShardView
from shardherd.core.model.reasons import CHECKPOINT_LOST, OWNERSHIP_REBUILDING, PAUSED, RESETTING, SOURCE_RECREATED
from shardherd.core.model.verdicts import MEANINGS, Verdict
from shardherd.core.planning.verdicts import BYTES, LONGEST_STEP, STANDS, UNSEEN, Columns, History, looked
from tests.unit.core.planning.builders import consumers, view

LOOK = 5.0
WALL = 1_700_000_000.0
PAUSE = {"withheld": (Condition(PAUSED, "spec.paused is true"),)}
RECREATED = {"withheld": (Condition(SOURCE_RECREATED, "clicks/0: the topic was deleted and made again"),)}
AWAY = {"source_reachable": False, "source_error": "no broker answers"}

At = Callable[[float], int]


def shard(position: int | None, end: int | None, begin: int = 0, name: str = "clicks/0", **fields: Any) -> ShardView:
    """A shard that has been held for long enough, as a view shows it."""
    lag = None if position is None or end is None else max(0, end - position)
    usual: dict[str, Any] = {"state": ShardState.ALREADY_ALLOC, "holder": ConsumerId("clicks-0"), "state_age": Seconds(900.0)}
    return ShardView(shard=ShardId(name), checkpoint=position, end=end, begin=begin, lag_records=lag, **(usual | fields))


def watched(
    made: Callable[[float], GroupView], seconds: float, before: History | None = None, start: float = 0.0, look: float = LOOK
) -> History:
    """What is known after looks at a group that is a function of the time."""
    history, now = before, start
    while now <= start + seconds:
        history = looked(history, made(now), now, WALL + now)
        now += look
    assert history is not None
    return history


def group(position: At, end: At, begin: At = lambda _: 0, **fields: Any) -> Callable[[float], GroupView]:
    """One shard, whose numbers are functions of the time."""
    return lambda now: view([shard(position(now), end(now), begin(now), **fields)])


def in_steps(every: float, per_second: float) -> At:
    """What a consumer has checkpointed that does so every so many seconds."""
    return lambda now: round(now // every * every * per_second)


@dataclass(frozen=True)
class Script:
    """What happens to one shard, and what is said after so many seconds."""

    name: str
    after: float
    verdict: Verdict
    position: At
    end: At
    begin: At = field(default=lambda _: 0)
    shard: Mapping[str, Any] = field(default_factory=dict)
    group: Mapping[str, Any] = field(default_factory=dict)


FREE: dict[str, Any] = {"state": ShardState.NOT_ALLOC, "holder": None}
SCRIPTS = [
    Script("an idle shard that is read to its end", 600, Verdict.OK, lambda _: 70, lambda _: 70),
    Script("an empty shard that nobody holds", 600, Verdict.OK, lambda _: 0, lambda _: 0, shard=FREE),
    Script("a shard that was never written and whose consumer is gone", 600, Verdict.OK, lambda _: 7, lambda _: 7, shard=FREE),
    Script("read as fast as it is written", 600, Verdict.OK, in_steps(10, 100), lambda now: round(100 * now)),
    Script("read as it is written, a record at a time", 600, Verdict.OK, lambda now: int(now), lambda now: int(now) + 1),
    Script("the lag shrinks slowly", 600, Verdict.OK, lambda now: round(101 * now), lambda now: 100_000 + round(100 * now)),
    Script(
        "the lag shrinks slowly, in steps of micro-batches",
        900,
        Verdict.OK,
        in_steps(20, 110),
        lambda now: 100_000 + round(100 * now),
    ),
    Script(
        "the lag grew by a burst and shrinks since",
        400,
        Verdict.OK,
        lambda now: round(100 * now),
        lambda now: round(100 * now) + max(0, round(min(now, 100.0) * 300 - max(0.0, now - 100) * 20)),
    ),
    Script("the lag grows", 200, Verdict.LAGGING, lambda now: round(50 * now), lambda now: round(100 * now)),
    Script("the lag grows by little", 200, Verdict.LAGGING, lambda now: round(99 * now), lambda now: 5000 + round(100 * now)),
    Script("it is not caught up with", 200, Verdict.LAGGING, lambda now: round(100 * now), lambda now: 5000 + round(100 * now)),
    Script(
        "it is not caught up with, in steps of micro-batches",
        400,
        Verdict.LAGGING,
        in_steps(20, 100),
        lambda now: 50_000 + round(100 * now),
    ),
    Script("less lag than one step reads", 605, Verdict.OK, in_steps(30, 100), lambda now: 2000 + round(100 * now)),
    Script("the consumer is stuck, the lag grows", 120, Verdict.STALLED, lambda _: 10, lambda now: 20 + round(now)),
    Script("the consumer is stuck, nothing is written", 120, Verdict.STALLED, lambda _: 10, lambda _: 20),
    Script("a consumer that is stuck for less than a minute", 55, Verdict.UNKNOWN, lambda _: 10, lambda _: 20),
    Script(
        "the consumer is stuck after it read",
        300,
        Verdict.STALLED,
        lambda now: round(100 * min(now, 200.0)),
        lambda now: round(100 * now),
    ),
    Script(
        "the consumer is stuck while what it would read is deleted",
        300,
        Verdict.STALLED,
        lambda _: 10,
        lambda now: 1000 + round(10 * now),
        begin=lambda now: round(10 * now),
    ),
    Script(
        "retention moved the begin past the position, up to the end",
        300,
        Verdict.OK,
        lambda _: 10,
        lambda _: 1000,
        begin=lambda now: 0 if now < 100 else 1000,
    ),
    Script(
        "retention moved the begin past the position of a reader that gets on",
        300,
        Verdict.OK,
        lambda now: 10 if now < 100 else round(12 * now),
        lambda now: 5000 + round(10 * now),
        begin=lambda now: 0 if now < 100 else 1000,
    ),
    Script(
        "a forced checkpoint set it back",
        305,
        Verdict.REWOUND,
        lambda now: round(100 * now) if now < 300 else 5000,
        lambda now: round(100 * now),
    ),
    Script(
        "set back, and read again faster than it is written",
        400,
        Verdict.REWOUND,
        lambda now: round(100 * now) if now < 300 else round(5000 + 200 * (now - 300)),
        lambda now: round(100 * now),
    ),
    Script(
        "set back, and where it was before",
        600,
        Verdict.OK,
        lambda now: round(100 * now) if now < 300 else min(round(5000 + 300 * (now - 300)), round(100 * now)),
        lambda now: round(100 * now),
    ),
    Script(
        "set back, and nobody gets on",
        400,
        Verdict.STALLED,
        lambda now: round(100 * now) if now < 300 else 5000,
        lambda now: round(100 * now),
    ),
    Script("nobody holds it", 120, Verdict.STOPPED, lambda _: 10, lambda now: 20 + round(now), shard=FREE),
    Script(
        "the consumer comes and goes, and reads nothing",
        600,
        Verdict.STOPPED,
        lambda _: 10,
        lambda now: 20 + round(now),
        shard={"state_age": Seconds(20.0)},
    ),
    Script("it is paused", 120, Verdict.STOPPED, lambda _: 10, lambda now: 20 + round(now), group=PAUSE),
    Script("it is paused and has nothing to read", 120, Verdict.OK, lambda _: 20, lambda _: 20, group=PAUSE),
    Script(
        "it is paused while its consumer waits for its trigger",
        120,
        Verdict.STOPPED,
        lambda _: 10,
        lambda _: 20,
        group={**PAUSE, "consumers": (structs.replace(consumers(1)[0], phase=Phase.WAITING),)},
    ),
    Script(
        "its consumer waits for its trigger",
        600,
        Verdict.OK,
        lambda _: 10,
        lambda now: 20 + round(now),
        group={"consumers": (structs.replace(consumers(1)[0], phase=Phase.WAITING),)},
    ),
    Script(
        "its consumer reads for ever",
        320,
        Verdict.STALLED,
        lambda _: 10,
        lambda now: 20 + round(now),
        group={"consumers": (structs.replace(consumers(1)[0], phase=Phase.READING),)},
    ),
    Script(
        "it waits for those that come before it",
        600,
        Verdict.OK,
        lambda _: 0,
        lambda _: 20,
        shard={"state": ShardState.WAIT, "holder": None},
    ),
    Script(
        "its topic was made again, and it is held",
        400,
        Verdict.STOPPED,
        lambda _: 5000,
        lambda now: 5000 if now < 100 else round(10 * (now - 100)),
        group=RECREATED,
    ),
    Script(
        "its topic was made again, and its end is where the position was",
        1200,
        Verdict.STOPPED,
        lambda _: 5000,
        lambda now: 5000 if now < 100 else round(10 * (now - 100)),
        group=RECREATED,
    ),
    Script(
        "its position is above the end",
        400,
        Verdict.UNKNOWN,
        lambda _: 5000,
        lambda now: 5000 if now < 100 else round(10 * (now - 100)),
    ),
    Script(
        "its position is above the end of a look before", 110, Verdict.OK, lambda _: 100, lambda now: 100 if now < 90 else 95
    ),
    Script(
        "the end was below its position, and is above it again",
        630,
        Verdict.OK,
        lambda _: 5000,
        lambda now: 5000 if now < 100 else round(10 * (now - 100)),
    ),
    Script(
        "it is held, and its position is before the first record",
        120,
        Verdict.STOPPED,
        lambda _: 10,
        lambda _: 1000,
        begin=lambda _: 500,
        group={"withheld": (Condition(CHECKPOINT_LOST, "clicks/0: the checkpoint lies before the first record"),)},
    ),
    Script(
        "another shard has lost its checkpoint",
        120,
        Verdict.STALLED,
        lambda _: 10,
        lambda _: 1000,
        group={"withheld": (Condition(CHECKPOINT_LOST, "clicks/1: the checkpoint is gone"),)},
    ),
    Script(
        "its topic was made again, and it is read from the first record",
        700,
        Verdict.OK,
        lambda now: 5_000_000 if now < 603 else round(60 * (now - 603)),
        lambda now: 5_000_100 if now < 600 else round(50 * (now - 600)) + 1000,
    ),
    Script("the source is unreachable", 600, Verdict.UNKNOWN, lambda _: 10, lambda _: 20, group=AWAY),
    Script("the source was never seen", 600, Verdict.UNKNOWN, lambda _: 10, lambda _: 20, group={"discovered": False}),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name.replace(" ", "_"))
def test_a_script(script: Script) -> None:
    def made(now: float) -> GroupView:
        there = shard(script.position(now), script.end(now), script.begin(now), **script.shard)
        return view([there], **script.group)

    history = watched(made, script.after)
    assert (history.verdict, [each.verdict for each in history.said]) == (
        script.verdict,
        [] if script.verdict is Verdict.OK else [script.verdict],
    )


def back_to_back(every: float, noise: float, seconds: int, seed: int) -> tuple[At, At]:
    """Position and end where each micro-batch reads what there was when it began, and the next begins as it ends."""
    chance = random.Random(seed)
    ends = list(accumulate(max(0, round(chance.gauss(1000, noise))) for _ in range(seconds + 1)))
    times, positions, now = [0.0], [0], 0.0
    while now < seconds:
        positions.append(ends[int(now)])
        now += every * chance.uniform(1 - noise / 3000, 1 + noise / 3000)
        times.append(now)
    return lambda now: positions[bisect_right(times, now) - 1], lambda now: ends[int(now)]


@pytest.mark.parametrize("every", [2, 6, 10, 20, 30, 60])
@pytest.mark.parametrize("noise", [0, 300, 1000])
def test_micro_batches_one_after_the_other_are_ok_at_every_look(every: int, noise: int) -> None:
    heard: Counter[Verdict] = Counter()
    for seed in range(3):
        position, end = back_to_back(every, noise, 1800, seed)
        history = watched(group(position, end), 200)
        for now in range(205, 1800, 5):
            history = watched(group(position, end), 0, history, now)
            heard[history.verdict] += 1
    assert set(heard) == {Verdict.OK}


def test_waiting_for_its_trigger_does_not_hide_that_a_lag_grows() -> None:
    def made(per_second: float) -> Callable[[float], GroupView]:
        position = in_steps(60, 1000)

        def at(now: float) -> GroupView:
            consumer = structs.replace(consumers(1)[0], phase=Phase.WRITING if now % 60 < 40 else Phase.WAITING)
            return view([shard(position(now), round(per_second * now))], consumers=(consumer,))

        return at

    for per_second, verdict in ((2000, Verdict.LAGGING), (1000, Verdict.OK)):
        history = watched(made(per_second), 600)
        heard = {(history := watched(made(per_second), 0, history, now)).verdict for now in range(605, 1800, 5)}
        assert heard == {verdict}


def test_micro_batches_that_take_minutes_are_no_stall() -> None:
    batches = group(in_steps(240, 100), lambda now: round(100 * now) + 50)
    heard = [watched(batches, after).verdict for after in range(500, 1900, 20)]
    assert set(heard) == {Verdict.OK}
    # Twice as long as the last one took is too long.
    after = watched(lambda now: batches(min(now, 960.0) if now < 1000 else 960.0), 960 + 480 + 2 * LOOK)
    assert after.verdict is Verdict.STALLED


def by(phase: Phase) -> Mapping[str, Any]:
    """A group whose consumer is in this phase."""
    return {"consumers": (structs.replace(consumers(1)[0], phase=phase),)}


@pytest.mark.parametrize("begin", range(1440, 2160, 90))
def test_long_micro_batches_are_no_stall_for_an_operator_that_has_just_taken_over(begin: int) -> None:
    position, end = back_to_back(720, 0, 6000, 1)

    def made(now: float) -> GroupView:
        return view([shard(position(now), end(now))], **by(Phase.WRITING))

    history = watched(made, 0, start=begin)
    heard = {(history := watched(made, 0, history, now)).verdict for now in range(begin + 5, 6000, 5)}
    assert heard == {Verdict.UNKNOWN, Verdict.OK}
    assert history.verdict is Verdict.OK


@pytest.mark.parametrize(("phase", "limit"), [(Phase.READING, 120.0), (Phase.WRITING, 400.0), (Phase.IDLE, STANDS)])
def test_before_a_whole_step_was_seen_a_holder_has_what_the_settings_give_its_phase(phase: Phase, limit: float) -> None:
    settings = GroupSettings(progress_timeout=120.0, sink_timeout=400.0)
    there = view([shard(10, 1000)], **by(phase))
    begun = looked(None, there, 0, WALL, settings)
    waits = looked(begun, there, 60, WALL, settings)
    for now in range(120, int(limit) + 1, 5):
        waits = looked(waits, there, now, WALL, settings)
    assert waits.verdict is Verdict.UNKNOWN
    assert looked(waits, there, limit + 5, WALL, settings).verdict is Verdict.STALLED


def test_what_nobody_may_read_is_stopped_after_a_minute_whatever_its_holder_is_about() -> None:
    there = view([shard(10, 1000)], **PAUSE, **by(Phase.WRITING))
    assert watched(lambda _: there, STANDS + LOOK).verdict is Verdict.STOPPED


def test_a_step_that_took_very_long_does_not_excuse_the_next_for_as_long() -> None:
    def position(now: float) -> int:
        return 10 if now < 10_000 else 20

    history = watched(group(position, lambda _: 1000), 10_000)
    assert watched(group(position, lambda _: 1000), 2 * LONGEST_STEP - LOOK, history, 10_005).verdict is Verdict.OK
    assert watched(group(position, lambda _: 1000), 2 * LONGEST_STEP, history, 10_005).verdict is Verdict.STALLED


def test_who_reads_again_is_ok_at_once_and_the_first_record_after_a_quiet_hour_is_no_stall() -> None:
    stuck = watched(group(lambda _: 10, lambda _: 1000), 200)
    assert watched(group(lambda _: 500, lambda _: 1000), 0, stuck, 205).verdict is Verdict.OK
    quiet = watched(group(lambda _: 10, lambda _: 10), 3600)
    assert watched(group(lambda _: 10, lambda _: 11), STANDS - LOOK, quiet, 3605).verdict is Verdict.OK


def test_while_the_source_is_away_nothing_is_said_and_afterwards_that_time_does_not_count() -> None:
    there = shard(10, 1000)
    history = watched(lambda _: view([there]), 40)
    history = watched(lambda _: view([there], **AWAY), 600, history, 45)
    assert (history.verdict, history.away) == (Verdict.UNKNOWN, True)
    assert watched(lambda _: view([there]), 10, history, 650).verdict is Verdict.UNKNOWN
    assert watched(lambda _: view([there]), STANDS, history, 650).verdict is Verdict.STALLED


def test_the_time_for_which_this_process_stood_does_not_count() -> None:
    made = group(lambda now: round(min(now, 30.0)), lambda _: 1000)
    history = watched(made, 40)
    assert looked(history, made(41 + UNSEEN), 41 + UNSEEN, WALL).verdict is Verdict.OK
    assert looked(history, made(39 + UNSEEN), 39 + UNSEEN, WALL).verdict is Verdict.STALLED


def test_a_position_that_is_lost_is_unknown_and_one_that_is_restored_lower_was_set_back() -> None:
    history = watched(group(lambda _: 900, lambda _: 1000), 100)
    lost = looked(history, view([shard(None, 1000)]), 105, WALL)
    assert lost.verdict is Verdict.UNKNOWN
    assert looked(lost, view([shard(100, 1000)]), 110, WALL).verdict is Verdict.REWOUND
    unlooked = looked(history, view([shard(900, None)]), 105, WALL)
    assert unlooked.verdict is Verdict.UNKNOWN


def test_a_reset_of_a_paused_group_is_first_seen_as_one_and_then_as_a_pause() -> None:
    history = watched(lambda _: view([shard(900, 1000)], **PAUSE), 120)
    history = looked(history, view([shard(0, 1000)], **PAUSE), 125, WALL)
    assert history.verdict is Verdict.REWOUND
    history = watched(lambda _: view([shard(0, 1000)], **PAUSE), STANDS + LOOK, history, 130)
    assert history.verdict is Verdict.STOPPED
    assert looked(history, view([shard(50, 1000)]), 200, WALL).verdict is Verdict.REWOUND


@pytest.mark.parametrize("reason", [PAUSED, RESETTING, OWNERSHIP_REBUILDING])
def test_who_may_get_on_again_has_its_minute_and_is_stalled_since_then(reason: str) -> None:
    held_up = {"withheld": (Condition(reason, "nothing is granted or moved"),)}
    read = watched(group(lambda now: round(now), lambda _: 10_000), 600)
    stopped = watched(lambda _: view([shard(600, 10_000)], **held_up), 3595, read, 605)
    assert stopped.verdict is Verdict.STOPPED
    resumed = watched(lambda _: view([shard(600, 10_000)]), STANDS, stopped, 4205)
    assert resumed.verdict is Verdict.OK
    stalled = watched(lambda _: view([shard(600, 10_000)]), 0, resumed, 4270)
    assert [(each.verdict, each.since) for each in stalled.said] == [(Verdict.STALLED, WALL + 4205)]


def test_a_pause_that_ends_while_the_source_is_away_is_seen_to_end() -> None:
    stopped = watched(lambda _: view([shard(10, 1000)], **PAUSE), 600)
    away = watched(lambda _: view([shard(10, 1000)], **AWAY), 20, stopped, 605)
    assert watched(lambda _: view([shard(10, 1000)]), STANDS, away, 630).verdict is Verdict.OK


def test_two_minutes_for_which_this_process_stood_are_no_stall() -> None:
    made = group(lambda now: round(100 * now), lambda now: round(100 * now) + 200)
    history = watched(made, 300)
    assert looked(history, group(lambda _: 30_000, lambda _: 30_200)(420), 420, WALL).verdict is Verdict.OK


def test_a_group_is_as_its_worst_shard_and_names_those_that_are_not_ok() -> None:
    def made(now: float) -> GroupView:
        there = [
            shard(50, 50, name="clicks/0"),
            shard(10, 20, name="clicks/1"),
            shard(10, 20, name="clicks/2", **FREE),
            shard(round(10 * now), round(20 * now), name="clicks/3"),
            shard(None, 20, name="clicks/4"),
        ]
        return view(there)

    history = watched(made, 200)
    assert history.verdict is Verdict.STALLED
    assert {each.shard: each.verdict for each in history.said} == {
        "clicks/1": Verdict.STALLED,
        "clicks/2": Verdict.STOPPED,
        "clicks/3": Verdict.LAGGING,
        "clicks/4": Verdict.UNKNOWN,
    }
    # Since the position stands, not since it was said.
    assert {each.shard: each.since - WALL for each in history.said if each.shard != "clicks/3"} == {
        "clicks/1": 0.0,
        "clicks/2": 0.0,
        "clicks/4": 0.0,
    }


def test_what_does_not_change_is_not_made_anew() -> None:
    made = group(lambda _: 10, lambda _: 20)
    history = watched(made, 200)
    again = looked(history, made(205), 205, WALL + 205)
    assert again.said is history.said
    assert again.shards is history.shards


def test_shards_that_come_and_go_keep_the_others_as_they_were() -> None:
    first, second, third = (shard(10, 20, name=f"clicks/{number}") for number in range(3))
    history = watched(lambda _: view([first, second]), 200)
    history = looked(history, view([third, second]), 205, WALL)
    assert {each.shard: each.verdict for each in history.said} == {"clicks/1": Verdict.STALLED, "clicks/2": Verdict.UNKNOWN}
    over = [structs.replace(second, state=ShardState.OVER), structs.replace(third, present=False)]
    history = looked(history, view(over), 210, WALL)
    assert (history.shards, history.said, history.verdict) == ((), (), Verdict.UNKNOWN)


def test_of_a_shard_so_many_bytes_are_kept() -> None:
    columns = watched(group(lambda now: round(now), lambda now: round(2 * now)), 200).columns
    arrays: list[np.ndarray[Any, Any]] = [getattr(columns, name) for name in Columns.__slots__]
    assert sum(array.itemsize for array in arrays) == BYTES == 84


def test_every_verdict_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Verdict)
