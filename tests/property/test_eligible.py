"""Whether somebody below low may be given shards is known without a look at each consumer: it is what such a look says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.group import eligible
from shardherd.core.group.group import Group
from shardherd.core.model.errors import StaleIncarnationError
from shardherd.core.model.gauges import Gauge, GaugeKind, Marks, Stage, Watermarks
from shardherd.core.model.nouns import ConsumerId
from tests.builders import Play, spec, topic

NAMES = [f"g-{number}" for number in range(3)]
STEPS = ["beat", "overtaken", "refused", "cordon", "leaving", "leave", "die", "start", "wait", "silent", "restart", "unmark"]
MARKS = Watermarks(disk=Marks(85, 90, 95))


def by_hand(group: Group) -> set[ConsumerId]:
    """The consumers that are warm, heard, not on their way out, and below low, by a look at each."""
    return {
        consumer
        for consumer, session in group._state.sessions.items()
        if (session.heard, session.ready, session.draining, session.stage) == (True, True, False, Stage.BELOW)
    }


def check(group: Group) -> None:
    """What is kept of them is right, and what is said of them."""
    state, below = group._state, by_hand(group)
    assert set(state.below_low) == below
    assert eligible.may_take_over(state) == bool(below - state.spec.cordoned - state.spec.leaving)


class Filling(Play):
    """A group with watermarks, and what each step of it says of who is below low."""

    def __init__(self) -> None:
        super().__init__(spec(3, watermarks=MARKS))
        self.discover(topic(4))
        self.settle(*NAMES)

    def take(self, step: str, name: str, full: int, ready: bool, draining: bool) -> None:
        consumer = self.consumer(name)
        consumer.gauges = (Gauge(GaugeKind.DISK, "/data", full, 100),)
        consumer.ready, consumer.draining = ready, draining
        with suppress(StaleIncarnationError):
            self._take(step, name)

    def _take(self, step: str, name: str) -> None:
        spec, one = self.group.spec, frozenset({ConsumerId(name)})
        match step:
            case "beat":
                self.beat(name)
            case "overtaken":
                earlier = self.consumer(name).heartbeat()
                self.beat(name)
                self.ask(earlier)
            case "refused":
                self._refuse(name)
            case "cordon":
                self.change(replace(spec, cordoned=spec.cordoned ^ one))
            case "leaving":
                self.change(replace(spec, leaving=spec.leaving ^ one))
            case "leave":
                self.leave(name)
            case "die":
                self.die(name)
            case "start":
                self.run(name, self.consumer(name).incarnation.start + 1)
                self.beat(name)
            case "wait":
                self.wait(40.0, NAMES)
            case "silent":
                self.wait(70.0)
            case "restart":
                self.restart()
            case "unmark":
                marks = Watermarks() if spec.settings.watermarks else MARKS
                self.change(replace(spec, settings=replace(spec.settings, watermarks=marks)))

    def _refuse(self, name: str) -> None:
        """What a heartbeat changed could not be stored: it is taken back, but for that its consumer lives."""
        heartbeat, before = self.consumer(name).heartbeat(), by_hand(self.group)
        self.group.decide(heartbeat, self.now)
        check(self.group)
        self.group.roll_back()
        assert by_hand(self.group) == before
        check(self.group)
        self.group.note_life(heartbeat, self.now + 0.1)
        assert by_hand(self.group) == before
        check(self.group)


@settings(max_examples=150)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(STEPS),
            st.sampled_from(NAMES),
            st.sampled_from([50, 88, 93, 99]),
            st.sampled_from([True, True, True, False]),
            st.sampled_from([False, False, False, True]),
        ),
        max_size=25,
    )
)
def test_whether_anybody_is_below_low_is_what_a_look_at_each_consumer_says(
    steps: list[tuple[str, str, int, bool, bool]],
) -> None:
    play = Filling()
    for step in steps:
        play.take(*step)
        check(play.group)
