"""Decides what the command line offers: `python3 -m dev.cluster COMMAND [--name NAME]`. Holds no logic of its own."""

from __future__ import annotations

import argparse
import shlex
import sys

from dev.cluster import builder
from dev.cluster.cluster import Cluster
from dev.cluster.errors import ClusterError
from dev.cluster.everything import build_everything
from dev.cluster.progress import say
from dev.cluster.tools import Tools


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(prog="python3 -m dev.cluster", description="A real single-node cluster on this machine.")
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("tools", help="install and build every program, once, into the cache")
    commands.add_parser("everything", help="the same, both images, and what only tests need")
    commands.add_parser("kafka", help="install Java and fetch Kafka, once")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="demo", help="which instance (default: demo)")
    up = commands.add_parser("up", parents=[named], help="start an instance, or what is missing of it")
    up.add_argument("--no-node", action="store_true", help="API server only: pods stay Pending")
    up.add_argument("--no-kafka", action="store_true")
    up.add_argument("--no-prometheus", action="store_true")
    commands.add_parser("down", parents=[named], help="remove an instance and all its state")
    commands.add_parser("status", parents=[named], help="what runs, and where it is reached")
    commands.add_parser("env", parents=[named], help='shell exports: eval "$(python3 -m dev.cluster env)"')
    commands.add_parser("images", help="build shardherd/operator:dev, shardherd/spark:dev and shardherd/worker:dev")
    load = commands.add_parser("load", parents=[named], help="bring a built image into an instance")
    load.add_argument("image")
    return top


def main(arguments: list[str]) -> None:
    """Do one command; ClusterError says what did not work."""
    options = parser().parse_args(arguments)
    if options.command in ("tools", "everything"):
        everything = options.command == "everything"
        build_everything(images=everything, tests=everything)
        return
    if options.command == "kafka":
        _ = Tools().kafka
        return
    if options.command == "images":
        for name, identity in builder.build().items():
            print(f"{name} {identity}")
        return
    cluster = Cluster(options.name)
    match options.command:
        case "up":
            cluster.up(node=not options.no_node, kafka=not options.no_kafka, prometheus=not options.no_prometheus)
        case "down":
            cluster.down()
        case "status":
            show_status(cluster)
        case "env":
            for key, value in exports(cluster).items():
                print(f"export {key}={shlex.quote(value)}")
            programs = f"{cluster.tools.kubernetes}:{cluster.tools.helm.parent}"
            print(f'export PATH={shlex.quote(programs)}:"$PATH"')
        case "load":
            say("loaded" if cluster.load_image(options.image) else "it was there already")


def exports(cluster: Cluster) -> dict[str, str]:
    """What `env` prints."""
    return {
        "KUBECONFIG": str(cluster.kubeconfig),
        "KAFKA_BOOTSTRAP": cluster.kafka_bootstrap,
        "PROMETHEUS_URL": cluster.prometheus_url,
    }


def show_status(cluster: Cluster) -> None:
    """Print the processes and addresses of an instance; exit code 1 if it is not up."""
    running = cluster.status()
    if not running:
        print(f"instance {cluster.name!r} is not up")
        raise SystemExit(1)
    for name, pid in sorted(running.items()):
        print(f"{name:<26} running (pid {pid} inside, log {cluster.layout.log(name)})")
    for key, value in exports(cluster).items():
        print(f"{key:<26} {value}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ClusterError as error:
        sys.exit(f"error: {error}")
