"""What the documentation says to type in a shell, command by command, and which test types it.

A command that no rule below is about is of no test: `tests/unit/test_typed.py` fails for it. Those that `CLUSTER`, `NODE`,
`RELEASE` and `RIGHTS` stand for are typed as they are written, by tests that ask here for all of them; others are run by a test
that has its own way to them, or by none, with the reason.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
    *sorted((ROOT / "spark_apps").rglob("*.md")),
    *sorted((ROOT / "charts").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
PROGRAMS = r"kubectl|helm|skopeo|docker|kind|k3s|minikube|ctr|pip|curl|jq|openssl|kafka-[a-z-]+|mvn"


@dataclass(frozen=True)
class Command:
    """A command of a page. Those of one block share a number, and the shell that they are typed in; alone in the text: 0."""

    page: str
    block: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:90]}"


def _whole(text: str) -> bool:
    """Whether a shell would ask for no further line."""
    if text.rstrip().endswith(("\\", "|")):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    bare = re.sub(r"'[^']*'", "", text)
    return bare.count("(") == bare.count(")")


def _split(block: str) -> Iterator[str]:
    """The commands of a block, each with all of its lines, without what is remarked."""
    lines: list[str] = []
    for line in block.splitlines():
        if not lines and (not line.strip() or line.startswith("#")):
            continue
        lines.append(line)
        if _whole(text := "\n".join(lines)):
            yield re.sub(r"\s+# .*$", "", text) if len(lines) == 1 else text
            lines = []
    assert not lines, f"no end of a command: {lines}"


def _of(page: Path) -> Iterator[Command]:
    name, text = str(page.relative_to(ROOT)), page.read_text()
    fenced = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    for number, (indent, language, block) in enumerate(fenced.findall(text), 1):
        block = re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)
        if language in ("sh", "bash", "console"):
            yield from (Command(name, number, each) for each in _split(block))
        elif not language:
            # What is printed follows what was typed.
            yield from (Command(name, number, each) for each in re.findall(r"^\$ (.*)$", block, re.MULTILINE))
    # In the text a command has an option, or that many words; what is shorter is its name.
    for each in re.findall(rf"`((?:{PROGRAMS}) [^`]*)`", fenced.sub("", text)):
        words = each.split()
        if not each.startswith("kubectl shardherd") and (len(words) > 3 or any(word.startswith("-") for word in words)):
            yield Command(name, 0, each)


COMMANDS = tuple(dict.fromkeys(each for page in PAGES for each in _of(page)))


@dataclass(frozen=True)
class Rule:
    """Whose the commands are that match: of a test, or of none, for a reason."""

    command: str
    by: str = ""
    reason: str = ""
    page: str = ""

    def about(self, command: Command) -> bool:
        return bool(re.search(self.command, command.text) and re.search(self.page, command.page))


CLUSTER = "tests/integration/typed/test_cluster.py::test_the_commands_of_a_page_do_what_it_says"
NODE = "tests/e2e/test_typed.py::test_what_needs_a_node_does_what_the_page_says"
RELEASE = "tests/integration/release/test_typed.py::test_what_a_release_is_checked_and_installed_with"
RIGHTS = "tests/integration/brokers/test_rights.py::test_the_commands_of_the_page_give_these_rights"
LAPTOP = (
    "tests/integration/local/test_laptop.py::test_every_command_of_the_page_does_what_it_says_with_the_clickstream_application"
)
TOLD = "tests/integration/local/test_told.py::"
TENANT = "tests/chart/test_documented.py::test_the_accounts_of_a_new_tenant_are_made_as_documented_and_the_label_fits"
MOVED = (
    "tests/integration/controller/test_selector.py"
    "::test_a_namespace_that_is_labelled_for_another_operator_moves_with_all_that_its_groups_have"
)
FROM_THERE = "is_named_and_read_from_where_its_user_says"
ENDED = "is_named_and_ended_by_hand_and_started_anew"

RULES = (
    # make: each target is what some test runs by the same functions.
    Rule(r"^make help", RELEASE),
    Rule(r"^make (test|lint|unit|test-long)\b", reason="it is what runs the tests"),
    Rule(r"^make demo$", "tests/integration/local/test_demo.py::test_every_promise_of_the_demo_held"),
    Rule(r"^make demo-cluster$", "tests/e2e/test_demo.py::test_every_promise_of_the_demo_held"),
    Rule(
        r"^make demo-(cluster|down) .*DEMO_CONTEXT=",
        reason="it needs a cluster of the user's; dev/demo/visit.py has unit tests",
    ),
    Rule(r"^make wheel$", "tests/integration/release/test_packages.py::test_two_builds_are_equal"),
    Rule(r"^make release$", "tests/e2e/test_release.py::test_the_operator_runs_from_the_archives_of_image_and_chart"),
    # What a release is installed with.
    Rule(r"sha256sum|^skopeo |^pip install ", RELEASE),
    Rule(r"^(kind load|minikube image load|docker load)", reason="it needs Docker; that the archive has its form is tested"),
    Rule(r"^k3s ctr images import", "tests/e2e/test_release.py::test_the_operator_runs_from_the_archives_of_image_and_chart"),
    Rule(r"^docker build ", reason="it needs Docker; buildah builds the same targets of the Dockerfile for the tests"),
    Rule(r"^docker buildx imagetools", reason="it asks a public registry"),
    Rule(r"^mvn ", reason="it fetches 690 MB; the version in the page is compared with Spark's"),
    # One machine.
    Rule(r"^shardherd local ", LAPTOP, page="laptop"),
    Rule(r"^shardherd (pause|resume|offsets reset|lag) --local", f"{TOLD}test_a_topic_that_was_made_again_{FROM_THERE}"),
    Rule(r"^shardherd local apply ", f"{TOLD}test_a_topic_that_has_grown_beyond_what_is_allowed_says_which_limit_to_raise"),
    Rule(r"^shardherd \w+ --local\b|^shardherd local ", f"{TOLD}test_a_consumer_that_was_stopped_{ENDED}"),
    Rule(r"^shardherd run .*--coordinator ", "tests/unit/worker/test_page.py::test_the_command_is_one"),
    Rule(r"^shardherd run ", "tests/integration/local/test_alone.py::test_the_clickstream_application_runs_by_itself"),
    # A broker with rights.
    Rule(r"^kafka-acls ", RIGHTS),
    Rule(
        r"^kafka-consumer-groups --delete",
        "tests/integration/controller/test_restore.py::test_lost_positions_come_back_by_the_commands_of_the_runbook",
    ),
    Rule(r"^kafka-consumer-groups --", "tests/e2e/test_demo.py::test_every_promise_of_the_demo_held"),
    # Namespaces by their labels.
    Rule(r"\btenant-7 .*=b --overwrite$", MOVED, page="sizing"),
    Rule(r"\btenant-7\b", TENANT, page="sizing"),
    # A stream of Kinesis.
    Rule(
        r"orders-kinesis|aws\.yaml",
        reason="it needs a stream at AWS; `tests/integration/local/test_kinesis.py` runs it on a played one",
    ),
    # What only a kubelet does, or only people with more than a cluster.
    Rule(r"^kubectl (logs|exec|port-forward)\b", NODE),
    Rule(r"^helm test ", "tests/e2e/test_release.py::test_the_operator_runs_from_the_archives_of_image_and_chart"),
    Rule(r"^kubectl describe certificate\b", reason="it needs cert-manager, whose kind it is"),
    Rule(r"^openssl s_client ", reason="it is typed in a pod of the user's that has openssl"),
    Rule(r"^kubectl wait --for=condition=Ready$", reason="it names no object: lines that name one are typed"),
    # Everything else that asks an API server, or a running operator.
    Rule(r"^((kubectl|helm|shardherd|curl|openssl|sleep|source) |operator=|offsets=)", CLUSTER),
)


def rule_of(command: Command) -> Rule | None:
    """The first rule that is about it."""
    return next((rule for rule in RULES if rule.about(command)), None)


def of(test: str) -> list[Command]:
    """The commands that this test is to type."""
    return [each for each in COMMANDS if (rule := rule_of(each)) is not None and rule.by == test]
