"""ConsumerGroups for the end-to-end tests, made from the example application's own manifest. Holds no assertion."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from dev.demo.kube import Json
from dev.demo.story import MANIFEST
from dev.demo.story import NAMESPACE as DEMO

RESOURCE = "consumergroups.shardherd.dev"
CALLERS, VARIANTS, WRONG = "callers", "variants", "wrong"
NAMESPACES = (DEMO, CALLERS, VARIANTS, WRONG)


def example() -> Json:
    """The manifest of spark_apps/clickstream."""
    found: Json = yaml.safe_load(MANIFEST.read_text())
    return found


def group(name: str, namespace: str, **changes: Any) -> Json:
    """The example under another name. A change is a path with `__` for the dots below `spec`, and a value; None removes."""
    made = copy.deepcopy(example())
    made["metadata"] = {"name": name, "namespace": namespace}
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = made["spec"]
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return made
