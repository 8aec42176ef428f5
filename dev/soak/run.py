"""One run from its begin to its verdict: groups, warm-up, faults, rest, and the two kinds of tables.

Called by the command line and by the end-to-end test. The plan is `plan`'s, what is excused is `excuses`', what may grow is
said here and judged by `growth`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dev.demo.account import Line, render
from dev.demo.lab import RELEASE, SYSTEM, Lab
from dev.demo.report import Reporter, await_that
from dev.soak import excuses, growth
from dev.soak.excuses import Incident
from dev.soak.gauge import DRIVER, LEADING, PYTHON, ROLES, STANDING_BY, Sampler, Snapshot, Stored, snapshot
from dev.soak.groups import Group, three
from dev.soak.growth import Bound, Bounds, Growth, warm_after
from dev.soak.inflict import Inflict
from dev.soak.plan import CONSUMERS, ENDS_LEADER, GROUPS, ORDERED, PLAIN, SHARDS, Fault, Kind
from tests.e2e.groups import SOAK

SMALL = Bounds(memory=Bound(0.1, 24), threads=Bound(more=4), files=Bound(more=12), sockets=Bound(more=12))
"""Of a process of Python."""

LARGE = Bounds(memory=Bound(0.2, 96), threads=Bound(more=16), files=Bound(more=48), sockets=Bound(more=24))
"""Of a driver, with its JVM, whose heap grows to its limit, and its workers, which come and go."""

OF_OPERATORS_AND_DRIVERS = {LEADING: SMALL, STANDING_BY: SMALL, DRIVER: LARGE}
REVISIONS = 10
"""Old revisions that Kubernetes keeps of each StatefulSet and Deployment."""

SERIES = Bound(0.2, 40)
"""A counter's series is there once something was counted."""

LEAST_EVERY_S, LOOKS = 5.0, 360
"""Seconds between two looks at the processes, at least; and about how many looks there are."""

MOST_LISTED = 20
"""Lines about duplicates that nothing excuses."""

Tables = Sequence[tuple[str, Sequence[Line]]]


@dataclass
class Soak:
    """One run on a lab that is up and has the chart installed. `seconds`: how long faults come."""

    lab: Lab
    seconds: float
    plan: Sequence[Fault]
    incidents: list[Incident] = field(default_factory=list)
    begun: float = 0.0
    """When the faults began, in seconds since 1970."""

    @property
    def reporter(self) -> Reporter:
        return self.lab.reporter

    def __call__(self) -> Tables:
        """All of it; the tables, each with its title."""
        self.reporter.step(f"Three groups in namespace {SOAK}, and their producers")
        with three(self.lab) as groups:
            self.reporter.show(self.lab.kube.run("get", "shcg,pods", "-n", SOAK))
            sampler = Sampler(self.lab, max(LEAST_EVERY_S, self.seconds / LOOKS))
            sampler.start()
            try:
                self.warm_up()
                first = snapshot(self.lab, groups)
                self.suffer(groups)
                produced = self.rest(groups)
                last = snapshot(self.lab, groups)
            finally:
                sampled = sampler.stop()
            leaders = excuses.changes_of_leader((look.at, look.run) for look in sampled if look.role == LEADING)
            for line in runs(sampled, self.begun):
                self.reporter.say(line)
            alone = [
                (look.at, look.name, look.run) for look in sampled if look.role == DRIVER and look.name.startswith(ORDERED)
            ]
            self.incidents += leaders
            self.incidents += excuses.stops(alone, ORDERED, self.incidents)
            return [*self.counted(groups, produced), *self.grown(first, last, sampled, leaders)]

    def warm_up(self) -> None:
        """Leave them alone until they have what they need."""
        warm = warm_after(self.seconds)
        self.reporter.say(f"all are calm; faults begin after a warm-up of {warm:.0f} s")
        time.sleep(warm)

    def suffer(self, groups: Mapping[str, Group]) -> None:
        """Do all faults of the plan, each when it is due, and go on until the time is over."""
        self.reporter.step(f"{len(self.plan)} faults in {self.seconds / 60:.0f} minutes")
        self.begun = time.time()
        inflict, begun = Inflict(self.lab, groups), time.monotonic()
        for fault in self.plan:
            time.sleep(max(0.0, begun + fault.at - time.monotonic()))
            self.reporter.say(str(fault))
            self.incidents.append(inflict(fault))
            done = self.incidents[-1]
            self.reporter.say(f"    done from {done.begun - self.begun:.1f} s to {done.ended - self.begun:.1f} s")
        time.sleep(max(0.0, begun + self.seconds - time.monotonic()))

    def rest(self, groups: Mapping[str, Group]) -> dict[str, dict[str, int]]:
        """What was declared at first again, all calm, producers stopped, everything committed; what each wrote, by shard."""
        self.reporter.step("No more faults: what was declared at first, and a lag of 0")
        for group in groups.values():
            group.deployed.change({"assignor": "Sticky", "paused": False})
            group.scale(CONSUMERS)
        await_that(
            "both operators are ready",
            lambda: self.lab.kube.get("deployment", RELEASE, "-n", SYSTEM)["status"].get("readyReplicas") == 2,
            within=120,
            every=1,
            explain=lambda: self.lab.kube.explain(SYSTEM),
        )
        sizes = shards(self.plan)
        for kind, group in groups.items():
            group.await_calm(CONSUMERS, sizes[kind])
            self.reporter.say(f"{kind}: {CONSUMERS} consumers read {sizes[kind]} shards evenly")
        produced = {kind: group.traffic.stop() for kind, group in groups.items()}
        for kind, group in groups.items():
            group.await_committed(produced[kind])
            self.reporter.say(f"{kind}: all of {sum(produced[kind].values()):,} records are committed")
        await_that("the lag is 0", lambda: self.lag() == 0, within=60, every=1, explain=lambda: self.lab.kube.explain(SOAK))
        return produced

    def lag(self) -> float:
        """Records that the groups have before them, by the operator's metric."""
        samples = self.lab.operator_metrics()
        return sum(
            each.value for each in samples if each.name == "shardherd_group_lag_records" and each.labels["namespace"] == SOAK
        )

    def counted(self, groups: Mapping[str, Group], produced: Mapping[str, Mapping[str, int]]) -> Tables:
        """The table of each group."""
        done = self.incidents
        for kind, group in groups.items():
            for line in excuses.describe_duplicates(excuses.beside(group.rows(), kind, done), self.begun)[:MOST_LISTED]:
                self.reporter.say(f"{kind}: {line}")
        return [
            (kind, excuses.table(each.rows(), kind, produced[kind], each.committed(), done, ordered=kind == ORDERED))
            for kind, each in groups.items()
        ]

    def grown(self, first: Snapshot, last: Snapshot, sampled: Sequence[growth.Look], leaders: Sequence[Incident]) -> Tables:
        """The tables of what may not grow."""
        warm = warm_after(self.seconds)
        of_processes: list[Line] = []
        for role in ROLES:
            looks = growth.longest(sampled, role, warm)
            if looks:
                self.reporter.say(f"TCP connections of the {role}: {growth.connections(looks)}")
            found = growth.growths(looks, role, bounds_of(role, self.plan))
            of_processes += [each.line for each in found] or [Line(role, "none lived long enough to be compared")]
        figures = [*_of_stored(first.stored, last.stored, self.plan), *_of_series(first, last), *_of_objects(first, last)]
        lines = [each.line for each in figures]
        lines.append(Line("events of both namespaces", f"{first.events:,} -> {last.events:,}"))
        ended = sum(1 for fault in self.plan if fault.kind in ENDS_LEADER)
        lines.append(Line(f"changes of the leader that were seen ({ended} are faults)", f"{len(leaders)}"))
        return [("growth of processes", of_processes), ("growth of what is kept", lines)]


def bounds_of(role: str, plan: Sequence[Fault]) -> Bounds:
    """How much a process of this role may grow.

    A plain Python consumer of the tests keeps a client of Kafka for every shard that it ever held, and has a pool of threads.
    """
    if role != PYTHON:
        return OF_OPERATORS_AND_DRIVERS[role]
    more = shards(plan)[PLAIN] - SHARDS // CONSUMERS
    return Bounds(
        memory=Bound(0.1, 24 + 2 * more),
        threads=Bound(more=4 + more),
        files=Bound(more=12 + 5 * more),
        sockets=Bound(more=12 + 4 * more),
    )


def runs(sampled: Sequence[growth.Look], since: float) -> list[str]:
    """The runs that were seen of every pod, for people: from when to when, in seconds since a moment."""
    lives: dict[tuple[str, str], list[float]] = {}
    for look in sampled:
        lives.setdefault((look.name, look.run), []).append(look.at - since)
    return [f"{name} ran from {min(at):.0f} s to {max(at):.0f} s ({run[:8]})" for (name, run), at in sorted(lives.items())]


def shards(plan: Sequence[Fault]) -> dict[str, int]:
    """How many shards each group has after all of this."""
    sizes = dict.fromkeys(GROUPS, SHARDS)
    return sizes | {fault.group: int(fault.value) for fault in plan if fault.kind == Kind.GROW}


def _of_stored(first: Mapping[str, Stored], last: Mapping[str, Stored], plan: Sequence[Fault]) -> list[Growth]:
    """Rows of the ownership: as many as shards and consumers; a pod that went is named until nobody can have its token."""
    sizes = shards(plan)
    found = []
    for kind in first:
        old, new = first[kind], last[kind]
        gone = sum(1 for fault in plan if fault.group == kind) * CONSUMERS
        found += [
            Growth(f"{kind}: stored shards besides those of its topic", old.shards - SHARDS, new.shards - sizes[kind], Bound()),
            Growth(f"{kind}: stored consumers", old.consumers, new.consumers, Bound()),
            Growth(f"{kind}: stored pods of before", old.superseded, new.superseded, Bound(more=gone)),
            Growth(f"{kind}: other stored rows", old.other, new.other, Bound()),
        ]
    return found


def _of_series(first: Snapshot, last: Snapshot) -> list[Growth]:
    """Series of the operator's metrics."""
    old, new = (sum(each.shards for each in one.stored.values()) for one in (first, last))
    return [
        Growth(
            "series of the metrics for each shard", first.series_of_shards / old, last.series_of_shards / new, Bound(more=0.5)
        ),
        Growth("other series of the metrics", first.other_series, last.other_series, SERIES),
    ]


def _of_objects(first: Snapshot, last: Snapshot) -> list[Growth]:
    """Kubernetes objects but Events, by namespace and kind."""
    return [
        Growth(f"objects in {kind}", first.objects.get(kind, 0), last.objects.get(kind, 0), _bound_of(kind, first.objects))
        for kind in sorted({*first.objects, *last.objects})
    ]


def _bound_of(kind: str, first: Mapping[str, int]) -> Bound:
    """Kubernetes keeps some revisions; each group's copies are made once."""
    if "copies" in kind:
        return Bound(more=len(GROUPS) - first.get(kind, 0))
    return Bound(more=REVISIONS * 3) if "controllerrevision" in kind or "replicaset" in kind else Bound()


def show(tables: Tables, reporter: Reporter) -> str:
    """Print the tables; the verdict, empty if all is as it was promised."""
    for title, lines in tables:
        reporter.say("")
        reporter.say(title)
        reporter.show(render(lines))
    return growth.verdict(tables)
