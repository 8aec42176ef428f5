"""Waiting is not hanging: how long a consumer may get on with nothing, by what it says that it is about."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.nouns import Phase
from tests.builders import Play, started, topic

SETTINGS = {"session_timeout": 45.0, "progress_timeout": 60.0, "release_timeout": 30.0, "sink_timeout": 600.0}


def behind(consumers: int = 1, **phase: Any) -> Play:
    """A group whose consumers have something to read from now on; g-0 is about what is said."""
    play = started(4, consumers, **SETTINGS)
    for name, value in phase.items():
        setattr(play.consumer("g-0"), name, value)
    play.beat("g-0")
    play.discover(topic(4, end=1000))
    return play


def expired_after(play: Play, most: int = 1000) -> tuple[int, str]:
    """After how many seconds g-0 is expired while it heartbeats, and why."""
    for second in range(1, most):
        play.wait(1.0)
        over = [each for each in play.events if each.reason.endswith("Timeout")]
        if over:
            assert [each.consumer for each in over] == ["g-0"]
            return second, over[0].reason
        play.consumer("g-0").phase_age += 1.0
        play.beat(*play.consumers)
    return most, ""


@pytest.mark.parametrize("phase", [Phase.READING, Phase.WARMING, Phase.WAITING])
def test_one_that_has_something_to_read_and_does_not_say_until_when_it_waits_must_get_on(phase: Phase) -> None:
    assert expired_after(behind(phase=phase)) == (60, "ProgressTimeout")


def test_one_that_may_read_nothing_though_there_is_more_is_not_expired() -> None:
    play = behind(phase=Phase.IDLE)
    assert expired_after(play, 900) == (900, "")
    play.consumer("g-0").phase, play.consumer("g-0").phase_age = Phase.READING, 0.0
    assert expired_after(play)[1] == "ProgressTimeout"


def test_one_that_waits_for_its_trigger_has_until_then() -> None:
    play = behind(phase=Phase.WAITING, goes_on_in=600.0)
    consumer = play.consumer("g-0")
    for _ in range(600):
        play.wait(1.0)
        consumer.phase_age, consumer.goes_on_in = consumer.phase_age + 1.0, consumer.goes_on_in - 1.0
        play.beat("g-0")
    assert play.counts() == {"g-0": 4}
    assert expired_after(play) == (60, "ProgressTimeout"), "it should have gone on"


def test_one_that_stopped_waiting_must_get_on_from_then_on() -> None:
    play = behind(phase=Phase.WAITING, goes_on_in=600.0)
    consumer = play.consumer("g-0")
    play.wait(400.0, beating=["g-0"])
    consumer.phase, consumer.phase_age, consumer.goes_on_in = Phase.READING, 0.0, 0.0
    play.beat("g-0")
    assert expired_after(play) == (60, "ProgressTimeout")


def test_one_that_tells_no_phase_must_get_on_from_when_it_did_last() -> None:
    assert expired_after(behind()) == (60, "ProgressTimeout")


def test_who_does_not_wait_cannot_say_when_it_goes_on() -> None:
    assert expired_after(behind(phase=Phase.READING, goes_on_in=600.0)) == (60, "ProgressTimeout")


def test_one_that_waits_for_its_sink_has_the_sinks_time_and_is_then_replaced() -> None:
    play = behind(phase=Phase.WRITING)
    assert expired_after(play) == (600, "SinkTimeout")
    assert [each.message for each in play.events if each.reason == "SinkTimeout"] == [
        "g-0 has waited for its sink for longer than sinkTimeout; its pod must be replaced"
    ]
    assert [consumer for consumer, _ in play.view.expired] == ["g-0"]


def test_one_whose_sink_is_back_reads_on() -> None:
    play = behind(phase=Phase.WRITING)
    play.wait(590.0, beating=["g-0"])
    play.consumer("g-0").progress += 1
    play.consumer("g-0").phase, play.consumer("g-0").phase_age = Phase.READING, 0.0
    play.beat("g-0")
    assert expired_after(play) == (60, "ProgressTimeout"), "and has its own time again"


def test_one_that_waits_for_its_sink_is_not_expired_for_what_it_cannot_release() -> None:
    play = behind(phase=Phase.WRITING)
    play.consumer("g-0").busy = set(play.consumer("g-0").held)
    play.wait(10.0, beating=["g-0"])
    play.consumer("g-1")
    play.settle("g-0", "g-1")
    assert {str(view.next_consumer) for view in play.view.shards if view.next_consumer} == {"g-1"}
    assert expired_after(play)[1] == "SinkTimeout"


def test_one_that_waits_for_its_trigger_must_let_go_of_what_it_is_asked_for() -> None:
    play = behind(phase=Phase.WAITING, goes_on_in=80_000.0)
    play.consumer("g-0").busy = set(play.consumer("g-0").held)
    play.consumer("g-1")
    play.settle("g-0", "g-1")
    assert expired_after(play)[1] == "ReleaseTimeout"


def test_one_that_reads_is_expired_for_what_it_does_not_release() -> None:
    play = behind()
    play.consumer("g-0").busy = set(play.consumer("g-0").held)
    play.consumer("g-1")
    play.settle("g-0", "g-1")
    assert expired_after(play)[1] == "ReleaseTimeout"


def test_everybody_sees_what_a_consumer_is_about_and_since_when() -> None:
    play = behind(phase=Phase.WRITING, phase_age=20.0)
    play.wait(2.0)
    (view,) = play.view.consumers
    assert (view.phase, view.phase_age) == (Phase.WRITING, 22.0)
    play.restart()
    assert [(each.phase, each.phase_age) for each in play.view.consumers] == [(None, 0.0)], "not heard yet"


def test_nobody_waits_for_longer_than_a_day() -> None:
    play = started(4, 1)
    consumer = play.consumer("g-0")
    consumer.phase, consumer.goes_on_in = Phase.WAITING, 86_400.0
    play.beat("g-0")
    consumer.goes_on_in = 86_401.0
    with pytest.raises(InvalidRequestError) as refused:
        play.beat("g-0")
    assert refused.value.message == (
        "heartbeat of g-0 says that it goes on in 86401 s; it must be at most 86400: let its trigger fire once a day or more"
        " often"
    )


def test_a_phase_that_has_lasted_for_longer_than_can_be_is_refused() -> None:
    play = started(2, 1)
    consumer = play.consumer("g-0")
    consumer.phase, consumer.phase_age = Phase.READING, 315_360_000.0
    play.beat("g-0")
    consumer.phase_age = (2**63 - 1) / 1000
    with pytest.raises(InvalidRequestError) as refused:
        play.beat("g-0")
    assert refused.value.message == (
        "heartbeat of g-0 says that its phase has lasted for 9223372036854776 s; it must be at most 315360000: send the"
        " milliseconds since it began"
    )
