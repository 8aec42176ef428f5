"""Whatever leaves the balance, or counts in it again, a rebalance is asked for: in the end nothing is uneven."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.assignors import Delta, sticky
from shardherd.core.group import balance, counted, eligible, grants
from shardherd.core.model.errors import StaleIncarnationError
from shardherd.core.model.nouns import ShardId
from shardherd.core.model.requests import CheckpointsLost, ForceCheckpoint
from tests.builders import Play, info, shard, spec, with_settings

NAMES = [f"g-{number}" for number in range(3)]
SHARDS = 5
SIGHTS = ["there", "gone", "unlooked", "cut"]
"""What the source shows of a shard. One that is cut has dropped its first records."""


class Shown(Play):
    """A group, and what its source shows it."""

    def __init__(self, ordered: bool) -> None:
        super().__init__(spec(2, ordered=ordered, progress_timeout=86_400.0))
        self.source = dict.fromkeys(range(SHARDS), "there")
        self.look()
        self.settle("g-0", "g-1")

    def look(self) -> None:
        """As the coordinator does: not if it would change nothing."""
        shown = {number: sight for number, sight in self.source.items() if sight in ("there", "cut")}
        infos = tuple(info(str(number), begin=50 if sight == "cut" else 0) for number, sight in shown.items())
        if self.group.unread(infos) or self.group.changed_by(infos):
            self.discover(infos, [str(number) for number, sight in self.source.items() if sight == "unlooked"])

    def lose_position(self, name: str, number: str) -> None:
        """What this consumer saves is lost as it is written, and what was there before."""
        self.hold_commits = True
        try:
            self.checkpoint(name, number, 70)
        finally:
            self.hold_commits = False
            lost, self.uncommitted = frozenset(self.uncommitted), {}
        self.log = {each: offset for each, offset in self.log.items() if each not in lost}
        self.ask(CheckpointsLost(lost))

    @property
    def missed(self) -> set[ShardId]:
        """What would ask for a rebalance, though none is due: it counts now and did not, or the other way, or waits in vain."""
        state = self.group._state
        if state.clocks.due or not state.infos or grants.blocked(state):
            return set()
        held = {each for of in grants.HELD for each in state.by_state[of]}
        counts = {each for each in held if counted.counts(state, each)}
        orphans = {
            each
            for consumer, incoming in state.incoming.items()
            for each in counts.intersection(incoming)
            if not eligible.may_be_next(state, consumer)
        }
        return ((held - counts) ^ (held & state.clocks.left_out)) | orphans

    @property
    def uneven(self) -> list[ShardId]:
        """What a rebalance would move now."""
        state = self.group._state
        asked = balance.problem(state, eligible.balanced(state))
        moves: list[ShardId] = Delta.of(asked, sticky(asked)).shards.tolist()
        return moves

    def beat_anew(self, *names: str) -> None:
        """One heartbeat of each; a consumer that is refused starts anew."""
        for name in names:
            try:
                self.beat(name)
            except StaleIncarnationError:
                self.run(name, 1, 1 + self.pod(name))
                self.beat(name)

    def start_cold(self, name: str) -> None:
        """The next start of this consumer's pod is heard."""
        self.run(name, self.consumer(name).incarnation.start + 1, self.pod(name), ready=False)
        self.beat_anew(name)

    def pod(self, name: str) -> int:
        """The number of this consumer's pod."""
        return int(self.consumer(name).incarnation.pod_uid.rsplit("-", 1)[1])


Step = tuple[str, str, int]
OFTEN = ["beat", "source", "source", "all beat"]
KINDS = ["checkpoint", "force", "lose", "die", "leave", "drain", "cold", "cold", "warm", "replace", "restart", "pause", "wait"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(OFTEN * 3 + KINDS),
        st.sampled_from(NAMES),
        st.integers(0, SHARDS * len(SIGHTS) - 1),
    ),
    min_size=10,
    max_size=40,
)


def take(play: Shown, step: Step) -> None:
    """One step of a history."""
    what, name, drawn = step
    number, sight = drawn % SHARDS, SIGHTS[drawn // SHARDS]
    consumer, spec = play.consumer(name), play.group.spec
    actions: dict[str, Callable[[], object]] = {
        "beat": lambda: play.beat_anew(name),
        "all beat": lambda: play.beat_anew(*NAMES),
        "source": lambda: play.source.update({number: sight}),
        "checkpoint": lambda: play.checkpoint(name, str(number), 60),
        "force": lambda: play.ask(ForceCheckpoint(shard(str(number)), 60)),
        "lose": lambda: play.lose_position(name, str(number)),
        "die": lambda: play.die(name),
        "leave": lambda: play.leave(name),
        "drain": lambda: setattr(consumer, "draining", True),
        "cold": lambda: play.start_cold(name),
        "warm": lambda: setattr(consumer, "ready", True),
        "replace": lambda: play.run(name, 1, 1 + play.pod(name)),
        "restart": play.restart,
        "pause": lambda: play.change(with_settings(spec, paused=not spec.settings.paused and number == 0)),
        "wait": lambda: play.wait([2.0, 20.0, 50.0][number % 3]),
    }
    # An earlier run is refused: it saves nothing, and has left.
    with suppress(StaleIncarnationError):
        actions[what]()
    play.look()


@given(ordered=st.booleans(), steps=STEPS)
@settings(max_examples=100)
def test_whatever_leaves_the_balance_or_comes_back_is_followed_by_a_rebalance(ordered: bool, steps: list[Step]) -> None:
    play = Shown(ordered)
    for step in steps:
        take(play, step)
        assert play.missed == set(), step
    play.change(with_settings(play.group.spec, paused=False))
    alive = sorted({view.consumer for view in play.view.consumers} & play.consumers.keys())
    for _ in range(2):
        play.settle(*alive)
        play.wait(60.0, alive)
        play.look()
    assert (play.missed, play.uneven) == (set(), [])
