"""A real single-node Kubernetes, Kafka and Prometheus on this machine, from package registries alone.

`from dev.cluster import Cluster` for fixtures and the demo; `python3 -m dev.cluster --help` for people. Needs nothing but the
standard library, so that it runs before the project's environment exists. No part of the product imports it.
"""

from dev.cluster.cluster import Cluster
from dev.cluster.errors import ClusterError

__all__ = ["Cluster", "ClusterError"]
