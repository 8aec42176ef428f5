"""What one seed stands for: the size of the world, its settings, and when which fault begins. Decides nothing later."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from shardherd.core.model.gauges import NO_WATERMARKS
from shardherd.core.model.nouns import (
    ConsumerId,
    GroupIdentity,
    GroupSettings,
    GroupSpec,
    GrowthCutover,
    KafkaSource,
    KinesisSource,
)
from tests.simulation.filling import WATERMARKS
from tests.simulation.kinesis import SOURCE

CHAOS = 540.0
"""Seconds of faults; then the world heals, and has at least 70 s more to settle: 10 minutes in all."""

DAY = 24 * 3600.0

SLOW = 240.0
"""How many times longer everything takes in a schedule of days: its processes would else say most of the time that nothing
happens."""

LONG_SHARE = 0.025
"""The part of all schedules that take days."""

TOPIC = KafkaSource("broker:9092", ("t",), "", "demo.clicks")

WORKERS_SHARE = 0.015
"""The part of all schedules in which consumers are workers."""

WORKERS = "workers 5"
"""Of a stream of their own. By this word no seed that was kept has any, so that it means what it meant."""

OUTPUTS_SHARE = 0.01
"""The part of all schedules in which consumers are workers that send records to outputs."""

OUTPUTS = "outputs 2"
"""Of a stream of their own, too, by a word of which the same is true."""

CELLS_SHARE = 0.1
"""The part of all schedules whose shards move in cells."""

FILLING_SHARE = 0.1
"""The part of all schedules whose consumers fill up, and in which watermarks are declared."""

KINESIS_SHARE = 0.08
"""The part of all schedules whose source is a stream of Kinesis."""

KINESIS = "kinesis 12267"
"""By this word no seed that was kept has one, so that it means what it meant."""

GROWTH_SHARE = 0.03
"""The part of all schedules in which an ordered group's topic grows by multiples, and its order is kept."""

GROWTH = "growth 8"
"""By this word no seed that was kept has any, so that it means what it meant."""

SETTLE = 60.0
"""Seconds after which every producer has noticed that a topic grew, as such a group declares."""

FAULTS = (
    "consumer crashes",
    "consumer crashes at an await",
    "consumer crashes again and again",
    "consumer stands still",
    "consumer stands still for minutes",
    "consumer hangs in a micro-batch",
    "consumer is cut off one way",
    "consumer is cut off",
    "consumer is deleted by force",
    "query fails in a micro-batch",
    "operator crashes",
    "operator crashes at an await",
    "operator stands still",
    "two leaders",
    "operator is cut off one way",
    "messages are lost",
    "messages are doubled and reordered",
    "messages are late",
    "clock jumps",
    "write conflict",
    "reply to a write is lost",
    "API server refuses",
    "ownership is deleted",
    "ownership grows too large",
    "an older ownership is put back",
    "commits are slow",
    "commit lands late",
    "operator crashes in a commit",
    "reply to a commit is lost",
    "Kafka refuses",
    "offsets are deleted",
    "position is set by force",
    "group is deleted and made again",
    "topics are made anew",
    "shards vanish",
    "all shards vanish",
    "shard splits",
    "shards merge",
    "shard closes",
    "shards appear",
)

RESTARTS = "operator is restarted every few hours"
SHUTDOWN = "all is shut down for days"

DAYS = (RESTARTS, SHUTDOWN)
"""What happens in schedules of days only."""

ELSEWHERE = frozenset(
    {
        "shards vanish",
        "all shards vanish",
        "topics are made anew",
        "shard splits",
        "shards merge",
        "shard closes",
        "shards appear",
    }
)
"""What does not happen to a topic that grows by multiples: it grows in no other way, and nothing of it goes."""

WHILE_GROWING = tuple(kind for kind in FAULTS if kind not in ELSEWHERE)
"""What does."""

GROWS = "topic grows by a multiple"
"""What users do in some schedules only."""

CHANGES = ("scale out", "scale in", "pod is drained", "group is paused", "order changes", "assignor changes")
"""What users do; no faults, but they meet them."""

RESET = "positions are reset"
"""One thing more that users do, in some schedules only: of a shard whose position was set less is promised."""


@dataclass(frozen=True)
class Plan:
    """One schedule. Times are seconds from the beginning."""

    seed: int
    consumers: int
    shards: int
    operators: int
    spec: GroupSpec
    drift: float
    over_http: bool
    keeps_location: bool
    discovery: float
    look: float
    """Seconds between two looks of the agent at the silence, and between two beats of the runtime: fewer are cheaper."""
    chaos: float
    """Seconds of faults."""
    time_scale: float
    """How many times longer everything takes than in a schedule of minutes."""
    plain: int
    """Every so-manieth consumer is a plain one, without Spark; 0: none is."""
    steps: tuple[tuple[float, str], ...]
    workers: int = 0
    """Every so-manieth consumer is a worker; 0: none is."""
    outputs: bool = False
    """Whether the workers send records to outputs."""
    grows: bool = False
    """Whether the topic grows by multiples, and new shards wait for those whose keys they take."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The faults that can happen."""
        return WHILE_GROWING if self.grows else FAULTS

    @property
    def kinesis(self) -> bool:
        """Whether the source is a stream of Kinesis."""
        return isinstance(self.spec.source, KinesisSource)

    @property
    def commits(self) -> tuple[str, str]:
        """The server that positions are committed at, and the operation."""
        return ("kube" if self.kinesis else "kafka", "commit")

    def is_worker(self, consumer: ConsumerId) -> bool:
        """Whether the consumer of this name is a worker."""
        return self.workers > 0 and int(consumer.rpartition("-")[2]) % self.workers == 0

    def is_plain(self, consumer: ConsumerId) -> bool:
        """Whether the consumer of this name is a plain one."""
        number = int(consumer.rpartition("-")[2])
        return self.plain > 0 and number % self.plain == 0

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(sorted({kind for _, kind in self.steps if kind in FAULTS}))


def plan(seed: int) -> Plan:
    """The schedule of a seed: always the same."""
    drawn = without_growth(seed)
    plainly = drawn.time_scale == 1.0 and not (drawn.workers or drawn.kinesis or drawn.spec.settings.cells)
    grows = plainly and random.Random(f"{seed} {GROWTH}").random() < GROWTH_SHARE
    return with_growth(drawn) if grows else drawn


def without_growth(seed: int) -> Plan:
    """The same, but that its topic does not grow by multiples: then everything can happen to it."""
    rng = random.Random(seed)
    long = rng.random() < LONG_SHARE
    time_scale, chaos = (SLOW, DAY * rng.uniform(8.0, 10.5)) if long else (1.0, CHAOS)
    consumers = rng.choice((2, 2, 3, 3, 3, 4, 5)) if not long else 2
    shards = min(32, 4 + int(rng.expovariate(0.14))) if rng.random() < 0.95 else 32
    ordered = rng.random() < 0.5
    heartbeat = 30.0 * time_scale
    session = heartbeat * rng.choice((6.0, 7.0) if ordered else (3.0, 4.0, 6.0))
    # Of its own, so that what is drawn here changes no schedule of before. Mostly sooner than shards come back, if they do.
    forget = random.Random(f"{seed} forgets").choice((0.0, 0.0, session, 3600.0)) * (time_scale if long else 1.0)
    # No seed that was kept has cells by this word.
    of_cells = random.Random(f"{seed} cells 452")
    cells = of_cells.randint(1, 6) if of_cells.random() < CELLS_SHARE else 0
    # Nor watermarks by this one.
    fills = random.Random(f"{seed} watermarks 490324").random() < FILLING_SHARE
    settings = GroupSettings(
        ordered=ordered,
        assignor=rng.choice(("Sticky", "Sticky", "Sticky", "RoundRobin", "Range")),
        heartbeat_interval=heartbeat,
        session_timeout=session,
        rejoin_grace=rng.choice((0.0, 0.0, session)),
        release_timeout=rng.choice((30.0, 60.0)) * time_scale,
        progress_timeout=rng.choice((60.0, 90.0)) * time_scale,
        initial_assignment_delay=10.0,
        forget_after=forget,
        cells=cells,
        watermarks=WATERMARKS if fills else NO_WATERMARKS,
        growth_cutover=GrowthCutover.NEVER,
    )
    identity = GroupIdentity("demo", "clicks", "6a1f2c34-0000-4000-8000-000000000001")
    outputs = not long and _has_outputs(seed)
    workers = 0 if long else _workers(seed) or int(outputs)
    # Whose workers and cells are of Kafka.
    of_kinesis = not (cells or workers) and random.Random(f"{seed} {KINESIS}").random() < KINESIS_SHARE
    source = SOURCE if of_kinesis else TOPIC
    part = chaos / CHAOS
    steps = [(part * rng.uniform(15.0, 480.0), rng.choice(FAULTS)) for _ in range(rng.randint(3, 6))]
    steps += [(part * rng.uniform(20.0, 500.0), rng.choice(CHANGES)) for _ in range(rng.randint(0, 2))]
    if rng.random() < 0.4:
        # Two at the same time meet each other.
        steps.append((steps[0][0] + rng.uniform(0.0, 3.0), rng.choice(FAULTS)))
    operators, drift = rng.choice((1, 1, 2)), rng.choice((0.0, 0.001, 0.01))
    over_http, keeps_location = rng.random() < 0.03, rng.random() < 0.8
    discovery, look = time_scale * rng.choice((15.0, 40.0)), time_scale * rng.choice((0.5, *[20.0] * 39))
    if rng.random() < 0.12:
        steps.append((part * rng.uniform(60.0, 400.0), RESET))
    executors = rng.random() < 0.5
    if long:
        steps += [(DAY * rng.uniform(0.1, 1.0), kind) for kind in DAYS if rng.random() < 0.5]
    return Plan(
        seed=seed,
        consumers=consumers,
        shards=shards,
        operators=operators,
        spec=GroupSpec(identity, source, settings, consumers, executors=executors),
        drift=drift,
        over_http=over_http,
        keeps_location=keeps_location,
        discovery=discovery,
        look=look,
        chaos=chaos,
        time_scale=time_scale,
        plain=rng.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2)),
        steps=tuple(sorted(steps)),
        workers=workers,
        outputs=outputs,
    )


def with_workers(drawn: Plan, *, outputs: bool = False) -> Plan:
    """The same schedule, all of whose consumers are workers, which send to outputs or do not, unless it takes days."""
    minutes = drawn.time_scale == 1.0
    spec = replace(drawn.spec, source=TOPIC)
    return replace(drawn, spec=spec, workers=int(minutes), outputs=minutes and outputs)


def with_kinesis(drawn: Plan) -> Plan:
    """The same schedule, whose source is a stream of Kinesis."""
    settings = replace(drawn.spec.settings, cells=0)
    return replace(drawn, spec=replace(drawn.spec, source=SOURCE, settings=settings), workers=0)


def with_growth(drawn: Plan) -> Plan:
    """The same schedule, whose topic grows by multiples, with an ordered group; unless it takes days."""
    if drawn.time_scale != 1.0:
        return drawn
    rng = random.Random(f"{drawn.seed} grows")
    settings = replace(
        drawn.spec.settings,
        ordered=True,
        session_timeout=6.0 * drawn.spec.settings.heartbeat_interval,
        cells=0,
        growth_cutover=GrowthCutover.AFTER_SETTLE,
        growth_settle=SETTLE,
    )
    kept = [(when, rng.choice(WHILE_GROWING) if kind in ELSEWHERE else kind) for when, kind in drawn.steps]
    steps = [each for each in kept if each[1] not in (RESET, "order changes")]
    first = rng.uniform(60.0, 240.0)
    steps.append((first, GROWS))
    if rng.random() < 0.6:
        # Mostly so soon that what is new waits yet.
        steps.append((first + rng.choice((rng.uniform(5.0, 60.0), rng.uniform(5.0, 60.0), rng.uniform(60.0, 240.0))), GROWS))
    if rng.random() < 0.5:
        steps.append((first + rng.uniform(2.0, SETTLE), "operator crashes"))
    spec = replace(drawn.spec, source=TOPIC, settings=settings)
    return replace(
        drawn, spec=spec, shards=rng.choice((2, 3, 4, 8)), workers=0, outputs=False, steps=tuple(sorted(steps)), grows=True
    )


def _workers(seed: int) -> int:
    draw = random.Random(f"{seed} {WORKERS}")
    return draw.choice((1, 1, 2)) if draw.random() < WORKERS_SHARE else 0


def _has_outputs(seed: int) -> bool:
    return random.Random(f"{seed} {OUTPUTS}").random() < OUTPUTS_SHARE
