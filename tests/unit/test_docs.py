"""The documentation says what is true: its tables are current, and every reason that a user can meet is explained."""

from __future__ import annotations

import inspect
import math
import re
import tomllib
from pathlib import Path

import pyspark
import pytest
import yaml

from dev.cluster.tools import KUBERNETES_VERSION
from dev.reference import DOCUMENTS, SOURCE, rendered
from shardherd.adapters.kafka import times
from shardherd.controller import manifests, needs
from shardherd.coordinator import ages as lag_age
from shardherd.core.group import ages
from shardherd.core.model import errors
from shardherd.core.model.event_reasons import EVENTS, REBALANCES
from shardherd.core.model.nouns import ResetState
from shardherd.core.model.reasons import CONDITIONS, REASONS, ROLLED_BACK
from shardherd.core.planning import rollout
from shardherd.settings import Settings
from shardherd.source.security import kafka_settings
from shardherd.source.security.kafka_settings import SETTINGS
from shardherd.spark.application import spark_conf
from shardherd.spark.option_table import MEANINGLESS, OPTIONS
from shardherd.spark.pod import read_pod
from shardherd.spark.schema import MEANINGS
from tests.unit.spark.test_pod import EXECUTORS, POD

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "dev" / "cluster" / "tools"
RUNBOOK = (ROOT / "docs" / "reasons.md").read_text()
DAY_TWO = (ROOT / "docs" / "day-two.md").read_text()
SIZING = (ROOT / "docs" / "sizing.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.name))
def test_the_tables_of_the_documentation_are_current(document: Path) -> None:
    assert rendered(document) == document.read_text(), "run: python -m dev.reference"


def test_the_table_of_sizes_says_what_containers_get() -> None:
    table = SIZING.partition("## Memory of a pod")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+[mg]) \| (\d+) \| (\w+) \| (\w+) \| (\w+) \|$", table, re.MULTILINE)

    def of_driver(heap: str, cores: str, instances: int) -> str:
        application = {"driver": {"memory": heap, "cores": int(cores)}, "executor": {"instances": instances}}
        return str(needs.driver(application)["limits"]["memory"])

    def of_executor(heap: str, cores: str) -> str:
        """As Spark computes it from what it is told."""
        executors = {"SHARDHERD_EXECUTOR_MEMORY": heap, "SHARDHERD_EXECUTOR_CORES": cores}
        conf = spark_conf(read_pod({**POD, **EXECUTORS, **executors}))
        least, factor = (conf[f"spark.executor.{name}"] for name in ("minMemoryOverhead", "memoryOverheadFactor"))
        memory = needs.mebibytes(conf["spark.executor.memory"])
        return f"{memory + max(int(memory * float(factor)), needs.mebibytes(least))}Mi"

    assert len(rows) == 6
    assert [(of_driver(heap, cores, 0), of_driver(heap, cores, 1), of_executor(heap, cores)) for heap, cores, *_ in rows] == [
        tuple(said) for _, _, *said in rows
    ]


def test_the_page_of_the_source_lists_exactly_its_options() -> None:
    reference = SOURCE.read_text().partition("## Coming from")[0]
    listed = re.findall(r"^\| `([\w.]+)` \| ", reference, re.MULTILINE)
    names = {option.name for option in OPTIONS} | {f"kafka.{setting.name}" for setting in SETTINGS} | set(MEANINGS)
    assert set(listed) == names


OF_SPARKS_KAFKA_SOURCE = {
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafka.bootstrap.servers",
    "kafka.group.id",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
}
"""Every option that Spark 4.2's own Kafka source documents for reading, but for the settings of Kafka's client."""


def test_the_page_on_migration_says_of_every_option_of_sparks_own_source_what_becomes_of_it() -> None:
    page = (ROOT / "docs" / "source-migration.md").read_text().partition("## Options")[2].partition("## What else")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| (.+) \|$", page, re.MULTILINE)
    said = {name: answer for names, answer in rows for name in re.findall(r"`([^`]+)`", names)}
    ours = {option.name for option in OPTIONS} | {f"kafka.{setting.name}" for setting in SETTINGS}
    refused = MEANINGLESS.keys() | {f"kafka.{name}" for name in kafka_settings.MEANINGLESS}

    assert OF_SPARKS_KAFKA_SOURCE - said.keys() == set()
    assert {name for name, answer in said.items() if answer.startswith("the same")} == said.keys() & ours
    assert {name for name, answer in said.items() if answer.startswith("refused")} == said.keys() - ours
    assert said.keys() - ours - refused == set()


def test_the_page_on_day_two_says_what_the_age_of_the_lag_costs() -> None:
    said = " ".join(DAY_TWO.partition("### How old the lag is")[2].partition("\n## ")[0].split())
    every = lag_age.EVERY * inspect.signature(Settings).parameters["discovery_interval"].default
    thousand = math.ceil(1000 / ages.MOST) * every
    assert f"looked at every {every:g} s, {ages.MOST} shards at a time, those whose turn was longest ago first" in said
    assert f"1,000 shards in {thousand:g} s" in said
    assert f"not been looked at for {ages.FRESH:g} s" in said
    assert f"more than about {ages.MOST * ages.FRESH / every // 1000:g},000 shards" in said
    assert f"{60 / every:g} a minute, each answered by at most {times.MOST_BYTES >> 20} MiB" in said
    assert f"the {times.LEAST_ROOM >> 10} KiB a shard" in said
    assert f"one in {ages.AGAIN / 60:g} minutes where nothing moves" in said


PAGES = (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))


def test_nobody_is_told_to_install_a_package_that_is_not_published() -> None:
    wanted = [target for page in PAGES for target in re.findall(r"pip install (.+)", page.read_text())]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = [re.fullmatch(r"'dist/shardherd-[\d.]+-py3-none-any\.whl\[([\w,]+)\]'", target) for target in wanted]
    assert len(wanted) >= 2
    assert [target for target, file in zip(wanted, files, strict=True) if file is None] == []
    assert {extra for file in files if file for extra in file.group(1).split(",")} <= extras.keys()


def test_the_client_of_an_object_store_is_of_the_version_of_sparks_hadoop_and_not_in_it() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text().partition("### Rows in an object store")[2]
    jars = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("hadoop-*.jar")}
    (version,) = re.findall(r"hadoop-client-api-([\d.]+)\.jar", " ".join(jars))
    assert f"<artifactId>hadoop-aws</artifactId>\n      <version>{version}</version>" in page
    assert f", {version}\nin the spark image" in page
    assert [name for name in jars if "aws" in name] == []


def test_the_policy_on_security_says_what_the_chart_does_by_default_with_plain_http() -> None:
    tls = yaml.safe_load((ROOT / "charts" / "shardherd" / "values.yaml").read_text())["tls"]
    policy = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert (tls["mode"], tls["acceptPlain"], manifests.TOKEN_SECONDS) == ("auto", False, 3600)
    assert "Calls over plain HTTP are refused." in policy
    assert "whoever can read the traffic can use them for up to an hour." in policy


def test_every_reason_is_explained() -> None:
    assert {reason.value for reason in REASONS if f"| `{reason.value}` | " not in RUNBOOK} == set()
    assert {each for each in REBALANCES if f"| `{each}` | " not in RUNBOOK} == set()


def test_every_state_of_a_rollout_is_explained() -> None:
    said = RUNBOOK.partition("`status.rollout.state` is ")[2].partition("(")[0]
    assert re.findall(r"`(\w+)`", said) == [rollout.PROGRESSING, rollout.COMPLETE, ROLLED_BACK]


def test_every_event_is_explained() -> None:
    assert {"ResetDone", "OwnershipLost", "CheckpointRestored"} <= EVENTS.keys()
    assert {event for event in EVENTS if f"| `{event}` | " not in RUNBOOK} == set()


def test_every_state_of_a_reset_is_explained() -> None:
    assert {state for state in ResetState if f"| `{state}` |" not in RUNBOOK} == set()


def test_every_alert_has_a_section_with_what_to_do() -> None:
    rules = (ROOT / "charts" / "shardherd" / "templates" / "prometheusrule.yaml").read_text()
    alerts = re.findall(r'\(dict "name" "(\w+)"', rules)
    sections = dict(re.findall(r"^### (Shardherd\w+)\n\n(.+)$", RUNBOOK, re.MULTILINE))
    assert len(alerts) > 5
    assert sorted(sections) == sorted(alerts)


def test_every_condition_is_explained() -> None:
    assert {"Ready", "Stalled", "CheckpointLost", "OrderPreserved"} <= CONDITIONS.keys()
    assert {name for name in CONDITIONS if f"| `{name}` | " not in RUNBOOK} == set()


def test_the_definition_names_every_condition() -> None:
    definition = yaml.safe_load((ROOT / "crds" / "consumergroup.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    said = schema["properties"]["status"]["properties"]["conditions"]["description"]
    assert sorted(re.findall(r"[A-Z]\w+", said)) == sorted(CONDITIONS)


def test_every_attribute_of_a_span_is_on_the_page_on_traces() -> None:
    code = [*(ROOT / "operator/shardherd").glob("*/traces/*.py"), *(ROOT / "operator/shardherd").glob("*/trace*.py")]
    code.append(ROOT / "operator/shardherd/telemetry/spans.py")
    names = {name for file in code for name in re.findall(r'"((?:shardherd|spark|http)\.[a-z_.]+)"', file.read_text())}
    page = (ROOT / "docs" / "traces.md").read_text()
    # A name after another one of its table's row is without its beginning.
    said = set(re.findall(r"`([a-z_.]+)`", page))
    assert {"shardherd.group", "shardherd.write.bytes", "spark.batch", "http.response.status_code"} <= names
    assert {name for name in names if not {name, name.removeprefix("shardherd"), name.removeprefix("spark")} & said} == set()


def test_every_error_code_is_explained() -> None:
    codes = {error.code for error in errors.ShardherdError.__subclasses__()}
    assert {code for code in codes if f"`{code}`" not in RUNBOOK} == set()


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_every_link_to_a_file_of_ours_leads_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")}
    assert {link for link in links if link and not ((ROOT / document).parent / link).exists()} == set()


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in lines}


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_every_link_to_a_section_of_ours_leads_to_one(document: str) -> None:
    place = ROOT / document
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", place.read_text()) if not link.startswith("http")]
    targets = {(place.parent / page if page else place, anchor) for page, _, anchor in links if anchor}
    assert {(page.name, anchor) for page, anchor in targets if anchor not in headings(page)} == set()


def test_the_page_on_compatibility_names_the_versions_that_are_tested() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    rows = {row[0]: row[1:] for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)}
    broker = re.findall(r"<kafka.version>(\d+\.\d+)", (KEPT / "kafka" / "pom.xml").read_text())
    helm = re.findall(r"helm\.sh/helm/v4 v(\d+\.\d+)", (KEPT / "helm" / "go.mod").read_text())
    tested = [rows[name][1] for name in ("Kubernetes", "Kafka brokers", "Spark", "Helm")]
    assert tested == [KUBERNETES_VERSION.rpartition(".")[0], *broker, pyspark.__version__.rpartition(".")[0], *helm]
    oldest = yaml.safe_load((ROOT / "charts" / "shardherd" / "Chart.yaml").read_text())["kubeVersion"]
    assert rows["Kubernetes"][0].startswith(f"{oldest.removeprefix('>=').removesuffix('.0-0')} and later")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert rows["Python"] == (f"{wanted.removeprefix('>=')} and later", wanted.removeprefix(">="))


PACKAGE = ROOT / "operator" / "shardherd"


def test_the_page_on_the_architecture_names_files_and_folders_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+(?:\.py|/))`", page))
    assert len(named) > 80
    assert {path for path in named if not (PACKAGE / path).exists() and not (ROOT / path).exists()} == set()


def test_the_page_on_the_architecture_has_the_layers_that_are_checked() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## What may import what")[2].split("```")[1]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    package, source, core = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    *lines, of_source, of_core = page.strip().splitlines()
    assert [re.split(r" {2,}", line)[0] for line in lines] == package
    assert (of_source, of_core) == (f"source: {'  >  '.join(source)}", f"core:   {'  >  '.join(core)}")


def folders() -> set[str]:
    """Every folder of the package that has code, below it."""
    found = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    return found - {".", "core", "adapters", "source"}


def test_every_folder_has_its_place_in_the_tree_of_contributing() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("## The tree")[2].partition("\n## ")[0]
    cells = [row.split(" | ")[0] for row in tree.splitlines() if row.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert folders() - named == set()
    assert {name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()} == set()


@pytest.mark.parametrize(("document", "least"), [("safety.md", 50), ("security.md", 30), ("source-values.md", 4)])
def test_every_test_that_a_page_names_exists(document: str, least: int) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / document).read_text()))
    written = {name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    assert len(named) > least
    assert named - written == set()


@pytest.mark.parametrize(("document", "section"), [("safety.md", "# What makes it safe"), ("security.md", "## What is tested")])
def test_every_rule_of_the_pages_on_safety_and_security_names_a_test(document: str, section: str) -> None:
    text = (ROOT / "docs" / document).read_text().partition(section)[2]
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert len(rows) > 10
    rules = [row for row in rows if not row.endswith("| tests |")]
    assert [row for row in rules if "`test_" not in row] == []
