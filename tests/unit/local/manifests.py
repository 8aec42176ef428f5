"""Builds ConsumerGroups as a user writes them."""

from __future__ import annotations

import copy
from typing import Any

from shardherd.controller.merge import merge

Json = dict[str, Any]

SPEC: Json = {
    "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}},
    "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py"},
}


def group(name: str = "clicks", **spec: Any) -> Json:
    """A ConsumerGroup, `spec` merged over an ordinary one."""
    return {
        "apiVersion": "shardherd.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": merge(copy.deepcopy(SPEC), spec),
    }
