"""A group whose topic grows by multiples while producers write keyed sequences to it, in simulated time.

One seed is one schedule. Producers notice a growth late, but within the settle time. Consumers die, leaders change, the
ownership is lost, writes of it fail, positions are set back, brokers do not answer, new partitions cannot be read yet.
`Schedule(seed).run()` raises DisorderError at the first record of a key that is handled before one that was written before it,
and if something is never handled.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from shardherd.core.group.group import Group
from shardherd.core.group.ownership import decode, encode
from shardherd.core.model.nouns import CheckpointResult, ShardId
from shardherd.core.model.requests import ForceCheckpoint
from tests.builders import Play, info, restore, spec

SETTLE = 60.0
KEYS = range(48)
LONG = 1_000_000.0


class DisorderError(AssertionError):
    """A key was not read in order, or not to its end."""


@dataclass
class Producer:
    """Writes some of the keys, to as many partitions as it knows of; `asks_at` are when it will look how many there are."""

    keys: list[int]
    known: int
    asks_at: list[float] = field(default_factory=list)


class Schedule:
    """See the module."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        before = rng.choice((1, 2, 3, 4))
        self.log: list[list[tuple[int, int]]] = [[] for _ in range(before)]
        self.written: Counter[int] = Counter()
        self.handled: dict[int, int] = defaultdict(lambda: -1)
        # With few keys some partitions stay empty: their children wait for what came before those alone.
        keys = rng.sample(KEYS, rng.choice((9, 9, len(KEYS))))
        self.producers = [Producer(keys[each::3], before) for each in range(3)]
        made = spec(2, ordered=True, growth_settle=SETTLE, progress_timeout=LONG, release_timeout=LONG, forget_after=LONG)
        self.play = Play(made)
        self.names = ["g-0", "g-1"]
        self.starts = dict.fromkeys(self.names, 1)
        self.at: dict[tuple[str, ShardId, int], int] = {}
        self.leader = 0
        self.slow: set[int] = set()
        self.out: set[int] = set()
        """New partitions that have no leader yet, or that the group cannot let in."""
        self.why = "unlooked"
        self.hit: Counter[str] = Counter()
        self.growths = sorted(rng.uniform(20.0, 160.0) for _ in range(rng.choice((1, 2, 2))))

    def run(self) -> Schedule:
        """All of it: trouble for a while, then until everything is read."""
        play, rng = self.play, self.rng
        self._look()
        play.settle(*self.names)
        until = play.now + 330.0
        while play.now < until:
            play.wait(rng.uniform(0.5, 4.0))
            self._produce()
            self._trouble()
            self._step()
        self.slow, self.out = set(), set()
        for _ in range(400):
            play.wait(2.0)
            self._step(calm=True)
            if (
                all(self.handled[key] == count - 1 for key, count in self.written.items())
                and not self.play.group.ownership.group.growths
            ):
                return self
        raise DisorderError(f"not read to the end: {play.states()}, {play.view.growths}, {play.view.withheld}")

    def _produce(self) -> None:
        now, rng = self.play.now, self.rng
        if self.growths and now - 1000.0 >= self.growths[0]:
            self.growths.pop(0)
            before = len(self.log)
            self.log += [[] for _ in range(len(self.log) * rng.choice((1, 1, 2)))]
            for producer in self.producers:
                producer.asks_at.append(now + SETTLE * rng.choice((0.0, rng.random(), 0.99)))
            # What is read slowly may be read long after what came to the new partitions.
            self.slow = set(rng.sample(range(len(self.log)), len(self.log) // 2))
            self.hit["growths"] += 1
            if rng.random() < 0.4:
                new = range(before, len(self.log))
                self.out |= set(rng.choice((new, rng.sample(new, (len(new) + 1) // 2))))
                self.why = rng.choice(("unlooked", "kept_out"))
                self.hit["new partitions kept out"] += 1
        for producer in self.producers:
            if any(at <= now for at in producer.asks_at):
                producer.asks_at = [at for at in producer.asks_at if at > now]
                producer.known = len(self.log)
            for key in rng.sample(producer.keys, min(3, len(producer.keys))):
                self.log[key % producer.known].append((key, self.written[key]))
                self.written[key] += 1

    def _trouble(self) -> None:
        play, rng = self.play, self.rng
        chance = rng.random()
        if chance < 0.03:
            self.hit["leaders changed"] += 1
            self.leader += 1
            stored = replace(play.group.ownership, group=replace(play.group.ownership.group, leader_epoch=self.leader))
            # As it is stored, not as it was in memory.
            again = decode(encode(stored))
            play.group = restore(again, dict(play.log), play.group.spec, play.now, notes=dict(play.noted))
            self._look()
        elif chance < 0.045 and not play.group.ownership.group.rebuilding:
            self.hit["ownerships lost"] += 1
            self.leader += 1
            play.group = Group.new(play.group.spec, play.now, self.leader)
            self._look()
        elif chance < 0.07:
            name = rng.choice(self.names)
            self.hit["consumers died"] += 1
            play.die(name)
            self.starts[name] += 1
            play.run(name, self.starts[name])
        elif chance < 0.08:
            self._set_back()
        elif chance < 0.1:
            self.out = set()
        elif chance < 0.13:
            self.slow = set(rng.sample(range(len(self.log)), len(self.log) // 2))

    def _set_back(self) -> None:
        """Only a shard from which nobody's keys have moved on: else the user is warned that order can break."""
        view = self.play.view
        if not view.discovered or self.play.group.ownership.group.rebuilding or view.growths:
            return
        rows = [row for row in view.shards if row.checkpoint]
        if rows and len(view.shards) == len(self.log) == self.producers[0].known:
            row = self.rng.choice(rows)
            target = max(0, (row.checkpoint or 0) - 5)
            self.play.ask(ForceCheckpoint(row.shard, target))
            self.hit["positions set back"] += 1

    def _look(self) -> None:
        out = [f"t/{number}" for number in self.out]
        shown = [info(f"t/{number}", end=len(records)) for number, records in enumerate(self.log) if number not in self.out]
        kept_out = frozenset(map(ShardId, out)) if self.why == "kept_out" else frozenset[ShardId]()
        group = self.play.group
        if group.unread(shown) or group.changed_by(tuple(shown), kept_out):
            self.play.discover(shown, **{self.why: out})

    def _step(self, *, calm: bool = False) -> None:
        play, rng = self.play, self.rng
        if calm or rng.random() < 0.8:
            self._look()
        self._cut_over(calm=calm)
        for name in self.names:
            if calm or rng.random() < 0.9:
                play.beat(name)
                self._read(name, calm=calm)

    def _cut_over(self, *, calm: bool) -> None:
        """As the coordinator's runner does it; the broker may answer for some only, and the write of it may fail."""
        wanted = next(iter(self.play.group.cutovers_due(self.play.now)), None)
        if wanted is None or (not calm and self.rng.random() < 0.3):
            return
        asked = (
            wanted.shards if calm or self.rng.random() < 0.7 else self.rng.sample(wanted.shards, (len(wanted.shards) + 1) // 2)
        )
        taken = replace(wanted, ends={each: len(self.log[int(each.rpartition("/")[2])]) for each in asked})
        if not calm and self.rng.random() < 0.2:
            self.play.group.decide(taken, self.play.now)
            self.play.group.roll_back()
            self.hit["cutovers whose write failed"] += 1
            return
        self.play.ask(taken)
        self.hit["cutovers taken"] += 1

    def _read(self, name: str, *, calm: bool) -> None:
        consumer = self.play.consumers[name]
        for each in consumer.reply.confirmed if consumer.reply is not None else ():
            number = int(each.shard.rpartition("/")[2])
            place = (f"{name} {consumer.incarnation.start}", each.shard, each.owner_epoch)
            start = max(self.at.get(place, 0), each.position)
            most = 10_000 if calm else 0 if number in self.slow and self.rng.random() < 0.9 else self.rng.randint(0, 12)
            records = self.log[number][start : start + most]
            for key, sequence in records:
                if sequence > self.handled[key] + 1:
                    raise DisorderError(f"{each.shard}: number {sequence} of key {key} is read after {self.handled[key]}")
                self.handled[key] = max(self.handled[key], sequence)
            self.at[place] = start + len(records)
            if self.at[place] > each.position and (calm or self.rng.random() < 0.8):
                result = self.play.checkpoint(name, each.shard, self.at[place], each.owner_epoch)
                if result is CheckpointResult.FENCED:
                    raise DisorderError(f"{name} is fenced of {each.shard}, which it has just been told to read")
