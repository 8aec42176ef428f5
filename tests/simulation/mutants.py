"""`python -m tests.simulation.mutants`: how many changes of the code that owns a group the simulation alone notices.

Draws mutants anew each time, and runs schedules with each until one of them breaks a promise, fails, or does not end. What
makes it quick is that a mutant is planted into a forked child of a process that has loaded everything.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from tests.simulation.mutations import MODULES, PACKAGE, Mutant, every, plant
from tests.simulation.plan import plan
from tests.simulation.world import World

HANGS = 10.0
"""Seconds of the processor after which a schedule does not end. One takes less than a tenth of a second."""

COLLECT = 50
"""Schedules after which garbage is collected: each leaves about half a megabyte behind."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: after how many schedules it was noticed (0: it was not), and by what."""

    mutant: Mutant
    after: int
    what: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE", help="as core/group/grants; default: all")
    parser.add_argument("--mutants", type=int, default=300, help="how many are drawn")
    parser.add_argument("--seeds", type=int, default=250, help="how many schedules each may take")
    parser.add_argument("--draw", type=int, help="the number that the sample is drawn by, and the first seed; default: drawn")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="print by what each was noticed")
    parser.add_argument("--only", help="mutants whose description holds this text")
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The same schedules as those that a replay shows.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.mutants", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    draw = random.SystemRandom().randrange(10**9) if chosen.draw is None else chosen.draw
    found, texts = every(chosen.modules)
    if chosen.only:
        found = [make for make in found if chosen.only in str(make())]
    sample = [make() for make in random.Random(draw).sample(found, min(chosen.mutants, len(found)))]
    print(f"{len(sample)} of {len(found)} mutants, drawn by {draw} ({texts} more change only texts for people)", flush=True)
    begun = time.monotonic()
    runs = clean(range(draw, draw + chosen.seeds), sorted({mutant.module for mutant in sample}))
    with ThreadPoolExecutor(chosen.workers) as workers:
        verdicts = list(workers.map(lambda mutant: tried(mutant, reaching(mutant, runs), verbose=chosen.verbose), sample))
    report(verdicts, len(runs), time.monotonic() - begun)
    return 0


Reached = frozenset[tuple[str, int]]
"""The lines that a schedule runs, by module."""


def clean(seeds: Sequence[int], modules: Sequence[str]) -> dict[int, Reached]:
    """These seeds without those that break something as the code is, and what of these modules each of them runs."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as children:
        outcomes = list(children.map(_traced, seeds, itertools.repeat(tuple(modules)), chunksize=8))
    for seed, (_, what) in zip(seeds, outcomes, strict=True):
        if what:
            print(f"left out: seed {seed} breaks without any change: {what}", flush=True)
    return {seed: lines for seed, (lines, what) in zip(seeds, outcomes, strict=True) if not what}


def reaching(mutant: Mutant, runs: Mapping[int, Reached]) -> list[int]:
    """The seeds whose schedules run a line that the mutant changes: the others are what they were."""
    lines = {(mutant.module, line) for line in mutant.lines}
    return [seed for seed, reached in runs.items() if not lines or lines & reached]


def _traced(seed: int, modules: Sequence[str]) -> tuple[Reached, str]:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found: set[tuple[str, int]] = set()
    files = {str(PACKAGE / f"{module}.py"): module for module in modules}

    def called(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        module = files.get(frame.f_code.co_filename)
        if module is None:
            return None

        def line(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            found.add((module, frame.f_lineno))
            return line

        return line

    sys.settrace(called)
    try:
        World(plan(seed)).run()
    except Exception as error:  # noqa: BLE001
        return frozenset(), f"{type(error).__name__}: {error}"
    finally:
        sys.settrace(None)
    return frozenset(found), ""


def tried(mutant: Mutant, seeds: Sequence[int], *, verbose: bool = False) -> Verdict:
    """Run schedules with a mutant until it is noticed."""
    outcome = _in_child(mutant, seeds) if seeds else []
    if not outcome:
        print(f"not noticed{'' if seeds else ', never run'}: {mutant}", flush=True)
        return Verdict(mutant, 0, "")
    seed, what = outcome[0]
    verdict = Verdict(mutant, seeds.index(seed) + 1, what)
    if verbose:
        print(f"noticed after {verdict.after}: {mutant}: {what[:200]}", flush=True)
    return verdict


def _in_child(mutant: Mutant, seeds: Sequence[int]) -> list[tuple[int, str]]:
    """The first schedule that broke in a child of this process, if one did."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(mutant, seeds, theirs))
    child.start()
    theirs.close()
    try:
        outcome: list[tuple[int, str]] = ours.recv()
    except EOFError:
        outcome = [(seeds[0], "the process died")]
    child.join()
    return outcome


def _run(mutant: Mutant, seeds: Sequence[int], results: Connection) -> None:
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    broken: list[tuple[int, str]] = []
    seed = seeds[0]

    def hangs(_number: int, _frame: FrameType | None) -> None:
        # Nothing is raised: asyncio would keep it in a task.
        results.send([*broken, (seed, f"it runs for {HANGS:g} s")])
        os._exit(0)

    signal.signal(signal.SIGVTALRM, hangs)
    plant(mutant)
    for number, seed in enumerate(seeds, 1):
        signal.setitimer(signal.ITIMER_VIRTUAL, HANGS)
        try:
            World(plan(seed)).run()
        except BaseException as error:  # noqa: BLE001
            broken.append((seed, f"{type(error).__name__}: {error}"))
            break
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        if number % COLLECT == 0:
            gc.collect()
    results.send(broken)
    results.close()
    os._exit(0)


def report(verdicts: Sequence[Verdict], seeds: int, seconds: float) -> None:
    """Print what became of them: how many were noticed by module, and in all."""
    total = Counter(each.mutant.module for each in verdicts)
    noticed = Counter(each.mutant.module for each in verdicts if each.after)
    for module, count in sorted(total.items()):
        print(f"{module}: {noticed[module]} of {count}")
    seen, of = noticed.total(), max(1, total.total())
    print(
        f"noticed by the simulation alone: {seen} of {total.total()} ({seen / of:.0%}), each within {seeds} schedules,"
        f" in {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
