"""What the chart renders. Used by the tests of the chart; asks no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from dev.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "shardherd"

REPOSITORY = "registry.example.com/shardherd/operator"
IMAGE = ("--set", f"image.repository={REPOSITORY}")
"""The option of helm without which nothing is rendered: no image is published."""

Json = dict[str, Any]


class Chart:
    """`helm template` with values; what was rendered once is kept."""

    def __init__(self, instance: Cluster, folder: Path) -> None:
        self._instance = instance
        self._folder = folder
        self._rendered: dict[str, str] = {}

    def text(self, values: Json | None = None, *, release: str = "shardherd", namespace: str = "system") -> str:
        """What is rendered, without the resource definition unless it is asked for. Raises ClusterError for wrong values."""
        given: Json = {"crds": {"enabled": False}} | (values or {})
        given["image"] = {"repository": REPOSITORY} | given.get("image", {})
        key = json.dumps([given, release, namespace], sort_keys=True)
        if key not in self._rendered:
            file = self._folder / "values.json"
            file.write_text(json.dumps(given))
            self._rendered[key] = self._instance.helm(
                "template", release, str(CHART), "--namespace", namespace, "--values", str(file)
            )
        return self._rendered[key]

    def render(self, values: Json | None = None, *, release: str = "shardherd", namespace: str = "system") -> list[Json]:
        """The manifests."""
        text = self.text(values, release=release, namespace=namespace)
        return [item for item in yaml.safe_load_all(text) if item]

    def one(self, kind: str, name: str = "shardherd", values: Json | None = None, **where: str) -> Json:
        """The only manifest of this kind and name."""
        (found,) = [item for item in self.render(values, **where) if (item["kind"], item["metadata"]["name"]) == (kind, name)]
        return found

    def kinds(self, values: Json | None = None) -> set[str]:
        """The kinds of what is rendered."""
        return {item["kind"] for item in self.render(values)}


EVERYTHING: Json = {
    "watchNamespaces": ["shop", "web"],
    "applicationNamespaces": ["shop", "web"],
    "commonLabels": {"team": "data"},
    "metrics": {"tokenSecret": "scrapers"},
    "prometheus": {
        "serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True},
        "rules": {"enabled": True, "alertLabels": {"team": "data"}, "runbookUrl": "https://example.com/reasons.md"},
    },
    "dashboards": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "applications": True,
        "pageFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "api-servers"}}}],
    },
    "page": {"enabled": True},
    "tracing": {"enabled": True, "endpoint": "http://otel-collector.monitoring:4318"},
}
"""Values that turn on all that is off by default."""


def selected(**selector: Any) -> Json:
    """Values by which namespaces are chosen by their labels."""
    return {"watchNamespaceSelector": selector}


SELECTED = selected(matchLabels={"shardherd.dev/operator": "a"})

ROLES_ONLY: Json = {"rbac": {"clusterRoles": False}, "watchNamespaces": ["shop"], "applicationNamespaces": ["shop"]}
"""An install by somebody who owns two namespaces and nothing of the cluster."""
