"""The main job of the demo, step by step: what a user does, what must then be seen, and when it happened.

`dev.demo.__main__` tells it to a person, and tests drive the same steps. Where it happens is a `Place`: a real cluster, or this
machine alone. Each step waits for the condition that it promises, with a deadline, and explains a failure with what the place
shows of the group. `Story.table` is its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dev.demo.account import Line, Timeline, account, lines, read_by_others_after, slowest
from dev.demo.place import GROUP, NAMESPACE, TOPIC, Place
from dev.demo.report import DemoError, Reporter, await_that
from dev.demo.sink import Sink, owners_of
from dev.demo.traffic import Traffic

START_S = 420.0
MOVE_S = 300.0
DRAIN_S = 300.0


@dataclass(frozen=True)
class Holding:
    """Who reads what, by the operator's metrics."""

    owners: Mapping[str, str]
    states: Mapping[str, int]

    def shards_of(self, consumer: str) -> tuple[str, ...]:
        return tuple(sorted(shard for shard, owner in self.owners.items() if owner == consumer))

    def counts(self) -> dict[str, int]:
        return {consumer: len(self.shards_of(consumer)) for consumer in sorted(set(self.owners.values()))}

    def settled(self, shards: int, consumers: int) -> bool:
        """Whether all shards are held and read, spread over so many consumers as evenly as can be."""
        sizes = sorted(self.counts().values())
        even = len(sizes) == consumers and sizes[-1] - sizes[0] <= 1
        return even and len(self.owners) == shards and self.states.get("ALREADY_ALLOC", 0) == shards

    def __str__(self) -> str:
        return ", ".join(f"{consumer}: {n}" for consumer, n in self.counts().items()) or "nobody holds a shard"


@dataclass
class Story:
    """One run of the main job. Call the steps in the order in which they are written here."""

    place: Place
    moments: dict[str, float] = field(default_factory=dict)
    _dead: str = ""
    _dead_shards: tuple[str, ...] = ()
    produced: Mapping[str, int] = field(default_factory=dict)
    _moves: dict[str, int] = field(default_factory=dict)

    @property
    def reporter(self) -> Reporter:
        return self.place.reporter

    @property
    def sink(self) -> Sink:
        """A fresh look at what the application wrote."""
        return Sink(self.place.rows)

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.place, TOPIC)

    # ---- the steps

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        """All of it in order, once what it needs is built."""
        return self.prepare, self.apply, self.grow, self.kill, self.scale_in, self.finish

    def build(self) -> None:
        """Step 1: what must run before anything else."""
        self.reporter.step(f"1. {self.place.opening}")
        self.traffic.end()
        self.place.start()

    def prepare(self) -> None:
        """Step 2: nothing left of an earlier run, the topic, the producer, and what the group needs."""
        self.reporter.step(f"2. {self.place.preparing}")
        self.traffic.end()
        self.place.clear()
        self.place.create_topic(8)
        self.traffic.start(backlog=self.place.backlog, rate=self.place.rate)
        self.place.prepare()
        self.reporter.say(
            f"{self.traffic.await_backlog():,} records are in the topic; from now on {self.place.rate:,} more each second"
        )

    def apply(self) -> None:
        """Step 3: the group, until it is Ready."""
        self.reporter.step("3. The group: two Spark applications start, of 4 shards each")
        self.place.apply(START_S)
        self.moments["ready"] = time.time()
        self.await_settled(shards=8, consumers=2, within=60)
        await_that(
            "both applications have written rows",
            lambda: len(self.sink.rows().owners) == 2,
            within=60,
            explain=self.place.explain,
        )
        self.place.show_group()

    def grow(self) -> None:
        """Step 4a: 12 partitions. A third application starts, shards move, no query restarts."""
        self.reporter.step("4. The topic grows to 12 partitions")
        before = self.place.runs()
        self.moments["grown"] = time.time()
        self.place.grow_topic(12)
        self.reporter.say("a third application starts; when it is warm, shards move to it between micro-batches")
        self.during_growth()
        self.await_settled(shards=12, consumers=3, within=START_S)
        self.reporter.say(f"12 shards are balanced {time.time() - self.moments['grown']:.0f} s after the topic grew")
        self.await_read_by_owners("growth", since=self.moments["grown"])
        after = self.place.runs()
        restarted = [pod for pod, run in before.items() if after.get(pod) != run]
        if restarted:
            raise DemoError(f"growth restarted {', '.join(restarted)}: {before} became {after}\n{self.place.explain()}")
        self.reporter.say(f"no application restarted: {', '.join(before)} run since before")
        self.place.show_group()

    def during_growth(self) -> None:
        """What else happens while the group grows: nothing, here."""

    def kill(self) -> None:
        """Step 4b: one driver dies. Others read its shards, and it gets shards again after it returns."""
        self.reporter.step("   One driver is killed")
        holding = self.holding()
        self._dead = sorted(holding.counts())[-1]
        self._dead_shards = holding.shards_of(self._dead)
        starts = self.place.runs()[self._dead]
        self.moments["killed"], self.moments["died"] = self.place.kill(self._dead, len(self._dead_shards))
        killed = self.moments["killed"]
        sink = Sink(self.place.rows, since=killed)

        def taken_over() -> float | None:
            return slowest(read_by_others_after(sink.rows(), self._timeline()))

        took = await_that("others read its shards", taken_over, within=60, every=0.5, explain=self.place.explain)
        self.reporter.say(f"all {len(self._dead_shards)} of them were read by others within {took:.1f} s of the kill")
        await_that(
            f"{self._dead} has started again",
            lambda: self.place.runs().get(self._dead, starts) != starts,
            within=120,
            explain=self.place.explain,
        )
        self.await_settled(shards=12, consumers=3, within=START_S)
        self.reporter.say(f"{self._dead} is back and reads again, {time.time() - killed:.0f} s after the kill")
        self.await_read_by_owners("its return", since=killed)
        self.place.show_group()

    def scale_in(self) -> None:
        """Step 4c: one application fewer. It drains first, so that nothing is repeated."""
        self.reporter.step("   Scale in by one: spec.scaling.maxReplicas becomes 2")
        self.moments["scaled in"] = time.time()
        self.place.limit(2)
        self.await_settled(shards=12, consumers=2, within=MOVE_S)
        await_that(
            "the third application is gone", lambda: len(self.place.consumers()) == 2, within=MOVE_S, explain=self.place.explain
        )
        self.await_read_by_owners("scale-in", since=self.moments["scaled in"])
        self.reporter.say(f"drained and gone after {time.time() - self.moments['scaled in']:.0f} s")
        self.place.show_group()

    def finish(self) -> None:
        """Step 5a: the producer stops; wait until all is read and durable."""
        self.reporter.step("5. The producer stops, and everything is counted")
        self.produced = self.traffic.stop()
        self.reporter.say(f"{sum(self.produced.values()):,} records were produced; waiting until the lag is 0")

        def all_committed() -> bool:
            # Kafka's own word comes first: a metric may be a second old, and have been 0 before the last records came.
            committed = self.place.committed()
            return {shard: offset for shard, offset in committed.items() if offset} == dict(self.produced)

        await_that("everything produced is committed", all_committed, within=DRAIN_S, every=1, explain=self.place.explain)
        await_that("the lag is 0", lambda: self.place.lag() == 0, within=DRAIN_S, every=1, explain=self.place.explain)
        self.moments["ended"] = time.time()

    def table(self) -> list[Line]:
        """Step 5b: the table. A line that holds something says whether it held."""
        result = lines(account(self.sink.rows(), self.produced, self._timeline()))
        described = self.place.described()
        ends = {shard: found.end for shard, found in described.items() if found.end}
        kafka_lag = sum(found.lag for found in described.values())
        metric = self.place.lag()
        self._note_moves()
        result.insert(
            1, Line("end offsets of the topic, summed", f"{sum(ends.values()):,}", "as produced", ends == self.produced)
        )
        result.append(Line("shards moved, by the operator's metric", f"{sum(self._moves.values()):,}"))
        result.append(Line("lag by kafka-consumer-groups --describe", f"{kafka_lag:,}"))
        result.append(
            Line(
                f"lag by {self.place.metric}",
                "no such series" if metric is None else f"{metric:,}",
                "as Kafka says",
                metric == kafka_lag,
            )
        )
        return result

    # ---- observations

    def holding(self) -> Holding:
        """Who reads what. Counts the moves on the way, since the operator's counters begin anew with its process."""
        owners: dict[str, str] = {}
        states: dict[str, int] = {}
        for sample in self.place.metrics():
            labels = sample.labels
            if labels.get("namespace") != NAMESPACE or labels.get("consumergroup") != GROUP or not sample.value:
                continue
            if sample.name == "shardherd_shard_owner_info":
                owners[labels["shard"]] = labels["consumer"]
            elif sample.name == "shardherd_group_shards":
                states[labels["state"]] = int(sample.value)
        return Holding(owners, states)

    def await_settled(self, *, shards: int, consumers: int, within: float) -> Holding:
        """Wait until every shard is read, evenly, by so many consumers, and the group is Ready and Balanced."""

        last = ""

        def settled() -> Holding | None:
            nonlocal last
            try:
                self._note_moves()
                holding = self.holding()
            except DemoError as error:
                # The operator may be on its way up, or have been killed by the story itself.
                last = str(error)
                return None
            last = f"holding shards: {holding}; by state: {dict(holding.states)}"
            return holding if self.place.calm() and holding.settled(shards, consumers) else None

        found = await_that(
            f"{consumers} consumers hold {shards} shards evenly",
            settled,
            within=within,
            every=0.5,
            explain=lambda: f"{last}\n{self.place.explain()}",
        )
        self.reporter.say(f"holding shards: {found}")
        return found

    def await_read_by_owners(self, after: str, *, since: float) -> None:
        """Wait until each shard was read since then, last by the consumer that holds it now: the move has reached the sink."""
        sink = Sink(self.place.rows, since)

        def reached() -> bool:
            rows = sink.rows()
            owners = {shard: names[-1] for shard, names in owners_of(rows).items()}
            return owners == dict(self.holding().owners)

        await_that(f"after {after} every shard is read by its holder", reached, within=90, every=1, explain=self.place.explain)

    # ---- how it is done

    def _note_moves(self) -> None:
        """Remember the moves that each run of the operator has counted."""
        run = self.place.operator_run()
        counted = sum(
            int(sample.value)
            for sample in self.place.metrics()
            if sample.name == "shardherd_shard_moves_total"
            and sample.labels.get("namespace") == NAMESPACE
            and sample.labels.get("consumergroup") == GROUP
        )
        self._moves[run] = max(counted, self._moves.get(run, 0))

    def _timeline(self) -> Timeline:
        far = time.time() + 1e9
        return Timeline(
            ready=self.moments["ready"],
            grown=self.moments["grown"],
            killed=self.moments["killed"],
            died=self.moments["died"],
            scaled_in=self.moments.get("scaled in", far),
            ended=self.moments.get("ended", far),
            dead=self._dead,
            dead_shards=self._dead_shards,
        )


class OperatorKilled(Story):
    """The same story, but the operator's process dies while the group grows. The table must not change."""

    def during_growth(self) -> None:
        self.place.kill_operator()
