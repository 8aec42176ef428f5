"""What mode Lag asks for in each single case, as a whole wish: number, sentence, limit and what is remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.model.nouns import Condition, GroupView, ShardId, ShardState
from shardherd.core.planning.catchup import EVALUATE, NO_GAIN_FOR, Wish, lag_of, needed, wish
from shardherd.core.planning.observed import Ceiling, LagScaling, OwnedSet, Scaling, ScalingMode, Sizing, Trial
from shardherd.core.planning.traffic import INTERVAL, SPAN, ConsumerRate, Mark, Traffic
from tests.unit.core.planning.builders import NOW, WALL, declared, observation, shards, view

WINDOW = 300.0
MEASURING = ("Measuring", "How fast records are written and read is being measured.")
SAID = ("CatchingUp", "said before")
TOO_MANY = ("MaxReplicas", "The lag asks for more consumers than spec.scaling.maxReplicas allows.")
TOO_FEW_SHARDS = ("TooFewShards", "The lag asks for more consumers than there are shards to read.")
NO_GAIN = ("NoGain", "The lag asks for more consumers, but more than 3 did not read more when it was tried.")
TRIAL = Trial(2, 10.0)
THREE = OwnedSet(replicas=3)


def seen(
    written: float = 100.0, read: float = 100.0, lag: int | None = 0, consumer_rate: float | None = 100.0, over: float = 60.0
) -> Traffic:
    """So many records a second were written and read in the last minute; one consumer can read `consumer_rate`."""
    return Traffic(
        shards=(ShardId("clicks/0"),),
        end_offsets=(),
        positions=(),
        moved_at=(),
        holders=(None,),
        marks=(Mark(NOW - over, 5, 7), Mark(NOW, 5 + round(written * over), 7 + round(read * over))),
        consumer_rate=ConsumerRate() if consumer_rate is None else ConsumerRate(consumer_rate * 10.0, 10.0),
        lag_records=lag,
    )


def picture(**fields: Any) -> GroupView:
    return view(shards(2), **fields)


def asked(
    traffic: Traffic | None,
    goal: int | None = 3,
    *,
    number: int = 12,
    seen_as: GroupView | None = None,
    running: OwnedSet | None = THREE,
    scaling: Scaling | None = None,
    **remembered: Any,
) -> Wish:
    """What is asked for with this traffic and so many shards, all consumers having read for long, if nothing else is said."""
    known: dict[str, Any] = {"said": SAID, "steady_since": NOW - 1000.0, **remembered}
    looked = observation(declared=declared(scaling=scaling or limits()), stateful_set=running)
    return wish(looked, seen_as or picture(), Sizing(goal=goal, traffic=traffic, **known), number)


def limits(**scaling: Any) -> Scaling:
    return Scaling(mode=ScalingMode.LAG, **{"max_replicas": 10, "stabilization_window": WINDOW, **scaling})


def stays(number: int, recommended: int, *wishes: tuple[float, int], **fields: Any) -> Wish:
    """As before, for the reason of before."""
    return Wish(number, *SAID, recommended, wishes=wishes, **fields)


@pytest.mark.parametrize(
    ("rows", "lag"),
    [
        ((), 0),
        (shards(2), 20),
        ((*shards(1), *shards(1, lag_records=0)), 10),
        ((*shards(1), *shards(1, lag_records=None)), None),
        ((*shards(1), *shards(1, present=False), *shards(1, lag_records=None, present=False)), 10),
        ((*shards(1), *shards(1, ShardState.OVER), *shards(1, ShardState.OVER, lag_records=None)), 10),
    ],
)
def test_the_lag_is_that_of_the_shards_that_are_there_and_not_over(rows: Any, lag: int | None) -> None:
    assert lag_of(view(rows)) == lag


@pytest.mark.parametrize(
    ("traffic", "target", "number"),
    [
        pytest.param(seen(350, 350), 300, 5, id="to keep up, at four fifths of what one can read"),
        pytest.param(seen(160, 160), 300, 2, id="to keep up, exactly"),
        pytest.param(seen(100, 100, 60_000), 300, 3, id="to read the backlog in time, exactly"),
        pytest.param(seen(100, 100, 60_300), 300, 4, id="to read the backlog in time"),
        pytest.param(seen(0, 0), 300, 1, id="one at least"),
        pytest.param(seen(0, 0, 0, 0.001), 300, 1, id="one, however slow it is, where nothing is left to read"),
        pytest.param(seen(100, 100, None), 300, 2, id="of an unknown lag only what keeps up"),
        pytest.param(seen(10, 10, 3001, None), 300, 4, id="one more, as they fall behind"),
        pytest.param(seen(10, 10, 3000, None), 300, 2, id="one fewer, as the backlog is read in time"),
        pytest.param(seen(10, 10, 120, None), 10, 2, id="one fewer, as it is no more than one micro-batch"),
        pytest.param(seen(0, 0, None, None), 300, 2, id="one fewer, where nothing is known"),
    ],
)
def test_so_many_are_needed(traffic: Traffic, target: float, number: int) -> None:
    assert needed(traffic, target, 3) == number


def test_one_is_not_tried_with_fewer() -> None:
    assert needed(seen(10, 10, 0, None), 300, 1) == 1


class TestNothingIsMeasured:
    def test_while_the_source_is_away(self) -> None:
        away = picture(source_reachable=False, source_error="no broker", withheld=(Condition("Paused", "not told"),))
        assert asked(seen(900), seen_as=away, trial=TRIAL, wishes=((NOW, 3),)) == Wish(
            3, "SourceAway", "Nothing can be measured: no broker", 3, trial=TRIAL
        )

    def test_while_something_withholds_grants(self) -> None:
        held = picture(withheld=(Condition("CheckpointLost", "One is lost."), Condition("Paused", "It is paused.")))
        assert asked(seen(900), seen_as=held) == Wish(3, "SourceAway", "Nothing can be measured: One is lost. It is paused.", 3)

    def test_but_not_because_of_what_only_stays_out_of_the_group(self) -> None:
        full = picture(withheld=(Condition("SnapshotTooLarge", "4 new shards must stay out"),))
        assert asked(seen(900), seen_as=full) == asked(seen(900)) != asked(None)

    @pytest.mark.parametrize("traffic", [None, seen(900, over=SPAN - 1)])
    def test_for_the_first_seconds(self, traffic: Traffic | None) -> None:
        assert asked(traffic, trial=TRIAL, wishes=((NOW, 3),)) == stays(3, 3, (NOW, 3), trial=TRIAL)

    @pytest.mark.parametrize("said", [("", ""), ("FollowingShards", "of another mode")])
    def test_and_that_is_said_where_nothing_was_decided_before(self, said: tuple[str, str]) -> None:
        assert asked(None, said=said) == Wish(3, *MEASURING, 3)

    @pytest.mark.parametrize(
        "reason",
        ["KeepingUp", "CatchingUp", "LoadFell", "PaceUnknown", "FirstConsumers", "ScaleOutUndone", "RecordsArrived"],
    )
    def test_what_was_decided_before_stands(self, reason: str) -> None:
        assert asked(None, said=(reason, "why")) == Wish(3, reason, "why", 3)

    def test_and_what_runs_is_the_number_where_none_was_chosen(self) -> None:
        assert asked(None, goal=None, running=OwnedSet(replicas=4)) == stays(4, 4)
        assert asked(None, scaling=limits(recommend_only=True), running=OwnedSet(replicas=4)) == stays(4, 4)


class TestTheFirstConsumers:
    def test_of_a_new_group_is_one(self) -> None:
        message = "How many are needed is measured once consumers read."
        assert asked(None, 0, running=None) == Wish(1, "FirstConsumers", message, 1)
        assert asked(seen(lag=0), 0, seen_as=view(shards(2, lag_records=0))) == Wish(1, "FirstConsumers", message, 1)

    def test_of_one_that_was_deleted_with_its_lag_are_as_many_as_it_takes(self) -> None:
        backlog = view(shards(2, lag_records=45_000))
        message = "How many are needed is measured once consumers read."
        assert asked(seen(), 0, running=None, seen_as=backlog) == Wish(3, "FirstConsumers", message, 3)

    @pytest.mark.parametrize(
        ("traffic", "lag", "number", "message"),
        [
            (None, 45_000, 1, "90000 records to read, and no consumer."),
            (seen(consumer_rate=None), 45_000, 1, "90000 records to read, and no consumer."),
            (seen(), 45_000, 3, "90000 records to read, and no consumer."),
            (seen(), 45_001, 4, "90002 records to read, and no consumer."),
        ],
    )
    def test_are_as_many_as_read_the_backlog_in_time(
        self, traffic: Traffic | None, lag: int, number: int, message: str
    ) -> None:
        backlog = view(shards(2, lag_records=lag))
        assert asked(traffic, 0, seen_as=backlog) == Wish(number, "RecordsArrived", message, number)

    def test_come_with_a_single_record(self) -> None:
        assert asked(seen(), 0, seen_as=view(shards(1, lag_records=1))) == Wish(
            1, "RecordsArrived", "1 record to read, and no consumer.", 1
        )

    def test_are_explained_by_the_rates_once_it_is_measured_that_they_are_enough(self) -> None:
        said = ("FirstConsumers", "How many are needed is measured once consumers read.")
        assert asked(None, said=said) == Wish(3, *said, 3)
        assert asked(seen(900, 300), said=said, steady_since=None).reason == "FirstConsumers"
        found = asked(seen(240, 240), said=said)
        assert (found.replicas, found.reason) == (3, "KeepingUp")
        assert found.message.startswith("240 records/s are written, 240 records/s read")


class TestTheLimits:
    def test_take_consumers_away_that_are_too_many(self) -> None:
        assert asked(seen(), 4, scaling=limits(max_replicas=3), wishes=((NOW, 4),)) == Wish(3, *TOO_MANY, 3, TOO_MANY)
        assert asked(seen(), 4, number=3, wishes=((NOW, 4),)) == Wish(3, *TOO_FEW_SHARDS, 3, TOO_FEW_SHARDS)
        believed = Ceiling(3, WALL + 1)
        assert asked(seen(), 4, ceiling=believed) == Wish(3, *NO_GAIN, 3, NO_GAIN, ceiling=believed)

    def test_that_are_equal_are_called_by_what_the_user_set(self) -> None:
        limited = limits(max_replicas=3)
        assert asked(seen(), 4, number=3, scaling=limited).limit == TOO_MANY
        assert asked(seen(), 4, ceiling=Ceiling(3, WALL + 1), scaling=limited).limit == TOO_MANY

    def test_of_what_did_not_help_end_with_their_time(self) -> None:
        assert asked(seen(), 4, ceiling=Ceiling(3, WALL)).limit is None

    def test_of_what_did_not_help_keep_no_fewer_than_the_user_asks_for(self) -> None:
        believed, floor = Ceiling(3, WALL + 1), limits(min_replicas=5)
        message = "spec.scaling.minReplicas asks for 5."
        expected = Wish(5, "MinReplicas", message, 5, ceiling=believed)
        assert asked(seen(), 3, ceiling=believed, scaling=floor, wishes=((NOW, 3),)) == expected
        assert asked(seen(900), 5, ceiling=believed, scaling=floor).limit == NO_GAIN
        assert asked(seen(900), 5, ceiling=believed, scaling=limits(min_replicas=5, max_replicas=5)).limit == TOO_MANY
        assert asked(seen(900), 4, ceiling=believed, scaling=floor, number=4).limit == TOO_FEW_SHARDS

    def test_add_consumers_that_are_too_few(self) -> None:
        message = "spec.scaling.minReplicas asks for 4."
        assert asked(seen(), scaling=limits(min_replicas=4), wishes=((NOW, 3),)) == Wish(4, "MinReplicas", message, 4)

    def test_say_what_is_asked_for_also_where_there_are_fewer_shards(self) -> None:
        message = "spec.scaling.minReplicas asks for 5, and there are 4 shards to read."
        assert asked(seen(), scaling=limits(min_replicas=5), number=4) == Wish(4, "MinReplicas", message, 4)

    def test_never_ask_for_more_consumers_than_shards(self) -> None:
        assert asked(None, scaling=limits(min_replicas=4), number=3) == stays(3, 3)

    def test_bind_what_is_recommended_too(self) -> None:
        assert asked(seen(900), 10, steady_since=None) == stays(10, 10, (NOW, 12), limit=TOO_MANY)


def test_as_many_as_are_needed_go_on() -> None:
    assert asked(seen(240, 240)) == stays(3, 3, (NOW, 3))


class TestANumberThatIsOnlyRecommended:
    advice = limits(recommend_only=True)
    whole = (NOW - WINDOW + INTERVAL, 2)

    def again(self, traffic: Traffic, **remembered: Any) -> Wish:
        return asked(traffic, scaling=self.advice, **remembered)

    def test_keeps_what_led_to_it(self) -> None:
        found = self.again(seen(consumer_rate=None), wishes=(self.whole,))
        assert (found.recommended, found.reason, found.wishes) == (2, "PaceUnknown", (self.whole, (NOW, 2)))

    @pytest.mark.parametrize(
        ("traffic", "number"), [(seen(350, 350), 5), (seen(350, 350, 10_000), 5), (seen(250, 250), 4), (seen(90, 90), 2)]
    )
    def test_is_explained_as_before_while_it_stays_however_the_rates_vary(self, traffic: Traffic, number: int) -> None:
        found = self.again(traffic, said=("KeepingUp", "said before"), recommended=number)
        assert (found.recommended, found.reason, found.message) == (number, "KeepingUp", "said before")

    @pytest.mark.parametrize("steady_since", [NOW - 1000.0, None])
    def test_is_explained_anew_once_fewer_were_enough_for_a_whole_window(self, steady_since: float | None) -> None:
        remembered = {"said": ("KeepingUp", "said before"), "recommended": 2, "wishes": (self.whole,)}
        found = self.again(seen(lag=1), **remembered, steady_since=steady_since)
        assert (found.recommended, found.reason) == (2, "KeepingUp" if steady_since is None else "LoadFell")
        found = self.again(seen(lag=1), **{**remembered, "said": ("LoadFell", "said before")}, steady_since=steady_since)
        assert (found.recommended, found.reason, found.message) == (2, "LoadFell", "said before")

    @pytest.mark.parametrize(
        ("before", "reason"), [(None, "CatchingUp"), (3, "CatchingUp"), (2, "KeepingUp"), (5, "KeepingUp")]
    )
    def test_is_explained_anew_if_it_is_another(self, before: int | None, reason: str) -> None:
        found = self.again(seen(240, 240), recommended=before)
        assert (found.recommended, found.reason) == (3, reason)

    def test_explains_nothing_of_one_that_is_followed(self) -> None:
        assert asked(seen(240, 240), recommended=5).reason == "KeepingUp"
        assert asked(seen(240, 240), recommended=3).message == SAID[1]

    def test_is_the_limit_where_more_are_asked_for(self) -> None:
        found = asked(seen(900, 900), scaling=limits(recommend_only=True, max_replicas=5), said=SAID, recommended=5)
        assert (found.recommended, found.message, found.limit) == (5, SAID[1], TOO_MANY)


class TestANumberThatTheLagDidNotChoose:
    """It was set by a limit, kept by a pause, chosen in another mode, or stayed while nothing could be measured."""

    rates = "{} records/s are written, {} records/s read, {}, one consumer reads 100 records/s: "
    three = rates.format(240, 240, "0 records behind") + "3 consumers to keep up and to catch up within 300 s."

    @pytest.mark.parametrize("reason", ["", "MinReplicas", "MaxReplicas", "ScaleInPaused", "FollowingShards", "SourceAway"])
    def test_is_right_as_soon_as_it_is_measured(self, reason: str) -> None:
        before = (reason, "of something else")
        assert asked(seen(240, 240, over=SPAN - 1), said=before) == Wish(3, *MEASURING, 3)
        assert asked(seen(240, 240), said=before) == Wish(3, "KeepingUp", self.three, 3, wishes=((NOW, 3),))

    def test_is_what_a_limit_makes_it(self) -> None:
        asks = asked(seen(240, 240), scaling=limits(max_replicas=3, min_replicas=3), said=("", ""))
        assert (asks.reason, asks.message) == ("KeepingUp", self.three)
        asks = asked(seen(900, 300), scaling=limits(max_replicas=3), said=("", ""))
        assert (asks.reason, asks.message) == TOO_MANY
        asks = asked(seen(100, 100), scaling=limits(min_replicas=3), said=("", ""))
        assert (asks.reason, asks.message) == ("MinReplicas", "spec.scaling.minReplicas asks for 3.")

    def test_is_not_what_a_limit_makes_it_that_is_not_reached(self) -> None:
        assert asked(seen(100, 100), 4, scaling=limits(min_replicas=3), said=("", "")).reason == "KeepingUp"
        assert asked(seen(900, 300), scaling=limits(max_replicas=4), said=("", ""), steady_since=None).reason == "KeepingUp"

    def test_is_told_with_the_number_that_is_to_come(self) -> None:
        more = self.rates.format(350, 350, "0 records behind") + "5 consumers to keep up and to catch up within 300 s."
        asks = asked(seen(350, 350), said=("", ""), steady_since=None)
        assert (asks.replicas, asks.recommended, asks.reason, asks.message) == (3, 5, "KeepingUp", more)
        fewer = self.rates.format(100, 100, "0 records behind") + "2 consumers to keep up and to catch up within 300 s."
        asks = asked(seen(100, 100), said=("", ""))
        assert (asks.replicas, asks.recommended, asks.reason, asks.message) == (3, 2, "KeepingUp", fewer)

    def test_is_told_with_the_rates_when_a_trial_ends(self) -> None:
        asks = asked(seen(240, 240), trial=TRIAL, said=("MaxReplicas", "a limit"))
        assert asks == Wish(3, "KeepingUp", self.three, 3)


class TestMoreConsumers:
    def test_do_not_come_beyond_the_limit_and_nothing_new_is_said(self) -> None:
        assert asked(seen(900, 900), 10) == stays(10, 10, (NOW, 12), limit=TOO_MANY)

    def test_come_at_once_to_keep_up(self) -> None:
        message = (
            "350 records/s are written, 350 records/s read, 0 records behind, one consumer reads 100 records/s: "
            "5 consumers to keep up and to catch up within 300 s."
        )
        assert asked(seen(350, 350)) == Wish(5, "KeepingUp", message, 5, wishes=((NOW, 5),))

    def test_are_on_trial_while_there_is_a_backlog(self) -> None:
        message = (
            "100 records/s are written, 9.5 records/s read, 60300 records behind, one consumer reads 100 records/s: "
            "4 consumers to keep up and to catch up within 300 s."
        )
        expected = Wish(4, "CatchingUp", message, 4, trial=Trial(3, 9.5), wishes=((NOW, 4),))
        assert asked(seen(100, 9.5, 60_300)) == expected

    def test_come_by_no_more_than_a_step(self) -> None:
        asks = asked(seen(720, 720), scaling=limits(lag=LagScaling(max_step=2)))
        assert (asks.replicas, asks.recommended, asks.limit) == (5, 9, None)

    def test_come_up_to_the_limit(self) -> None:
        asks = asked(seen(720, 720), scaling=limits(max_replicas=5))
        assert (asks.replicas, asks.recommended, asks.limit) == (5, 5, TOO_MANY)

    def test_come_up_to_what_is_wanted(self) -> None:
        asks = asked(seen(720, 720), scaling=limits(lag=LagScaling(max_step=20)))
        assert (asks.replicas, asks.recommended) == (9, 9)

    @pytest.mark.parametrize(("steady_since", "number"), [(None, 3), (NOW - SPAN + 1, 3), (NOW - SPAN, 5)])
    def test_come_only_once_all_that_were_asked_for_read(self, steady_since: float | None, number: int) -> None:
        assert asked(seen(350, 350), steady_since=steady_since).replicas == number

    def test_wait_for_the_verdict_on_those_before(self) -> None:
        recently = NOW - EVALUATE + 1
        asks = asked(seen(900, 100, 60_000), trial=TRIAL, steady_since=recently)
        assert asks == stays(3, 10, (NOW, 12), trial=TRIAL, limit=TOO_MANY)

    def test_are_recommended_without_waiting_for_anything(self) -> None:
        asks = asked(seen(350, 350), scaling=limits(recommend_only=True), steady_since=None)
        assert (asks.replicas, asks.reason) == (5, "KeepingUp")

    def test_are_one_for_nobody_was_ever_busy(self) -> None:
        message = (
            "10 records/s are written, 10 records/s read, 3001 records behind, what one consumer can read was never measured: "
            "4 consumers to keep up and to catch up within 300 s."
        )
        expected = Wish(4, "CatchingUp", message, 4, trial=Trial(3, 10.0), wishes=((NOW, 4),))
        assert asked(seen(10, 10, 3001, None)) == expected


class TestATrial:
    behind = seen(900, 11.0, 60_000)
    undone = (
        "3 consumers read 11 records/s, 2 read 20 records/s: "
        "more did not help, so it is not tried again for 30 min. Look at what they write to."
    )

    def test_that_did_not_help_is_taken_back_and_not_repeated_for_a_while(self) -> None:
        ceiling = Ceiling(2, WALL + NO_GAIN_FOR)
        expected = Wish(2, "ScaleOutUndone", self.undone, 2, ceiling=ceiling)
        assert asked(self.behind, trial=Trial(2, 20.0), wishes=((NOW, 5),)) == expected

    @pytest.mark.parametrize(("before", "number"), [(10.0, 3), (10.1, 2)])
    def test_has_helped_if_a_tenth_more_is_read(self, before: float, number: int) -> None:
        asks = asked(self.behind, trial=Trial(2, before), wishes=((NOW, 5),))
        assert (asks.replicas, asks.trial, asks.wishes) == (number, None, ((NOW, 5),) if number == 3 else ())

    def test_that_has_helped_ends_and_nothing_else_changes(self) -> None:
        assert asked(self.behind, trial=TRIAL, wishes=((NOW, 5),)) == stays(3, 3, (NOW, 5))

    @pytest.mark.parametrize("before", [3, 4])
    def test_of_no_more_consumers_than_before_proves_nothing(self, before: int) -> None:
        assert asked(self.behind, trial=Trial(before, 20.0)) == stays(3, 3)

    @pytest.mark.parametrize(("since", "judged"), [(None, False), (NOW - EVALUATE + 1, False), (NOW - EVALUATE, True)])
    def test_is_judged_once_all_have_read_for_long_enough(self, since: float | None, judged: bool) -> None:
        asks = asked(self.behind, trial=Trial(2, 20.0), steady_since=since)
        assert (asks.reason == "ScaleOutUndone", asks.trial is None) == (judged, judged)

    def test_ends_at_once_when_there_is_no_backlog_to_show_its_use_by(self) -> None:
        assert asked(seen(11, 11), trial=Trial(2, 20.0), steady_since=None) == stays(3, 3)


class TestFewerConsumers:
    message = (
        "100 records/s are written, 100 records/s read, 1 record behind, one consumer reads 100 records/s: "
        "2 consumers to keep up and to catch up within 300 s."
    )
    whole = (NOW - WINDOW + INTERVAL, 2)
    light = seen(lag=1)

    def test_are_enough_once_they_were_for_the_whole_window(self) -> None:
        expected = Wish(2, "LoadFell", self.message, 2, wishes=(self.whole, (NOW, 2)))
        assert asked(self.light, wishes=(self.whole,)) == expected

    @pytest.mark.parametrize(
        "wishes",
        [
            pytest.param((), id="nothing was asked for before"),
            pytest.param(((NOW - WINDOW + INTERVAL + 1, 2),), id="not for long enough"),
            pytest.param(((whole[0], 3),), id="as many were needed a while ago"),
        ],
    )
    def test_are_not_believed_before(self, wishes: tuple[tuple[float, int], ...]) -> None:
        most = max((number for _, number in wishes), default=2)
        assert asked(self.light, wishes=wishes) == stays(3, most, *wishes, (NOW, 2))

    def test_are_as_few_as_were_ever_enough_in_the_window(self) -> None:
        asks = asked(self.light, 5, wishes=((NOW - WINDOW - 1, 9), (NOW - WINDOW, 4), (NOW - 100, 3)))
        assert (asks.replicas, asks.recommended, asks.wishes) == (4, 4, ((NOW - WINDOW, 4), (NOW - 100, 3), (NOW, 2)))

    def test_go_by_no_more_than_a_step(self) -> None:
        asks = asked(self.light, 9, wishes=(self.whole,), scaling=limits(lag=LagScaling(max_step=3)))
        assert (asks.replicas, asks.recommended) == (6, 2)

    def test_are_never_fewer_than_the_least(self) -> None:
        assert asked(self.light, wishes=(self.whole,), scaling=limits(min_replicas=3)) == stays(3, 3, self.whole, (NOW, 2))

    def test_wait_until_all_read(self) -> None:
        assert asked(self.light, wishes=(self.whole,), steady_since=None) == stays(3, 2, self.whole, (NOW, 2))

    def test_go_one_by_one_where_nobody_was_ever_busy_each_after_a_window_of_its_own(self) -> None:
        message = (
            "9.9 records/s are written, 9.9 records/s read, 0 records behind, what one consumer can read was never measured: "
            "2 consumers to keep up and to catch up within 300 s."
        )
        assert asked(seen(9.9, 9.9, None, None), wishes=(self.whole,)) == Wish(2, "PaceUnknown", message, 2)

    @pytest.mark.parametrize(
        ("last", "noted"),
        [
            ((NOW - INTERVAL + 1, 2), False),
            ((NOW - INTERVAL, 2), True),
            ((NOW - INTERVAL + 1, 3), True),
        ],
    )
    def test_what_is_asked_for_is_noted_once_for_each_look(self, last: tuple[float, int], noted: bool) -> None:
        asks = asked(self.light, wishes=(last,))
        assert asks.wishes == ((last, (NOW, 2)) if noted else (last,))

    def test_a_trial_that_is_not_judged_yet_goes_on(self) -> None:
        heavy = seen(100, 100, 1_600)
        asks = asked(heavy, trial=TRIAL, steady_since=NOW - SPAN, wishes=((self.whole[0], 3),))
        assert asks == replace(stays(3, 3, (self.whole[0], 3), (NOW, 2)), trial=TRIAL)
