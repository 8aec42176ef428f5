"""Writes the tables of the documentation from what they describe: the resource definition, the metrics, the source's options,
the reasons that a group's status, its Events and its rebalances give, the command line's exit codes.

`python -m dev.reference` rewrites the files; a test fails while one is out of date. It changes nothing outside of its markers.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardherd.core.model.event_reasons import EVENTS, REBALANCES
from shardherd.core.model.reasons import CONDITIONS, REASONS, SCALING, STUCK_SHARDS
from shardherd.core.model.verdicts import MEANINGS as VERDICTS
from shardherd.inspect.commands import EXIT
from shardherd.source.security.kafka_settings import SETTINGS
from shardherd.spark.kinesis import readers
from shardherd.spark.kinesis.options import KINESIS_OPTIONS
from shardherd.spark.option_table import OPTIONS, Mode
from shardherd.spark.schema import MEANINGS, columns
from shardherd.telemetry import metrics

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference.md"
SOURCE = ROOT / "docs" / "source.md"
KINESIS = ROOT / "docs" / "kinesis.md"
RUNBOOK = ROOT / "docs" / "reasons.md"
MODULES = ROOT / "docs" / "modules.md"
COMMAND_LINE = ROOT / "docs" / "command-line.md"
DAY_TWO = ROOT / "docs" / "day-two.md"
DOCUMENTS = (REFERENCE, SOURCE, KINESIS, RUNBOOK, MODULES, COMMAND_LINE, DAY_TWO)
PRODUCT = ROOT / "operator" / "shardherd"
DEFINITION = ROOT / "crds" / "consumergroup.yaml"


def fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every field below an object of the schema that has a value of its own: (path, its schema)."""
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if child.get("type") == "object" and child.get("properties"):
            if child.get("description"):
                yield here, {**child, "default": None}
            yield from fields(child, here)
        else:
            yield here, child
            if child.get("type") == "array" and "properties" in child.get("items", {}) and "conditions" not in here:
                yield from fields(child["items"], f"{here}[]")


def kind_of(schema: Mapping[str, Any]) -> str:
    """The type of a field as a reader wants it."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    limits = f" {low} to {high}" if low is not None and high is not None else ""
    return f"{schema.get('type', 'any')}{limits}"


def definition_table(part: str) -> str:
    """`spec` or `status` of a ConsumerGroup."""
    definition = yaml.safe_load(DEFINITION.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for path, field in fields(schema, part):
        default = field.get("default")
        shown = "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        meaning = " ".join(str(field.get("description", "")).split()).replace("|", "\\|")
        rows.append(f"| `{path}` | {kind_of(field)} | {shown} | {meaning} |")
    return "\n".join(rows)


def metrics_table() -> str:
    """Every metric, by its base name."""
    found = [metric for metric in vars(metrics).values() if isinstance(metric, metrics.Metric)]
    rows = ["| metric | labels | meaning |", "|---|---|---|"]
    rows += [f"| `{m.name}` | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |" for m in found]
    return "\n".join(rows)


def options_table() -> str:
    """Every option of the source, and where it has a meaning."""
    rows = ["| option | by itself | batch | in a group | default | meaning |", "|---|---|---|---|---|---|"]
    for option in OPTIONS:
        where = " | ".join("yes" if mode in option.modes else "" for mode in (Mode.STREAM, Mode.BATCH, Mode.GROUP))
        rows.append(f"| `{option.name}` | {where} | {option.default} | {option.meaning} |")
    return "\n".join(rows)


def kafka_settings_table() -> str:
    """Every Kafka setting that the source takes."""
    rows = ["| option | meaning |", "|---|---|"]
    return "\n".join(rows + [f"| `kafka.{setting.name}` | {setting.meaning} |" for setting in SETTINGS])


def columns_table() -> str:
    """Every column of the source."""
    kinds = {field.name: field.dataType.simpleString() for field in columns(headers=True).fields}
    rows = ["| column | type | meaning |", "|---|---|---|"]
    return "\n".join(rows + [f"| `{name}` | {kind} | {MEANINGS[name]} |" for name, kind in kinds.items()])


def kinesis_options_table() -> str:
    """Every option of a query that reads Kinesis."""
    rows = ["| option | by itself | batch | in a group | default | meaning |", "|---|---|---|---|---|---|"]
    for option in KINESIS_OPTIONS:
        where = " | ".join("yes" if mode in option.modes else "" for mode in (Mode.STREAM, Mode.BATCH, Mode.GROUP))
        rows.append(f"| `{option.name}` | {where} | {option.default} | {option.meaning} |")
    return "\n".join(rows)


def kinesis_columns_table() -> str:
    """Every column of a query that reads Kinesis."""
    kinds = {field.name: field.dataType.simpleString() for field in readers.SCHEMA.fields}
    rows = ["| column | type | meaning |", "|---|---|---|"]
    return "\n".join(rows + [f"| `{name}` | {kind} | {readers.MEANINGS[name]} |" for name, kind in kinds.items()])


def reasons_table() -> str:
    """Every reason of a condition, the conditions that it may stand in, and what to do."""
    rows = ["| reason | condition | cause | remedy |", "|---|---|---|---|"]
    for reason in REASONS:
        if conditions := [f"`{place}`" for place in reason.places if place in CONDITIONS]:
            rows.append(f"| `{reason.value}` | {', '.join(conditions)} | {reason.meaning} | {reason.remedy} |")
    return "\n".join(rows)


def scaling_table() -> str:
    """Every reason for the number of consumers that no condition has."""
    return meanings("reason", {reason.value: reason.meaning for reason in REASONS if reason.places == (SCALING,)})


def stuck_shards_table() -> str:
    """Every reason why a shard stands still."""
    found = [reason for reason in REASONS if STUCK_SHARDS in reason.places]
    rows = ["| reason | meaning | remedy |", "|---|---|---|"]
    return "\n".join(rows + [f"| `{reason.value}` | {reason.meaning} | {reason.remedy} |" for reason in found])


def meanings(head: str, table: Mapping[str, str], heading: str = "meaning") -> str:
    """A table of names and what each means."""
    return "\n".join([f"| {head} | {heading} |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in table.items())])


def modules_tables() -> str:
    """Every module of the product by its folder, and the first sentence of its docstring."""
    folders: dict[str, list[str]] = {}
    for path in sorted(PRODUCT.rglob("*.py")):
        module, folder = path.relative_to(PRODUCT), path.parent.relative_to(PRODUCT)
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        sentence = " ".join(docstring.partition("\n\n")[0].split()).replace("|", "\\|")
        if module.name != "__init__.py":
            folders.setdefault(folder.as_posix(), []).append(f"| `{module.name}` | {sentence} |")
    head = "| module | what it is about |\n|---|---|\n"
    titles = {folder: "## The folder itself" if folder == "." else f"## {folder}" for folder in folders}
    return "\n\n".join(f"{titles[folder]}\n\n{head}" + "\n".join(rows) for folder, rows in folders.items())


TABLES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    REFERENCE: {
        "spec": lambda: definition_table("spec"),
        "status": lambda: definition_table("status"),
        "metrics": metrics_table,
    },
    SOURCE: {"options": options_table, "kafka settings": kafka_settings_table, "columns": columns_table},
    KINESIS: {"kinesis options": kinesis_options_table, "kinesis columns": kinesis_columns_table},
    RUNBOOK: {
        "conditions": lambda: meanings("condition", CONDITIONS, "True means"),
        "reasons": reasons_table,
        "scaling": scaling_table,
        "stuck shards": stuck_shards_table,
        "events": lambda: meanings("Event", EVENTS),
        "rebalances": lambda: meanings("reason", REBALANCES),
    },
    MODULES: {"modules": modules_tables},
    DAY_TWO: {"verdicts": lambda: meanings("verdict", {verdict.value: text for verdict, text in VERDICTS.items()})},
    COMMAND_LINE: {"exit codes": lambda: meanings("code", {str(code): text for code, text in EXIT.items()})},
}


def rendered(path: Path) -> str:
    """That document with every table as it should be now."""
    document = path.read_text()
    for name, table in TABLES[path].items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in document or end not in document:
            raise ValueError(f"{path} has no markers {begin} and {end}: put them where the table belongs")
        head, rest = document.split(begin, 1)
        document = f"{head}{begin}\n{table()}\n{end}{rest.split(end, 1)[1]}"
    return document


if __name__ == "__main__":
    for each in DOCUMENTS:
        each.write_text(rendered(each))
        sys.stdout.write(f"{each.relative_to(ROOT)}\n")
