"""`python -m tests.simulation`: many schedules, one schedule step by step, or the planted bugs."""

from __future__ import annotations

import argparse
import json
import os
import sys

from tests.simulation import campaign, seeds
from tests.simulation.bugs import BUGS
from tests.simulation.campaign import Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many schedules")
    parser.add_argument("--start", type=int, help="the first seed; default: drawn, and printed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many processes")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show one schedule step by step")
    parser.add_argument("--bug", choices=list(BUGS), help="with this bug in the real code")
    parser.add_argument("--planted-bugs", action="store_true", help="look for every planted bug among the first seeds")
    parser.add_argument("--renew", action="store_true", help="write down which seed shows each planted bug")
    parser.add_argument("--worker", type=int, nargs=3, metavar=("FROM", "TO", "STEP"), help=argparse.SUPPRESS)
    parser.add_argument("--known-bug", nargs=2, action="append", metavar=("SEED", "BUG"), help=argparse.SUPPRESS)
    parser.add_argument("--also", type=int, nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--stop-at-first", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        campaign.end_with_parent()
        many = [*chosen.also, *range(*chosen.worker)]
        report = campaign.simulate(many, stop_at_first=chosen.stop_at_first, bug=chosen.bug, watched=True)
        print(report.as_json())
        return 0
    if chosen.known_bug is not None:
        campaign.end_with_parent()
        print(json.dumps(campaign.look_at_known([(name, int(seed)) for seed, name in chosen.known_bug])))
        return 0
    if chosen.replay is not None:
        broken = campaign.replay(chosen.replay, print, chosen.bug)
        print(broken or "every promise was kept")
        return 1 if broken else 0
    if chosen.planted_bugs:
        return _planted(chosen.seeds, chosen.workers, renew=chosen.renew)
    start = seeds.drawn() if chosen.start is None else chosen.start
    print(f"{chosen.seeds} seeds from {start} on (the same again: SEED_START={start})", flush=True)
    report = campaign.spread(chosen.seeds, start, chosen.workers, bug=chosen.bug)
    _print(report, f"{campaign.REPLAY} {{seed}}" + (f" --bug '{chosen.bug}'" if chosen.bug else ""))
    return 1 if report.broken or report.never_hit() else 0


def _planted(count: int, workers: int, *, renew: bool) -> int:
    found = campaign.find_bugs(list(BUGS), count, workers)
    for name, first in found.items():
        print(f"{name}: " + (f"not found within {count} seeds" if first is None else f"seed {first[0]}: {first[1][:160]}"))
    if renew:
        seeds.renew_bugs({name: first[0] for name, first in found.items() if first is not None})
    seen = sum(first is not None for first in found.values())
    print(f"found: {seen}/{len(found)}")
    return 0 if seen == len(found) else 1


def _print(report: Report, replay: str) -> None:
    """`replay` is the command that shows a seed again, with {seed} in it."""
    for title, counts in (
        ("pairs of faults", report.pairs),
        ("faults", report.faults),
        ("what happened", report.counts),
    ):
        print(f"{title}:")
        for name, count in sorted(counts.items()):
            print(f"  {count:10d}  {name}")
    print("transitions:")
    for name in campaign.TRANSITIONS:
        print(f"  {report.transitions[name]:10d}  {name}" + ("" if report.transitions[name] else "  NEVER HIT"))
    for seed, what in sorted(report.broken)[:20]:
        print(f"BROKEN: seed {seed}: {what[:300]}\n  replay it with: {replay.format(seed=seed)}")
    print(
        f"{report.schedules} schedules in {report.seconds:.0f} s, {len(report.broken)} broken, in each at least"
        f" {report.fewest_deliveries} deliveries, {report.fewest_faults} faults and {report.shortest:.0f} virtual seconds,"
        f" {len(report.faults)} kinds of faults, {len(report.pairs)} pairs of them"
    )


if __name__ == "__main__":
    sys.exit(main())
