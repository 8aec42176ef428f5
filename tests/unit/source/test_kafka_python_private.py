"""What is relied upon of kafka-python's inside is there, in the version that was looked at, and nothing else is touched."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from kafka.net.manager import KafkaConnectionManager
from kafka.version import __version__

import shardherd
from shardherd.source.kafka.connection_manager import ClientManager
from shardherd.source.kafka.wide_reads import FetchManager
from shardherd.source.kafka_python import private
from shardherd.source.kafka_python.private import RELIED_UPON, VERSION, Private

PACKAGE = Path(shardherd.__file__).parent
OURS = PACKAGE / "source" / "kafka_python" / "private.py"
LOCKS = (PACKAGE.parents[1] / "requirements").glob("*.lock")

PUBLIC = {"SaslMechanism", "AbstractTokenProvider", "FetchRequest", "RequestHeader", "KafkaConnectionError", "Serializer"}
"""Classes of kafka-python that are made to be subclassed, or of which a subclass only says what is public."""


def class_of(each: Private) -> Any:
    module, _, name = each.owner.rpartition(".")
    return getattr(importlib.import_module(module), name)


def assigned(kind: type) -> set[str]:
    """The attributes that a class gives to itself."""
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    return {
        target.attr
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def underscored(tree: ast.AST) -> set[str]:
    """Names with an underscore of other objects than the one that a method is of."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match(r"_(?!_|replace$)", node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def imports_kafka(tree: ast.AST) -> bool:
    named = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    named += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] == "kafka" for name in named)


def test_it_is_the_version_that_was_looked_at() -> None:
    locked = {found for path in LOCKS for found in re.findall(r"^kafka-python==(\S+)", path.read_text(), re.MULTILINE)}
    assert {VERSION, __version__} | locked == {VERSION}, "look at what `private` relies upon, then write the new version there"


@pytest.mark.parametrize("each", RELIED_UPON, ids=lambda each: f"{each.owner.rpartition('.')[2]}.{each.name}")
def test_what_is_relied_upon_is_there(each: Private) -> None:
    kind = class_of(each)
    assert each.why
    if each.takes:
        assert str(inspect.signature(getattr(kind, each.name))) == each.takes
    else:
        assert each.name in assigned(kind)


def test_only_what_is_listed_is_touched() -> None:
    tree = ast.parse(OURS.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    touched = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr)}
    assert touched - own <= {each.name for each in RELIED_UPON}
    assert {each.name for each in RELIED_UPON} <= touched


def test_nobody_else_touches_an_underscored_name_of_kafka_python() -> None:
    touched: dict[str, set[str]] = {}
    derived: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if path == OURS or not imports_kafka(tree):
            continue
        taken = {
            each.asname or each.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kafka"
            for each in node.names
        }
        bases = {
            base.id
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if isinstance(base, ast.Name)
        }
        if names := underscored(tree):
            touched[path.name] = names
        if names := (bases & taken) - PUBLIC:
            derived[path.name] = names
    assert (touched, derived) == ({}, {})


def test_the_hooks_of_the_manager_do_not_hide_what_kafka_python_has() -> None:
    theirs = set(dir(KafkaConnectionManager)) | assigned(KafkaConnectionManager)
    own = {name for name in vars(private.HookedManager) if not name.startswith("__")} | {"net"}
    assert own & theirs == {"_build_transport"}


def test_the_managers_that_are_made_of_it_have_no_private_name_in_common_with_kafka_python() -> None:
    theirs = {name for name in dir(KafkaConnectionManager) if re.match(r"_[^_]", name)}
    theirs |= {name for name in assigned(KafkaConnectionManager) if name.startswith("_")}
    tree = ast.parse((PACKAGE / "source" / "kafka" / "connection_manager.py").read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert theirs & (used | set(vars(ClientManager)) | set(vars(FetchManager))) == set()
