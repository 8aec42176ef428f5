"""The commands of `shardherd` and `kubectl shardherd` that look at groups: their options, what each reads, what it answers.

Called by `cli` with what the extra `cli` installs. Options are the same for all commands that read groups: `Where`. Exit codes:
EXIT. No command holds a rule: `cluster` and `folder` read, the other modules of this package answer, `printing` writes.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Protocol

import typer
from rich.live import Live

from shardherd.adapters.assignors import load_assignors
from shardherd.core.model.times import rfc3339
from shardherd.inspect import COMMANDS, bundle, changes, checks, explaining, listing, printing, rebalancing
from shardherd.inspect.answers import Answer, Section, plain
from shardherd.inspect.cluster import Cluster, connect, namespace_called
from shardherd.inspect.coordinator import Coordinator
from shardherd.inspect.observed import ConflictError, InspectError, Json, Observed
from shardherd.inspect.printing import Output
from shardherd.inspect.values import yaml_of
from shardherd.settings import can_be_called

EXIT: Mapping[int, str] = MappingProxyType(
    {
        0: "done",
        1: "it could not be done: no cluster, no rights, or refused; the message says what to do",
        2: "the command line is wrong",
        3: "done, and the answer is bad news: `doctor` found something, or a reset was refused or waits",
        4: "there is no such group, consumer or shard",
    }
)
"""Exit codes."""

LOOK = 0.5
"""Seconds between looks at what becomes of a reset."""

MOST_SECONDS = 1_000_000.0
"""The longest wait that may be asked for."""

ATTEMPTS = 5
"""How often a reset is declared anew because the resource was changed meanwhile."""


class Groups(Protocol):
    """Where groups are read and changed: a cluster, or the state folder of one machine."""

    def groups(self) -> list[Json]: ...

    def group(self, name: str) -> Observed: ...

    def resource(self, name: str) -> Json: ...

    def change(self, name: str, patch: Mapping[str, Any]) -> Json: ...

    def change_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Where:
    """Where to look, and how to answer: the options that all commands have."""

    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="of the group (default: the context's)")] = None
    every: Annotated[bool, typer.Option("--all-namespaces", "-A", help="groups of all namespaces")] = False
    kubeconfig: Annotated[Path | None, typer.Option(help="file (default: KUBECONFIG, then ~/.kube/config)")] = None
    context: Annotated[str | None, typer.Option(help="of the kubeconfig (default: the current one)")] = None
    api: Annotated[str | None, typer.Option(envvar="SHARDHERD_API", help="URL of the coordinator, to ask it as well")] = None
    token_file: Annotated[
        Path | None, typer.Option(envvar="SHARDHERD_API_TOKEN_FILE", help="with a token for --api, of the audience shardherd")
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option(envvar="SHARDHERD_API_CA_FILE", help="with the authorities that --api is believed by")
    ] = None
    api_name: Annotated[str, typer.Option(help="name in the certificate of --api, if a tunnel leads there")] = ""
    local: Annotated[bool, typer.Option("--local", help="groups of `shardherd local` on this machine")] = False
    state: Annotated[Path, typer.Option(help="state folder, with --local")] = Path(".shardherd")
    output: Annotated[Output, typer.Option("--output", "-o", help="text, wide, json or yaml")] = Output.TEXT

    def open(self) -> Groups:
        """Where it leads to. Raises InspectError."""
        if self.local:
            # What it stands on takes as long to import as all the rest.
            from shardherd.inspect.folder import Folder

            return Folder(self.state, self.namespace)
        return self.cluster()

    def cluster(self) -> Cluster:
        """The cluster. Raises InspectError."""
        if self.local:
            raise InspectError("--local has no meaning here: this command is about a cluster", 2)
        api, usual = connect(self.kubeconfig, self.context, local=True)
        return Cluster(api, None if self.every else self.namespace or usual, self._coordinator())

    def _coordinator(self) -> Coordinator | None:
        if self.api is None:
            return None
        if self.token_file is None:
            raise InspectError("--api needs --token-file: `kubectl create token ACCOUNT --audience shardherd` makes a token", 2)
        if not can_be_called(self.api):
            raise InspectError(f"--api is {self.api!r}: write a URL such as https://localhost:8443", 2)
        return Coordinator(self.api, self.token_file, self.ca_file, self.api_name)


def run(arguments: Sequence[str] | None, program: str) -> int:
    """Run the command that these arguments name; returns the exit code."""
    try:
        _built()(None if arguments is None else list(arguments), prog_name=program)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


@functools.cache
def _built() -> Callable[..., Any]:
    """The commands, made once."""
    return typer.main.get_command(app)


def complete(arguments: Sequence[str]) -> int:
    """Print what may stand in the place of the last of these, one a line, as kubectl asks its plugins."""
    words = ["shardherd", *arguments]
    os.environ |= {"_SHARDHERD_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = run([], "shardherd")
    # Kubectl's own directives: nothing but these, and no file names.
    print(":4")
    return code


app = typer.Typer(
    # Its options are out of reach: the command line itself stands before it. What they need is what `completion` needs, too.
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Spark applications that share the shards of a stream.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
offsets_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=COMMANDS["offsets"])
app.add_typer(offsets_app, name="offsets")


def command(name: str, of: typer.Typer = app, about: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function the command of this name: it gets a `Where` of the common options, and may raise InspectError."""

    def made(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())
        common = list(inspect.signature(Where, eval_str=True).parameters.values())

        def called(**given: Any) -> None:
            where = Where(**{each.name: given.pop(each.name) for each in common})
            try:
                function(where, **given)
            except InspectError as error:
                said = plain(str(error), keep="\n")
                print(f"shardherd: {said}", file=sys.stderr)
                raise typer.Exit(error.code) from None

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own[1:], *common)]
        untyped: Any = called
        untyped.__signature__ = inspect.Signature(parameters)
        untyped.__annotations__ = {each.name: each.annotation for each in parameters}
        of.command(name, help=about or COMMANDS[name])(called)
        return function

    return made


def _group_names() -> list[str]:
    """For completion: the groups of the current context, nothing if they cannot be read."""
    try:
        return [each["metadata"]["name"] for each in Where().open().groups()]
    except InspectError:
        return []


GroupName = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=_group_names, show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only say what would be done")]


def _say(answer: Answer, where: Where) -> None:
    printing.show(answer, where.output, printing.console())
    if answer.code:
        raise typer.Exit(answer.code)


@command("status")
def status(
    where: Where,
    group: Annotated[str | None, typer.Argument(metavar="GROUP", autocompletion=_group_names)] = None,
) -> None:
    there = where.open()
    _say(listing.groups(there.groups()) if group is None else listing.group(there.group(group)), where)


@command("shards")
def shards(
    where: Where,
    group: GroupName,
    only: Annotated[str | None, typer.Option(help="a state, or a consumer")] = None,
) -> None:
    _say(listing.shards(where.open().group(group), only), where)


@command("lag")
def lag(where: Where, group: GroupName) -> None:
    _say(listing.lag(where.open().group(group)), where)


@command("explain")
def explain(
    where: Where, group: GroupName, about: Annotated[str | None, typer.Argument(metavar="SHARD|CONSUMER")] = None
) -> None:
    _say(explaining.explain(where.open().group(group), about), where)


@command("pause")
def pause(where: Where, group: GroupName) -> None:
    _pause(where, group, True)


@command("resume")
def resume(where: Where, group: GroupName) -> None:
    _pause(where, group, False)


def _pause(where: Where, group: str, wanted: bool) -> None:
    there = where.open()
    observed = Observed(there.resource(group), time.time())
    if bool(observed.spec.get("paused", False)) is not wanted:
        there.change(group, changes.paused(wanted))
    _say(changes.pausing(observed, wanted), where)


@command("drain")
def drain(
    where: Where,
    group: GroupName,
    consumer: Annotated[str, typer.Argument(show_default=False)],
    undo: Annotated[bool, typer.Option("--undo", help="let it take shards again")] = False,
) -> None:
    there = where.open()
    observed = there.group(group)
    said, change = changes.draining(observed, consumer, undo)
    if change:
        there.change_pod(observed.identity.namespace, consumer, changes.cordoned(not undo))
    _say(said, where)


@command("get", offsets_app, "the next record to read of each shard")
def offsets_get(where: Where, group: GroupName) -> None:
    _say(listing.positions(where.open().group(group)), where)


@command("reset", offsets_app, "set positions: plan it by --dry-run, make it by --execute in a paused group")
def offsets_reset(
    where: Where,
    group: GroupName,
    to: Annotated[str, typer.Option(help="Earliest, Latest, or a time such as 2026-01-31T12:00:00Z")] = "",
    offset: Annotated[list[str] | None, typer.Option(help="of one shard, as topic/partition=offset; may be repeated")] = None,
    shard: Annotated[list[str] | None, typer.Option(help="set this one only; may be repeated")] = None,
    discard_state: Annotated[
        bool, typer.Option("--discard-state", help="of all cells, in a group with spec.state: needed there")
    ] = False,
    reset_id: Annotated[str, typer.Option("--id", help="under which it is made once (default: a new one)")] = "",
    dry_run: DryRun = False,
    execute: Annotated[bool, typer.Option("--execute", help="make it")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait for the operator's answer")] = 30.0,
) -> None:
    if dry_run is execute:
        raise InspectError("say either --dry-run, which changes no position, or --execute", 2)
    _check_seconds("--timeout", timeout, 30)
    there = where.open()
    name = reset_id or f"cli-{rfc3339(time.time()).replace(':', '').lower()}"
    wanted = changes.Reset(name, to, tuple(offset or ()), tuple(shard or ()), dry_run, discard_state)
    _declare(there, group, wanted)
    until = time.time() + timeout
    while changes.state_of_reset(resource := there.resource(group), name) not in changes.SETTLED and time.time() < until:
        time.sleep(LOOK)
    _say(changes.reset_answer(resource, name), where)


def _check_seconds(option: str, given: float, usual: int) -> None:
    """Raises InspectError for what nobody can wait for, such as `nan`."""
    if not 0 <= given <= MOST_SECONDS:
        raise InspectError(f"{option} is {given:g}: write seconds from 0 to {MOST_SECONDS:.0f}, for example {usual}", 2)


def _declare(there: Groups, group: str, wanted: changes.Reset) -> None:
    """The operator writes the same resource: what was decided for another state of it is decided once more."""
    for attempt in range(ATTEMPTS):
        try:
            there.change(group, changes.resetting(Observed(there.resource(group), time.time()), wanted))
        except ConflictError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


@command("rebalance")
def rebalance(where: Where, group: GroupName, dry_run: DryRun = False) -> None:
    if not dry_run:
        raise InspectError("the operator rebalances by itself whenever there is something to move: say --dry-run", 2)
    _say(rebalancing.rebalance(where.open().group(group), load_assignors()), where)


Operators = Annotated[str, typer.Option("--operator-namespace", help="where the operators run")]
Release = Annotated[str, typer.Option(help="name of the chart's objects: of the Lease and the Service")]


@command("doctor")
def doctor(
    where: Where,
    operators: Operators = "shardherd-system",
    release: Release = "shardherd",
    brokers: Annotated[bool, typer.Option("--brokers", help="ask the brokers too, from here, as each group's user")] = False,
) -> None:
    cluster = where.cluster()
    examined = cluster.examined(operators, release)
    asked = None
    if brokers:
        # What it stands on takes as long to import as all the rest.
        from shardherd.inspect import asking

        inside = f"kubectl exec -n {operators} deployment/{release} -- shardherd brokers -n {cluster.namespace}"
        asked = tuple(asking.check_brokers(cluster.api, examined.groups or (), inside))
    _say(checks.doctor(examined, asked), where)


@command("top")
def top(
    where: Where,
    group: Annotated[str | None, typer.Argument(metavar="GROUP", autocompletion=_group_names)] = None,
    interval: Annotated[float, typer.Option(help="seconds between looks")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="so many looks (default: until Ctrl-C)")] = 0,
) -> None:
    _check_seconds("--interval", interval, 2)
    there, console, values = where.open(), printing.console(), where.output in (Output.JSON, Output.YAML)

    def look() -> Answer:
        if group is None:
            listed = listing.groups(there.groups())
            return Answer({"groups": listed.data}, listed.sections)
        observed = there.group(group)
        shown, lags = listing.group(observed), listing.lag(observed)
        return Answer({"group": shown.data, "lag": lags.data}, (*shown.sections, *lags.sections))

    looks = _looks(look, interval, count)
    with suppress(KeyboardInterrupt):
        if values:
            for wall, found in looks:
                fields = {"error": str(found)} if isinstance(found, InspectError) else found.data
                assert isinstance(fields, Mapping)
                printing.stream({"time": rfc3339(wall), **fields}, where.output)
            return
        shown = (f"{rfc3339(wall)}\n\n{_frame(found, wide=where.output is Output.WIDE)}" for wall, found in looks)
        if not console.is_terminal:
            for each in shown:
                print(each, flush=True)
            return
        with Live(console=console, auto_refresh=False, screen=not count) as live:
            for each in shown:
                live.update(printing.styled(each), refresh=True)


def _frame(found: Answer | InspectError, *, wide: bool) -> str:
    return plain(f"shardherd: {found}") if isinstance(found, InspectError) else found.text(wide=wide)


def _looks(look: Callable[[], Answer], interval: float, count: int) -> Iterator[tuple[float, Answer | InspectError]]:
    """What `top` shows, one look after the other, each with its time; without `count` for ever."""
    for number in itertools.count(1):
        found: Answer | InspectError
        try:
            found = look()
        except InspectError as error:
            # Who watches wants to see it come back; a first look that fails is a mistake in the command line.
            if number == 1:
                raise
            found = error
        yield time.time(), found
        if number == count:
            return
        time.sleep(interval)


@command("page")
def page(
    where: Where,
    operators: Operators = "shardherd-system",
    release: Release = "shardherd",
    port: Annotated[int, typer.Option(min=0, max=65535, help="to serve on this machine (default: one that is free)")] = 0,
    page_port: Annotated[int, typer.Option(min=1, max=65535, help="of the operator's page: the chart's page.port")] = 8082,
) -> None:
    from shardherd.inspect import browsing

    if where.local:
        _say(_address(browsing.local_address(where.state)), where)
        return
    api, _ = connect(where.kubeconfig, where.context, local=True)
    with browsing.served(browsing.Through(api, namespace_called(operators), release, page_port), port) as address:
        _say(_address(address, " (Ctrl-C ends it)"), where)
        sys.stdout.flush()
        browsing.until_interrupted()


def _address(url: str, more: str = "") -> Answer:
    return Answer({"url": url}, (Section(lines=(f"{url}{more}",)),))


@command("report")
def report(
    where: Where,
    group: GroupName,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="to write: - is standard output (default: shardherd-GROUP.tar.gz)")
    ] = None,
    operators: Operators = "shardherd-system",
    release: Release = "shardherd",
) -> None:
    standard = file == Path("-")
    if standard and sys.stdout.isatty():
        raise InspectError(
            "--file - is a terminal, which shows no archive: pipe it, for example to `tar tz`, or name a file", 2
        )
    observed = where.open().group(group)
    checked = None if where.local else checks.doctor(where.cluster().examined(operators, release))
    name = f"shardherd-{group}"
    path = file or Path(f"{name}.tar.gz")
    contents = bundle.files(observed, version("shardherd"), checked)
    archive = bundle.archive(name, contents, observed.wall)
    try:
        if standard:
            sys.stdout.buffer.write(archive)
            sys.stdout.buffer.flush()
        else:
            path.write_bytes(archive)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InspectError(f"--file {path} cannot be written: {error.strerror}") from error
    names, beware = sorted(contents), "secrets are removed; look at what applications said in errors before you send it"
    data = {"group": str(observed.identity), "file": str(path), "contents": names, "message": beware}
    wrote = "standard output" if standard else str(path)
    answer = Answer(data, (Section(lines=(f"wrote {wrote}: {', '.join(names)}", beware)),))
    printing.show(answer, where.output, printing.console(stderr=standard))


class Shape(StrEnum):
    """What `render` may print."""

    YAML = "yaml"
    JSON = "json"


@app.command("render", help=COMMANDS["render"])
def render(
    file: Annotated[
        list[Path],
        typer.Option("--file", "-f", help="the manifest: - is standard input; may be repeated", show_default=False),
    ],
    shards: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="of the source, which the number of consumers may follow")
    ] = 1,
    url: Annotated[str, typer.Option(help="of the coordinator")] = "https://shardherd.shardherd-system.svc:8443",
    audience: Annotated[str, typer.Option(help="of consumers' tokens")] = "shardherd",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="of groups that name none")] = "default",
    output: Annotated[Shape, typer.Option("--output", "-o")] = Shape.YAML,
) -> None:
    from shardherd.inspect.rendering import render as rendered

    try:
        if not can_be_called(url):
            raise InspectError(f"--url is {url!r}: write a URL such as https://shardherd.shardherd-system.svc:8443", 2)
        made = rendered(file, shards, url, audience, namespace_called(namespace))
    except InspectError as error:
        print(f"shardherd: {error}", file=sys.stderr)
        raise typer.Exit(error.code) from None
    whole = Answer({"apiVersion": "v1", "kind": "List", "items": made}, ())
    if output is Shape.JSON:
        printing.show(whole, Output.JSON, printing.console())
    else:
        to = printing.console()
        to.out(yaml_of(*made, encoding=to.encoding).rstrip("\n"), highlight=False)


class Shell(StrEnum):
    """Shells whose words can be completed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS: Mapping[Shell, str] = MappingProxyType(
    {
        Shell.BASH: """_shardherd() {
    local IFS=$'\\n'
    COMPREPLY=( $(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _SHARDHERD_COMPLETE=complete_bash $1) )
}
complete -o default -F _shardherd shardherd""",
        Shell.ZSH: """#compdef shardherd
_shardherd() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _SHARDHERD_COMPLETE=complete_zsh shardherd)
}
compdef _shardherd shardherd""",
        Shell.FISH: "complete --command shardherd --no-files --arguments '(env _SHARDHERD_COMPLETE=complete_fish"
        " _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp) shardherd)'",
    }
)
"""What a shell reads to complete words."""


@app.command("completion", help=COMMANDS["completion"])
def completion(shell: Annotated[Shell, typer.Argument()]) -> None:
    print(SCRIPTS[shell])
