"""The commands of `shardherd local`: their arguments, and what each prints. Called by `cli`.

They work on the state folder as kubectl works on an API server, also while no operator runs on it. Each returns an exit code.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardherd.adapters.local.containers import Container
from shardherd.adapters.local.database import DatabaseError, unusable
from shardherd.adapters.local.identity import FileLeadership, holder
from shardherd.adapters.local.objects import GROUP, POD, Json, Objects
from shardherd.clock import boot_time
from shardherd.core.model.wording import some
from shardherd.local import operator, report
from shardherd.local.alone import program
from shardherd.local.manifest import STDIN, Declared, ManifestError, declare, drop_others, scaled
from shardherd.local.operator import Asked, CannotRunError
from shardherd.local.schema import RefusedError
from shardherd.local.state import State, StateError
from shardherd.telemetry import logs

FAILED = 1
"""Exit code: it could not be done."""

FOLDER = Path(".shardherd")
LOOK = 0.1
"""Seconds between looks at something that another process does."""

START_TIMEOUT = 60.0
"""Seconds that an operator in the background has to lead."""

LAST_PORT = 65535

WARNING, DROPPED = "warning: ", " is not declared any more: its consumers drain and end"
"""How lines about a manifest begin and end that somebody should see, also where they are written to the log."""

BOOTSTRAP, APP_DIR = "bootstrap", "app-dir"
"""Options of `up` that are kept in the state folder under these names: a later `apply` means the same Kafka and code."""

SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "STOP": signal.SIGSTOP, "CONT": signal.SIGCONT}

Arguments = argparse.Namespace


def add_to(commands: Any) -> None:
    """Add `local` to the command line's commands."""
    local = commands.add_parser("local", help="run ConsumerGroups on this machine, without Kubernetes")
    verbs = local.add_subparsers(dest="verb", required=True)

    def verb(name: str, work: Callable[[Arguments, State], int], text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(name, help=text)
        made.add_argument("--state", type=_folder, default=FOLDER, help=f"folder for all that is kept (default {FOLDER})")
        made.set_defaults(local=work)
        return made

    def manifest(name: str, made: argparse.ArgumentParser, *, required: bool) -> None:
        otherwise = "" if required else "; without it, what was declared last goes on"
        made.add_argument(
            "-f",
            "--file",
            type=Path,
            action="append",
            required=required,
            help=f"manifest, as for kubectl apply: - is standard input{otherwise}",
        )
        kept = "" if name == "up" else ", or what `up` was given"
        made.add_argument("--bootstrap", help=f"Kafka's host:port (default: the manifest's{kept})")
        made.add_argument("--app-dir", type=Path, help=f"where mainApplicationFile is (default: beside the manifest{kept})")
        made.add_argument(
            "--python", type=program, default=sys.executable, help="Python that runs the applications (default: this one)"
        )

    up = verb("up", _up, "run what the manifest declares until Ctrl-C; then drain")
    manifest("up", up, required=False)
    up.add_argument("-d", "--detach", action="store_true", help="run in the background; end it by `local down`")
    for name, whose in (
        ("port", "the coordinator's API"),
        ("metrics-port", "/metrics"),
        ("page-port", "the page for a browser"),
    ):
        up.add_argument(f"--{name}", type=_port, default=0, help=f"of {whose} (default: any, then always the same)")
    up.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    manifest("apply", verb("apply", _apply, "change what runs to what the manifest declares now"), required=True)
    verb("status", _status, "show groups, consumers, and what happened last")
    shown = verb("logs", _logs, "print what a consumer wrote")
    shown.add_argument("consumer", help="for example clicks-0")
    shown.add_argument("-n", "--namespace", help="of its group, if another one has a consumer of the same name")
    shown.add_argument("-p", "--previous", action="store_true", help="of the start before the last")
    shown.add_argument("-f", "--follow", action="store_true", help="print on, also what later starts write, until Ctrl-C")
    scale = verb("scale", _scale, "set how many consumers a group has (scaling modes Fixed and External)")
    scale.add_argument("group")
    scale.add_argument("replicas", type=int)
    scale.add_argument("-n", "--namespace", help="of the group, if another one has the same name")
    kill = verb("kill", _kill, "send a consumer a signal, to see what happens")
    kill.add_argument("consumer")
    kill.add_argument("-n", "--namespace", help="of its group, if another one has a consumer of the same name")
    kill.add_argument("-s", "--signal", default="KILL", choices=sorted(SIGNALS), help="default KILL")
    down = verb("down", _down, "drain and end all consumers, and the operator")
    down.add_argument("--forget", action="store_true", help="remove all that is kept in the state folder, too")


def _folder(text: str) -> Path:
    """A folder. Raises ArgumentTypeError for an empty text, as of a variable that is not set: it is not where we are."""
    if not text:
        raise argparse.ArgumentTypeError(f"it is empty: name a folder, for example {FOLDER}")
    return Path(text)


def _port(text: str) -> int:
    """A port, or 0 for any. Raises ArgumentTypeError."""
    if re.fullmatch("[0-9]{1,5}", text) is None or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no port: use a number from 1 to {LAST_PORT}, or 0 for any")
    return int(text)


def run(arguments: Arguments) -> int:
    """Run the command that was asked for."""
    work: Callable[[Arguments, State], int] = arguments.local
    state = State(arguments.state)
    try:
        return work(arguments, state)
    except (ManifestError, RefusedError, StateError, DatabaseError, CannotRunError) as error:
        print(f"shardherd: {error}", file=sys.stderr)
        return FAILED
    except sqlite3.Error as error:
        print(f"shardherd: {unusable(state.database, error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return FAILED


def _up(arguments: Arguments, state: State) -> int:
    if not Path("/proc/self/stat").exists() or not hasattr(os, "pidfd_open"):
        raise CannotRunError("local mode needs Linux (a virtual machine, WSL 2 or a container will do)")
    state.make()
    if (other := holder(state.lock)) is not None:
        raise CannotRunError(
            f"a local operator (process {other}) runs on {state.folder} already: change what it runs by `shardherd local"
            " apply`, end it by `shardherd local down`, or give another folder by --state"
        )
    if arguments.detach:
        return _detached(state, _in_the_foreground(arguments), told=STDIN in (arguments.file or ()))
    leadership = FileLeadership(state.lock)
    if not leadership.take():
        raise CannotRunError(f"another local operator has just begun on {state.folder}")
    objects = state.objects()
    if arguments.file:
        for dropped in drop_others(objects, _declare(arguments, objects, {}).groups):
            print(f"{dropped}{DROPPED}")
    elif not objects.all(GROUP):
        raise ManifestError(f"{state.folder} has no ConsumerGroup yet: name the manifest file by -f")
    logs.configure("text", arguments.log_level)

    def ready(api: str, metrics: str, page: str) -> None:
        print(f"leading: the coordinator answers at {api}, the page is at {page}, metrics are at {metrics}", flush=True)

    asked = Asked(arguments.port, arguments.metrics_port, arguments.page_port, ready=ready)
    return _operate(state, objects, leadership, asked, arguments.python)


def _operate(state: State, objects: Objects, leadership: FileLeadership, asked: Asked, python: str) -> int:
    # Kafka's client and Spark's own variables have no place in an application's environment but what its manifest says.
    machine = state.machine(python, os.environ)
    try:
        well = asyncio.run(operator.operate(state, objects, machine, leadership, asked))
    finally:
        leadership.let_go()
        objects.database.close()
    return 0 if well else FAILED


def _in_the_foreground(arguments: Arguments) -> list[str]:
    """The same `up` for a process of its own. It is written anew, as `-d` may stand in one word with other options."""
    given = {name: value for name, value in vars(arguments).items() if name not in ("command", "verb", "local", "detach")}
    words = ["local", "up"]
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            words += [] if each is None else [f"--{name.replace('_', '-')}={each}"]
    return words


def _detached(state: State, again: list[str], *, told: bool) -> int:
    """The command `again` in the background, until it leads or has failed; `told`: it reads our standard input."""
    begun = state.log.stat().st_size if state.log.exists() else 0
    with state.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardherd", *again],
            stdin=None if told else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = boot_time() + START_TIMEOUT
    while boot_time() < until and process.poll() is None:
        with state.log.open(errors="replace") as log_file:
            log_file.seek(begun)
            said = log_file.read()
        lines = said.splitlines()
        if (at := next((at for at, line in enumerate(lines) if line.startswith("leading: ")), None)) is not None:
            for line in lines[:at]:
                if line.startswith(WARNING):
                    print(line, file=sys.stderr)
                elif line.endswith(DROPPED):
                    print(line)
            print(f"{lines[at]}\nit runs in the background; its log is {state.log}")
            return 0
        time.sleep(LOOK)
    with state.log.open(errors="replace") as log_file:
        log_file.seek(begun)
        print(log_file.read(), file=sys.stderr, end="")
    raise CannotRunError(f"the operator did not begin to lead; its log is {state.log}")


def _declare(arguments: Arguments, objects: Objects, before: Mapping[str, str]) -> Declared:
    """Declare the groups with the options that are given, in the place of those from before; keep them for `apply`."""
    if arguments.app_dir is not None and not arguments.app_dir.is_dir():
        raise ManifestError(f"--app-dir {arguments.app_dir} is no folder: name the one in which the applications are")
    app_dir = None if arguments.app_dir is None else str(arguments.app_dir.resolve())
    given = {BOOTSTRAP: arguments.bootstrap, APP_DIR: app_dir}
    options = {name: before.get(name, "") if value is None else value for name, value in given.items()}
    folder = Path(options[APP_DIR]) if options[APP_DIR] else None
    declared = declare(objects, arguments.file, bootstrap=options[BOOTSTRAP], app_dir=folder, python=arguments.python)
    for warning in declared.warnings:
        print(f"{WARNING}{warning}", file=sys.stderr)
    for name, value in options.items():
        objects.database.note(name, value)
        if value and given[name] is None:
            print(f"--{name} is {value}, as before")
    return declared


def _apply(arguments: Arguments, state: State) -> int:
    objects = state.there().objects()
    before = {name: objects.database.fact(name) or "" for name in (BOOTSTRAP, APP_DIR)}
    for namespace, name in _declare(arguments, objects, before).groups:
        print(f"{namespace}/{name} is declared")
    return 0


def _status(_arguments: Arguments, state: State) -> int:
    text = report.status(state.there(), state.objects())
    with _while_it_is_read():
        print(text, end="", flush=True)
    return 0


def _scale(arguments: Arguments, state: State) -> int:
    objects = state.there().objects()
    groups = _named(objects, GROUP, arguments.group, arguments.namespace)
    namespace = _only(f"{arguments.group!r} is a group of", groups.keys()) or arguments.namespace or "default"
    scaled(objects, namespace, arguments.group, arguments.replicas)
    print(f"{namespace}/{arguments.group} is to have {arguments.replicas} consumers")
    return 0


def _logs(arguments: Arguments, state: State) -> int:
    state.there()
    kept = {folder.name: folder for folder in (state.folder / "logs").glob("*")}
    found = {name: files for name, folder in kept.items() if (files := list((folder / arguments.consumer).glob("*.log")))}
    chosen = arguments.namespace
    if chosen is None:
        known = _named(state.objects(), POD, arguments.consumer, None)
        # What is written nowhere any more is of a group that was in another namespace before.
        chosen = _only(f"{arguments.consumer!r} is a consumer in", known.keys() & found.keys() or found.keys())
    files = sorted(found.get(chosen, ()), key=lambda file: file.stat().st_mtime_ns)
    wanted = files[-2:-1] if arguments.previous else files[-1:]
    if not wanted:
        raise StateError(f"{arguments.consumer!r} has {'no start before the last' if files else 'written nothing here'}")
    with _while_it_is_read():
        for text in _written(wanted[0], follow=arguments.follow, on=not arguments.previous):
            print(text, end="", flush=True)
    return 0


def _written(file: Path, *, follow: bool, on: bool) -> Iterator[str]:
    """What is in this log. With `follow` also what comes to it, for ever; with `on` then what later starts write."""
    seen = set(file.parent.glob("*.log"))
    later: Path | None = file
    while later is not None:
        with later.open(errors="replace") as log:
            later = None
            # What came to it until the next one was there is read first.
            while (text := log.read()) or (follow and later is None):
                if text:
                    yield text
                    continue
                new = set(file.parent.glob("*.log")) - seen if on else set()
                later = min(new, key=lambda each: each.stat().st_mtime_ns, default=None)
                if later is None:
                    time.sleep(LOOK)
                else:
                    seen.add(later)


@contextmanager
def _while_it_is_read() -> Iterator[None]:
    """Print; whoever reads it may have enough, as `head` has."""
    try:
        yield
    except BrokenPipeError:
        # What is still in the buffer would be tried once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _kill(arguments: Arguments, state: State) -> int:
    container = _container(state.there(), arguments)
    number = SIGNALS[arguments.signal]
    if number in (signal.SIGSTOP, signal.SIGCONT):
        # A consumer that stands still does so as a whole.
        sent = container.signal(number)
    else:
        running = container.running()
        sent = [running.driver.pid] if running is not None and running.driver.signal(number) else []
    if not sent:
        raise StateError(f"no process of {arguments.consumer!r} runs now: see shardherd local status")
    print(f"sent SIG{arguments.signal} to {arguments.consumer} (process {', '.join(map(str, sent))})")
    return 0


def _container(state: State, arguments: Arguments) -> Container:
    pods = _named(state.objects(), POD, arguments.consumer, arguments.namespace)
    if not pods:
        raise StateError(f"there is no consumer {arguments.consumer!r}: see shardherd local status")
    pod = pods[_only(f"{arguments.consumer!r} is a consumer in", pods.keys())]
    return state.machine("", {}).container(pod["metadata"]["uid"])


def _named(objects: Objects, kind: str, name: str, namespace: str | None) -> dict[str, Json]:
    """The objects of this kind and name by their namespaces: in this one, or in all."""
    found = {each["metadata"]["namespace"]: each for each in objects.all(kind) if each["metadata"]["name"] == name}
    return {where: each for where, each in found.items() if namespace in (None, where)}


def _only(said: str, namespaces: Set[str]) -> str:
    """The one namespace of these; empty if there is none. Raises StateError, which begins so, if there are several."""
    if len(namespaces) > 1:
        raise StateError(f"{said} {', '.join(sorted(namespaces))}: name one by --namespace")
    return next(iter(namespaces), "")


def _down(arguments: Arguments, state: State) -> int:
    state.there()
    code = 0
    if (other := holder(state.lock)) is None:
        code = _end_what_is_left(state)
    else:
        os.kill(other, signal.SIGTERM)
        while holder(state.lock) is not None:
            time.sleep(LOOK)
    if arguments.forget and code == 0 and (left := state.remove()):
        print(f"{state.folder} stays, as there is more in it: {some(left, 5)}")
    return code


def _end_what_is_left(state: State) -> int:
    """The operator was killed and its consumers may run on: another one lets them drain."""
    objects = state.objects()
    if not objects.all(POD):
        return 0
    leadership = FileLeadership(state.lock)
    if not leadership.take():
        raise CannotRunError(f"another local operator has just begun on {state.folder}")
    logs.configure("text", "INFO")
    return _operate(state, objects, leadership, Asked(down=True), sys.executable)
