"""The command line of the demo: `python -m dev.demo machine|cluster|down`. `make demo`, `demo-cluster` and `demo-down` call it.

It only tells the story of `dev.demo.story` in order, and exits with 1 if a promise did not hold or a step failed.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable

from kafka.errors import KafkaError

from dev.cluster.durations import Durations, about
from dev.cluster.errors import ClusterError
from dev.cluster.paths import cache
from dev.demo.account import render
from dev.demo.lab import Lab
from dev.demo.on_cluster import ClusterPlace
from dev.demo.on_machine import MachinePlace
from dev.demo.place import TOPIC, Place
from dev.demo.report import DemoError, Reporter
from dev.demo.story import OperatorKilled, Story
from dev.demo.traffic import Traffic
from dev.demo.visit import Visit, leave, visit


def tell(story: Story) -> bool:
    """All steps and the table; whether every promise held."""
    steps = (story.build, *story.steps)
    durations, names = Durations(), [f"{story.place.name} {step.__name__}" for step in steps]
    for number, step in enumerate(steps):
        story.reporter.say(f"{about(durations.left([names[number:]]))} left" if number else about(durations.left([names])))
        begun = story.reporter.seconds
        step()
        durations.note(names[number], story.reporter.seconds - begun)
    table = story.table()
    story.reporter.say("")
    story.reporter.show(render(table))
    broken = [line.name for line in table if line.holds is False]
    story.reporter.say("")
    story.reporter.say(f"BROKEN: {', '.join(broken)}" if broken else "every promise held")
    return not broken


def on_machine(options: argparse.Namespace) -> int:
    """Run it on this machine alone."""
    return tell_story(machine_place(options, Reporter()), options)


def on_cluster(options: argparse.Namespace) -> int:
    """Run it on a real cluster: one that is built here, or one of the user's."""
    if options.context:
        return visited(lambda: visit(of_the_users(options), options.image, options.kafka))
    return tell_story(ClusterPlace(Lab(options.name, Reporter())), options)


def tell_story(place: Place, options: argparse.Namespace) -> int:
    """Tell the story there, and what to look at; 1 if a promise did not hold or a step failed."""
    story = OperatorKilled(place) if options.kill_operator else Story(place)
    try:
        held = tell(story)
    except (DemoError, ClusterError) as error:
        place.reporter.say(f"FAILED: {error}")
        return 1
    except KafkaError as error:
        place.reporter.say(f"FAILED: the broker at {place.kafka_bootstrap} did not do it: {error!r}\n{place.explain()}")
        return 1
    except KeyboardInterrupt:
        place.reporter.say("stopped; what was started runs on: make demo-down removes it")
        return 130
    sys.stdout.write(place.next_steps())
    place.reporter.say(f"done in {place.reporter.seconds / 60:.1f} minutes")
    return 0 if held else 1


def down(options: argparse.Namespace) -> int:
    """Remove what both left. A cluster of the user's is left as it was."""
    if options.context:
        return visited(lambda: leave(of_the_users(options), options.kafka))
    reporter = Reporter()
    machine, lab = machine_place(options, reporter), Lab(options.name, reporter)
    removed: list[str] = []
    try:
        Traffic(machine, TOPIC).end()
        there = machine.stop()
        with contextlib.suppress(OSError):
            machine.folder.parent.rmdir()  # unless another instance has its folder there
        if there:
            removed.append(f"the group, its applications and Kafka on this machine, with all that was in {machine.folder}")
        if lab.cluster.state.exists():
            Traffic(lab, TOPIC).end()
            lab.cluster.down()
            removed.append(f"the cluster {options.name!r} with all that was in it")
    except (DemoError, ClusterError) as error:
        reporter.say(f"FAILED: {error}")
        return 1
    for what in removed or ["nothing: no demo is here"]:
        reporter.say(f"removed {what}")
    reporter.say(f"what was fetched and built once is kept in {cache()} for the next time")
    return 0


def machine_place(options: argparse.Namespace, reporter: Reporter) -> MachinePlace:
    """The place on this machine that the options name."""
    return MachinePlace(cache() / "demo" / options.name, reporter)


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
    parser = argparse.ArgumentParser(
        prog="python -m dev.demo", description="shardherd at work, and a count of what it promised."
    )
    commands = parser.add_subparsers(required=True)
    machine = commands.add_parser("machine", help="run the demo on this machine, without Kubernetes")
    machine.set_defaults(do=on_machine)
    cluster = commands.add_parser("cluster", help="build what is missing and run the demo on a real cluster")
    cluster.set_defaults(do=on_cluster)
    remove = commands.add_parser("down", help="remove what both left")
    remove.set_defaults(do=down)
    for command in (machine, cluster):
        command.add_argument("--kill-operator", action="store_true", help="also kill the operator while the group grows")
    for command in (machine, cluster, remove):
        command.add_argument("--name", default="demo", help="instance (default: demo)")
    for command in (cluster, remove):
        command.add_argument("--context", default="", help="a context of your kubeconfig: use that cluster, and none of ours")
        command.add_argument("--kubeconfig", default="", help="with --context: where that is (default: ~/.kube/config)")
        command.add_argument("--kafka", default="", help="with --context: host:port of a broker that its pods reach")
    cluster.add_argument("--image", default="shardherd:dev", help="with --context: prefix and tag of the two images")
    options = parser.parse_args()
    return int(options.do(options))


if __name__ == "__main__":
    sys.exit(main())
