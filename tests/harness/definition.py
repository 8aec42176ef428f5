"""Our resource definition on a real API server. Used by every test that makes a ConsumerGroup."""

from __future__ import annotations

import json
from pathlib import Path

from dev.cluster import Cluster
from dev.demo.report import await_that

ROOT = Path(__file__).resolve().parents[2]
CRD = ROOT / "crds" / "consumergroup.yaml"
RESOURCE = "consumergroups.shardherd.dev"


def define_resource(cluster: Cluster) -> None:
    """Apply the definition, and return once the API server serves it.

    Not `kubectl wait`, which fails for a definition that is so new that it has no conditions.
    """
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    await_that("the definition is established", lambda: established(cluster, RESOURCE), within=60)
    # kubectl looks categories up in what it remembers of the server; this makes it ask again, until the definition is served.
    served = RESOURCE.partition(".")[0]
    await_that(
        "the definition is served",
        lambda: served in cluster.kubectl("api-resources", "--api-group=shardherd.dev", "-o", "name"),
        within=60,
    )


def established(cluster: Cluster, resource: str) -> bool:
    """Whether the API server has taken up the definition of this resource, which was applied before."""
    conditions = json.loads(cluster.kubectl("get", "crd", resource, "-o", "json")).get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)
