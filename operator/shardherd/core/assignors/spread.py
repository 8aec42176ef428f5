"""Spreads each topic over the consumers, among choices that are equal in balance and in moves.

Called by `sticky` and `weighted` with the assignment that they made. Shards of equal worth (a layer: one zone, or one weight)
are exchanged: what one consumer takes for what another takes, what it gives up for what it keeps. So every consumer has as
many of each layer as before, and no more shards move. What becomes smallest is the sum of the squares of how many shards of a
topic each consumer has. Nothing moves that would have stayed in any case: who moves is not decided here, only what.

It is a flow of least cost: shards are passed on in cycles, from consumer to consumer, and cycles that lower the sum are looked
for by Bellman and Ford's method, over all consumers and topics at once. Once there is none the sum is the smallest there is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardherd.core.assignors.problem import NOBODY, Assignment, Flags, Indexes, Problem

MOST_CELLS = 2_000_000
"""Consumers times topics that are looked at: with more of them the assignment stays as it was made."""

MOST_SPARE = 250_000
"""With more of them the larger shares stay with whom they were given to."""

MOST_WORK = 20_000_000
"""Cells that a search looks at, again and again: some tenths of a second. Counted, not timed: every answer must be the same."""

_FAR = np.int64(1) << 40


@dataclass(frozen=True, slots=True)
class Spare:
    """Consumers of which some have one shard more than others, and whichever it is makes no difference.

    `lacking` are those that have one less; `give`: they give up shards, in place of taking some.
    """

    members: Indexes
    lacking: Flags
    give: bool


class _Cells:
    """A matrix with a row for each of some consumers and a column for each of some topics.

    In its last column are no shards, but those of the consumers that have one less than others.
    """

    def __init__(self, problem: Problem, people: Indexes, topics: Indexes) -> None:
        self._problem = problem
        self.shape = len(people), len(topics) + 1
        self._row_of = np.full(len(problem.consumers) + 1, NOBODY)
        self._row_of[people] = np.arange(len(people))
        self._column_of = np.full(int(problem.topics[-1]) + 1, len(topics))
        self._column_of[topics] = np.arange(len(topics))

    def at(self, shards: Indexes, holders: Indexes) -> Indexes:
        """The numbers of these shards' cells. Their holders have rows."""
        cells: Indexes = self._row_of[holders[shards]] * self.shape[1] + self._column_of[self._problem.topics[shards]]
        return cells

    def counted(self, shards: Indexes, holders: Indexes) -> Indexes:
        """How many of these shards there are in each cell. Their holders have rows; of what has no column none are."""
        found = np.bincount(self.at(shards, holders), minlength=self.shape[0] * self.shape[1]).reshape(self.shape)
        found[:, -1] = 0
        return found

    def rows_of(self, consumers: Indexes) -> Indexes:
        """The rows of these consumers."""
        return self._row_of[consumers]


def spread(
    problem: Problem, target: Assignment, moved: Indexes, layers: Indexes | None = None, spare: Spare | None = None
) -> Assignment:
    """The target with its topics spread. `moved` are the shards, in order, that it gives to another than has them now.

    `layers` numbers for each shard what it is worth, None if that is the same for all.
    """
    if not len(moved) or problem.topics[0] == problem.topics[-1]:
        return target
    if layers is None:
        return _Layer(problem, target, moved, None).spread(spare)
    several = np.bincount(layers + 1) > 1
    numbers = np.unique(layers[moved])
    for number in numbers[several[numbers + 1]].tolist():
        here = layers == number
        target = _Layer(problem, target, moved[here[moved]], here).spread(None)
        moved = np.flatnonzero(target != problem.current)
    return target


class _Layer:
    """The shards of one worth, and who may exchange them."""

    def __init__(self, problem: Problem, target: Assignment, moved: Indexes, here: Flags | None) -> None:
        self._problem, self._target, self._moved, self._here = problem, target, moved, here

    def spread(self, spare: Spare | None) -> Assignment:
        """The whole target, with this layer spread as well as it can be."""
        problem, target, moved = self._problem, self._target, self._moved
        gives, takes = self._roles(spare)
        people, topics = np.flatnonzero(gives | takes), np.unique(problem.topics[moved])
        if spare is not None and len(people) * len(topics) > MOST_SPARE:
            return self.spread(None)
        kept = back = moved[:0]
        if gives.any():
            kept = self._alike(np.flatnonzero(gives[target] if self._here is None else gives[target] & self._here), spare)
            back = self._alike(moved[gives[problem.current[moved]]], spare)
            topics = np.union1d(topics, problem.topics[kept])
        cells = _Cells(problem, people, topics)
        if cells.shape[0] * cells.shape[1] > MOST_CELLS:
            return target
        counts = cells.counted(np.flatnonzero((gives | takes)[target]), target)
        if not _may_be_uneven(counts, np.concatenate((cells.at(moved, target), cells.at(kept, target)))):
            return target
        taking = takes[people]
        lowest = counts - np.where(taking[:, None], cells.counted(moved, target), cells.counted(kept, target))
        highest = np.where(taking[:, None], _FAR, counts + cells.counted(back, problem.current))
        highest[:, -1] = 0
        if spare is not None:
            rows = cells.rows_of(spare.members)
            counts[rows, -1], highest[rows, -1] = spare.lacking, 1
        after = _evened(counts, lowest, highest, taking)
        if np.square(after[:, :-1]).sum() >= np.square(counts[:, :-1]).sum():
            return target
        return self._exchanged((after - counts)[:, :-1], people, topics, taking, kept, back)

    def _roles(self, spare: Spare | None) -> tuple[Flags, Flags]:
        """Who gives up and who takes shards. The last entries are those of NOBODY."""
        count = len(self._problem.consumers) + 1
        gives, takes = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        gives[self._problem.current[self._moved]] = True
        takes[self._target[self._moved]] = True
        if spare is not None:
            (gives if spare.give else takes)[spare.members] = True
        takes[NOBODY] = False
        # Who does both exchanges only what it takes: it must not give up more.
        gives &= ~takes
        gives[NOBODY] = False
        return gives, takes

    def _alike(self, rows: Indexes, spare: Spare | None) -> Indexes:
        """Those of the rows that cost as much to give up as what their holder can choose among.

        Who gives up anything settled has given up all that was on its way to it before, and keeps it so.
        """
        problem = self._problem
        gives_settled = np.zeros(len(problem.consumers) + 1, dtype=np.bool_)
        gives_settled[problem.current[self._moved[~problem.pending[self._moved]]]] = True
        if spare is not None and spare.give:
            gives_settled[spare.members] = True
        alike: Indexes = rows[problem.pending[rows] != gives_settled[problem.current[rows]]]
        return alike

    def _exchanged(
        self, change: Indexes, people: Indexes, topics: Indexes, taking: Flags, kept: Indexes, back: Indexes
    ) -> Assignment:
        """The target with so many more or less shards of each topic for each consumer."""
        problem, target = self._problem, self._target.copy()
        for column in np.flatnonzero(change.any(axis=0)).tolist():
            topic, more = int(topics[column]), change[:, column]
            pool, stays, own = (self._of_topic(rows, topic) for rows in (self._moved, kept, back))
            takers = np.bincount(target[pool], minlength=len(problem.consumers))
            takers[people[taking]] += more[taking]
            takers[people[~taking]] = 0
            for at in np.flatnonzero(~taking & (more != 0)).tolist():
                giver = people[at]
                if more[at] > 0:
                    returned = own[problem.current[own] == giver][: more[at]]
                    target[returned] = giver
                    pool = np.setdiff1d(pool, returned, assume_unique=True)
                else:
                    pool = np.union1d(pool, stays[target[stays] == giver][more[at] :])
            target[pool] = np.repeat(np.arange(len(takers)), takers)
        return target

    def _of_topic(self, rows: Indexes, topic: int) -> Indexes:
        """Those of these shards, which are in order, that are of this topic."""
        begin, end = np.searchsorted(rows, np.searchsorted(self._problem.topics, (topic, topic + 1)))
        return rows[begin:end]


def _may_be_uneven(counts: Indexes, cells: Indexes) -> bool:
    """Whether a shard of one of these cells could go to who has at least two less of its topic: a quick look."""
    fewest = counts.min(axis=0)
    return bool((counts.ravel()[cells] - fewest[cells % counts.shape[1]] >= 2).any())


def _evened(counts: Indexes, lowest: Indexes, highest: Indexes, taking: Flags) -> Indexes:
    """The counts with the smallest sum of squares, with the same sums of rows and of columns, and within their bounds."""
    counts = _dealt(counts, lowest, taking)
    weights = np.ones(counts.shape[1], dtype=np.int64)
    weights[-1] = 0
    # What it costs to take one shard out of a cell, and to put one more into it.
    leave = np.where(counts > lowest, -weights * counts, _FAR)
    enter = np.where(counts < highest, weights * (counts + 1), _FAR)
    work = 0
    # Where no shard can go to who has at least two less of its topic no cycle lowers the sum.
    while work < MOST_WORK and bool((leave.min(axis=0) + enter.min(axis=0) < 0).any()):
        cycles, looked = _cycles(leave, enter)
        work += looked * counts.size
        if not cycles:
            break
        for giver, column, taker in (step for cycle in cycles for step in cycle):
            for at, by in ((giver, -1), (taker, 1)):
                here = counts[at, column] = counts[at, column] + by
                leave[at, column] = -weights[column] * here if here > lowest[at, column] else _FAR
                enter[at, column] = weights[column] * (here + 1) if here < highest[at, column] else _FAR
    return counts


def _dealt(counts: Indexes, lowest: Indexes, taking: Flags) -> Indexes:
    """A good beginning: what is taken is dealt anew, each topic to who has least of it, of those to who takes most."""
    counts = counts.copy()
    takers = np.flatnonzero(taking)
    has = lowest[takers, :-1]
    taken = counts[takers, :-1] - has
    room, pool = taken.sum(axis=1), taken.sum(axis=0)
    for column in np.argsort(-pool, kind="stable").tolist():
        here, left = has[:, column].copy(), int(pool[column])
        while left:
            open_ = np.flatnonzero(room)
            poorest = open_[here[open_] == here[open_].min()]
            chosen = poorest[np.argsort(-room[poorest], kind="stable")[:left]]
            here[chosen] += 1
            room[chosen] -= 1
            left -= len(chosen)
        has[:, column] = here
    counts[takers, :-1] = has
    return counts


def _cycles(leave: Indexes, enter: Indexes) -> tuple[list[list[tuple[int, int, int]]], int]:
    """Cycles of steps (giver, column, taker) that lower the sum and share no consumer; how often all cells were looked at."""
    people = len(leave)
    distance = np.zeros(people, dtype=np.int64)
    came_from, came_by = np.full(people, NOBODY), np.full(people, NOBODY)
    for rounds in range(1, people + 2):
        through = leave + distance[:, None]
        givers = through.argmin(axis=0)
        reached = enter + through[givers, np.arange(through.shape[1])]
        columns = reached.argmin(axis=1)
        nearest = reached[np.arange(people), columns]
        nearer = nearest < distance
        if not nearer.any():
            return [], rounds
        distance = np.where(nearer, nearest, distance)
        came_by = np.where(nearer, columns, came_by)
        came_from = np.where(nearer, givers[columns], came_from)
        found = _closed(came_from.tolist(), came_by.tolist())
        if found:
            return found, rounds
    raise AssertionError("a path longer than there are consumers has a cycle")


def _closed(came_from: list[int], came_by: list[int]) -> list[list[tuple[int, int, int]]]:
    """The cycles of this graph, in which everybody has one predecessor or none."""
    seen = [NOBODY] * len(came_from)
    cycles = []
    for start in range(len(came_from)):
        at = start
        while at != NOBODY and seen[at] == NOBODY:
            seen[at] = start
            at = came_from[at]
        if at == NOBODY or seen[at] != start:
            continue
        cycle, taker = [], at
        while True:
            giver = came_from[taker]
            cycle.append((giver, came_by[taker], taker))
            taker = giver
            if taker == at:
                break
        cycles.append(cycle)
    return cycles
