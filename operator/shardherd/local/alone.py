"""`shardherd run`: one Spark application by itself, or a worker of a group, as a process in the place of this one. By `cli`.

It decides the environment only; `shardherd.spark.session()` finds in it that there is no group, `worker.starting` which one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MISUSED = 2

CHECKPOINT = Path("checkpoint")
"""Spark's checkpoint folder where none is named."""

_PROCESSOR = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")

WORKER = {
    "group-uid": ("SHARDHERD_GROUP_UID", "its UID"),
    "coordinator": ("SHARDHERD_COORDINATOR_URL", "URL of the coordinator's API"),
    "consumer": ("SHARDHERD_CONSUMER", "name of this consumer (default: of this host)"),
    "pod-uid": ("SHARDHERD_POD_UID", "names this run of it (default: as nobody is named)"),
    "token-file": ("SHARDHERD_TOKEN_FILE", "file with the token to show to the coordinator"),
    "ca-file": ("SHARDHERD_COORDINATOR_CA_FILE", "PEM file of the authorities to believe it by"),
}
"""The arguments that say where a worker is, each with the variable that does so in a pod, and its meaning."""


KINESIS = {
    "stream": "name or ARN of a stream of Kinesis, in the place of Kafka",
    "region": "its region",
    "endpoint": "URL in the place of AWS's own",
    "credentials": "folder with the files accessKeyId and secretAccessKey, perhaps sessionToken (default: AWS finds who it is)",
}
"""The arguments that say which stream is read, with their meanings. Each is an option of the source, and a variable."""


def add_to(commands: Any) -> None:
    """Add `run` to the command line's commands."""
    made: argparse.ArgumentParser = commands.add_parser(
        "run", help="run one Spark application by itself, without a group; or a worker of a group"
    )
    made.add_argument("--bootstrap", help="Kafka's host:port")
    for name, meaning in KINESIS.items():
        made.add_argument(f"--{name}", help=meaning)
    made.add_argument(
        "--option",
        action="append",
        default=[],
        help="NAME=VALUE, for example startingOffsets=earliest; of a worker for example threads=8 or kafka.isolation.level=...",
    )
    made.add_argument("--python", type=program, default=sys.executable, help="Python that runs it (default: this one)")
    spark = made.add_argument_group("of a Spark application")
    spark.add_argument("--topic", type=_topic, action="append", help="to read; may be given more than once")
    spark.add_argument("--checkpoint", type=_folder, help=f"Spark's checkpoint folder (default {CHECKPOINT})")
    worker = made.add_argument_group("of a worker", "in a pod of a ConsumerGroup the environment says all of this")
    worker.add_argument("--group", default="", help="namespace/name of the ConsumerGroup")
    for name, (_, meaning) in WORKER.items():
        worker.add_argument(f"--{name}", help=meaning)
    made.add_argument("application", help="file of a Spark application, or module:Class of a worker's processor")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help="of the Spark application")


def program(text: str) -> str:
    """Where this program is, whatever folder it will be started in. Raises ArgumentTypeError."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no program that can be run: name a Python")
    # Its links stay as they are: by where it is called from it knows its virtual environment.
    return str(Path(found).absolute())


def _topic(text: str) -> str:
    """A topic, or several separated by commas. Raises ArgumentTypeError for one without a name, as of a variable not set."""
    if not all(topic.strip() for topic in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name: name a topic, for example clicks")
    return text


def _folder(text: str) -> Path:
    """A folder. Raises ArgumentTypeError for an empty text, as of a variable that is not set: it is not where we are."""
    if not text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no folder: name one, for example checkpoint, or . for the one you are in"
        )
    return Path(text)


def run(arguments: argparse.Namespace) -> int:
    """Become the application; returns only if that cannot be."""
    if (problem := _problem(arguments)) is not None:
        print(f"shardherd: {problem}", file=sys.stderr)
        return MISUSED
    if is_processor(arguments.application):
        command = [arguments.python, "-m", "shardherd.worker", arguments.application]
        return _become(command, worker_environment(arguments, os.environ))
    sys.stdout.flush()
    command = [arguments.python, arguments.application, *arguments.arguments]
    return _become(command, environment(arguments, os.environ))


def is_processor(application: str) -> bool:
    """Whether it has the form `module:Class`, and is no file."""
    return _PROCESSOR.fullmatch(application) is not None and not Path(application).exists()


def _problem(arguments: argparse.Namespace) -> str | None:
    """What is wrong with the arguments, and the remedy."""
    for option in arguments.option:
        key, equals, _ = option.partition("=")
        if not (equals and key.strip()):
            return f"--option {option} has no {'name' if equals else 'value'}: write NAME=VALUE"
    name, stream = arguments.application, _kinesis(arguments)
    if stream and "stream" not in stream:
        return f"--{next(iter(stream))} is of Kinesis: give --stream, or leave it out"
    if stream and (arguments.bootstrap or arguments.topic):
        other = "bootstrap" if arguments.bootstrap else "topic"
        return f"--stream is of Kinesis, and --{other} of Kafka: leave out one of them"
    if is_processor(name):
        if arguments.group and not all(arguments.group.partition("/")):
            return f"--group must be namespace/name, not {arguments.group}"
        for option in ("topic", "checkpoint"):
            if getattr(arguments, option):
                return f"--{option} is of a Spark application, and {name} a processor: leave it out"
        return f"a worker takes no arguments such as {arguments.arguments[0]}" if arguments.arguments else None
    if not Path(name).is_file():
        return f"{name} is no file: name the application"
    for option in ("group", *WORKER):
        if getattr(arguments, option.replace("-", "_")):
            return (
                f"--{option} is of a worker, and {name} an application by itself: leave it out, or run its group by"
                " `shardherd local up`"
            )
    if not stream and not (arguments.bootstrap and arguments.topic):
        for option in (word.partition("=")[0] for word in arguments.arguments):
            if option in ("--bootstrap", "--topic", "--stream"):
                return f"{option} stands behind {name}, as if it were the application's own: write it before"
        return f"{name} by itself has no group: give --bootstrap and --topic, or --stream"
    return None


def _kinesis(arguments: argparse.Namespace) -> dict[str, str]:
    """What is given of a stream of Kinesis, by the names of the arguments."""
    given = {name: getattr(arguments, name) for name in KINESIS}
    return {name: value for name, value in given.items() if value}


def _become(command: list[str], variables: Mapping[str, str]) -> NoReturn:
    os.execvpe(command[0], command, variables)


def environment(arguments: argparse.Namespace, inherited: Mapping[str, str]) -> dict[str, str]:
    """The application's environment: `inherited`, and the options that a group would set."""
    if stream := _kinesis(arguments):
        options = {f"kinesis.{name}": value for name, value in stream.items()}
    else:
        options = {"kafka.bootstrap.servers": arguments.bootstrap, "subscribe": ",".join(arguments.topic)}
    options |= dict(option.split("=", 1) for option in arguments.option)
    kept = {name: value for name, value in inherited.items() if not name.startswith("SHARDHERD_")}
    return kept | {
        "SHARDHERD_ALONE": json.dumps(options),
        "SHARDHERD_CONSUMER": Path(arguments.application).stem,
        "SHARDHERD_START": "1",
        "SHARDHERD_CHECKPOINT_PATH": str((arguments.checkpoint or CHECKPOINT).resolve()),
    }


def worker_environment(arguments: argparse.Namespace, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: `inherited`, as that of its pod if it is in one, and what is given in its place."""
    options = dict(option.split("=", 1) for option in arguments.option)
    kafka = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    given = {variable: getattr(arguments, name.replace("-", "_")) for name, (variable, _) in WORKER.items()}
    given |= {f"SHARDHERD_WORKER_{name.upper()}": value for name, value in options.items() if not name.startswith("kafka.")}
    given |= {"SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": arguments.bootstrap}
    given |= {f"SHARDHERD_KINESIS_{name.upper()}": value for name, value in _kinesis(arguments).items()}
    if kafka:
        given["SHARDHERD_WORKER_KAFKA"] = json.dumps(kafka)
    if arguments.group:
        given["SHARDHERD_NAMESPACE"], _, given["SHARDHERD_GROUP"] = arguments.group.partition("/")
    return {**inherited, **{variable: value for variable, value in given.items() if value is not None}}
