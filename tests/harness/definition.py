"""Our resource definition on a real API server. Used by every test that makes a ConsumerGroup."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from dev.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
CRD = ROOT / "crds" / "consumergroup.yaml"
RESOURCE = "consumergroups.shardherd.dev"


def define_resource(cluster: Cluster) -> None:
    """Apply the definition, and return once the API server serves it.

    Not `kubectl wait`, which fails for a definition that is so new that it has no conditions.
    """
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    _until(lambda: _established(cluster), "the definition is not established")
    # kubectl looks categories up in what it remembers of the server; this makes it ask again, until the definition is served.
    served = RESOURCE.partition(".")[0]
    _until(
        lambda: served in cluster.kubectl("api-resources", "--api-group=shardherd.dev", "-o", "name"),
        "the definition is established and not served",
    )


def _established(cluster: Cluster) -> bool:
    conditions = json.loads(cluster.kubectl("get", "crd", RESOURCE, "-o", "json")).get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline, otherwise
