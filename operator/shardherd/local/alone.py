"""`shardherd run app.py`: one application by itself, as a process in the place of this one. Called by `cli`.

It decides the environment only; `shardherd.spark.session()` finds in it that there is no group.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MISUSED = 2


def add_to(commands: Any) -> None:
    """Add `run` to the command line's commands."""
    made: argparse.ArgumentParser = commands.add_parser("run", help="run one Spark application by itself, without a group")
    made.add_argument("--bootstrap", required=True, help="Kafka's host:port")
    made.add_argument("--topic", action="append", required=True, help="to read; may be given more than once")
    made.add_argument(
        "--option", action="append", default=[], help="NAME=VALUE of the source, for example startingOffsets=earliest"
    )
    made.add_argument(
        "--checkpoint", type=Path, default=Path("checkpoint"), help="Spark's checkpoint folder (default checkpoint)"
    )
    made.add_argument("--python", default=sys.executable, help="Python that runs it (default: this one)")
    made.add_argument("application", type=Path)
    made.add_argument("arguments", nargs=argparse.REMAINDER)


def run(arguments: argparse.Namespace) -> int:
    """Become the application; returns only if that cannot be."""
    wrong = [option for option in arguments.option if "=" not in option]
    if wrong:
        print(f"shardherd: --option {wrong[0]} has no value: write NAME=VALUE", file=sys.stderr)
        return MISUSED
    if not arguments.application.is_file():
        print(f"shardherd: {arguments.application} is no file: name the application", file=sys.stderr)
        return MISUSED
    sys.stdout.flush()
    command = [arguments.python, str(arguments.application), *arguments.arguments]
    return _become(command, environment(arguments, os.environ))


def _become(command: list[str], variables: Mapping[str, str]) -> NoReturn:
    os.execvpe(command[0], command, variables)


def environment(arguments: argparse.Namespace, inherited: Mapping[str, str]) -> dict[str, str]:
    """The application's environment: `inherited`, and the options that a group would set."""
    options = {"kafka.bootstrap.servers": arguments.bootstrap, "subscribe": ",".join(arguments.topic)}
    options |= dict(option.split("=", 1) for option in arguments.option)
    kept = {name: value for name, value in inherited.items() if not name.startswith("SHARDHERD_")}
    return kept | {
        "SHARDHERD_ALONE": json.dumps(options),
        "SHARDHERD_CONSUMER": arguments.application.stem,
        "SHARDHERD_START": "1",
        "SHARDHERD_CHECKPOINT_PATH": str(arguments.checkpoint.resolve()),
    }
