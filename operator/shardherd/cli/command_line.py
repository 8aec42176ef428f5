"""The command line: which command is asked for, and what its process is told. Decides nothing of what a command does.

The commands that look at groups are those of `inspect`, which are imported when one of them is asked for.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardherd.cli.operator_process import FAILED, operate
from shardherd.cli.standard_output import told
from shardherd.inspect import COMMANDS
from shardherd.settings import SettingsError, can_be_called, load

logger = logging.getLogger(__name__)

MISCONFIGURED = 2
"""Exit code: the settings are wrong."""

COMPLETING = "_SHARDHERD_COMPLETE"
"""Variable that a shell sets which asks what may stand in the place of a word."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (by default the process's) name; returns the exit code."""
    return told(lambda: _main(arguments), FAILED)


def _main(arguments: Sequence[str] | None) -> int:
    program = "kubectl shardherd" if Path(sys.argv[0]).name == "kubectl-shardherd" else "shardherd"
    if COMPLETING in os.environ or next(iter(sys.argv[1:] if arguments is None else arguments), "") in COMMANDS:
        return _inspect(lambda commands: commands.run(arguments, program))
    from shardherd.local import alone

    parser = argparse.ArgumentParser(prog=program, description="Spark applications that share the shards of a stream.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('shardherd')}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("operator", help="run the operator; settings come from SHARDHERD_* variables")
    commands.add_parser("version", help="print the version")
    pinged = commands.add_parser("ping", help="wait until the operator that leads answers, for `helm test`")
    pinged.add_argument(
        "url", type=_url, help="of the coordinator's API, for example https://shardherd.shardherd-system.svc:8443"
    )
    pinged.add_argument("--ca-file", type=Path, help="PEM file of the authorities to believe it by (default: the system's)")
    pinged.add_argument("--within", type=_seconds, default=60.0, help="seconds (default 60)")
    if (given := sys.argv[1:] if arguments is None else list(arguments))[:1] == ["local"]:
        # It needs what the extra `local` installs, which an operator in its pod does without.
        from shardherd.local import commands as local

        local.add_to(commands)
        return local.run(parser.parse_args(given))
    if (given[:1] or [""])[0] == "brokers":
        # An operator does without it until it is asked for.
        from shardherd.inspect import asking

        asking.add_to(commands)
        return asking.run(parser.parse_args(given))
    commands.add_parser("brokers", help="ask the brokers of groups, from here, how their topics are set")
    commands.add_parser("local", help="run ConsumerGroups on this machine, without Kubernetes")
    alone.add_to(commands)
    for name, about in COMMANDS.items():
        commands.add_parser(name, help=about)
    options = parser.parse_args(arguments)
    if options.command == "run":
        return alone.run(options)
    if options.command == "version":
        print(version("shardherd"))
        return 0
    if options.command == "ping":
        from shardherd.client.ping import ping

        try:
            return 0 if ping(options.url, options.within, options.ca_file) else FAILED
        except KeyboardInterrupt:
            return FAILED
    try:
        settings = load(os.environ)
    except SettingsError as error:
        print(f"shardherd: {error}", file=sys.stderr)
        return MISCONFIGURED
    from shardherd.telemetry import logs, tracing

    logs.configure(settings.telemetry.log_format, settings.telemetry.log_level)
    identity = settings.identity
    try:
        whose = tracing.instance(identity.namespace, identity.pod_name)
        traces = tracing.start(os.environ, "shardherd-operator", whose)
    except tracing.TracingError as error:
        print(f"shardherd: {error}", file=sys.stderr)
        return MISCONFIGURED
    # Its loop passes a heartbeat on in less time than asyncio's own; nothing else depends on which one it is.
    import uvloop

    try:
        return uvloop.run(operate(settings, traces=traces))
    except OSError as error:
        tls = f", {settings.tls.port}" if settings.tls.mode != "disabled" else ""
        page = f", {settings.page_port}" if settings.page_port else ""
        ports = f"ports {settings.api.port}{tls}{page} and {settings.telemetry.metrics_port}"
        logger.error("cannot start: %s (it listens on %s: are they free?)", error, ports)  # noqa: TRY400
        return FAILED
    finally:
        if traces is not None:
            traces.close()


def _url(text: str) -> str:
    """A URL that can be called. Raises ArgumentTypeError."""
    if not can_be_called(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL: write for example https://shardherd.shardherd-system.svc:8443")
    return text


def _seconds(text: str) -> float:
    """A time to wait. Raises ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: write 0 or more, for example 60")
    return found


def complete() -> int:
    """What kubectl asks a plugin of the name `kubectl_complete-shardherd`: what may stand in the place of the last word."""
    return told(lambda: _inspect(lambda commands: commands.complete(sys.argv[1:])), FAILED)


def _inspect(work: Callable[[Any], int]) -> int:
    """Do something with the commands that look at groups. They need what the extra `cli` installs."""
    try:
        from shardherd.inspect import commands
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "shardherd":
            raise
        print(
            f"shardherd: this command needs the package {error.name}: install shardherd with its extra `cli`", file=sys.stderr
        )
        return FAILED
    return work(commands)
