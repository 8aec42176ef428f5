"""Reads manifest files, the same as for a cluster, and puts what they declare into the state folder.

A file may hold several documents: ConsumerGroups, and the Secrets and ConfigMaps that they use. Other kinds are named and left
alone. Called by `up` and `apply`. Raises ManifestError, and what `schema` refuses.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardherd.adapters.local.node import FOLDER
from shardherd.adapters.local.objects import CONFIG_MAP, GROUP, SECRET, Json, Objects
from shardherd.local.machine import settled
from shardherd.local.schema import admitted

STDIN = Path("-")
"""The manifest file that is standard input, as it is for kubectl."""

NAMESPACE = "default"
"""Where a document is that does not say."""

SERVER = ("uid", "creationTimestamp", "generation", "resourceVersion")

_MERGE = "tag:yaml.org,2002:merge"

_LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile("(?!\\.\\.)(?!\\.$)[-._a-zA-Z0-9]{1,253}")
"""Of a Secret or a ConfigMap: a file of that name stays in its folder."""


class ManifestError(Exception):
    """A manifest file that cannot be used. The message names it, what is wrong, and the remedy."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What was put into the state folder: the groups' (namespace, name), and the warnings about them."""

    groups: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


def declare(
    objects: Objects, files: Iterable[Path], *, bootstrap: str = "", app_dir: Path | None = None, python: str = "python"
) -> Declared:
    """Put what these files declare into the state folder. Raises ManifestError, RefusedError."""
    groups: list[tuple[str, str]] = []
    warnings: list[str] = []
    for file in files:
        for document in documents(file):
            metadata = document["metadata"]
            metadata["namespace"] = metadata.get("namespace") or NAMESPACE
            kind = document.get("kind")
            if kind == GROUP:
                warnings += _declare_group(objects, document, (app_dir or file.parent).resolve(), bootstrap, python)
                groups.append((metadata["namespace"], metadata["name"]))
            elif kind in (SECRET, CONFIG_MAP):
                _replace(objects, _plain(called(file), document))
            else:
                warnings.append(
                    f"{called(file)}: a {kind} named {metadata.get('name')!r} has no meaning on one machine and is left out"
                )
    if not groups:
        raise ManifestError(f"no ConsumerGroup stands in {', '.join(map(called, files))}: add one, or name another file by -f")
    return Declared(tuple(groups), tuple(warnings))


def scaled(objects: Objects, namespace: str, name: str, replicas: int) -> None:
    """Set how many consumers a group has, as `kubectl scale` does. Raises ManifestError, RefusedError."""

    def edit(known: Json | None) -> Json:
        if known is None:
            raise ManifestError(f"there is no ConsumerGroup {name!r} in namespace {namespace!r}: see shardherd local status")
        changed = copy.deepcopy(known)
        changed["spec"]["replicas"] = replicas
        return admitted(changed, known)

    objects.change((GROUP, namespace, name), edit)


def drop_others(objects: Objects, groups: Iterable[tuple[str, str]]) -> list[str]:
    """Delete the groups that are not named; their names."""
    kept, dropped = set(groups), []
    for group in objects.all(GROUP):
        metadata = group["metadata"]
        if (metadata["namespace"], metadata["name"]) not in kept:
            objects.change((GROUP, metadata["namespace"], metadata["name"]), lambda _: None)
            dropped.append(f"{metadata['namespace']}/{metadata['name']}")
    return dropped


def _declare_group(objects: Objects, document: Json, folder: Path, bootstrap: str, python: str) -> list[str]:
    kafka: Any = document
    for name in ("spec", "source", "kafka"):
        kafka = kafka.get(name) if isinstance(kafka, dict) else None
    if bootstrap and isinstance(kafka, dict):
        kafka["bootstrapServers"] = bootstrap
    warnings: list[str] = []

    def edit(known: Json | None) -> Json:
        made, found = settled(admitted(document, known), os.cpu_count() or 1, python)
        warnings[:] = found
        made["metadata"]["annotations"] = {**(made["metadata"].get("annotations") or {}), FOLDER: str(folder)}
        if known is not None:
            made["metadata"] |= {name: known["metadata"][name] for name in SERVER}
            if "status" in known:
                made["status"] = known["status"]
        return made

    metadata = document["metadata"]
    objects.change((GROUP, metadata["namespace"], str(metadata.get("name", ""))), edit)
    return [f"ConsumerGroup {metadata['namespace']}/{metadata['name']}: {warning}" for warning in warnings]


def _replace(objects: Objects, made: Json) -> None:
    metadata = made["metadata"]
    objects.change((made["kind"], metadata["namespace"], metadata["name"]), lambda _: made)


class _Loader(yaml.SafeLoader):
    """Reads YAML as kubectl does, for which a time without quotes is a text. A name that is there twice is an error, as to YAML
    itself: all but the last would be left out."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        names: set[str] = set()
        for name in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if name.value in names and name.tag != _MERGE:
                raise yaml.MarkedYAMLError(
                    problem=f"{name.value!r} is there twice: leave one of them out", problem_mark=name.start_mark
                )
            names.add(name.value)
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def documents(file: Path) -> list[Json]:
    """The documents of a manifest file, as JSON, each with its metadata. Raises ManifestError."""
    name = called(file)
    try:
        # The loader is a safe one.
        found = [each for each in yaml.load_all(_read(file), _Loader) if each is not None]
        return [_document(name, each) for each in found]
    except OSError as error:
        raise ManifestError(f"{name} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ManifestError(f"{name} is nested too deep, or contains itself; write it out") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"{name} is not YAML: {error}") from error


def called(file: Path) -> str:
    """What messages call a manifest file."""
    return "standard input" if file == STDIN else str(file)


def _read(file: Path) -> str:
    """The text of a manifest file. Raises OSError, UnicodeDecodeError, ManifestError."""
    if file != STDIN:
        return file.read_text(encoding="utf-8")
    if sys.stdin is None:  # it was closed by whoever started us
        raise ManifestError(f"{called(file)} is closed: name a file by -f")
    return sys.stdin.buffer.read().decode()


def _document(file: str, found: Any) -> Json:
    if not isinstance(found, dict):
        raise ManifestError(f"{file}: a document is not an object but {type(found).__name__}: write apiVersion, kind, metadata")
    made: Json = _as_json(file, found, "")
    metadata = made["metadata"] = _object(file, "metadata", made.get("metadata"))
    for name in ("name", "namespace"):
        if metadata.get(name) is not None:
            _text(file, f"metadata.{name}", metadata[name])
    if (namespace := metadata.get("namespace")) and _LABEL.fullmatch(namespace) is None:
        raise ManifestError(
            f"{file}: metadata.namespace is {_shown('metadata.namespace', namespace)}; write at most 63 lowercase letters,"
            " digits and '-', with a letter or digit at both ends"
        )
    for name in ("labels", "annotations"):
        for key, text in _object(file, f"metadata.{name}", metadata.get(name)).items():
            _text(file, f"metadata.{name}.{key}", text)
    return made


def _as_json(file: str, value: Any, path: str) -> Any:
    """What JSON has of YAML: names are texts. Raises ManifestError."""
    if isinstance(value, dict):
        return {(key := _name(file, name, path)): _as_json(file, item, f"{path}.{key}") for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(file, item, f"{path}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, str):
        known = value.isascii() or value == value.encode(errors="replace").decode()
    else:
        known = value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
    if not known:
        field = path.removeprefix(".")
        raise ManifestError(
            f"{file}: {field} is {_shown(field, value)}; write what JSON has: texts, numbers, true, false, null"
        )
    return value


def _name(file: str, name: Any, path: str) -> str:
    if isinstance(name, (bool, int)):
        return json.dumps(name)
    if not isinstance(name, str):
        raise ManifestError(f"{file}: {path.removeprefix('.') or 'a document'} has the name {name!r}; write names as texts")
    return name


def _shown(field: str, value: Any) -> str:
    """The value for a message; of what may be secret only its type."""
    if re.match(r"(data|stringData)\b", field):
        return f"of the type {type(value).__name__}"
    try:
        return json.dumps(value, allow_nan=False)[:80]
    except (TypeError, ValueError):
        return repr(value)[:80]


def _object(file: str, field: str, value: Any) -> Json:
    """An object; none if there is nothing. Raises ManifestError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ManifestError(f"{file}: {field} is {_shown(field, value)}; write an object, {field.rpartition('.')[2]}: {{...}}")
    return value


def _text(file: str, field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ManifestError(f"{file}: {field} is {_shown(field, value)}; write a text, in quotes")
    return value


def _plain(file: str, document: Mapping[str, Any]) -> Json:
    """A Secret or a ConfigMap. A Secret's `stringData` is another way to write its `data`. Raises ManifestError."""
    made = dict(document)
    if not made["metadata"].get("name"):
        raise ManifestError(f"{file}: a {made['kind']} without metadata.name: name it")
    for field in ("data", "stringData", "binaryData"):
        for key in _object(file, field, made.get(field)):
            if _KEY.fullmatch(key) is None:
                raise ManifestError(f"{file}: {field} has the key {key[:80]!r}; write letters, digits, '-', '_' and '.'")
    data = _texts(file, made, "data")
    for field in ("data", "binaryData") if made["kind"] == SECRET else ("binaryData",):
        _check_base64(file, field, made)
    if made["kind"] != SECRET:
        return made
    texts = _object(file, "stringData", made.pop("stringData", None))
    written = {key: base64.b64encode(_text(file, f"stringData.{key}", text).encode()) for key, text in texts.items()}
    return {**made, "data": {**data, **{key: text.decode() for key, text in written.items()}}}


def _texts(file: str, document: Mapping[str, Any], field: str) -> dict[str, str]:
    return {key: _text(file, f"{field}.{key}", text) for key, text in _object(file, field, document.get(field)).items()}


def _check_base64(file: str, field: str, document: Mapping[str, Any]) -> None:
    """Raises ManifestError."""
    for key, text in _texts(file, document, field).items():
        try:
            base64.b64decode(text.replace("\n", ""), validate=True)
        except (binascii.Error, ValueError) as error:
            other = "stringData" if field == "data" else "data"
            raise ManifestError(f"{file}: {field}.{key} is not base64; write it so, or below {other} as it is") from error
