"""Many schedules, by as many processes as there are cores, and what they hit.

Called by the tests and by `python -m tests.simulation`. Every worker is a process of its own with a fixed hash seed, so that a
schedule is the same whoever runs it. It hands so many schedules at a time to a child that ends afterwards: a world that is over
is one big cycle, and to end the process costs nothing, where to collect the garbage took a seventh of the time.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardherd.core.group import fsm, grants
from tests.simulation import bugs_of_growth, bugs_of_kinesis, bugs_of_outputs, bugs_of_workers
from tests.simulation.bugs import DIRECTED, planted
from tests.simulation.plan import FAULTS, Plan, plan, with_growth, with_kinesis, with_workers, without_growth
from tests.simulation.world import World

ROOT = Path(__file__).resolve().parents[2]
CHILD = 100
"""Schedules that one child runs: each leaves about half a megabyte behind."""

PARTS = 4
"""So many for each process at a time: the one that gets less of the machine than others shall not be waited for at the end."""

ATTEMPTS = 50
"""Directed schedules for a pair of faults, of which mostly one is enough."""

REPLAY = "PYTHONHASHSEED=0 .venv/bin/python -m tests.simulation --replay"

TRANSITIONS = tuple(
    f"{edge.number}: {before or 'new'} -> {edge.to} ({cause})" for (before, cause), edge in fsm.TRANSITIONS.items()
)


@dataclass
class Report:
    """What some schedules did. `broken` holds (seed, what broke)."""

    schedules: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    fewest_deliveries: int = 10**9
    fewest_faults: int = 10**9
    shortest: float = float("inf")
    """Virtual seconds of the shortest schedule."""
    broken: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.schedules += other.schedules
        self.counts.update(other.counts)
        self.transitions.update(other.transitions)
        self.faults.update(other.faults)
        self.pairs.update(other.pairs)
        self.fewest_deliveries = min(self.fewest_deliveries, other.fewest_deliveries)
        self.fewest_faults = min(self.fewest_faults, other.fewest_faults)
        self.shortest = min(self.shortest, other.shortest)
        self.broken += other.broken

    def never_hit(self) -> list[str]:
        """The transitions that no schedule took."""
        return [name for name in TRANSITIONS if not self.transitions[name]]

    def as_json(self) -> str:
        return json.dumps(self.__dict__)

    @classmethod
    def from_json(cls, text: str) -> Report:
        raw: dict[str, Any] = json.loads(text)
        for name in ("counts", "transitions", "faults", "pairs"):
            raw[name] = Counter(raw[name])
        raw["broken"] = [(seed, what) for seed, what in raw["broken"]]
        return cls(**raw)


def end_with_parent() -> None:
    """End when the other end of our standard input is closed, as it is when who started us has ended, in whatever way."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def simulate(seeds: Sequence[int], *, stop_at_first: bool = False, bug: str | None = None, watched: bool = False) -> Report:
    """Run these schedules one after the other, in one child after the other, which end with us if we are `watched`.

    With a bug that takes faults which seldom meet they are directed at these.
    """
    begun = time.monotonic()
    report = Report()
    context = multiprocessing.get_context("fork")
    gc.freeze()
    for first in range(0, len(seeds), CHILD):
        with ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent if watched else None) as child:
            done = child.submit(_simulate, seeds[first : first + CHILD], stop_at_first=stop_at_first, bug=bug)
            report.add(done.result())
        if stop_at_first and report.broken:
            break
    report.seconds = time.monotonic() - begun
    return report


def _simulate(seeds: Sequence[int], *, stop_at_first: bool, bug: str | None) -> Report:
    """Run these schedules here. Never collects garbage, so this process should end soon."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    report = Report()
    real: Callable[[Any, Any], Any] = grants.__dict__["step"]

    def counted(state: Any, cause: Any) -> Any:
        after = real(state, cause)
        edge = fsm.TRANSITIONS[state, cause]
        report.transitions[f"{edge.number}: {state or 'new'} -> {edge.to} ({cause})"] += 1
        return after

    grants.__dict__["step"] = counted
    try:
        with planted(bug) if bug else nullcontext():
            for seed in seeds:
                _run(World(planned(seed, bug)), seed, report)
                if stop_at_first and report.broken:
                    break
    finally:
        grants.__dict__["step"] = real
    return report


def planned(seed: int, bug: str | None = None) -> Plan:
    """The plan of a seed, directed at the faults, the consumers or the source that this planted bug takes."""
    if bug in bugs_of_workers.BUGS:
        return with_workers(plan(seed))
    if bug in bugs_of_kinesis.BUGS:
        return with_kinesis(plan(seed))
    if bug in bugs_of_growth.BUGS:
        return with_growth(plan(seed))
    if bug in bugs_of_outputs.BUGS:
        return with_workers(plan(seed), outputs=True)
    return directed(DIRECTED[bug], seed) if bug in DIRECTED else plan(seed)


def _run(world: World, seed: int, report: Report) -> None:
    try:
        world.run()
    except Exception as error:  # noqa: BLE001
        # Whatever it is, the seed shows it again.
        report.broken.append((seed, f"{type(error).__name__}: {error}"))
    report.schedules += 1
    report.counts.update(world.history.counts)
    report.counts.update(world.network.counts)
    report.counts["messages delivered"] += world.network.delivered
    report.counts["schedules over HTTP"] += world.plan.over_http
    report.counts["schedules of a stream of Kinesis"] += world.plan.kinesis
    report.counts["schedules of a topic that grows"] += world.plan.grows
    report.counts["schedules with clocks that drift"] += world.plan.drift > 0
    report.fewest_faults = min(report.fewest_faults, world.began)
    report.fewest_deliveries = min(report.fewest_deliveries, world.network.delivered)
    report.shortest = min(report.shortest, world.time)
    report.faults.update(world.hit)
    report.pairs.update(f"{one} + {other}" for one, other in itertools.combinations(sorted(world.hit), 2))


def replay(seed: int, tell: Callable[[str], None], bug: str | None = None) -> str:
    """One schedule step by step. What broke, empty if nothing did."""
    logging.disable(logging.CRITICAL)
    drawn = planned(seed, bug)
    tell(f"{drawn.consumers} consumers, {drawn.shards} shards, {drawn.operators} operators, {drawn.spec.settings}")
    try:
        with planted(bug) if bug else nullcontext():
            World(drawn, tell).run()
    except AssertionError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def directed(pair: Sequence[str], seed: int) -> Plan:
    """The plan of a seed, with these two faults in the place of its first ones."""
    drawn = without_growth(seed)
    wanted = list(pair)
    steps = [(when, wanted.pop() if kind in FAULTS and wanted else kind) for when, kind in drawn.steps]
    return replace(drawn, steps=tuple(steps))


def meet(pairs: Sequence[tuple[str, str]], start: int) -> Report:
    """Directed schedules until the faults of each of these pairs have met; a fault does not begin in every world."""
    report = Report()
    for pair in pairs:
        for seed in range(start, start + ATTEMPTS):
            world = World(directed(pair, seed))
            _run(world, seed, report)
            if world.hit >= {*pair}:
                break
    return report


def bring_about(what: str, faults: Sequence[str], start: int, most: int = 3000) -> Report:
    """Schedules directed at these two faults until this has happened in one, or there were so many."""
    report = Report()
    for seed in range(start, start + most):
        if report.counts[what] or report.broken:
            break
        _run(World(directed(faults, seed)), seed, report)
    return report


def spread(
    count: int,
    start: int,
    workers: int,
    *,
    also: Iterable[int] = (),
    bug: str | None = None,
    niced: bool = False,
) -> Report:
    """Run `count` schedules from `start` on, and `also` these seeds, in so many processes of their own at a time."""
    begun = time.monotonic()
    parts = workers * PARTS
    waiting = []
    for part in range(parts):
        arguments = ["--worker", str(start + part), str(start + count), str(parts)]
        if part == 0:
            arguments += ["--also", *(str(seed) for seed in also)]
        if bug:
            arguments += ["--bug", bug]
        waiting.append(arguments)
    report = Report()
    running: dict[int, subprocess.Popen[str]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            process = _start(waiting.pop(0), niced=niced)
            assert process.stdout is not None
            running[process.stdout.fileno()] = process
        # A worker prints when it is about to end.
        for each in multiprocessing.connection.wait(list(running)):
            assert isinstance(each, int)
            report.add(_reported(running.pop(each)))
    report.seconds = time.monotonic() - begun
    return report


Found = dict[str, tuple[int, str] | None]
"""By planted bug the seed that shows it and what broke; None: no seed did."""


def find_bugs(
    names: Sequence[str], seeds: int, workers: int, *, known: Mapping[str, int] = MappingProxyType({}), niced: bool = False
) -> Found:
    """For each planted bug one of the seeds from 0 on that shows it: the `known` one if it still does, else the first."""
    listed = [(name, known[name]) for name in names if known.get(name, seeds) < seeds]
    found = _look_at(listed, workers, niced=niced)

    def look_for(name: str) -> tuple[int, str] | None:
        process = _start(["--worker", "0", str(seeds), "1", "--bug", name, "--stop-at-first"], niced=niced)
        broken = _reported(process).broken
        return broken[0] if broken else None

    missing = [name for name in names if found.get(name) is None]
    with ThreadPoolExecutor(workers) as searches:
        found.update(zip(missing, searches.map(look_for, missing), strict=True))
    for name, shown in found.items():
        if shown is not None and any(error in shown[1] for error in ("TypeError(", "AttributeError(", "NameError(")):
            raise RuntimeError(f"the planted bug {name!r} does not fit the code any more: {shown[1]}")
    return {name: found[name] for name in names}


def _look_at(listed: Sequence[tuple[str, int]], workers: int, *, niced: bool) -> Found:
    """What becomes of each of these bugs in the schedule of its one seed."""
    processes = []
    for each in filter(None, (listed[worker::workers] for worker in range(workers))):
        # All bugs of a worker in one process: to start one takes as long as twenty schedules.
        arguments = [text for name, seed in each for text in ("--known-bug", str(seed), name)]
        processes.append(_start(arguments, niced=niced))
    found: Found = {}
    for process in processes:
        for name, shown in json.loads(_output(process)).items():
            found[name] = (shown[0], shown[1]) if shown is not None else None
    return found


def look_at_known(listed: Sequence[tuple[str, int]]) -> Found:
    """A worker's part of `_look_at`."""
    found: Found = {}
    for name, seed in listed:
        broken = simulate([seed], bug=name, watched=True).broken
        found[name] = broken[0] if broken else None
    return found


def _start(arguments: Sequence[str], *, niced: bool = False) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"}
    command = [*(["nice"] if niced else []), sys.executable, "-W", "ignore", "-m", "tests.simulation", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _reported(process: subprocess.Popen[str]) -> Report:
    return Report.from_json(_output(process))


def _output(process: subprocess.Popen[str]) -> str:
    """The last line that a worker prints, once it has ended."""
    # Not `communicate`, which closes the worker's standard input, and so ends it.
    assert process.stdout is not None
    output = process.stdout.read()
    if process.wait() != 0:
        raise RuntimeError(f"a worker of the simulation ended with {process.returncode}: {output[-2000:]}")
    return output.splitlines()[-1]
