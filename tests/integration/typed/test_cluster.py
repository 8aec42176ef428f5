"""What the documentation says to ask an API server and an operator is typed as it is written, and does what the pages say."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import Cluster
from tests.harness.long import long
from tests.harness.typed import CLUSTER, ROOT, Command, of
from tests.integration.typed.desk import SYSTEM, Desk, Outcome

pytestmark = [pytest.mark.timeout(600), long]

Place = tuple[str, int]
COMMANDS = of(CLUSTER)
BLOCKS: Mapping[Place, list[Command]] = {
    place: list(commands) for place, commands in itertools.groupby(COMMANDS, lambda each: (each.page, each.block))
}

UNINSTALL, DELETE, CLICKS = "helm uninstall ", "kubectl delete shcg ", "docs/command-line.md"


def blocks(page: str, command: str) -> list[Place]:
    """The blocks of a page that have a command which begins so."""
    return sorted(
        {(each.page, each.block) for each in COMMANDS if each.block and each.page == page and each.text.startswith(command)}
    )


def block(page: str, command: str) -> Place:
    """The one block that there is."""
    (found,) = blocks(page, command)
    return found


def alone(command: str) -> list[Command]:
    """A command of the text, by how it begins."""
    return [each for each in COMMANDS if not each.block and each.text.startswith(command)]


def _changes_the_operator(command: Command) -> bool:
    """Whether it replaces the operator's pods. The page is on already."""
    return bool(re.match(r"helm upgrade |kubectl rollout restart ", command.text)) and "page.enabled" not in command.text


SEVERAL = blocks("docs/sizing.md", "helm install")
README, INSTALL = (block(page, "helm install") for page in ("README.md", "docs/install.md"))
APPLY, EXAMPLE = (block(page, "kubectl apply") for page in ("docs/quickstart.md", "spark_apps/clickstream/README.md"))
RESTORE = block("docs/day-two.md", "offsets=")
UPGRADES = tuple(place for place in BLOCKS if place[1] and any(_changes_the_operator(each) for each in BLOCKS[place]))
"""What is done first, each in a cluster as the page expects it, and what replaces the operator's pods, last."""


def play(desk: Desk) -> None:
    """Read the documentation from the first install to the last command."""
    for two_releases in SEVERAL:
        desk.type(BLOCKS[two_releases])
        for release in ("shardherd-a", "shardherd-b"):
            desk.cluster.helm("uninstall", release, "-n", release)
        desk.forget("crd/consumergroups.shardherd.dev", *(f"namespace/{release}" for release in ("shardherd-a", "shardherd-b")))
    desk.type(BLOCKS[README])
    desk.type(alone(UNINSTALL))
    desk.forget(f"namespace/{SYSTEM}", "namespace/streams")
    desk.type(BLOCKS[INSTALL])
    desk.run_operator()
    desk.bring_groups()
    desk.type(BLOCKS[APPLY])
    desk.type(BLOCKS[EXAMPLE])
    desk.await_ready("shop", "clicks")
    apart = (*SEVERAL, README, INSTALL, APPLY, EXAMPLE, *UPGRADES)
    rest = [place for place in BLOCKS if place not in apart and place[1]]
    of_clicks = [place for place in rest if place[0] == CLICKS]

    def read(places: list[Place]) -> None:
        for place in places:
            if place == RESTORE:
                desk.copy_positions()
            desk.type(BLOCKS[place])

    # One page is about a group of its own: most of the time is that of Python to start.
    with ThreadPoolExecutor(2) as pool:
        others = [place for place in rest if place not in of_clicks]
        for done in [pool.submit(read, places) for places in (of_clicks, others)]:
            done.result()
    for command in (each for each in COMMANDS if not each.block):
        if not command.text.startswith((UNINSTALL, DELETE)):
            desk.type([command])
    desk.type(alone(DELETE))
    for place in UPGRADES:
        desk.type(BLOCKS[place])


@pytest.fixture(scope="module")
def desk(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Desk(cluster, tmp_path_factory.mktemp("desk")) as desk:
        play(desk)
        yield desk


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_commands_of_a_page_do_what_it_says(desk: Desk, command: Command) -> None:
    assert command in desk.outcomes, "a command before it in its block failed"
    outcome = desk.outcomes[command]
    assert outcome.code == 0, outcome
    for begin, look in LOOKS.items():
        if _is(command, begin):
            look(outcome, desk.checkout)


def test_every_look_is_at_a_command() -> None:
    assert [begin for begin in LOOKS if not any(_is(each, begin) for each in COMMANDS)] == []


def _is(command: Command, begin: str) -> bool:
    """Whether a look is at this command; with `$` at its end it is at the whole of it."""
    return command.text == begin[:-1] if begin.endswith("$") else command.text.startswith(begin)


# --- what is printed --------------------------------------------------------------------------------------------------

Look = Callable[[Outcome, Path], None]


def says(*patterns: str) -> Look:
    """Each of these is found in what is printed."""

    def look(outcome: Outcome, _: Path) -> None:
        assert [each for each in patterns if not re.search(each, outcome.out, re.MULTILINE)] == [], outcome.out

    return look


def the_table_of_the_readme(outcome: Outcome, _: Path) -> None:
    (shown,) = re.findall(r"^\$ kubectl get shcg\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    header, row = (line.split() for line in shown.splitlines())
    typed, *rows = (line.split() for line in outcome.out.splitlines())
    assert typed == header
    upto = header.index("CONSUMERS") + 1
    assert row[:upto] in [each[:upto] for each in rows]


def a_leader(outcome: Outcome, _: Path) -> None:
    header, pod = (line.split() for line in outcome.out.splitlines())
    assert (header[:3], pod[1:3]) == (["NAME", "READY", "STATUS"], ["1/1", "Running"])


def a_reset(state: str) -> Look:
    def look(outcome: Outcome, _: Path) -> None:
        assert json.loads(outcome.out)["state"] == state

    return look


def a_rollout(outcome: Outcome, _: Path) -> None:
    assert json.loads(outcome.out)["state"] == "Complete"


def nothing(outcome: Outcome, _: Path) -> None:
    assert outcome.out == ""


def a_forced_checkpoint(outcome: Outcome, _: Path) -> None:
    answer: dict[str, Any] = json.loads(outcome.out)
    assert "error" not in answer, answer


def ends_of_shards(outcome: Outcome, _: Path) -> None:
    header, first, *_rows = (line.split() for line in outcome.out.splitlines())
    assert first[header.index("END")] == "1300", outcome.out


def objects_of(consumers: int) -> Look:
    def look(outcome: Outcome, _: Path) -> None:
        found = {each["kind"]: each for each in yaml.safe_load_all(outcome.out)}
        assert found.keys() == {"Service", "PodDisruptionBudget", "StatefulSet"}
        assert found["StatefulSet"]["spec"]["replicas"] == consumers

    return look


def a_page(outcome: Outcome, _: Path) -> None:
    assert "<title>" in outcome.url, outcome


def a_report(_: Outcome, checkout: Path) -> None:
    assert (checkout / "shardherd-clicks.tar.gz").stat().st_size > 0


LOOKS: Mapping[str, Look] = {
    "helm install": says(r"^STATUS: deployed$"),
    "helm upgrade": says(r"^STATUS: deployed$"),
    "helm uninstall": says(r"^release \"shardherd\" uninstalled$"),
    "kubectl get shcg$": the_table_of_the_readme,
    "kubectl -n shardherd-system rollout status": says("successfully rolled out"),
    "kubectl get pods -n shardherd-system -l shardherd.dev/leader=true": a_leader,
    "kubectl get lease": says(r"^shardherd +\S+"),
    "kubectl get shcg,pods -n demo": says(r"^consumergroup\S*/clickstream +True ", r"^pod/clickstream-2 +1/1 +Running"),
    "kubectl describe shcg": says(r"^Name: +clickstream$", r"^ +Scaling:$", r"^Events:"),
    "kubectl get events": says(r"consumergroup/clickstream"),
    "kubectl get shcg clickstream -n streams -o jsonpath='{.status.rollout}'": a_rollout,
    "kubectl get shcg clickstream -n streams -o jsonpath='{.status.reset}'": a_reset("Planned"),
    "kubectl get pods -A": nothing,
    "curl ": a_forced_checkpoint,
    "shardherd status clicks": says(r"^clicks-1 +yes "),
    "shardherd shards clicks --api": ends_of_shards,
    "shardherd shards clicks --only clicks-1": says(r"^clicks/\d +ALREADY_ALLOC +clicks-1 "),
    "shardherd lag clicks": says(r"(?i)lag"),
    "shardherd offsets get clicks": says(r"^SHARD +POSITION", r"^clicks/3 "),
    "shardherd explain clicks clicks/1": says(r"^Where is clicks/1\?$", r"^ALREADY_ALLOC: "),
    "shardherd rebalance": says(r"would move 0 shards of 4\."),
    "shardherd offsets reset clicks --to Earliest": says(r"clicks/0 .*\b0\b"),
    "shardherd doctor": says(r"^ok "),
    "shardherd doctor --brokers": says(r"^note +replicas of shop/clicks ", r"^Nothing is wrong\.$"),
    "shardherd report": a_report,
    "shardherd render -f consumergroup.yaml --shards 12": objects_of(3),
    "shardherd page": a_page,
    "kubectl shardherd page": a_page,
}
