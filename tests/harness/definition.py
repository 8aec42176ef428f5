"""Our resource definition on a real API server. Used by every test that makes a ConsumerGroup."""

from __future__ import annotations

import time
from pathlib import Path

from dev.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
CRD = ROOT / "crds" / "consumergroup.yaml"
RESOURCE = "consumergroups.shardherd.dev"

_ESTABLISHED = '{.status.conditions[?(@.type=="Established")].status}'


def define_resource(cluster: Cluster) -> None:
    """Apply the definition, and return once the API server serves it.

    Not `wait --for=condition`, which fails for a definition that is so new that it has no conditions.
    """
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    cluster.kubectl("wait", f"--for=jsonpath={_ESTABLISHED}=True", f"crd/{RESOURCE}", "--timeout=60s")
    # kubectl looks categories up in what it remembers of the server; this makes it ask again, until the definition is served.
    deadline = time.monotonic() + 30
    while RESOURCE.partition(".")[0] not in cluster.kubectl("api-resources", "--api-group=shardherd.dev", "-o", "name"):
        assert time.monotonic() < deadline, "the definition is established and not served"
