"""Our resource definition on a real API server. Used by every test that makes a ConsumerGroup."""

from __future__ import annotations

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
