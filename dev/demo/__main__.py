"""The command line of the demo: `python -m dev.demo up|down`. `make demo` and `make demo-down` call it.

It only tells the story of `dev.demo.story` in order, and exits with 1 if a promise did not hold or a step failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

from dev.cluster.errors import ClusterError
from dev.cluster.paths import cache
from dev.demo.account import render
from dev.demo.lab import SYSTEM, Lab
from dev.demo.report import DemoError, Reporter
from dev.demo.story import GROUP, NAMESPACE, TOPIC, OperatorKilled, Story
from dev.demo.traffic import Traffic
from dev.demo.visit import Visit, leave, visit


def tell(story: Story) -> bool:
    """All steps and the table; whether every promise held."""
    story.build()
    story.prepare()
    story.apply()
    story.grow()
    story.kill()
    story.scale_in()
    story.finish()
    table = story.table()
    story.reporter.say("")
    story.reporter.show(render(table))
    broken = [line.name for line in table if line.holds is False]
    story.reporter.say("")
    story.reporter.say(f"BROKEN: {', '.join(broken)}" if broken else "every promise held")
    return not broken


def next_steps(lab: Lab) -> str:
    """What a newcomer may look at, everything still running."""
    kubectl = lab.cluster.tools.kubectl
    return f"""
Everything still runs. To look around:

  export KUBECONFIG={lab.cluster.kubeconfig} PATH={kubectl.parent}:$PATH
  kubectl get shcg,pods -n {NAMESPACE}
  kubectl describe shcg {GROUP} -n {NAMESPACE}
  kubectl logs -n {SYSTEM} -l shardherd.dev/leader=true --tail=20
  kubectl logs -n {NAMESPACE} {GROUP}-0 --tail=20

  Prometheus: {lab.cluster.prometheus_url}/graph?g0.expr=shardherd_shard_lag_records
  rows of the sink: {lab.shared / NAMESPACE}

  make demo        run it again      make demo-down   remove all of it
"""


def up(options: argparse.Namespace) -> int:
    """Run it all."""
    if options.context:
        return visited(lambda: visit(of_the_users(options), options.image, options.kafka))
    lab = Lab(options.name, Reporter())
    story = OperatorKilled(lab) if options.kill_operator else Story(lab)
    try:
        held = tell(story)
    except (DemoError, ClusterError) as error:
        lab.reporter.say(f"FAILED: {error}")
        return 1
    sys.stdout.write(next_steps(lab))
    lab.reporter.say(f"done in {lab.reporter.seconds / 60:.1f} minutes")
    return 0 if held else 1


def down(options: argparse.Namespace) -> int:
    """Remove all of it: the producer, then the instance with everything in it. A cluster of the user's is left as it was."""
    if options.context:
        return visited(lambda: leave(of_the_users(options), options.kafka))
    lab = Lab(options.name, Reporter())
    try:
        if lab.cluster.state.exists():
            Traffic(lab, TOPIC).end()
        lab.cluster.down()
    except (DemoError, ClusterError) as error:
        lab.reporter.say(f"FAILED: {error}")
        return 1
    lab.reporter.say(f"instance {options.name!r} is gone; what was built once is kept in the cache for the next time")
    return 0


def of_the_users(options: argparse.Namespace) -> Visit:
    """The cluster of the user's that the options name."""
    folder = cache() / "demo-contexts" / options.context.replace("/", "_")
    return Visit(options.context, options.kubeconfig, Reporter(), folder)


def visited(act: Callable[[], bool]) -> int:
    """Do it on a cluster of the user's; 1 if it failed."""
    try:
        return 0 if act() else 1
    except (DemoError, subprocess.TimeoutExpired) as error:
        Reporter().say(f"FAILED: {error}")
        return 1


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m dev.demo", description="shardherd at work on a real cluster.")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("up", help="build what is missing and run the demo")
    run.add_argument("--kill-operator", action="store_true", help="also kill the operator's process while the group grows")
    run.set_defaults(do=up)
    remove = commands.add_parser("down", help="remove all of it")
    remove.set_defaults(do=down)
    for command in (run, remove):
        command.add_argument("--name", default="demo", help="instance of the cluster (default: demo)")
        command.add_argument("--context", default="", help="a context of your kubeconfig: use that cluster, and none of ours")
        command.add_argument("--kubeconfig", default="", help="with --context: where that is (default: ~/.kube/config)")
        command.add_argument("--kafka", default="", help="with --context: host:port of a broker that its pods reach")
    run.add_argument("--image", default="shardherd:dev", help="with --context: prefix and tag of the two images")
    options = parser.parse_args()
    return int(options.do(options))


if __name__ == "__main__":
    sys.exit(main())
