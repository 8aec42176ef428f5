"""Reads manifest files, the same as for a cluster, and puts what they declare into the state folder.

A file may hold several documents: ConsumerGroups, and the Secrets and ConfigMaps that they use. Other kinds are named and left
alone. Called by `up` and `apply`. Raises ManifestError, and what `schema` refuses.
"""

from __future__ import annotations

import base64
import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardherd.adapters.local.node import FOLDER
from shardherd.adapters.local.objects import CONFIG_MAP, GROUP, SECRET, Json, Objects
from shardherd.local.machine import settled
from shardherd.local.schema import admitted

NAMESPACE = "default"
"""Where a document is that does not say."""

SERVER = ("uid", "creationTimestamp", "generation", "resourceVersion")


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
            metadata = document.setdefault("metadata", {})
            metadata.setdefault("namespace", NAMESPACE)
            kind = document.get("kind")
            if kind == GROUP:
                warnings += _declare_group(objects, document, (app_dir or file.parent).resolve(), bootstrap, python)
                groups.append((metadata["namespace"], metadata["name"]))
            elif kind in (SECRET, CONFIG_MAP):
                _replace(objects, _plain(document))
            else:
                warnings.append(
                    f"{file}: a {kind} named {metadata.get('name')!r} has no meaning on one machine and is left out"
                )
    if not groups:
        raise ManifestError(f"no ConsumerGroup stands in {', '.join(map(str, files))}: add one, or name another file by -f")
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
    if bootstrap:
        source = document.get("spec", {}).get("source", {})
        if isinstance(source.get("kafka"), dict):
            source["kafka"]["bootstrapServers"] = bootstrap
    warnings: list[str] = []

    def edit(known: Json | None) -> Json:
        made, found = settled(admitted(document, known), os.cpu_count() or 1, python)
        warnings[:] = found
        made["metadata"].setdefault("annotations", {})[FOLDER] = str(folder)
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


def documents(file: Path) -> list[Json]:
    """The documents of a manifest file. Raises ManifestError."""
    try:
        found = [document for document in yaml.safe_load_all(file.read_text()) if document is not None]
    except OSError as error:
        raise ManifestError(f"{file} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{file} is not YAML: {error}") from error
    wrong = [document for document in found if not isinstance(document, dict)]
    if wrong:
        raise ManifestError(
            f"{file}: a document is not an object but {type(wrong[0]).__name__}: write apiVersion, kind, metadata"
        )
    return found


def _plain(document: Mapping[str, Any]) -> Json:
    """A Secret's `stringData` is another way to write its `data`."""
    made = dict(document)
    texts = made.pop("stringData", None) or {}
    if texts:
        made["data"] = {
            **(made.get("data") or {}),
            **{key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()},
        }
    return made
