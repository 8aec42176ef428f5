"""The command line of the long run: `python -m dev.soak --minutes 60 --faults random --seed 7`. `make soak` calls it.

It prints the plan first, and exits with 1 if a promise did not hold, something grew, or a step failed. The instance that it
starts is removed in the end, unless it is told to keep it.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys

from kafka.errors import KafkaError

from dev.cluster.errors import ClusterError
from dev.demo.lab import SYSTEM, Lab
from dev.demo.report import DemoError, Reporter
from dev.soak.plan import Fault, Kind, UnknownKindError, draw, kinds_of
from dev.soak.run import Soak, show
from tests.e2e.groups import SOAK


def soak(lab: Lab, seconds: float, plan: tuple[Fault, ...]) -> bool:
    """The whole run; whether everything held. Raises DemoError and others."""
    lab.reporter.step("A real cluster on this machine, two images, and the chart")
    lab.start()
    for namespace in (SYSTEM, SOAK):
        lab.make_namespace(namespace)
    lab.install([SOAK])
    broken = show(Soak(lab, seconds, plan)(), lab.reporter)
    lab.reporter.say("")
    lab.reporter.say(f"BROKEN: {broken}" if broken else "every promise held, and nothing grew")
    return not broken


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m dev.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long faults come")
    parser.add_argument("--faults", default="random", help=f"random, none, or some of {', '.join(Kind)} with commas in between")
    parser.add_argument("--seed", type=int, help="of the plan; default: drawn, and printed")
    parser.add_argument("--name", default="soak", help="instance (default: soak)")
    parser.add_argument("--plan", action="store_true", help="print the plan, and do nothing")
    parser.add_argument("--keep", action="store_true", help="leave the instance running")
    options = parser.parse_args()
    try:
        kinds = kinds_of(options.faults)
    except UnknownKindError as error:
        parser.error(str(error))
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    plan = draw(seed, options.minutes * 60, kinds)
    reporter = Reporter()
    reporter.say(f"make soak MINUTES={options.minutes:g} FAULTS={options.faults} SEED={seed}")
    reporter.show("\n".join(map(str, plan)) or "no faults")
    if options.plan:
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lab = Lab(options.name, reporter)
    try:
        held = soak(lab, options.minutes * 60, plan)
    except (DemoError, ClusterError, KafkaError, subprocess.TimeoutExpired) as error:
        reporter.say(f"FAILED: {error}")
        held = False
    except KeyboardInterrupt:
        reporter.say("stopped")
        return 130
    finally:
        if not options.keep:
            lab.cluster.down()
    reporter.say(f"done in {reporter.seconds / 60:.1f} minutes")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
