"""What holds for every assignor, searched for by hypothesis and compared with all there is to choose from, tried one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from shardherd.core.assignors import NOBODY, Assignment, Problem, target
from shardherd.core.assignors import spread as spreading
from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.sticky import sticky
from shardherd.core.assignors.weighted import HYSTERESIS, effective_capacities, effective_weights, weighted, work_of
from shardherd.core.model.naming import consumer_key, shard_key
from shardherd.core.model.nouns import ConsumerId, ShardId
from tests.builders import Play, info, spec, topic, with_settings

Cost = tuple[int, ...]


@st.composite
def problems(draw: st.DrawFn, consumers: int = 7, shards: int = 40) -> Problem:
    """Any holding, any shards on their way, any consumers that may not receive; one at least may."""
    members = [ConsumerId(f"g-{number}") for number in range(draw(st.integers(1, consumers)))]
    names = [ShardId(f"t/{number}") for number in range(draw(st.integers(0, shards)))]
    count = len(names)
    current = np.array(draw(st.lists(st.integers(NOBODY, len(members) - 1), min_size=count, max_size=count)), dtype=np.int64)
    pending = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
    problem = replace(Problem.of(names, members), current=current, pending=pending & (current != NOBODY))
    problem.receives[:] = draw(st.lists(st.booleans(), min_size=len(members), max_size=len(members)))
    problem.receives[draw(st.integers(0, len(members) - 1))] = True
    return problem


def unevenness(problem: Problem, assignment: Assignment) -> int:
    """Smallest where the loads are as even as they can be: the sum of their squares."""
    return int((problem.loads(assignment) ** 2).sum())


def moves(problem: Problem, assignment: Assignment) -> int:
    """How many settled shards change hands."""
    held = (problem.current != NOBODY) & ~problem.pending
    return int((held & (assignment != problem.current)).sum())


def crowding(problem: Problem, assignment: Assignment) -> int:
    """Smallest where every topic is spread as well as it can be: the sum of the squares of who has how many shards of it."""
    pairs = list(zip(assignment.tolist(), problem.topics.tolist(), strict=True))
    return sum(count**2 for count in Counter(pairs).values())


def with_topics(problem: Problem, *sizes: int) -> Problem:
    """The problem with so many shards of each topic, as far as there are shards; the last topic has the rest."""
    topics = np.repeat(np.arange(len(sizes) + 1), [*sizes, len(problem.shards)])[: len(problem.shards)]
    return replace(problem, topics=topics.astype(np.int64))


def unspread(problem: Problem) -> Problem:
    """The same problem with one topic, of which nothing is to be spread."""
    return replace(problem, topics=np.zeros_like(problem.topics))


def allowed(problem: Problem) -> Iterator[Assignment]:
    """Every assignment that gives nothing to a consumer that may not receive, and no topic to one that does not read it."""

    def holders(row: int) -> list[int]:
        return [
            at
            for at in range(len(problem.consumers))
            if (problem.receives[at] or problem.current[row] == at)
            and (problem.subscribed is None or problem.subscribed[at, problem.topics[row]])
        ]

    for chosen in product(*(holders(row) or [NOBODY] for row in range(len(problem.shards)))):
        yield np.array(chosen, dtype=np.int64)


@given(problem=problems(consumers=4, shards=5))
@settings(max_examples=300)
def test_sticky_is_as_even_as_can_be_and_of_all_such_assignments_moves_the_fewest(problem: Problem) -> None:
    best = min((unevenness(problem, each), moves(problem, each)) for each in allowed(problem))
    ours = sticky(problem)
    assert (unevenness(problem, ours), moves(problem, ours)) == best


@given(problem=problems(consumers=4, shards=6), sizes=st.lists(st.integers(1, 3), max_size=2))
@settings(max_examples=300)
def test_of_all_assignments_as_even_and_with_as_few_moves_none_spreads_the_topics_better_than_sticky(
    problem: Problem, sizes: list[int]
) -> None:
    problem.pending[:] = False
    asked = with_topics(problem, *sizes)
    best = min((unevenness(asked, each), moves(asked, each), crowding(asked, each)) for each in allowed(asked))
    ours = sticky(asked)
    assert (unevenness(asked, ours), moves(asked, ours), crowding(asked, ours)) == best


def redirected(problem: Problem, assignment: Assignment) -> int:
    """How many shards on their way go elsewhere."""
    return int((problem.pending & (assignment != problem.current)).sum())


@given(problem=problems(consumers=9, shards=60), sizes=st.lists(st.integers(1, 15), max_size=8))
def test_spreading_topics_costs_sticky_neither_balance_nor_a_move_nor_a_transfer_under_way(
    problem: Problem, sizes: list[int]
) -> None:
    asked = with_topics(problem, *sizes)
    ours, plain = sticky(asked), sticky(unspread(asked))
    with pytest.MonkeyPatch.context() as briefly:
        briefly.setattr(spreading, "MOST_WORK", 0)
        cut_short = sticky(asked)
    if not asked.pending.any():
        # With transfers under way, which stay as they are, it may be a step off: which others move is chosen before.
        assert crowding(asked, ours) <= crowding(asked, cut_short) <= crowding(asked, plain)
    for cost in (unevenness, moves, redirected):
        assert cost(asked, ours) == cost(asked, cut_short) == cost(asked, plain)
    assert problem.receives[ours[ours != problem.current]].all()


@given(
    problem=problems(consumers=7, shards=40),
    sizes=st.lists(st.integers(1, 15), max_size=5),
    zones=st.lists(st.integers(NOBODY, 2), min_size=47, max_size=47),
)
def test_spreading_topics_costs_nobody_a_shard_of_its_zone(problem: Problem, sizes: list[int], zones: list[int]) -> None:
    of_shards, of_consumers = np.array(zones[: len(problem.shards)], dtype=np.int64), np.array(zones[40:], dtype=np.int64)
    asked = replace(with_topics(problem, *sizes), shard_zones=of_shards, consumer_zones=of_consumers[: len(problem.consumers)])
    ours = sticky(asked)
    with pytest.MonkeyPatch.context() as without:
        without.setattr(spreading, "MOST_CELLS", 0)
        plain = sticky(asked)
    assert crowding(asked, ours) <= crowding(asked, plain)
    assert asked.loads(ours).tolist() == asked.loads(plain).tolist()
    assert (moves(asked, ours), redirected(asked, ours)) == (moves(asked, plain), redirected(asked, plain))
    of_zones = [np.bincount(each * 4 + of_shards + 1, minlength=28).tolist() for each in (ours, plain)]
    assert of_zones[0] == of_zones[1]


@given(problem=problems(consumers=7, shards=40), sizes=st.lists(st.integers(1, 15), max_size=5), data=st.data())
def test_spreading_topics_costs_weighted_neither_balance_nor_a_move(
    problem: Problem, sizes: list[int], data: st.DataObject
) -> None:
    count, members = len(problem.shards), len(problem.consumers)
    asked = replace(
        with_topics(problem, *sizes),
        weights=np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0, 7.5]), min_size=count, max_size=count))),
        capacities=np.array(data.draw(st.lists(st.sampled_from([1.0, 3.0]), min_size=members, max_size=members))),
    )
    ours, plain = weighted(asked), weighted(unspread(asked))
    weights = effective_weights(asked)
    if weights is None:
        return
    assert crowding(asked, ours) <= crowding(asked, plain)
    assert moves(asked, ours) <= moves(asked, plain)
    loads = [work_of(weights, each, members) for each in (ours, plain)]
    assert np.allclose(loads[0], loads[1])


@given(problem=problems())
def test_sticky_gives_every_shard_to_somebody_and_nothing_to_who_may_not_receive(problem: Problem) -> None:
    ours = sticky(problem)
    assert (ours != NOBODY).all()
    assert problem.receives[ours[ours != problem.current]].all()


def kept(held: list[int], total: int) -> int:
    """The most that can stay of what consumers hold, if all may receive: the larger shares are those of who has most."""
    base, extra = divmod(total, len(held))
    return sum(min(have, base + (place < extra)) for place, have in enumerate(sorted(held, reverse=True)))


@given(problem=problems(consumers=30, shards=200))
def test_sticky_differs_by_at_most_one_and_keeps_the_most(problem: Problem) -> None:
    problem.receives[:] = True
    problem.pending[:] = False
    ours = sticky(problem)
    loads = problem.loads(ours)
    assert loads.max() - loads.min() <= 1
    stays = int(((ours == problem.current) & (problem.current != NOBODY)).sum())
    assert stays == kept(problem.loads(problem.current).tolist(), len(problem.shards))


@given(problem=problems(), zones=st.lists(st.sampled_from(["a", "b", ""]), min_size=47, max_size=47))
def test_zones_change_neither_the_loads_nor_the_number_of_moves(problem: Problem, zones: list[str]) -> None:
    names = [*problem.consumers.tolist(), *problem.shards.tolist()]
    known = {name: zone for name, zone in zip(names, zones, strict=False) if zone}
    zoned = Problem.of(problem.shards.tolist(), problem.consumers.tolist(), zones=known)
    asked = replace(problem, shard_zones=zoned.shard_zones, consumer_zones=zoned.consumer_zones)
    ours, plain = sticky(asked), sticky(problem)
    assert problem.loads(ours).tolist() == problem.loads(plain).tolist()
    assert moves(problem, ours) == moves(problem, plain)


@given(problem=problems(consumers=3, shards=5), data=st.data())
@settings(max_examples=200)
def test_with_differing_subscriptions_sticky_is_as_even_as_they_allow(problem: Problem, data: st.DataObject) -> None:
    problem.receives[:] = True
    topics = np.array(sorted(data.draw(st.lists(st.integers(0, 2), min_size=5, max_size=5)))[: len(problem.shards)])
    reads = np.array(data.draw(st.lists(st.booleans(), min_size=9, max_size=9))).reshape(3, 3)
    subscribed = reads[: len(problem.consumers)]
    asked = replace(problem, topics=topics.astype(np.int64), subscribed=subscribed)
    ours = sticky(asked)
    assert unevenness(asked, ours) == min(unevenness(asked, each) for each in allowed(asked))
    rows = np.flatnonzero(ours != NOBODY)
    assert subscribed[ours[rows], asked.topics[rows]].all()
    assert not subscribed[:, asked.topics[ours == NOBODY]].any()


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=5), count=st.integers(1, 12))
def test_range_and_round_robin_are_what_they_are_said_to_be_shard_by_shard(sizes: list[int], count: int) -> None:
    names = [ShardId(f"t{at}/{number}") for at, size in enumerate(sizes) for number in range(size)]
    problem = Problem.of(names, [ConsumerId(f"g-{number}") for number in range(count)])
    blocks = []
    for size in sizes:
        base, extra = divmod(size, count)
        blocks += [at for at in range(count) for _ in range(base + (at < extra))]
    assert ranges(problem).tolist() == blocks
    assert round_robin(problem).tolist() == [row % count for row in range(len(names))]


class Herd(RuleBasedStateMachine):
    """Consumers come and go, shards appear and end, several at a time; after each step everybody is assigned anew."""

    assignor = "Sticky"

    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[ShardId, ConsumerId] = {}
        self.consumers: set[ConsumerId] = set()
        self.shards: set[ShardId] = set()
        self.born = 0

    @initialize(consumers=st.integers(1, 5), shards=st.integers(0, 30))
    def begin(self, consumers: int, shards: int) -> None:
        self.step(consumers, [], shards, [])

    @rule(
        joins=st.integers(0, 3),
        leaves=st.lists(st.integers(0, 20), max_size=3),
        grows=st.integers(0, 6),
        ends=st.lists(st.integers(0, 40), max_size=6),
    )
    def step(self, joins: int, leaves: list[int], grows: int, ends: list[int]) -> None:
        gone = {sorted(self.consumers)[at % len(self.consumers)] for at in leaves if self.consumers}
        over = {sorted(self.shards)[at % len(self.shards)] for at in ends if self.shards}
        self.consumers -= gone
        self.shards -= over
        for _ in range(max(joins, 0 if self.consumers else 1)):
            self.consumers.add(ConsumerId(f"g-{self.born}"))
            self.born += 1
        for _ in range(grows):
            self.shards.add(ShardId(f"t{self.born % 3}/{self.born}"))
            self.born += 1
        # As uneven as shards are: most are light, some weigh as much as all others.
        weights = {shard: float(1000 // (1 + 7919 * int(shard.rpartition("/")[2]) % 50)) for shard in self.shards}
        self.asked = Problem.of(
            sorted(self.shards, key=shard_key), sorted(self.consumers, key=consumer_key), self.holders, weights=weights
        )
        self.answer = target(self.assignor, self.asked)
        self.holders = {shard: consumer for consumer, held in self.asked.named(self.answer).items() for shard in held}

    @invariant()
    @precondition(lambda self: hasattr(self, "asked"))
    def everything_is_given_to_somebody(self) -> None:
        assert set(self.holders) == self.shards
        assert set(self.holders.values()) <= self.consumers

    @invariant()
    @precondition(lambda self: hasattr(self, "asked"))
    def its_own_promise_holds(self) -> None:
        PROMISES[self.assignor](self.asked, self.answer)

    @invariant()
    @precondition(lambda self: hasattr(self, "asked"))
    def asked_again_nothing_moves(self) -> None:
        assert target(self.assignor, replace(self.asked, current=self.answer)).tolist() == self.answer.tolist()


def sticky_promise(problem: Problem, ours: Assignment) -> None:
    loads = problem.loads(ours)
    assert loads.max() - loads.min() <= 1
    stays = int(((ours == problem.current) & (problem.current != NOBODY)).sum())
    assert stays == kept(problem.loads(problem.current).tolist(), len(problem.shards))


def range_promise(problem: Problem, ours: Assignment) -> None:
    for number in set(problem.topics.tolist()):
        held = ours[problem.topics == number]
        assert held.tolist() == sorted(held.tolist())
        sizes = np.bincount(held, minlength=len(problem.consumers)).tolist()
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1


def round_robin_promise(problem: Problem, ours: Assignment) -> None:
    assert ours.tolist() == [row % len(problem.consumers) for row in range(len(problem.shards))]


def weighted_promise(problem: Problem, ours: Assignment) -> None:
    """The bound that `core.assignors.weighted` states."""
    weights, capacities = effective_weights(problem), effective_capacities(problem)
    if weights is None:
        sticky_promise(problem, ours)
        return
    loads = work_of(weights, ours, len(problem.consumers)) / capacities
    slack = HYSTERESIS * float(weights.sum() / capacities.sum()) + 1e-6
    for giver in set(ours.tolist()):
        lightest = weights[ours == giver].min()
        for taker in np.flatnonzero(problem.receives):
            assert taker == giver or loads[giver] - loads[taker] <= lightest / capacities[taker] + slack


PROMISES = {
    "Range": range_promise,
    "RoundRobin": round_robin_promise,
    "Sticky": sticky_promise,
    "Weighted": weighted_promise,
}


@given(problem=problems(consumers=8, shards=40), data=st.data())
def test_weighted_keeps_its_bound_for_any_weights_and_capacities(problem: Problem, data: st.DataObject) -> None:
    count, members = len(problem.shards), len(problem.consumers)
    weight = st.one_of(st.just(float("nan")), st.floats(0, 1e6), st.integers(0, 5).map(float))
    asked = replace(
        problem,
        weights=np.array(data.draw(st.lists(weight, min_size=count, max_size=count)), dtype=np.float64),
        capacities=np.array(data.draw(st.lists(st.floats(0.1, 10), min_size=members, max_size=members)), dtype=np.float64),
    )
    ours = weighted(asked)
    assert (ours != NOBODY).all()
    assert asked.receives[ours[ours != asked.current]].all()
    if effective_weights(asked) is not None:
        weighted_promise(asked, ours)
        assert weighted(replace(asked, current=ours)).tolist() == ours.tolist()


@given(problem=problems(consumers=8, shards=40), data=st.data())
def test_weights_that_change_by_less_than_the_hysteresis_move_nothing(problem: Problem, data: st.DataObject) -> None:
    """At rest with some slack to spare, another measurement of the same loads leaves everything where it is."""
    problem.receives[:] = True
    count = len(problem.shards)
    weights = np.array(data.draw(st.lists(st.integers(1, 100), min_size=count, max_size=count)), dtype=np.float64)
    rested = replace(problem, weights=weights, current=weighted(replace(problem, weights=weights)))
    loads = work_of(weights, rested.current, len(problem.consumers))
    lightest = [weights[rested.current == at].min(initial=np.inf) for at in range(len(problem.consumers))]
    spread = max((loads[at] - loads.min() - lightest[at] for at in range(len(loads))), default=0.0)
    if not count or spread > 0.05 * loads.mean():
        return
    noise = np.array(data.draw(st.lists(st.floats(0.99, 1.01), min_size=count, max_size=count)))
    assert weighted(replace(rested, weights=weights * noise)).tolist() == rested.current.tolist()


@pytest.mark.parametrize("assignor", sorted(PROMISES))
def test_whatever_comes_and_goes_an_assignor_keeps_its_promise(assignor: str) -> None:
    machine = type(f"{assignor}Herd", (Herd,), {"assignor": assignor})
    run_state_machine_as_test(machine, settings=settings(max_examples=50, stateful_step_count=15))


@given(
    count=st.integers(1, 12),
    consumers=st.integers(1, 4),
    joins=st.integers(0, 3),
    dies=st.sets(st.integers(0, 3)),
    ends=st.sets(st.integers(0, 11)),
    splits=st.sets(st.integers(0, 11), max_size=3),
    merges=st.booleans(),
    ordered=st.booleans(),
)
@settings(max_examples=100)
def test_several_joins_leaves_splits_and_merges_in_one_step_move_the_fewest(
    count: int, consumers: int, joins: int, dies: set[int], ends: set[int], splits: set[int], merges: bool, ordered: bool
) -> None:
    play = Play(spec(consumers, ordered=ordered))
    play.discover(topic(count))
    running = [f"g-{number}" for number in range(consumers)]
    play.settle(*running)

    # While the group is paused nothing is granted or moved: all that happens then is one step.
    play.change(with_settings(play.group.spec, paused=True))
    closed = {number for number in (*ends, *splits) if number < count}
    if merges and count >= 2:
        closed |= {0, 1}
    fresh = [info(str(count + at), parents=[str(number)]) for at, number in enumerate(sorted(splits & closed))]
    if merges and count >= 2:
        fresh.append(info(str(count + len(fresh)), parents="01"))
    play.discover((*(info(str(number), open=number not in closed) for number in range(count)), *fresh))
    for number, holder in play.holders().items():
        if holder is not None and number.isdecimal() and int(number) in closed:
            play.checkpoint(holder, number, 100)
    gone = {f"g-{number}" for number in dies if number < consumers}
    running = [name for name in running if name not in gone] + [f"g-{consumers + at}" for at in range(joins)]
    if not running:
        running = ["g-9"]
    for name in gone:
        play.die(name)
    play.settle(*running)
    before = play.holders()
    play.change(replace(with_settings(play.group.spec, paused=False), wanted=len(running)))
    play.settle(*running)

    after = {number: holder for number, holder in play.holders().items() if holder is not None}
    assert set(play.states().values()) <= {"ALREADY_ALLOC", "OVER"}
    loads = [Counter(after.values())[name] for name in running]
    assert max(loads) - min(loads) <= 1
    held = [sum(before[number] == name for number in after) for name in running]
    stays = sum(before.get(number) == holder for number, holder in after.items())
    assert stays == kept(held, len(after))


@given(
    count=st.integers(1, 20),
    steps=st.lists(st.tuples(st.sampled_from(["join", "die", "drain"]), st.integers(0, 5)), max_size=8),
)
@settings(max_examples=60)
def test_at_rest_a_sticky_group_differs_by_at_most_one(count: int, steps: list[tuple[str, int]]) -> None:
    play = Play(spec(1))
    play.discover(topic(count))
    play.settle("g-0")
    running = {"g-0"}
    starts: dict[str, int] = {}
    for what, number in steps:
        name = f"g-{number}"
        if what == "join" and name not in running:
            starts[name] = starts.get(name, 0) + 1
            play.run(name, starts[name])
            running.add(name)
        elif what == "die" and name in running and len(running) > 1:
            play.die(name)
            starts.setdefault(name, 1)
            running.discard(name)
        elif what == "drain" and name in running:
            play.consumer(name).draining = True
        play.settle(*sorted(running))
    receiving = {name for name in running if not play.consumer(name).draining}
    counts = [shards for name, shards in play.counts().items() if name in receiving]
    assert not receiving or (sum(counts), max(counts) - min(counts) <= 1) == (count, True)
